//! Queued output of a connection. Sockets get one frame at a time, so that an abort finds little before it.

use super::segment::{Part, Place};
use super::wire::{Body, Head};
use crate::limits;
use crate::memory::Lease;
use ringfold_plan::medium::Ticket;
use std::collections::{BTreeMap, VecDeque};

/// Puts and signals in order.
#[derive(Default, Debug)]
pub struct Outbox {
    jobs: VecDeque<Job>,
    next_place: u64,
    /// The number of the last put.
    last_put: u64,
    /// Puts whose memory may still be read, and how many of their frames have not left.
    unflushed: BTreeMap<u64, usize>,
}

#[derive(Debug)]
enum Job {
    /// What is left of a put.
    Put {
        number: u64,
        from: Part,
        to: Place,
    },
    /// A frame without payload.
    Bare(Body),
    Word {
        to: Place,
        value: u64,
    },
}

/// A frame that goes out.
pub enum Frame {
    /// Bytes of a put.
    Put(Head, Lease, Ticket),
    /// A head alone.
    Bare(Head),
    /// A head, and a word.
    Word(Head, u64),
}

impl Outbox {
    /// Whether no more can be queued.
    pub fn is_full(&self) -> bool {
        self.jobs.len() >= limits::CHANNEL_JOBS_MAX
    }

    /// Whether sockets have everything.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Queues a put.
    pub fn put(&mut self, from: Part, to: Place) {
        self.last_put += 1;
        let frames = from.range.len().div_ceil(limits::CHANNEL_FRAME_BYTES_MAX).max(1);
        self.unflushed.insert(self.last_put, frames);
        self.jobs.push_back(Job::Put { number: self.last_put, from, to });
    }

    /// Queues a signal. Consecutive ones are sent as one.
    pub fn signal(&mut self, on: u32) {
        match self.jobs.back_mut() {
            Some(Job::Bare(Body::Signal { channel, count })) if *channel == on => *count += 1,
            _ => self.send(Body::Signal { channel: on, count: 1 }),
        }
    }

    /// Queues a word.
    pub fn word(&mut self, to: Place, value: u64) {
        self.jobs.push_back(Job::Word { to, value });
    }

    /// Queues a frame without payload.
    pub fn send(&mut self, body: Body) {
        self.jobs.push_back(Job::Bare(body));
    }

    /// The next frame.
    pub fn next(&mut self) -> Option<Frame> {
        let place = self.next_place;
        let mut is_whole = true;
        let frame = match self.jobs.front_mut()? {
            Job::Bare(body) => Frame::Bare(Head { place, body: *body }),
            Job::Word { to, value } => {
                let body = Body::Word { segment: to.handle.segment(), offset: to.offset };
                Frame::Word(Head { place, body }, *value)
            }
            Job::Put { number, from, to } => {
                let bytes = from.range.len().min(limits::CHANNEL_FRAME_BYTES_MAX);
                let lease = from.take(bytes);
                let segment = to.handle.segment();
                let body = Body::Put { segment, offset: to.offset, bytes: bytes as u32 };
                to.offset += bytes as u64;
                is_whole = from.range.is_empty();
                Frame::Put(Head { place, body }, lease, Ticket(*number))
            }
        };
        if is_whole {
            self.jobs.pop_front();
        }
        self.next_place += 1;
        Some(frame)
    }

    /// A frame of a put has left.
    pub fn flushed(&mut self, put: Ticket) {
        if let Some(frames) = self.unflushed.get_mut(&put.0) {
            *frames -= 1;
            if *frames == 0 {
                self.unflushed.remove(&put.0);
            }
        }
    }

    /// The number of the last put.
    pub fn last_put(&self) -> u64 {
        self.last_put
    }

    /// Whether all puts up to this one have left.
    pub fn is_flushed(&self, up_to: u64) -> bool {
        self.unflushed.first_key_value().is_none_or(|(first, _)| *first > up_to)
    }

    /// Drops everything. Returns the puts of which sockets may hold frames.
    pub fn clear(&mut self) -> Vec<Ticket> {
        let first_left = self.jobs.iter().find_map(|job| match job {
            Job::Put { number, .. } => Some(*number),
            _ => None,
        });
        let last_framed = first_left.unwrap_or(self.last_put);
        self.jobs.clear();
        let framed = self.unflushed.range(..=last_framed).map(|(number, _)| Ticket(*number)).collect();
        self.unflushed.clear();
        framed
    }
}
