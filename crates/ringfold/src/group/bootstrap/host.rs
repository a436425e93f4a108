//! Rank 0's part: it receives all others, decides, and tells them.

use super::wire::{ArenaOffer, Join, Mapped, Reply, Wire, WireError};
use super::{Arrival, Bootstrap, LAST_WORDS_MAX, Met, backoff, describe, geometry, name_unspecified};
use crate::Error;
use crate::group::notice::Posted;
use crate::group::place::MeetingPlace;
use parking_lot::MutexGuard;
use ringfold_fabric::arena::Arena;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::{Connection, Intake};
use ringfold_fabric::host::outward_addresses;
use ringfold_fabric::limits::HANDSHAKE_MAX;
use ringfold_fabric::listener::{Listener, Outcome};
use ringfold_fabric::poller::{Readiness, Token};
use ringfold_proto::epoch::Member;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use ringfold_proto::handshake::{Identity, Secret};
use ringfold_proto::hello::{Hello, Purpose, Refusal};
use ringfold_proto::id::RunId;
use ringfold_proto::limits::ADDRESSES_MAX;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Rank 0's part.
pub(super) fn host(at: &Bootstrap, arrival: &Arrival) -> Result<Met, Error> {
    let place = open(at, arrival)?;
    let Some(listener) = place.await_turn(&arrival.vigil, arrival.until)? else {
        return Err(Error::NoGroup(format!("another group still meets at {at}")));
    };
    let notice = at.notice();
    let _posted = match &notice {
        Some(notice) => Some(
            Posted::new(&**notice, &place.announcement())
                .map_err(|error| Error::NoGroup(format!("{at} can't be written: {error}")))?,
        ),
        None => None,
    };
    let mut reception = Reception::new(&place, listener, arrival);
    let gathered = reception.gather(at);
    let mut others = Others::new();
    for (rank, Comer { join, connection }) in std::mem::take(&mut reception.others) {
        match connection.into_blocking() {
            Ok(connection) => drop(others.insert(rank, (join, Wire { connection, vigil: &arrival.vigil }))),
            // It will be missed, if it has not gone.
            Err(error) => tracing::debug!(rank, %error, "a rank spoke out of turn"),
        }
    }
    let outcome = gathered.and_then(|()| agree(arrival, &mut others));
    if let Err(error) = &outcome {
        // All who came hear the same.
        let why = match error {
            Error::NoGroup(why) => why.clone(),
            other => format!("rank 0 failed: {other}"),
        };
        let (refused, until) = (Reply::Refused { why, retryable: false }, Instant::now() + LAST_WORDS_MAX);
        for (_, wire) in others.values_mut() {
            let _ = wire.send(&refused, until);
        }
    }
    outcome
}

type Others<'a> = BTreeMap<u16, (Join, Wire<'a>)>;

/// Where rank 0 listens.
fn open(at: &Bootstrap, arrival: &Arrival) -> Result<MeetingPlace, Error> {
    match at {
        Bootstrap::Address(address) => listen(at, address, arrival),
        Bootstrap::File(_) | Bootstrap::Notice(_) => MeetingPlace::open_at(arrival.bind),
        Bootstrap::Place(place) => Ok(place.clone()),
        Bootstrap::Told(_) => Err(Error::BadArgument(
            "rank 0 is whom the others are told of: it needs a meeting place, not an announcement".into(),
        )),
    }
}

fn listen(at: &Bootstrap, address: &str, arrival: &Arrival) -> Result<MeetingPlace, Error> {
    let attempt = || -> io::Result<MeetingPlace> {
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "it has no address");
        for address in address.to_socket_addrs()? {
            match MeetingPlace::listen(address) {
                Ok(place) => return Ok(place),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    let mut backoff = backoff();
    loop {
        match attempt() {
            Ok(place) => return Ok(place),
            // Another group of this program may be meeting there.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < arrival.until => {
                arrival.vigil.check()?;
                std::thread::sleep(backoff.next_pause());
            }
            Err(error) => return Err(Error::NoGroup(format!("rank 0 can't listen at {at}: {error}"))),
        }
    }
}

/// Everyone who has come.
struct Reception<'a> {
    place: &'a MeetingPlace,
    listener: MutexGuard<'a, Listener>,
    arrival: &'a Arrival,
    secret: Secret,
    clock: Clock,
    /// Those that know the secret, but have not said who they are.
    unnamed: HashMap<Token, Unnamed>,
    /// Those who count.
    others: BTreeMap<u16, Comer>,
    has_seen_strangers: bool,
}

/// A rank that has come. It has nothing to say now, so there is something to read only if it is the end.
struct Comer {
    join: Join,
    connection: Connection,
}

struct Unnamed {
    connection: Box<Connection>,
    decoder: ControlDecoder<Join>,
    from: SocketAddr,
    deadline: Time,
}

