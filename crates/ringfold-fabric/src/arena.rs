//! Shared memory in which the ranks of one host work together.
//!
//! Each rank has a ring of *slots* which it alone writes. Work goes in *rounds*: in round k a rank may fill its slot
//! number k modulo the depth, announce it, and read the slots of others. A slot is filled again only when every rank
//! has said that it needs the earlier round no more. Ranks take a [`Seat`] to do so. There are no messages and no
//! locks: a round of a few bytes moves one cache line from each writer to each reader.
//!
//! What others write is never believed: no offset, length or number of a rank that this process uses comes from
//! shared memory. Whoever breaks the rules spoils results, and makes others wait until their deadline.

mod geometry;
mod ranks;
mod seat;
mod wait;

pub use geometry::Geometry;
pub use ranks::Ranks;
pub use seat::{Desk, Fill, Others, Seat};
pub use wait::{Need, Stop};

use crate::segment::{Segment, Ticket};
use crate::waiter::sleep::Bell as _;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ringfold_proto::id::Rank;
use std::io;
use std::sync::Arc;

/// The memory that the ranks share, and its geometry.
pub struct Arena {
    segment: Segment,
    geometry: Geometry,
}

/// Why an arena can't be used any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abort {
    /// Who gave it up.
    pub by: Rank,
    /// Why, in words; empty if its process ended before it could say.
    pub why: String,
}

/// The abort word while the reason is still being written.
const ABORT_UNEXPLAINED: u64 = 1 << 32;

impl Arena {
    /// A new arena, with all its memory there already.
    pub fn create(geometry: Geometry) -> io::Result<Self> {
        if !geometry.is_sound() {
            let words = format!("there can't be an arena of {geometry:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        let arena = Self { segment: Segment::create(geometry.bytes(), true)?, geometry };
        arena.segment.populate();
        for (index, value) in described(geometry).into_iter().enumerate() {
            arena.word(geometry::GEOMETRY_AT + index * 8).store(value, Ordering::Release);
        }
        Ok(arena)
    }

    /// The arena of a ticket, if it has the geometry that this rank counts on.
    pub fn open(ticket: &Ticket, geometry: Geometry) -> io::Result<Self> {
        let refusal = |words: &str| io::Error::new(io::ErrorKind::InvalidData, words);
        if !geometry.is_sound() || ticket.bytes != geometry.bytes() as u64 {
            return Err(refusal("the arena has another size"));
        }
        let arena = Self { segment: Segment::open(ticket)?, geometry };
        arena.segment.populate();
        for (index, value) in described(geometry).into_iter().enumerate() {
            if arena.word(geometry::GEOMETRY_AT + index * 8).load(Ordering::Acquire) != value {
                return Err(refusal("the arena has another geometry"));
            }
        }
        Ok(arena)
    }

    /// What others open the arena with.
    pub fn ticket(&self) -> Ticket {
        self.segment.ticket()
    }

    /// Its sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The seat of a rank; `None` if it was ever taken.
    pub fn seat(self: &Arc<Self>, me: Rank) -> Option<Seat> {
        if me.index() >= self.geometry.world {
            return None;
        }
        let seated = self.word(self.geometry.seated_at(me.index()));
        seated.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(Seat::new(self.clone(), me))
    }

    /// Gives the arena up for all ranks, and wakes whoever sleeps. The first reason is the one that stays.
    pub fn abort(&self, by: Rank, why: &str) {
        let word = self.word(geometry::ABORT_AT);
        let named = u64::from(by.0) + 1;
        let taken =
            word.compare_exchange(0, ABORT_UNEXPLAINED | named, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if taken {
            let bytes = why.len().min(geometry::REASON_BYTES_MAX);
            for (index, chunk) in why.as_bytes()[..bytes].chunks(8).enumerate() {
                let mut padded = [0; 8];
                padded[..chunk.len()].copy_from_slice(chunk);
                let word = self.word(geometry::REASON_AT + index * 8);
                word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
            }
            self.word(geometry::REASON_BYTES_AT).store(bytes as u64, Ordering::Relaxed);
            word.store(named, Ordering::SeqCst);
        }
        // Also if it was given up before: whoever did so may have died before it rang.
        for rank in 0..self.geometry.world {
            self.bell(rank).ring();
        }
    }

    /// Why the arena was given up, if it was.
    pub fn aborted(&self) -> Option<Abort> {
        let word = self.word(geometry::ABORT_AT).load(Ordering::SeqCst);
        if word == 0 {
            return None;
        }
        let by = Rank((word as u32).wrapping_sub(1) as u16);
        if word & ABORT_UNEXPLAINED != 0 {
            return Some(Abort { by, why: String::new() });
        }
        let bytes = self.word(geometry::REASON_BYTES_AT).load(Ordering::Relaxed);
        let bytes = (bytes as usize).min(geometry::REASON_BYTES_MAX);
        let mut text = Vec::with_capacity(bytes + 8);
        for at in (0..bytes).step_by(8) {
            text.extend(self.word(geometry::REASON_AT + at).load(Ordering::Relaxed).to_le_bytes());
        }
        text.truncate(bytes);
        Some(Abort { by, why: String::from_utf8_lossy(&text).into_owned() })
    }

    /// All ranks have come to this point, as the caller has seen: fixes that, unless it was [sealed](Self::seal) before.
    /// Whether it is fixed is the same for all ranks, whenever they ask and whoever dies.
    pub fn settle(&self, point: u64) -> bool {
        let word = self.word(geometry::SETTLED_AT);
        let mut seen = word.load(Ordering::SeqCst);
        loop {
            if seen >> 1 >= point {
                return true;
            }
            if seen & 1 == 1 {
                return false;
            }
            match word.compare_exchange_weak(seen, point << 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// No further point is fixed from now on. The last one that was.
    pub fn seal(&self) -> u64 {
        self.word(geometry::SETTLED_AT).fetch_or(1, Ordering::SeqCst) >> 1
    }

    /// Who has left. Nobody comes back.
    pub fn left(&self) -> Ranks {
        Ranks(self.word(geometry::LEFT_AT).load(Ordering::SeqCst))
    }

    /// Whether it was given up.
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.word(geometry::ABORT_AT).load(Ordering::Relaxed) != 0
    }

    /// What a rank blocks on.
    fn bell(&self, rank: usize) -> &AtomicU32 {
        self.segment.bytes().half_word(self.geometry.bell_at(rank))
    }

    /// A word of the lines that are not payload.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.segment.bytes().word(at)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("geometry", &self.geometry).field("aborted", &self.aborted()).finish()
    }
}

fn described(geometry: Geometry) -> [u64; 4] {
    let Geometry { world, slot_bytes, depth } = geometry;
    [geometry::MAGIC, world as u64, slot_bytes as u64, depth as u64]
}

#[cfg(test)]
mod tests;
