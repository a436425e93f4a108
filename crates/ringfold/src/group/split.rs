//! Splits a group: some of its ranks form a new group.
//!
//! The first of these ranks listens, and sends its address to the others as a note over the links of the parent. Other
//! ranks are not involved.

use super::Group;
use super::address_exchange::AddressExchange;
use super::bootstrap::{Bootstrap, FailureCheck};
use super::builder::{Media, SplitOrigin};
use super::core::Core;
use super::operation::RankContext;
use crate::Error;
use crate::error::{invalid, wait_for_cause};
use crate::settings::Given;
use parking_lot::Mutex;
use ringfold_proto::id::Rank;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How long one read waits for the note.
const NOTE_WAIT: Duration = Duration::from_millis(20);

impl Group {
    /// Forms a new group of some ranks of this one. The new rank is the position in `ranks`.
    ///
    /// Only these ranks call it, with the same `ranks` and `name`; several splits of the same ranks must be called in the
    /// same order. Disjoint sets of ranks may split at the same time. The new group inherits media, timeout, streams,
    /// addresses, tuning, token and cancel callback. It outlives this group; but if this group fails during the split,
    /// the split fails too.
    pub fn split(&self, ranks: &[usize], name: &str) -> Result<Self, Error> {
        let blueprint = &self.core().blueprint;
        self.split_within(ranks, name, blueprint.connect_timeout_of()?, blueprint.media)
    }

    /// As [`Group::split`], with a time limit for forming the new group, and with media of its own.
    pub fn split_within(
        &self,
        ranks: &[usize],
        name: &str,
        timeout: Duration,
        media: Media,
    ) -> Result<Self, Error> {
        self.split_by(ranks, name, timeout, media, None)
    }

    /// As [`Group::split_within`], with [settings](crate::settings) by argument instead of those of this group.
    pub fn split_by(
        &self,
        ranks: &[usize],
        name: &str,
        timeout: Duration,
        media: Media,
        given: Option<Given>,
    ) -> Result<Self, Error> {
        let core = self.core();
        let me = position(core, ranks)?;
        let members: Arc<[Rank]> = ranks.iter().copied().map(Rank::from_index).collect();
        let doubt = doubt(core, members.clone());
        if let Some(error) = doubt() {
            return Err(error);
        }
        let operation_timeout = *core.timeout.lock();
        let builder = core
            .blueprint
            .clone()
            .rank(me)
            .world(ranks.len())
            .name(name)
            .media(media)
            .timeout(operation_timeout)
            .tuning(core.tuning);
        let builder = match given {
            Some(given) => builder.settings(given),
            None => builder,
        };
        if ranks.len() == 1 {
            return builder.connect_from(SplitOrigin::default());
        }
        let leader = members[0];
        let known_hosts = core.engine.with(|driver| {
            let addresses = &driver.description().members[leader.index()].addresses;
            addresses.iter().map(SocketAddr::ip).collect::<Vec<IpAddr>>()
        })?;
        let exchange =
            NoteExchange { topic: topic(ranks, name), core: core.clone(), members, last: Mutex::default() };
        let builder = builder.connect_timeout(timeout).bootstrap(Bootstrap::Exchange(Arc::new(exchange)));
        builder.connect_from(SplitOrigin { doubt: Some(doubt.clone()), known_hosts }).map_err(|error| {
            // A rank that saw the parent fail has left the split. Its absence may be seen before the cause arrives.
            if error == Error::Interrupted { error } else { wait_for_cause(|| doubt()).unwrap_or(error) }
        })
    }
}

/// The position of this rank in `ranks`, after checking them.
fn position(core: &Core, ranks: &[usize]) -> Result<usize, Error> {
    let RankContext { me, world, .. } = core.context;
    if ranks.is_empty() {
        return Err(invalid!("invalid ranks []: a group needs at least one rank"));
    }
    if let Some(rank) = ranks.iter().find(|rank| **rank >= world) {
        return Err(invalid!("rank {rank} is out of range: ranks are 0 to {}", world - 1));
    }
    if let Some((_, rank)) = ranks.iter().enumerate().find(|(at, rank)| ranks[..*at].contains(rank)) {
        return Err(invalid!("invalid ranks {ranks:?}: rank {rank} occurs twice"));
    }
    let position = ranks.iter().position(|rank| *rank == me);
    position.ok_or_else(|| invalid!("invalid ranks {ranks:?}: rank {me} is not one of them"))
}

/// The topic of this split's notes: the same on all ranks, and in the reserved range.
fn topic(ranks: &[usize], name: &str) -> u64 {
    let ranks = ranks.iter().flat_map(|rank| (*rank as u64).to_le_bytes());
    // FNV-1a: a deliberate collision gains nothing.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    ranks.chain(name.bytes()).fold(0xcbf2_9ce4_8422_2325, mix) | 1 << 63
}

/// A split cannot succeed once its parent has failed, or one of its ranks has left the parent.
fn doubt(core: &Arc<Core>, members: Arc<[Rank]>) -> FailureCheck {
    let core = core.clone();
    Arc::new(move || core.engine.with(|driver| driver.group_error(&members)).unwrap_or_else(Some))
}

/// Exchanges the address of the first rank by notes over the parent's links.
struct NoteExchange {
    core: Arc<Core>,
    topic: u64,
    members: Arc<[Rank]>,
    last: Mutex<Option<String>>,
}

impl AddressExchange for NoteExchange {
    fn post(&self, text: &str) -> io::Result<()> {
        let others = &self.members[1..];
        let sent = self.core.engine.with(|driver| driver.send_note(others, self.topic, text));
        sent.map_err(io::Error::other)
    }

    fn read(&self) -> io::Result<Option<String>> {
        let mut last = self.last.lock();
        let timeout = if last.is_none() { NOTE_WAIT } else { Duration::ZERO };
        let note = self.core.recv_note(self.members[0], self.topic, timeout).map_err(io::Error::other)?;
        if note.is_some() {
            *last = note;
        }
        Ok(last.clone())
    }

    fn withdraw(&self) {}

    fn describe(&self) -> String {
        format!("the links to {}", self.members[0])
    }
}
