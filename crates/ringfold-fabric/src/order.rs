//! The order of frames that travel on several streams, of a link or of a channel's connection.
//!
//! On one stream places only rise. So a stream that has brought a frame which is ahead of its turn can't bring
//! the one that is due, and may be left alone for a while; one that has not is always read. Nothing else is
//! needed to bound what is held, however far the streams drift apart.

use crate::connection::Connection;
use crate::limits;
use std::collections::VecDeque;
use std::io;

/// Frames that came before their turn.
#[derive(Debug)]
pub struct Order<T> {
    /// The place that is due.
    next: u64,
    lanes: Vec<Lane<T>>,
}

/// What one stream brought.
#[derive(Debug)]
struct Lane<T> {
    /// A place that its next frame has at least.
    least: u64,
    early: VecDeque<(u64, T)>,
}

impl<T> Order<T> {
    /// Nothing has come yet.
    pub fn new(streams: usize) -> Self {
        let lanes = (0..streams).map(|_| Lane { least: 0, early: VecDeque::new() }).collect();
        Self { next: 0, lanes }
    }

    /// Whether it is this frame's turn.
    pub fn is_due(&self, place: u64) -> bool {
        place == self.next
    }

    /// Whether a stream may be read. One that is far ahead waits until the others have caught up; the poller does not
    /// report its input meanwhile.
    pub fn may_read(&self, stream: usize, connection: &mut Connection) -> io::Result<bool> {
        let has_room = self.has_room(stream);
        if !has_room {
            connection.set_awaits_input(false)?;
        }
        Ok(has_room)
    }

    fn has_room(&self, stream: usize) -> bool {
        self.lanes[stream].early.len() < limits::EARLY_FRAMES_PER_STREAM_MAX
    }

    /// Takes a frame in.
    pub fn insert(&mut self, stream: usize, place: u64, frame: T) -> io::Result<()> {
        self.check(stream, place)?;
        self.lanes[stream].early.push_back((place, frame));
        Ok(())
    }

    /// A frame was handed over as it came, in its turn.
    pub fn pass(&mut self, stream: usize, place: u64) -> io::Result<()> {
        self.check(stream, place)?;
        if place != self.next {
            return Err(violation("a frame came twice"));
        }
        self.next += 1;
        Ok(())
    }

    /// The frame whose turn it is, and the stream that brought it, which may be read again. It is an error if the frame
    /// can no longer come.
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
        for (stream, lane) in self.lanes.iter_mut().enumerate() {
            if let Some((_, frame)) = lane.early.pop_front_if(|(place, _)| *place == due) {
                self.next += 1;
                return Some((stream, frame));
            }
        }
        None
    }

    /// Whether the frame that is due can no longer come.
    fn has_gap(&self) -> bool {
        self.lanes.iter().all(|lane| lane.early.front().is_some_and(|(place, _)| *place != self.next))
    }

    fn check(&mut self, stream: usize, place: u64) -> io::Result<()> {
        let lane = &mut self.lanes[stream];
        if place < self.next || place < lane.least {
            return Err(violation("a frame came twice, or out of order"));
        }
        lane.least = place.checked_add(1).ok_or_else(|| violation("a frame has an absurd place"))?;
        Ok(())
    }
}

/// The other end did what it may not do.
fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_by_their_places() {
        let mut order = Order::new(3);
        for (stream, place) in [(0, 1), (0, 2), (1, 0), (2, 4), (1, 3)] {
            order.insert(stream, place, place).unwrap();
        }
        let popped: Vec<_> = core::iter::from_fn(|| order.pop()).collect();
        assert_eq!(popped, [(1, 0), (0, 1), (0, 2), (1, 3), (2, 4)]);
        assert!(order.is_due(5));
    }

    #[test]
    fn repeated_and_missing_frames_are_told() {
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
    fn the_stream_that_must_bring_the_next_frame_always_has_room() {
        let mut order = Order::new(2);
        let mut place = 1;
        while order.has_room(0) {
            order.insert(0, place, ()).unwrap();
            place += 1;
        }
        assert!(order.has_room(1) && !order.has_gap());
    }
}
