//! What every medium promises, tried on each.

use crate::suite;
use crate::suite::{Failure, Guarded, Pair, Side};
use ringfold_fabric::channel::{Channel, ChannelError, ChannelId, Connection, Endpoint, Handle, Segment};
use ringfold_fabric::memory::Memory;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::Instant;

/// TCP with so many streams between two addresses.
struct Tcp<const STREAMS: usize, const V6: bool>;

impl<const STREAMS: usize, const V6: bool> Pair for Tcp<STREAMS, V6> {
    type Side = End;

    fn pair() -> (End, End) {
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
        (End { connection: to_bob, endpoint: ann }, End { connection: to_ann, endpoint: bob })
    }
}

impl<const STREAMS: usize, const V6: bool> Guarded for Tcp<STREAMS, V6> {
    fn forged(record: &[u8], bytes: u64) -> Vec<u8> {
        let mut record = record.to_vec();
        record[8..].copy_from_slice(&bytes.to_le_bytes());
        record
    }
}

/// An endpoint, and its connection with the other one.
struct End {
    // Dropped in this order: the connection ends before its endpoint.
    connection: Connection,
    endpoint: Endpoint,
}

impl End {
    fn channel(&self, id: u32) -> Channel {
        self.connection.channel(ChannelId(id))
    }
}

impl Side for End {
    type Memory = Segment;
    type Remote = Handle;

    fn register(&self, bytes: Vec<u8>) -> Segment {
        self.endpoint.register(Memory::from(bytes)).unwrap()
    }

    fn tell(&self, memory: &Segment) -> Vec<u8> {
        memory.handle().encode().to_vec()
    }

    fn hear(&self, record: &[u8]) -> Handle {
        Handle::decode(record.try_into().unwrap())
    }

    fn read(&self, memory: &Segment, at: usize, into: &mut [u8]) {
        memory.read(at, into).unwrap();
    }

    fn write(&self, memory: &Segment, at: usize, from: &[u8]) {
        memory.write(at, from).unwrap();
    }

    fn word(&self, memory: &Segment, at: usize) -> u64 {
        memory.word(at).unwrap()
    }

    fn put(&self, from: &Segment, range: Range<usize>, to: &Handle, at: u64) -> Result<(), Failure> {
        Ok(from.part(range).and_then(|part| self.channel(0).put(part, to.at(at)))?)
    }

    fn set_word(&self, to: &Handle, at: u64, value: u64) -> Result<(), Failure> {
        Ok(self.channel(0).set_word(to.at(at), value)?)
    }

    fn signal(&self, channel: u32) -> Result<(), Failure> {
        Ok(self.channel(channel).signal()?)
    }

    fn wait(&self, channel: u32, deadline: Instant) -> Result<(), Failure> {
        Ok(self.channel(channel).wait(deadline)?)
    }

    fn poll(&self, channel: u32) -> Result<bool, Failure> {
        Ok(self.channel(channel).poll()?)
    }

    fn flush(&self, deadline: Instant) -> Result<(), Failure> {
        Ok(self.channel(0).flush(deadline)?)
    }

    fn confirm(&self, deadline: Instant) -> Result<(), Failure> {
        Ok(self.channel(0).confirm(deadline)?)
    }

    fn abort(&self, why: &str) {
        self.connection.abort(why);
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        let words = error.to_string();
        match error {
            ChannelError::Deadline { .. } => Self::Late(words),
            ChannelError::Aborted { .. } => Self::Aborted(words),
            ChannelError::Lost { .. } => Self::Lost(words),
            ChannelError::Misuse(_) => Self::Misuse(words),
            ChannelError::Full { .. } => Self::Other(words),
        }
    }
}

suite::every_medium_promises!(tcp_v4, Tcp<1, false>);
suite::every_medium_promises!(tcp_v6, Tcp<1, true>);
suite::every_medium_promises!(tcp_four_streams, Tcp<4, false>);
suite::queueing_media_promise!(tcp_v4_queue, Tcp<1, false>);
suite::queueing_media_promise!(tcp_four_streams_queue, Tcp<4, false>);
suite::guarded_media_promise!(tcp_v4_guard, Tcp<1, false>);
suite::guarded_media_promise!(tcp_four_streams_guard, Tcp<4, false>);

/// An end that writes whatever it likes to a connection with an endpoint.
mod hostile {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Duration;

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

    /// A peer that sends this is aborted with an error.
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
        assert_eq!(error.to_string(), "timed out waiting for mallory to take what was put");
        channel.abort("it does not read");
        drop(channel);
        let begun = Instant::now();
        drop(endpoint);
        assert!(begun.elapsed() < suite::LONG, "{:?}", begun.elapsed());
        drop(stream);
    }

    #[test]
    fn words_that_can_not_be_end_the_connection() {
        is_aborted_for(&head(4, 16, [0, 0, 0]));
        let why = is_aborted_for(&[head(4, 8, [0, 12345, 0]), vec![1; 8]].concat());
        assert!(why.contains("not registered"), "{why}");
        for offset in [4, 60, 64, u64::MAX - 4] {
            let (mut stream, endpoint, channel) = victim();
            let segment = endpoint.register(Memory::zeroed(64)).unwrap();
            let id = u64::from_le_bytes(segment.handle().encode()[..8].try_into().unwrap());
            stream.write_all(&[head(4, 8, [0, id, offset]), vec![1; 8]].concat()).unwrap();
            let error = channel.wait(Instant::now() + suite::LONG).unwrap_err();
            assert!(matches!(error, ChannelError::Aborted { .. }), "{error}");
            let mut bytes = [0; 64];
            segment.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 64]);
        }
    }

    #[test]
    fn answers_that_nobody_asked_for_end_the_connection() {
        is_aborted_for(&head(6, 0, [0, 1, 0]));
        is_aborted_for(&head(6, 0, [0, u64::MAX, 0]));
    }

    #[test]
    fn a_flood_of_questions_costs_no_memory_and_is_answered() {
        let (mut stream, _endpoint, channel) = victim();
        let flood: Vec<u8> = (0..100_000).flat_map(|number| head(5, 0, [number, number, 0])).collect();
        stream.write_all(&flood).unwrap();
        let end = Instant::now() + suite::LONG;
        let mut answer = [0; 32];
        while u64::from_le_bytes(answer[16..24].try_into().unwrap()) < 99_999 {
            assert!(Instant::now() < end && !channel.poll().unwrap());
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer[0], 6);
        }
    }
}