impl Drop for Reception<'_> {
    fn drop(&mut self) {
        // The next group that meets here may have another token.
        self.listener.drop_all();
    }
}

impl<'a> Reception<'a> {
    fn new(place: &'a MeetingPlace, listener: MutexGuard<'a, Listener>, arrival: &'a Arrival) -> Self {
        Self {
            place,
            listener,
            arrival,
            secret: Secret::token(&format!("{}{}", place.secret(), arrival.token)),
            clock: place.clock(),
            unnamed: HashMap::new(),
            others: BTreeMap::new(),
            has_seen_strangers: false,
        }
    }

    /// Waits until everyone has come.
    fn gather(&mut self, at: &Bootstrap) -> Result<(), Error> {
        let Arrival { vigil, until, world, .. } = self.arrival;
        let mut ready = Readiness::default();
        while self.others.len() + 1 < *world {
            vigil.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.miss(at));
            }
            let now = self.clock.now();
            let deadlines = self.unnamed.values().map(|unnamed| unnamed.deadline);
            let timeouts = deadlines.chain(self.listener.poll_timeout());
            let patience = timeouts.min().map_or(left, |at| at.since(now)).min(left).min(vigil.tick());
            self.place
                .poller()
                .wait(&mut ready, patience)
                .map_err(|error| Error::system("meeting the other ranks", &error))?;
            let now = self.clock.now();
            for token in ready.tokens() {
                self.attend(now, token)?;
            }
            self.listener.handle_timeout(now);
            self.take_outcomes(now);
            self.unnamed.retain(|_, unnamed| unnamed.deadline > now);
        }
        Ok(())
    }

    /// Something can be done with a connection.
    fn attend(&mut self, now: Time, token: Token) -> Result<(), Error> {
        let secret = &self.secret;
        let secrets = |hello: &Hello| match hello.purpose {
            Purpose::Control => Ok(secret.clone()),
            _ => Err(Refusal::WrongPurpose),
        };
        let identity = Identity::new(self.arrival.member.peer, RunId(0));
        if self.listener.handle_ready(now, token, identity, &secrets) {
            self.take_outcomes(now);
        } else if self.unnamed.contains_key(&token) {
            self.hear_join(now, token);
        } else {
            return self.look_after(token);
        }
        Ok(())
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                Outcome::Established(_, mut connection, from) => {
                    connection.set_intake(Intake::Messages);
                    let (token, connection) = (connection.token(), Box::new(connection));
                    let (decoder, deadline) = (ControlDecoder::default(), now + HANDSHAKE_MAX);
                    self.unnamed.insert(token, Unnamed { connection, decoder, from, deadline });
                    self.hear_join(now, token);
                }
                Outcome::Rejected(from, rejection) => {
                    tracing::debug!(%from, %rejection, "rejected an incoming connection");
                    self.has_seen_strangers |= rejection.is_about_secret();
                }
            }
        }
    }

    fn miss(&self, at: &Bootstrap) -> Error {
        let missing: Vec<_> =
            (1..self.arrival.world as u16).filter(|rank| !self.others.contains_key(rank)).collect();
        let hint = if self.has_seen_strangers { "; someone came who does not know the token" } else { "" };
        Error::NoGroup(format!("{} did not come to {at} in time{hint}", ranks(&missing)))
    }

    /// Someone may have said who it is.
    fn hear_join(&mut self, now: Time, token: Token) {
        let Some(mut unnamed) = self.unnamed.remove(&token) else { return };
        let filled = unnamed.connection.fill();
        let Unnamed { connection, decoder, from, .. } = &mut unnamed;
        let why = match (connection.take(|input| decoder.next_message(input)), filled) {
            (Ok(Some(join)), _) => {
                return self.receive(now, join, *unnamed.connection, unnamed.from);
            }
            (Ok(None), Ok(_)) => return drop(self.unnamed.insert(token, unnamed)),
            (Err(error), _) => error.to_string(),
            (Ok(None), Err(error)) => error.to_string(),
        };
        tracing::debug!(%from, why, "rejected an incoming connection");
    }

    /// Someone has said who it is.
    fn receive(&mut self, now: Time, mut join: Join, mut connection: Connection, from: SocketAddr) {
        name_unspecified(&mut join.member, from.ip());
        name_outward(&mut join.member);
        match refusal(&join, self.arrival, &self.others) {
            None => {
                // Whoever does not hear that it counts comes again.
                if say(&mut connection, &Reply::Counted).is_ok() {
                    self.others.insert(join.rank, Comer { join, connection });
                }
            }
            Some((why, retryable)) => {
                if say(&mut connection, &Reply::Refused { why, retryable }).is_ok() {
                    self.listener.close(now, connection);
                }
            }
        }
    }

    /// Whoever has come, and has gone again, will be missed.
    fn look_after(&mut self, token: Token) -> Result<(), Error> {
        let Some((rank, comer)) = self.others.iter_mut().find(|(_, comer)| comer.connection.token() == token)
        else {
            return Ok(());
        };
        match comer.connection.fill() {
            Ok(false) => Ok(()),
            Ok(true) => Err(lost(*rank, &io::Error::other("it spoke out of turn"))),
            Err(error) => Err(lost(*rank, &error)),
        }
    }
}

