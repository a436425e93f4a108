//! Rank 0's part of bootstrap: it accepts all other ranks, decides for them, and sends them the result.

use super::messages::{ArenaOffer, Join, Mapped, Reply};
use super::{
    Bootstrap, Bootstrapped, LAST_REPLY_MAX, LocalRank, backoff, describe, geometry, name_unspecified,
};
use crate::Error;
use crate::control::ControlConnection;
use crate::group::address_exchange::PublishedAddress;
use crate::group::bootstrap_listener::BootstrapListener;
use parking_lot::MutexGuard;
use ringfold_fabric::arena::Arena;
use ringfold_fabric::connection::{Connection, close_all};
use ringfold_fabric::host::outward_addresses;
use ringfold_fabric::listener::{Listener, Outcome};
use ringfold_fabric::poller::{Readiness, Token};
use ringfold_proto::epoch::Member;
use ringfold_proto::handshake::{Identity, Secret};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::{PeerId, RunId};
use ringfold_proto::integrity::Integrity;
use ringfold_proto::limits::ADDRESSES_MAX;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Rank 0's part.
pub(super) fn host(at: &Bootstrap, local: &LocalRank) -> Result<Bootstrapped, Error> {
    let place = open(at, local)?;
    let Some(listener) = place.await_turn(&local.cancel, local.deadline)? else {
        return Err(Error::BootstrapFailed(format!("{at} is in use by another group")));
    };
    place.poller().set_limits(local.limits);
    place.poller().set_security(local.security.clone());
    let exchange = at.exchange();
    let _published = match &exchange {
        Some(exchange) => Some(
            PublishedAddress::new(&**exchange, &place.announcement())
                .map_err(|error| Error::BootstrapFailed(format!("failed to write {at}: {error}")))?,
        ),
        None => None,
    };
    let secret = local.token.secret_after(place.secret());
    let mut host = Host {
        place: &place,
        listener,
        local,
        secret,
        unnamed: HashMap::new(),
        joined: BTreeMap::new(),
        has_seen_strangers: false,
    };
    let outcome = host.run(at);
    let (deadline, last_reply) = match &outcome {
        Ok(_) => (local.deadline, None),
        // All ranks get the same reason.
        Err(Error::BootstrapFailed(why)) => (Instant::now() + LAST_REPLY_MAX, Some(why.clone())),
        Err(error) => (Instant::now() + LAST_REPLY_MAX, Some(format!("rank 0 failed: {error}"))),
    };
    if let Some(why) = last_reply {
        // A rank that is lost needs no reply.
        let _ = host.broadcast(&Reply::Rejected { why, retryable: false });
    }
    let connections = std::mem::take(&mut host.joined).into_values().map(|joined| joined.control.connection);
    close_all(connections, deadline, Connection::poll_finish);
    outcome
}

/// Opens the listener.
fn open(at: &Bootstrap, local: &LocalRank) -> Result<BootstrapListener, Error> {
    match at {
        Bootstrap::Address(address) => listen(at, address, local),
        Bootstrap::File(_) | Bootstrap::Exchange(_) => BootstrapListener::open_at(local.bind),
        Bootstrap::Listener(place) => Ok(place.clone()),
        Bootstrap::Announcement(_) => Err(Error::BadArgument(
            "invalid bootstrap of rank 0: it needs a listener, not the announcement of one".into(),
        )),
    }
}

fn listen(at: &Bootstrap, address: &str, local: &LocalRank) -> Result<BootstrapListener, Error> {
    let attempt = || -> io::Result<BootstrapListener> {
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such address");
        for address in address.to_socket_addrs()? {
            match BootstrapListener::listen(address) {
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
            // Another group of this program may still use it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < local.deadline => {
                local.cancel.check()?;
                std::thread::sleep(backoff.next_pause());
            }
            Err(error) => return Err(Error::BootstrapFailed(format!("rank 0 of {at}: {error}"))),
        }
    }
}

/// Rank 0, while the group forms.
struct Host<'a> {
    place: &'a BootstrapListener,
    listener: MutexGuard<'a, Listener>,
    local: &'a LocalRank,
    secret: Secret,
    /// Connections that are authenticated, but have not sent their [`Join`].
    unnamed: HashMap<Token, Unnamed>,
    joined: BTreeMap<u16, Joined>,
    has_seen_strangers: bool,
}

/// A rank that has joined.
struct Joined {
    join: Join,
    control: ControlConnection<Mapped>,
    /// Whether it has mapped the arena, once it has said so.
    mapped: Option<bool>,
}

struct Unnamed {
    control: ControlConnection<Join>,
    from: SocketAddr,
    deadline: Time,
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        // The next group at this listener may have another token.
        self.listener.drop_all();
    }
}

