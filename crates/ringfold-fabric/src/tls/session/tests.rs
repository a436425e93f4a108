use super::*;
use crate::tls::{Encryption, Security};
use std::collections::VecDeque;

/// One end of a pair of queues. A socket that takes few bytes at once.
#[derive(Clone, Default)]
struct Queues {
    sent: Arc<Mutex<VecDeque<u8>>>,
    arriving: Arc<Mutex<VecDeque<u8>>>,
    room: usize,
}

impl Wire for Queues {
    fn receive(&self, place: &mut [u8]) -> io::Result<usize> {
        let mut arriving = self.arriving.lock();
        let bytes = place.len().min(arriving.len());
        if bytes == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        place.iter_mut().zip(arriving.drain(..bytes)).for_each(|(to, byte)| *to = byte);
        Ok(bytes)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = self.sent.lock();
        let taken = bytes.len().min(self.room.saturating_sub(sent.len()));
        if taken == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        sent.extend(&bytes[..taken]);
        Ok(taken)
    }
}

struct End {
    session: TlsSession,
    wire: Queues,
    arrived: Vec<u8>,
}

impl End {
    fn write(&self, data: &[u8]) -> io::Result<usize> {
        let piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        // SAFETY: the piece is a slice.
        unsafe { self.session.write(&self.wire, &[piece]) }
    }

    /// Reads what there is, in pieces of this size.
    fn read(&mut self, piece: usize) -> io::Result<()> {
        let mut place = vec![0; piece];
        loop {
            let (front, back) = place.split_at_mut(piece / 3);
            match self.session.read(&self.wire, &mut [IoSliceMut::new(front), IoSliceMut::new(back)]) {
                Ok(0) => return Ok(()),
                Ok(bytes) => self.arrived.extend(&place[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn pair(room: usize) -> (End, End) {
    let security = || Security::new(Encryption::Always).unwrap();
    let (one, other) = (Arc::default(), Arc::<Mutex<VecDeque<u8>>>::default());
    let dialler = Queues { sent: Arc::clone(&one), arriving: Arc::clone(&other), room };
    let acceptor = Queues { sent: other, arriving: one, room };
    let end = |session, wire| End { session, wire, arrived: Vec::new() };
    (end(security().dial().unwrap(), dialler), end(security().accept().unwrap(), acceptor))
}

fn shaken(room: usize) -> (End, End) {
    let (mut dialler, mut acceptor) = pair(room);
    dialler.write(b"hello").unwrap();
    for _ in 0..10_000 {
        acceptor.read(100).unwrap();
        dialler.read(100).unwrap();
        acceptor.session.flush(&acceptor.wire).unwrap();
        dialler.session.flush(&dialler.wire).unwrap();
    }
    assert_eq!(acceptor.arrived, b"hello");
    acceptor.arrived.clear();
    (dialler, acceptor)
}

#[test]
fn early_data_arrives_and_both_ends_have_the_same_value() {
    let (dialler, acceptor) = shaken(100);
    let (one, other) = (dialler.session.binding().unwrap(), acceptor.session.binding().unwrap());
    assert_eq!(one.exported, other.exported);
    assert_ne!(one.peer, other.peer);
    let (another, _) = shaken(100);
    assert_ne!(another.session.binding().unwrap().exported, one.exported);
}

#[test]
fn large_data_arrives_whole_through_small_sockets() {
    let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i.wrapping_mul(7919) >> 8) as u8).collect();
    for (room, piece) in [(1 << 20, 64 << 10), (5_000, 4_096), (40_000, 3)] {
        let (mut dialler, mut acceptor) = shaken(room);
        let mut sent = 0;
        while acceptor.arrived.len() < data.len() {
            match dialler.write(&data[sent..]) {
                Ok(taken) => sent += taken,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            // Both directions at once.
            let _ = acceptor.write(b"x");
            acceptor.read(piece).unwrap();
            dialler.read(7).unwrap();
        }
        assert!(acceptor.arrived == data && dialler.arrived.iter().all(|byte| *byte == b'x'));
        assert!(!dialler.arrived.is_empty() && !acceptor.session.has_buffered());
    }
}

#[test]
fn what_is_left_of_a_record_is_reported() {
    let (dialler, acceptor) = shaken(1 << 20);
    dialler.write(&[7; 1000]).unwrap();
    let mut place = [0; 10];
    assert_eq!(acceptor.session.read(&acceptor.wire, &mut [IoSliceMut::new(&mut place)]).unwrap(), 10);
    assert!(acceptor.session.has_buffered());
}

#[test]
fn a_changed_byte_ends_the_session() {
    let (dialler, mut acceptor) = shaken(1 << 20);
    dialler.write(&[7; 1000]).unwrap();
    dialler.wire.sent.lock()[500] ^= 1;
    let error = acceptor.read(100).unwrap_err();
    assert_eq!(error.to_string(), "the encrypted session failed: cannot decrypt peer's message");
    assert!(acceptor.arrived.is_empty());
}

#[test]
fn a_repeated_record_ends_the_session() {
    let (dialler, mut acceptor) = shaken(1 << 20);
    dialler.write(&[7; 100]).unwrap();
    let record = dialler.wire.sent.lock().clone();
    dialler.wire.sent.lock().extend(record);
    assert!(acceptor.read(100).is_err());
    assert_eq!(acceptor.arrived, [7; 100]);
}

#[test]
fn nothing_of_the_data_can_be_seen() {
    let (dialler, _acceptor) = shaken(1 << 20);
    dialler.write(&b"pattern!".repeat(1000)).unwrap();
    let sent: Vec<u8> = dialler.wire.sent.lock().iter().copied().collect();
    assert!(sent.len() > 8000 && !sent.windows(4).any(|bytes| bytes == b"patt"));
}

#[test]
fn any_bytes_are_refused_without_a_panic() {
    for first in [0_u8, 20, 21, 22, 23, 255] {
        let (_, mut acceptor) = pair(1 << 20);
        let mut state = u32::from(first) + 1;
        let noise = (0..20_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        acceptor.wire.arriving.lock().extend([first, 3, 3, 1, 0].into_iter().chain(noise));
        assert!(acceptor.read(100).is_err() || acceptor.arrived.is_empty());
    }
}

#[test]
fn a_record_that_is_longer_than_any_is_refused() {
    for length in [5, 100, 10_000, 100_000] {
        let (_, mut acceptor) = pair(1 << 20);
        acceptor.wire.arriving.lock().extend(vec![22; length]);
        let _ = acceptor.read(100);
        let _ = acceptor.read(100);
        acceptor.session.flush(&acceptor.wire).unwrap();
        assert!(acceptor.session.binding().is_none() && acceptor.arrived.is_empty());
    }
}