fn say(connection: &mut Connection, reply: &Reply) -> io::Result<()> {
    connection.send(&encode_control(reply).map_err(io::Error::other)?);
    connection.flush(&mut Vec::new())
}

/// A rank of this host came by a way that others may not have: they can try another one.
fn name_outward(member: &mut Member) {
    let loopback = |address: &&SocketAddr| address.ip().is_loopback();
    let Some(port) = member.addresses.iter().find(loopback).map(SocketAddr::port) else { return };
    for ip in outward_addresses() {
        let address = SocketAddr::new(ip, port);
        if ip.is_ipv4() && member.addresses.len() < ADDRESSES_MAX && !member.addresses.contains(&address) {
            member.addresses.push(address);
        }
    }
}

/// Why someone can't take part.
fn refusal(join: &Join, arrival: &Arrival, others: &BTreeMap<u16, Comer>) -> Option<(String, bool)> {
    if join.group != arrival.name {
        return Some((format!("the group {:?} meets here now, not {:?}", arrival.name, join.group), true));
    }
    if usize::from(join.world) != arrival.world {
        return Some((format!("rank 0 counts {} ranks, not {}", arrival.world, join.world), false));
    }
    if join.rank == 0 || usize::from(join.rank) >= arrival.world {
        return Some((format!("rank {} is not free in a world of {}", join.rank, arrival.world), false));
    }
    let other = others.get(&join.rank)?;
    Some((format!("rank {} is taken by {}", join.rank, other.join.member.name), false))
}

/// Decides for all, and tells them.
fn agree(arrival: &Arrival, others: &mut Others<'_>) -> Result<Met, Error> {
    let members: Vec<Member> = others.values().map(|(join, _)| join.member.clone()).collect();
    let may_share = arrival.may_share
        && others.values().all(|(join, _)| join.may_share && join.member.host == arrival.member.host);
    // From one rank to another it is at most as far as from both to rank 0.
    let mut ways: Vec<_> =
        others.values().map(|(_, wire)| wire.connection.round_trip().unwrap_or_default()).collect();
    ways.sort_unstable();
    let longest: Duration = ways.iter().rev().take(2).sum();
    let description = describe(arrival, members, longest)?;
    if description.members.len() != arrival.world {
        return Err(Error::NoGroup("a rank spoke out of turn while the group formed".into()));
    }
    let mut arena = None;
    let geometry = geometry(arrival.world, &description.tuning);
    if may_share && geometry.is_sound() {
        match Arena::create(geometry) {
            Ok(created) => arena = Some(created),
            Err(error) => tracing::debug!(%error, "memory can't be shared"),
        }
    }
    let offer = arena.as_ref().map(|arena| ArenaOffer {
        ticket: arena.ticket().encode().to_vec(),
        slot_bytes: description.tuning.board_slot_bytes,
        depth: description.tuning.board_depth,
    });
    let welcome = Reply::Welcome { description: Box::new(description.clone()), arena: offer };
    for (rank, (_, wire)) in others.iter_mut() {
        wire.send(&welcome, arrival.until).map_err(|error| gone(*rank, error))?;
    }
    let mut shares = arena.is_some();
    for (rank, (_, wire)) in others.iter_mut() {
        let Mapped(mapped) = wire.receive(arrival.until).map_err(|error| gone(*rank, error))?;
        shares &= mapped;
    }
    if !shares && arrival.must_share {
        let why = if geometry.is_sound() { "they are not on one host" } else { "there are too many of them" };
        return Err(Error::NoGroup(format!("its ranks can't share memory: {why}")));
    }
    for (rank, (_, wire)) in others.iter_mut() {
        wire.send(&Reply::Begin { shares }, arrival.until).map_err(|error| gone(*rank, error))?;
    }
    Ok(Met { description, arena: arena.filter(|_| shares) })
}

fn gone(rank: u16, error: WireError) -> Error {
    match error {
        WireError::Io(error) => lost(rank, &error),
        WireError::Ended(error) => error,
    }
}

fn lost(rank: u16, error: &io::Error) -> Error {
    Error::NoGroup(format!("rank {rank} was lost while the group formed: {error}"))
}

/// "rank 3", or "ranks 1, 2 and 3".
fn ranks(ranks: &[u16]) -> String {
    let names: Vec<_> = ranks.iter().map(u16::to_string).collect();
    match &names[..] {
        [one] => format!("rank {one}"),
        [most @ .., last] => format!("ranks {} and {last}", most.join(", ")),
        [] => "nobody".into(),
    }
}
