//! Shared memory in which the ranks of one host work together.
//!
//! Each rank is an [`ArenaMember`] with a ring of *slots* that only it writes. Work proceeds in *rounds*: in round k a
//! rank may fill its slot k modulo the depth, announce it, and read the slots of others. A slot is filled again when
//! every rank has released the earlier round. There are no messages and no locks: a round of a few bytes moves one
//! cache line from each writer to each reader.
//!
//! No offset, length or rank number that this process uses comes from shared memory. A rank that breaks the protocol
//! can corrupt results, and make others wait until their deadline.

mod geometry;
mod member;
mod ranks;
mod wait;

pub use geometry::Geometry;
pub use member::{ArenaMember, Fill, OtherSlots, StepSlots};
pub use ranks::Ranks;
pub use wait::{LongWait, Need, Stop, WaitTerms};

use crate::segment::{Segment, Ticket};
use crate::waiter::sleep::WakeWord as _;
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

/// Why an arena was aborted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abort {
    /// The rank that aborted it.
    pub by: Rank,
    /// Why; empty if its process ended before it was written.
    pub why: String,
}

/// Set in the abort word while the reason is being written.
const ABORT_UNEXPLAINED: u64 = 1 << 32;

impl Arena {
    /// Creates an arena, with all its memory allocated.
    pub fn create(geometry: Geometry) -> io::Result<Self> {
        if !geometry.is_sound() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid arena {geometry:?}")));
        }
        let arena = Self { segment: Segment::create(geometry.bytes(), true)?, geometry };
        arena.segment.populate();
        for (index, value) in described(geometry).into_iter().enumerate() {
            arena.word(geometry::GEOMETRY_AT + index * 8).store(value, Ordering::Release);
        }
        Ok(arena)
    }

    /// Opens the arena of a ticket, if it has this geometry.
    pub fn open(ticket: &Ticket, geometry: Geometry) -> io::Result<Self> {
        let refusal = |words: &str| io::Error::new(io::ErrorKind::InvalidData, words);
        if !geometry.is_sound() || ticket.bytes != geometry.bytes() as u64 {
            return Err(refusal("invalid arena: its size differs"));
        }
        let arena = Self { segment: Segment::open(ticket)?, geometry };
        arena.segment.populate();
        for (index, value) in described(geometry).into_iter().enumerate() {
            if arena.word(geometry::GEOMETRY_AT + index * 8).load(Ordering::Acquire) != value {
                return Err(refusal("invalid arena: its geometry differs"));
            }
        }
        Ok(arena)
    }

    /// What other processes need to open it.
    pub fn ticket(&self) -> Ticket {
        self.segment.ticket()
    }

    /// Its sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Joins as a rank; `None` if a process has done so before.
    pub fn join(self: &Arc<Self>, me: Rank) -> Option<ArenaMember> {
        if me.index() >= self.geometry.world {
            return None;
        }
        let joined = self.word(self.geometry.joined_at(me.index()));
        joined.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(ArenaMember::new(self.clone(), me))
    }

    /// Aborts the arena for all ranks, and wakes those that sleep. The first reason is kept.
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
        // Also if it was aborted before: that process may have died before it woke the others.
        for rank in 0..self.geometry.world {
            self.wake_word(rank).wake_all();
        }
    }

    /// Why it was aborted, if it was.
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

    /// The caller has seen that all ranks have reached this point: records that, unless the arena was [sealed](Self::seal)
    /// before. Returns whether it is recorded, which is the same for all ranks, at any time and after any death.
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

    /// Records no further point from now on. Returns the last one that was recorded.
    pub fn seal(&self) -> u64 {
        self.word(geometry::SETTLED_AT).fetch_or(1, Ordering::SeqCst) >> 1
    }

    /// The ranks that have left. None comes back.
    pub fn left(&self) -> Ranks {
        Ranks(self.word(geometry::LEFT_AT).load(Ordering::SeqCst))
    }

    /// Whether it was aborted.
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.word(geometry::ABORT_AT).load(Ordering::Relaxed) != 0
    }

    /// What a rank blocks on.
    fn wake_word(&self, rank: usize) -> &AtomicU32 {
        self.segment.bytes().half_word(self.geometry.wake_word_at(rank))
    }

    /// A word that is not payload.
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
