//! What is to be sent on a connection. Sockets get one frame's worth at a time, so that an abort finds little
//! before it.

use super::segment::{Part, Place};
use super::wire::Head;
use crate::limits;
use crate::memory::Lease;
use ringfold_plan::medium::Ticket;
use std::collections::{BTreeMap, VecDeque};

/// Puts and signals in their order.
#[derive(Default, Debug)]
pub struct Outbox {
    jobs: VecDeque<Job>,
    next_place: u64,
    /// The number of the last put.
    last_put: u64,
    /// Puts some of whose bytes may still be read, and how many frames of theirs have not left.
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
    Signal {
        channel: u32,
        count: u64,
    },
    Word {
        to: Place,
        value: u64,
    },
    Ask {
        number: u64,
    },
    Goodbye,
}

/// A frame that goes out.
pub enum Frame {
    /// Bytes of a put.
    Put(Head, Lease, Ticket),
    /// Nothing but a head.
    Bare(Head),
    /// A head, and a word.
    Word(Head, u64),
}

impl Outbox {
    /// Whether no more can be queued.
    pub fn is_full(&self) -> bool {
        self.jobs.len() >= limits::CHANNEL_JOBS_MAX
    }

    /// Whether everything was handed to sockets.
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

    /// Queues a signal. Those that follow each other travel as one.
    pub fn signal(&mut self, on: u32) {
        match self.jobs.back_mut() {
            Some(Job::Signal { channel, count }) if *channel == on => *count += 1,
            _ => self.jobs.push_back(Job::Signal { channel: on, count: 1 }),
        }
    }

    /// Queues a word.
    pub fn word(&mut self, to: Place, value: u64) {
        self.jobs.push_back(Job::Word { to, value });
    }

    /// Queues a question.
    pub fn ask(&mut self, number: u64) {
        self.jobs.push_back(Job::Ask { number });
    }

    /// Queues the last words.
    pub fn goodbye(&mut self) {
        self.jobs.push_back(Job::Goodbye);
    }

    /// The next frame.
    pub fn next(&mut self) -> Option<Frame> {
        let place = self.next_place;
        let frame = match self.jobs.front_mut()? {
            Job::Signal { channel, count } => {
                let head = Head::Signal { place, channel: *channel, count: *count };
                self.jobs.pop_front();
                Frame::Bare(head)
            }
            Job::Word { to, value } => {
                let head = Head::Word { place, segment: to.handle.segment(), offset: to.offset };
                let frame = Frame::Word(head, *value);
                self.jobs.pop_front();
                frame
            }
            Job::Ask { number } => {
                let head = Head::Ask { place, number: *number };
                self.jobs.pop_front();
                Frame::Bare(head)
            }
            Job::Goodbye => {
                self.jobs.pop_front();
                Frame::Bare(Head::Goodbye { place })
            }
            Job::Put { number, from, to } => {
                let bytes = from.range.len().min(limits::CHANNEL_FRAME_BYTES_MAX);
                let lease = from.take(bytes);
                let segment = to.handle.segment();
                let head = Head::Put { place, segment, offset: to.offset, bytes: bytes as u32 };
                let frame = Frame::Put(head, lease, Ticket(*number));
                to.offset += bytes as u64;
                if from.range.is_empty() {
                    self.jobs.pop_front();
                }
                frame
            }
        };
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

    /// Nothing more is to be sent. Puts of which sockets may hold frames.
    pub fn clear(&mut self) -> Vec<Ticket> {
        let last_framed = match self.jobs.iter().find_map(|job| match job {
            Job::Put { number, .. } => Some(*number),
            _ => None,
        }) {
            Some(first_left) => first_left,
            None => self.last_put,
        };
        self.jobs.clear();
        let framed = self.unflushed.range(..=last_framed).map(|(number, _)| Ticket(*number)).collect();
        self.unflushed.clear();
        framed
    }
}
