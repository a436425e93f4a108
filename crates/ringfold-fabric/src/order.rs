//! The order of frames that arrive on several streams, of a link or of a channel's connection.
//!
//! Each frame has a sequence number, and on one stream the numbers rise. So a stream that has brought an early frame
//! cannot bring the next one in order, and need not be read for a while; all others are read. That bounds what is held.

use crate::connection::Connection;
use crate::limits;
use std::collections::VecDeque;
use std::io;

/// Frames that arrived early.
#[derive(Debug)]
pub struct Order<T> {
    /// The sequence number of the next frame.
    next: u64,
    streams: Vec<EarlyFrames<T>>,
}

/// Early frames of one stream.
#[derive(Debug)]
struct EarlyFrames<T> {
    /// The lowest number that its next frame may have.
    least: u64,
    early: VecDeque<(u64, T)>,
}

impl<T> Order<T> {
    /// The order of a connection with so many streams.
    pub fn new(streams: usize) -> Self {
        Self {
            next: 0,
            streams: (0..streams).map(|_| EarlyFrames { least: 0, early: VecDeque::new() }).collect(),
        }
    }

    /// Whether a frame is the next one.
    pub fn is_due(&self, number: u64) -> bool {
        number == self.next
    }

    /// Whether a stream may be read. If it is far ahead, it is not, and the poller does not report its input.
    pub fn may_read(&self, stream: usize, connection: &mut Connection) -> io::Result<bool> {
        let has_room = self.has_room(stream);
        if !has_room {
            connection.set_awaits_input(false)?;
        }
        Ok(has_room)
    }

    fn has_room(&self, stream: usize) -> bool {
        self.streams[stream].early.len() < limits::EARLY_FRAMES_PER_STREAM_MAX
    }

    /// Holds a frame until it is next.
    pub fn insert(&mut self, stream: usize, number: u64, frame: T) -> io::Result<()> {
        self.check(stream, number)?;
        self.streams[stream].early.push_back((number, frame));
        Ok(())
    }

    /// Notes a frame that was delivered at once, because it was next.
    pub fn pass(&mut self, stream: usize, number: u64) -> io::Result<()> {
        self.check(stream, number)?;
        if number != self.next {
            return Err(violation("a frame was sent twice"));
        }
        self.next += 1;
        Ok(())
    }

    /// The next frame, if it was held, and its stream, which may be read again. An error if that frame is missing on all
    /// streams.
    pub fn next<'s>(
        &mut self,
        socket: impl FnOnce(usize) -> &'s mut Connection,
    ) -> io::Result<Option<(usize, T)>> {
        match self.pop() {
            Some((stream, frame)) => {
                socket(stream).set_awaits_input(true)?;
                Ok(Some((stream, frame)))
            }
            None if self.has_gap() => Err(violation("frames are missing")),
            None => Ok(None),
        }
    }

    fn pop(&mut self) -> Option<(usize, T)> {
        let due = self.next;
        for (stream, early) in self.streams.iter_mut().enumerate() {
            if let Some((_, frame)) = early.early.pop_front_if(|(number, _)| *number == due) {
                self.next += 1;
                return Some((stream, frame));
            }
        }
        None
    }

    /// Whether no stream can bring the next frame any more.
    fn has_gap(&self) -> bool {
        self.streams.iter().all(|stream| stream.early.front().is_some_and(|(number, _)| *number != self.next))
    }

    fn check(&mut self, stream: usize, number: u64) -> io::Result<()> {
        let early = &mut self.streams[stream];
        if number < self.next || number < early.least {
            return Err(violation("a frame was sent twice, or out of order"));
        }
        early.least = number.checked_add(1).ok_or_else(|| violation("invalid sequence number of a frame"))?;
        Ok(())
    }
}

/// The other end broke the protocol.
fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_delivered_by_their_numbers() {
        let mut order = Order::new(3);
        for (stream, number) in [(0, 1), (0, 2), (1, 0), (2, 4), (1, 3)] {
            order.insert(stream, number, number).unwrap();
        }
        let popped: Vec<_> = core::iter::from_fn(|| order.pop()).collect();
        assert_eq!(popped, [(1, 0), (0, 1), (0, 2), (1, 3), (2, 4)]);
        assert!(order.is_due(5));
    }

    #[test]
    fn repeated_and_missing_frames_are_errors() {
        let mut order = Order::new(2);
        order.pass(0, 0).unwrap();
        assert!(order.insert(1, 0, ()).is_err());
        order.insert(0, 2, ()).unwrap();
        assert!(order.insert(0, 2, ()).is_err());
        assert!(!order.has_gap(), "the other stream may bring it");
        order.insert(1, 3, ()).unwrap();
        assert!(order.has_gap());
        assert!(order.insert(1, u64::MAX, ()).is_err());
    }

    #[test]
    fn the_stream_with_the_next_frame_is_always_read() {
        let mut order = Order::new(2);
        let mut number = 1;
        while order.has_room(0) {
            order.insert(0, number, ()).unwrap();
            number += 1;
        }
        assert!(order.has_room(1) && !order.has_gap());
    }
}
