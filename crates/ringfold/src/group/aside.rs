//! What ranks learn of each other beside operations: what they tell, and what is on its way.

use super::{Group, TransferTag};
use crate::Error;
use ringfold_proto::id::Rank;
use ringfold_proto::limits::TEXT_BYTES_MAX;
use std::time::Duration;

impl Group {
    /// Tells ranks something beside all operations. It is kept there until they ask for it by [`Group::hear`]; of
    /// several on one topic the last one counts. It has 16 KiB at most, and topics from 2⁶³ on are taken.
    pub fn tell(&self, ranks: &[usize], topic: u64, text: &str) -> Result<(), Error> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::BadArgument(format!("a text has at most {TEXT_BYTES_MAX} bytes")));
        }
        let ranks: Vec<Rank> = ranks.iter().map(|rank| self.other(*rank)).collect::<Result<_, _>>()?;
        self.core().engine.with(|driver| driver.tell(&ranks, topic, text))
    }

    /// What a rank has told last about a topic, or tells within a time. Nobody notices if it does not.
    pub fn hear(&self, from: usize, topic: u64, patience: Duration) -> Result<Option<String>, Error> {
        let from = self.other(from)?;
        self.core().hear_note(from, topic, patience)
    }

    /// A rank that has begun to send something with this tag which is not received here yet. Empty transfers are not
    /// seen: nothing of them is on its way.
    pub fn sender(&self, tag: TransferTag) -> Result<Option<usize>, Error> {
        self.core().engine.with(|driver| driver.sender(tag).map(Rank::index))
    }

    fn other(&self, rank: usize) -> Result<Rank, Error> {
        if rank < self.world() && rank != self.rank() {
            return Ok(Rank::from_index(rank));
        }
        let why = format!("rank {rank} is no other rank: they are 0 to {}", self.world() - 1);
        Err(Error::BadArgument(why))
    }
}
