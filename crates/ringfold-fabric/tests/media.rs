//! What every medium promises, tried on each.

mod suite;

use suite::{Pair, Side};

use ringfold_fabric::channel::Endpoint;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// TCP with so many streams between two addresses.
struct Tcp<const STREAMS: usize, const V6: bool>;

impl<const STREAMS: usize, const V6: bool> Pair for Tcp<STREAMS, V6> {
    fn pair() -> (Side, Side) {
        let address: SocketAddr = if V6 { "[::1]:0" } else { "127.0.0.1:0" }.parse().unwrap();
        let listener = TcpListener::bind(address).unwrap();
        let (mut dialled, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            dialled.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            accepted.push(listener.accept().unwrap().0);
        }
        // Which stream is which does not matter.
        accepted.reverse();
        let (ann, bob) = (Endpoint::new("ann").unwrap(), Endpoint::new("bob").unwrap());
        let to_bob = ann.connect("bob", dialled).unwrap();
        let to_ann = bob.connect("ann", accepted).unwrap();
        (Side::new(ann, to_bob), Side::new(bob, to_ann))
    }
}

suite::every_medium_promises!(tcp_v4, Tcp<1, false>);
suite::every_medium_promises!(tcp_v6, Tcp<1, true>);
suite::every_medium_promises!(tcp_four_streams, Tcp<4, false>);

/// An end that writes whatever it likes to a connection with an endpoint.
mod hostile {
    use super::*;
    use ringfold_fabric::channel::{Channel, ChannelError, ChannelId};
    use ringfold_fabric::memory::Memory;
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    fn victim() -> (TcpStream, Endpoint, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(suite::LONG)).unwrap();
        let endpoint = Endpoint::new("victim").unwrap();
        let connection = endpoint.connect("mallory", vec![listener.accept().unwrap().0]).unwrap();
        (stream, endpoint, connection.channel(ChannelId(0)))
    }

    fn head(kind: u8, length: u32, numbers: [u64; 3]) -> Vec<u8> {
        let mut head = vec![kind, 0, 0, 0];
        head.extend(length.to_le_bytes());
        head.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        head
    }

    /// Whoever says this is aborted, and told so.
    fn is_aborted_for(said: &[u8]) -> String {
        let (mut stream, _endpoint, channel) = victim();
        stream.write_all(said).unwrap();
        let Err(ChannelError::Aborted { by, why }) = channel.wait(Instant::now() + suite::LONG) else {
            panic!("{said:?} went unpunished");
        };
        assert_eq!(by, "victim");
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        assert_eq!(told.first(), Some(&3), "{told:?}");
        assert!(String::from_utf8_lossy(&told).ends_with(&why));
        why
    }

    #[test]
    fn what_is_no_frame_ends_the_connection() {
        is_aborted_for(&[7; 32]);
        is_aborted_for(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
        is_aborted_for(&head(1, 1 << 31, [0, 0, 0]));
        is_aborted_for(&head(3, 1 << 20, [0, 0, 0]));
    }

    #[test]
    fn frames_out_of_their_order_end_the_connection() {
        is_aborted_for(&head(2, 0, [1, 0, 1]));
        is_aborted_for(&[head(2, 0, [0, 0, 1]), head(2, 0, [0, 0, 1])].concat());
        is_aborted_for(&head(2, 0, [u64::MAX, 0, 1]));
    }

    #[test]
    fn unregistered_and_absurd_places_are_refused() {
        let why = is_aborted_for(&head(1, 10, [0, 12345, 0]));
        assert!(why.contains("not registered"), "{why}");
        let (mut stream, endpoint, channel) = victim();
        let segment = endpoint.register(Memory::zeroed(64)).unwrap();
        let id = u64::from_le_bytes(segment.handle().encode()[..8].try_into().unwrap());
        stream.write_all(&head(1, 10, [0, id, u64::MAX - 4])).unwrap();
        let error = channel.wait(Instant::now() + suite::LONG).unwrap_err();
        assert!(error.to_string().contains("outside of"), "{error}");
    }

    #[test]
    fn signals_on_endless_channels_end_the_connection() {
        let flood: Vec<u8> = (0..5000).flat_map(|number| head(2, 0, [number, number + 1, 1])).collect();
        is_aborted_for(&flood);
    }

    #[test]
    fn signals_without_number_are_no_overflow() {
        let (mut stream, _endpoint, channel) = victim();
        for place in 0..3 {
            stream.write_all(&head(2, 0, [place, 0, u64::MAX])).unwrap();
        }
        stream.write_all(&head(2, 0, [3, 0, 0])).unwrap();
        channel.wait(Instant::now() + suite::LONG).unwrap();
    }

    #[test]
    fn a_segment_that_goes_while_a_put_comes_is_not_written() {
        let (mut stream, endpoint, channel) = victim();
        let mut bytes = vec![0u8; 1000];
        ringfold_fabric::memory::lend_mut(&mut bytes, |memory| {
            let segment = endpoint.register(memory).unwrap();
            let id = u64::from_le_bytes(segment.handle().encode()[..8].try_into().unwrap());
            stream.write_all(&head(1, 1000, [0, id, 0])).unwrap();
            stream.write_all(&[1; 100]).unwrap();
            let end = Instant::now() + suite::LONG;
            let mut seen = [0; 1];
            while seen[0] == 0 && Instant::now() < end {
                assert!(!channel.poll().unwrap());
                segment.read(99, &mut seen).unwrap();
            }
            assert_eq!(seen, [1]);
        });
        // The rest has nowhere to go, and lending has returned although the put never ended.
        stream.write_all(&[2; 100]).unwrap();
        let error = channel.wait(Instant::now() + suite::LONG).unwrap_err();
        assert!(error.to_string().contains("not registered"), "{error}");
        assert_eq!(bytes[..101].iter().filter(|byte| **byte == 1).count(), 100);
        assert!(!bytes.contains(&2));
    }

    #[test]
    fn an_end_that_reads_nothing_is_left_in_time() {
        let (stream, endpoint, channel) = victim();
        let segment = endpoint.register(Memory::zeroed(64 << 20)).unwrap();
        // It claims a segment and never reads.
        let forged = segment.handle();
        channel.put(segment.part(0..64 << 20).unwrap(), forged.at(0)).unwrap();
        let error = channel.flush(Instant::now() + Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "waited in vain for mallory to take what was put");
        channel.abort("it does not read");
        drop(channel);
        let begun = Instant::now();
        drop(endpoint);
        assert!(begun.elapsed() < suite::LONG, "{:?}", begun.elapsed());
        drop(stream);
    }
}