impl Host<'_> {
    /// Waits for all ranks, decides, and sends them the result.
    fn run(&mut self, at: &Bootstrap) -> Result<Bootstrapped, Error> {
        let local = self.local;
        self.serve_until(
            |host| host.joined.len() + 1 == local.world,
            |host| (host.missing(), format!("no connection at {at}{}", host.hint())),
            |host| {
                let (missing, hint) = (host.missing(), host.hint());
                Error::BootstrapFailed(format!("timed out waiting for {missing} at {at}{hint}"))
            },
        )?;
        self.check_integrity()?;
        let may_share =
            |joined: &Joined| joined.join.may_share && joined.join.member.host == local.member.host;
        let may_share = local.may_share && self.joined.values().all(may_share);
        // Two ranks are at most as far from each other as both are from rank 0.
        let connections = self.joined.values().map(|joined| &joined.control.connection);
        let mut ways: Vec<_> = connections.map(|c| c.round_trip().unwrap_or_default()).collect();
        ways.sort_unstable();
        let longest: Duration = ways.iter().rev().take(2).sum();
        let mut tuning = local.tuning.for_round_trip(longest);
        if self.joined.values().all(|joined| joined.control.connection.is_local()) {
            tuning = tuning.for_loopback();
        }
        let members = self.joined.values().map(|joined| joined.join.member.clone()).collect();
        let description = describe(local, members, tuning)?;
        let geometry = geometry(local.world, &description.tuning);
        let mut arena = None;
        // Boards check nothing; links of shared memory do.
        let has_board = local.integrity == Integrity::NONE;
        if may_share && has_board && geometry.is_sound() {
            match Arena::create(geometry) {
                Ok(created) => arena = Some(created),
                Err(error) => tracing::debug!(%error, "failed to create shared memory; the group uses TCP"),
            }
        }
        let offer = arena.as_ref().map(|arena| ArenaOffer {
            ticket: arena.ticket().encode().to_vec(),
            slot_bytes: description.tuning.board_slot_bytes,
            depth: description.tuning.board_depth,
        });
        self.broadcast(&Reply::Welcome { description: Box::new(description.clone()), arena: offer })?;
        self.serve_until(
            |host| host.joined.values().all(|joined| joined.mapped.is_some()),
            |_| ("other ranks".into(), "they have not mapped the shared memory".into()),
            |_| Error::BootstrapFailed("timed out waiting for all ranks to map shared memory".into()),
        )?;
        let shares = arena.is_some() && self.joined.values().all(|joined| joined.mapped == Some(true));
        let can_share = shares || may_share && !has_board;
        if !can_share && local.must_share {
            let why =
                if geometry.is_sound() { "they are not on one host" } else { "there are too many ranks" };
            return Err(Error::BootstrapFailed(format!("the ranks can't share memory: {why}")));
        }
        self.broadcast(&Reply::Begin { shares })?;
        Ok(Bootstrapped { description, arena: arena.filter(|_| shares) })
    }

    /// Fails if a rank checks something else than this one.
    fn check_integrity(&self) -> Result<(), Error> {
        let own = self.local.integrity;
        let differs = |(_, joined): &(&u16, &Joined)| joined.join.integrity != own.bits();
        let Some((rank, joined)) = self.joined.iter().find(differs) else { return Ok(()) };
        let other = Integrity::from_bits(joined.join.integrity).map_or("unknown".into(), |it| it.to_string());
        Err(Error::BootstrapFailed(format!(
            "different integrity: rank {rank} has {other}, rank 0 has {own}; it must be the same on all ranks"
        )))
    }

    /// Queues a message for all ranks, and sends what can be sent now.
    fn broadcast(&mut self, reply: &Reply) -> Result<(), Error> {
        let mut result = Ok(());
        for (rank, joined) in &mut self.joined {
            let sent = joined.control.send(reply).and_then(|()| joined.control.flush());
            result = result.and(sent.map_err(|error| lost(*rank, &error)));
        }
        result
    }

    /// Serves all connections until a condition holds.
    fn serve_until(
        &mut self,
        is_done: impl Fn(&Self) -> bool,
        waits_for: impl Fn(&Self) -> (String, String),
        timed_out: impl Fn(&Self) -> Error,
    ) -> Result<(), Error> {
        let (mut ready, clock, poller) = (Readiness::default(), self.place.clock(), self.place.poller());
        while !is_done(self) {
            self.local.cancel.check()?;
            self.local.notice.check(|| waits_for(self).0, || waits_for(self).1);
            let left = self.local.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(timed_out(self));
            }
            let deadlines = self.unnamed.values().map(|unnamed| unnamed.deadline);
            let next = deadlines.chain(self.listener.poll_timeout()).min();
            let wait =
                next.map_or(left, |at| at.since(clock.now())).min(left).min(self.local.cancel.interval());
            poller
                .wait(&mut ready, wait)
                .map_err(|error| Error::system("waiting for other ranks", &error))?;
            let now = clock.now();
            for token in ready.tokens() {
                self.handle_ready(now, token)?;
            }
            self.listener.handle_timeout(now);
            self.take_outcomes(now);
            self.unnamed.retain(|_, unnamed| unnamed.deadline > now);
        }
        Ok(())
    }

    fn handle_ready(&mut self, now: Time, token: Token) -> Result<(), Error> {
        let secret = &self.secret;
        let secrets = |hello: &Hello| match hello.purpose {
            Purpose::Control => Ok(secret.clone()),
            _ => Err(ConnectionRejection::WrongPurpose),
        };
        // Rank 0 is a member with another id; the listener may outlive the group.
        let identity = Identity::new(PeerId(0), RunId(0));
        if self.listener.handle_ready(now, token, identity, &secrets) {
            self.take_outcomes(now);
        } else if self.unnamed.contains_key(&token) {
            self.read_join(now, token);
        } else {
            return self.read_joined(token);
        }
        Ok(())
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                Outcome::Established(_, connection, from) => {
                    let (token, deadline) =
                        (connection.token(), now + self.place.poller().limits().handshake_max);
                    let control = ControlConnection::new(connection);
                    self.unnamed.insert(token, Unnamed { control, from, deadline });
                    self.read_join(now, token);
                }
                Outcome::Rejected(from, rejection) => {
                    tracing::debug!("rejected connection from {from}: {rejection}");
                    self.has_seen_strangers |=
                        rejection.is_about_secret() || rejection.is_about_certificate();
                }
            }
        }
    }

    /// The ranks that have not joined.
    fn missing(&self) -> String {
        let all = 1..self.local.world as u16;
        ranks(&all.filter(|rank| !self.joined.contains_key(rank)).collect::<Vec<_>>())
    }

    fn hint(&self) -> &'static str {
        if self.has_seen_strangers {
            "; a connection with another token or certificate was rejected"
        } else {
            ""
        }
    }

    /// Reads the first message of a connection.
    fn read_join(&mut self, now: Time, token: Token) {
        let Some(mut unnamed) = self.unnamed.remove(&token) else { return };
        match unnamed.control.receive() {
            Ok(Some(join)) => self.add(now, join, unnamed),
            Ok(None) => drop(self.unnamed.insert(token, unnamed)),
            Err(error) => tracing::debug!("rejected connection from {}: {error}", unnamed.from),
        }
    }

    fn add(&mut self, now: Time, mut join: Join, unnamed: Unnamed) {
        let Unnamed { mut control, from, .. } = unnamed;
        name_unspecified(&mut join.member, from.ip());
        add_outward_addresses(&mut join.member);
        let rejection = self.rejection(&join);
        let reply = match &rejection {
            None => Reply::Joined,
            Some((why, retryable)) => Reply::Rejected { why: why.clone(), retryable: *retryable },
        };
        // A rank that does not get the reply tries again.
        if control.send(&reply).and_then(|()| control.flush()).is_ok() {
            match rejection {
                None => {
                    let rank = join.rank;
                    self.joined.insert(rank, Joined { join, control: control.expect(), mapped: None });
                }
                Some(_) => self.listener.close(now, control.connection),
            }
        }
    }

    /// Why a rank can't join, and whether it may try again.
    fn rejection(&self, join: &Join) -> Option<(String, bool)> {
        let LocalRank { name, world, .. } = self.local;
        if join.group != *name {
            let why = format!("wrong group {:?}: {name:?} is forming at this address now", join.group);
            return Some((why, true));
        }
        if usize::from(join.world) != *world {
            return Some((format!("wrong world size {}: rank 0 has {world}", join.world), false));
        }
        if join.rank == 0 || usize::from(join.rank) >= *world {
            return Some((format!("invalid rank {}: must be 1..{world}", join.rank), false));
        }
        let other = self.joined.get(&join.rank)?;
        Some((format!("rank {} is taken by {}", join.rank, other.join.member.name), false))
    }

    /// Sends and reads on the connection of a rank that has joined.
    fn read_joined(&mut self, token: Token) -> Result<(), Error> {
        let mut joined = self.joined.iter_mut();
        let Some((rank, joined)) = joined.find(|(_, joined)| joined.control.connection.token() == token)
        else {
            return Ok(());
        };
        let message = joined.control.flush().and_then(|()| joined.control.receive());
        match message.map_err(|error| lost(*rank, &error))? {
            Some(Mapped(mapped)) if joined.mapped.is_none() => joined.mapped = Some(mapped),
            Some(_) => return Err(lost(*rank, &io::Error::other("unexpected message"))),
            None => {}
        }
        Ok(())
    }
}

/// A rank of this host may have connected by an address that others can't reach: they can try another one.
fn add_outward_addresses(member: &mut Member) {
    let loopback = |address: &&SocketAddr| address.ip().is_loopback();
    let Some(port) = member.addresses.iter().find(loopback).map(SocketAddr::port) else { return };
    for ip in outward_addresses() {
        let address = SocketAddr::new(ip, port);
        if ip.is_ipv4() && member.addresses.len() < ADDRESSES_MAX && !member.addresses.contains(&address) {
            member.addresses.push(address);
        }
    }
}

fn lost(rank: u16, error: &io::Error) -> Error {
    Error::BootstrapFailed(format!("lost rank {rank} while the group formed: {error}"))
}

/// "rank 3", or "ranks 1, 2 and 3".
fn ranks(ranks: &[u16]) -> String {
    let names: Vec<_> = ranks.iter().map(u16::to_string).collect();
    match &names[..] {
        [one] => format!("rank {one}"),
        [most @ .., last] => format!("ranks {} and {last}", most.join(", ")),
        [] => "no rank".into(),
    }
}
