//! Whether all ranks may read each other's memory. All of them decide the same.

use super::exchange::Chunks;
use core::fmt;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_fabric::process_memory::{ProcessMemory, ProcessTicket};
use ringfold_proto::id::Rank;
use std::io;

/// The memory of a rank's process; without it for the rank itself.
#[derive(Debug, Default)]
pub(super) struct PeerMemory(Option<ProcessMemory>);

impl PeerMemory {
    #[cfg(test)]
    pub(super) fn own() -> Self {
        Self(ProcessTicket::own().and_then(ProcessMemory::open).ok())
    }

    /// Copies a piece of the rank's memory. False if it cannot be read.
    pub(super) fn read(&self, address: u64, into: &mut [u8], goes_on: impl Fn() -> bool) -> bool {
        self.0.as_ref().is_some_and(|memory| match memory.read(address, into, goes_on) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "a direct copy failed: the collective uses slots");
                false
            }
        })
    }
}

/// Why ranks do not read each other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    /// The rank that may not read, or does not want to.
    pub(super) by: Rank,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Off,
    /// The error of reading this rank's memory.
    Failed {
        of: Rank,
        error: u32,
    },
}

impl Why {
    const OFF: u64 = u64::MAX;

    fn encode(why: Option<Self>) -> u64 {
        match why {
            None => 0,
            Some(Self::Off) => Self::OFF,
            // The lowest bit is set, so that no error is 0.
            Some(Self::Failed { of, error }) => u64::from(error) << 32 | u64::from(of.0) << 1 | 1,
        }
    }

    fn decode(word: u64) -> Option<Self> {
        match word {
            0 => None,
            Self::OFF => Some(Self::Off),
            _ => Some(Self::Failed { of: Rank((word >> 1) as u16), error: (word >> 32) as u32 }),
        }
    }

    fn failed(of: Rank, error: &io::Error) -> Self {
        Self::Failed { of, error: error.raw_os_error().map_or(0, i32::unsigned_abs) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by;
        match self.why {
            Why::Off => write!(f, "{by} has the setting direct_copy off"),
            Why::Failed { of, error: 0 } => write!(f, "{by} cannot read the memory of {of}"),
            Why::Failed { of, error } => {
                let error = io::Error::from_raw_os_error(error.cast_signed());
                write!(f, "{by} cannot read the memory of {of}: {error}")
            }
        }
    }
}

/// The round in which ranks announce how to read their memory, and try to read that of the others.
pub(super) struct Introductions {
    me: Rank,
    world: usize,
    ticket: Option<ProcessTicket>,
    why: Option<Why>,
    pub(super) peers: Vec<PeerMemory>,
}

impl Introductions {
    pub(super) fn new(me: Rank, world: usize, is_on: bool) -> Self {
        let (ticket, why) = match is_on.then(ProcessTicket::own) {
            None => (None, Some(Why::Off)),
            Some(Ok(ticket)) => (Some(ticket), None),
            Some(Err(error)) => (None, Some(Why::failed(me, &error))),
        };
        Self { me, world, ticket, why, peers: Vec::with_capacity(world) }
    }

    /// What this rank tells the others afterwards.
    pub(super) fn verdicts(&self) -> Verdicts {
        let refusal = self.why.map(|why| Refusal { by: self.me, why });
        Verdicts { me: self.me, world: self.world, refusal }
    }

    fn open(&mut self, rank: Rank, others: OtherSlots<'_>) -> PeerMemory {
        let mut ticket = [0; ProcessTicket::BYTES];
        others.copy(rank, &mut ticket);
        let ticket = ProcessTicket::decode(&ticket);
        if self.why.is_some() || ticket.pid == 0 {
            // A rank that does not take part says why itself.
            return PeerMemory(None);
        }
        match ProcessMemory::open(ticket) {
            Ok(memory) => PeerMemory(Some(memory)),
            Err(error) => {
                self.why = Some(Why::failed(rank, &error));
                PeerMemory(None)
            }
        }
    }
}

impl Chunks for Introductions {
    fn count(&self) -> u64 {
        1
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        Some(ProcessTicket::BYTES)
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    fn reads(&self) -> bool {
        true
    }

    fn fill(&mut self, _chunk: u64, slot: &mut [u8]) {
        match &self.ticket {
            Some(ticket) => slot.copy_from_slice(&ticket.encode()),
            None => slot.fill(0),
        }
    }

    fn read(&mut self, _chunk: u64, others: OtherSlots<'_>) {
        for rank in Ranks::all(self.world) {
            let memory = if rank == self.me { PeerMemory(None) } else { self.open(rank, others) };
            self.peers.push(memory);
        }
    }
}

/// The round in which ranks announce whether they can read the memory of all others.
pub(super) struct Verdicts {
    me: Rank,
    world: usize,
    /// That of this rank; after the round, that of the first rank that has one.
    pub(super) refusal: Option<Refusal>,
}

impl Chunks for Verdicts {
    fn count(&self) -> u64 {
        1
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        Some(8)
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    fn reads(&self) -> bool {
        true
    }

    fn fill(&mut self, _chunk: u64, slot: &mut [u8]) {
        let why = Why::encode(self.refusal.map(|refusal| refusal.why));
        slot.copy_from_slice(&why.to_le_bytes());
    }

    fn read(&mut self, chunk: u64, others: OtherSlots<'_>) {
        for by in self.sources(chunk) {
            let mut word = [0; 8];
            others.copy(by, &mut word);
            if let Some(why) = Why::decode(u64::from_le_bytes(word))
                && self.refusal.is_none_or(|refusal| by < refusal.by)
            {
                self.refusal = Some(Refusal { by, why });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_their_encoding_and_name_the_ranks() {
        let failed = |error| Why::Failed { of: Rank(63), error };
        for why in [None, Some(Why::Off), Some(failed(0)), Some(failed(1)), Some(failed(u32::MAX))] {
            assert_eq!(Why::decode(Why::encode(why)), why);
        }
        let text = |why| Refusal { by: Rank(2), why }.to_string();
        assert_eq!(text(Why::Off), "rank 2 has the setting direct_copy off");
        let denied = text(failed(1));
        assert!(denied.starts_with("rank 2 cannot read the memory of rank 63: "), "{denied}");
    }
}
