//! Groups that come of a group: some of its ranks, in an order of their own.
//!
//! Those ranks meet at the first of them, which tells the others where over the links that they have with it. Nobody
//! else takes part, or hears of it.

use super::Group;
use super::bootstrap::{Bootstrap, Doubt};
use super::builder::Origin;
use super::core::Core;
use super::notice::Notice;
use crate::{Error, limits};
use parking_lot::Mutex;
use ringfold_proto::id::Rank;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long reading waits for the first rank's note.
const NOTE_WAIT: Duration = Duration::from_millis(20);

impl Group {
    /// A group of some of this group's ranks, in the order of `ranks`: the new rank is the position there. Only those
    /// ranks call it, with the same ranks and name, and in the same order if they do so several times. Several groups may
    /// split off at once. What it inherits: media, timeout, streams, addresses, tuning, token and watch.
    ///
    /// It lives on when this group is closed. If this group fails meanwhile, so does the split.
    pub fn split(&self, ranks: &[usize], name: &str) -> Result<Self, Error> {
        self.split_within(ranks, name, self.core().blueprint.patience())
    }

    /// As [`Group::split`], if the ranks find each other within a time.
    pub fn split_within(&self, ranks: &[usize], name: &str, patience: Duration) -> Result<Self, Error> {
        let core = self.core();
        let me = position(core, ranks)?;
        let members: Arc<[Rank]> = ranks.iter().copied().map(Rank::from_index).collect();
        let doubt = doubt(core, members.clone());
        if let Some(error) = doubt() {
            return Err(error);
        }
        let timeout = *core.timeout.lock();
        let builder = core
            .blueprint
            .clone()
            .rank(me)
            .world(ranks.len())
            .name(name)
            .timeout(timeout)
            .tuning(core.tuning);
        if ranks.len() == 1 {
            return builder.connect_from(Origin::default());
        }
        let leader = members[0];
        let known_hosts = core.engine.with(|driver| {
            let addresses = &driver.description().members[leader.index()].addresses;
            addresses.iter().map(SocketAddr::ip).collect::<Vec<IpAddr>>()
        })?;
        let letters =
            Letters { topic: topic(ranks, name), core: core.clone(), members, last: Mutex::default() };
        let builder = builder.connect_patience(patience).bootstrap(Bootstrap::Notice(Arc::new(letters)));
        builder.connect_from(Origin { doubt: Some(doubt.clone()), known_hosts }).map_err(|error| {
            // Whoever saw the parent fail first has gone from the split, and may have been missed before the news came.
            if error == Error::Interrupted { error } else { hear_doubt(&doubt).unwrap_or(error) }
        })
    }
}

/// This rank's number among `ranks`, if they make sense.
fn position(core: &Core, ranks: &[usize]) -> Result<usize, Error> {
    let bad = |why: String| Err(Error::BadArgument(why));
    let standing = core.standing;
    if ranks.is_empty() {
        return bad("a group needs at least one rank".into());
    }
    if let Some(rank) = ranks.iter().find(|rank| **rank >= standing.world) {
        return bad(format!("rank {rank} is out of range: ranks are 0 to {}", standing.world - 1));
    }
    if let Some((_, rank)) = ranks.iter().enumerate().find(|(at, rank)| ranks[..*at].contains(rank)) {
        return bad(format!("rank {rank} is named twice"));
    }
    match ranks.iter().position(|rank| *rank == standing.me) {
        Some(position) => Ok(position),
        None => bad(format!("rank {} is not one of those that split off: {ranks:?}", standing.me)),
    }
}

/// What notes about this split are told apart by: the same on all ranks, and none of the small numbers that others take.
fn topic(ranks: &[usize], name: &str) -> u64 {
    let ranks = ranks.iter().flat_map(|rank| (*rank as u64).to_le_bytes());
    // FNV-1a: nobody gains anything by two splits that are taken for one.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    ranks.chain(name.bytes()).fold(0xcbf2_9ce4_8422_2325, mix) | 1 << 63
}

/// A split can't succeed when its parent is over, or one of its ranks has left that: nobody leaves before it is done.
fn doubt(core: &Arc<Core>, members: Arc<[Rank]>) -> Doubt {
    let core = core.clone();
    Arc::new(move || core.engine.with(|driver| driver.doubts(&members)).unwrap_or_else(Some))
}

/// Waits for a moment whether there is a better reason for a failure.
fn hear_doubt(doubt: &Doubt) -> Option<Error> {
    let until = Instant::now() + limits::FAULT_NEWS_MAX;
    loop {
        let found = doubt();
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        std::thread::sleep(limits::FAULT_NEWS_PAUSE);
    }
}

/// The links of the parent as a notice board.
struct Letters {
    core: Arc<Core>,
    topic: u64,
    members: Arc<[Rank]>,
    /// What was read last.
    last: Mutex<Option<String>>,
}

impl Notice for Letters {
    fn post(&self, text: &str) -> io::Result<()> {
        let others = &self.members[1..];
        let told = self.core.engine.with(|driver| driver.tell(others, self.topic, text));
        told.map_err(io::Error::other)
    }

    fn read(&self) -> io::Result<Option<String>> {
        let mut last = self.last.lock();
        let patience = if last.is_none() { NOTE_WAIT } else { Duration::ZERO };
        if let Some(text) =
            self.core.hear_note(self.members[0], self.topic, patience).map_err(io::Error::other)?
        {
            *last = Some(text);
        }
        Ok(last.clone())
    }

    /// It was told, and can't be taken back.
    fn withdraw(&self) {}

    fn describe(&self) -> String {
        format!("the links with rank {}", self.members[0])
    }
}

impl Core {
    /// What a rank has told about a topic, or does so soon.
    pub(super) fn hear_note(
        &self,
        from: Rank,
        topic: u64,
        patience: Duration,
    ) -> Result<Option<String>, Error> {
        if let Some(text) = self.engine.with(|driver| driver.take_note(from, topic))? {
            return Ok(Some(text));
        }
        if patience.is_zero() {
            return Ok(None);
        }
        let call = self.engine.with_waiter(|driver| driver.await_note(from, topic))?;
        if self.engine.wait_until(call, Some(Instant::now() + patience)).is_none() {
            self.engine.with(|driver| driver.forget_note(call))?;
            self.engine.abandon(call);
        }
        self.engine.with(|driver| driver.take_note(from, topic))
    }
}
