//! How a window is opened: the ranks tell each other what they lay open, map what they can, and connect for the rest.
//!
//! All of it goes in steps that all ranks make together, so that they come to the same end: a window, or none.

use super::offer::Offer;
use super::{Own, Side, Way, WindowMemory};
use crate::group::{Connections, Lobby};
use crate::{Error, Group, limits};
use parking_lot::Mutex;
use ringfold_fabric::bells::Bells;
use ringfold_fabric::channel::{ChannelId, Handle};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::{Credentials, dial_blocking};
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::MappedMemory;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::handshake::{Identity, Secret, Target};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{Rank, RunId};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A window on its way.
pub(super) struct Opening<'a> {
    pub(super) group: &'a Group,
    pub(super) lobby: Arc<Lobby>,
    pub(super) description: EpochDescription,
    pub(super) number: u32,
}

/// What the ranks have come to.
pub(super) struct Opened {
    pub(super) own: Own,
    pub(super) bells: Arc<Bells>,
    pub(super) sides: Vec<Side>,
    /// What each rank says about its memory.
    pub(super) about: Vec<Vec<u8>>,
}

/// How one rank's puts and signals get to another.
const BY_MEMORY: u8 = 1;
const BY_LINE: u8 = 2;

/// What this rank holds of another one after it has read its offer.
struct Found {
    mapped: Option<MappedMemory>,
    bells: Option<Bells>,
}

impl Opening<'_> {
    pub(super) fn run(self, memory: WindowMemory, about: &[u8]) -> Result<Opened, Error> {
        let (me, world) = (self.group.rank(), self.group.world());
        let (memory, shared_file) = memory.into_parts();
        let bells = Bells::create(world).map(Arc::new);
        let offer = Offer {
            number: self.number,
            is_able: bells.is_ok(),
            bytes: memory.len() as u64,
            file: shared_file.as_ref().map(|(_, ticket)| *ticket),
            bells: bells.as_ref().ok().map(|bells| bells.ticket()),
            about: about.to_vec(),
        };
        let offers = self.exchange(&offer)?;
        let bells = bells.map_err(|error| Error::system("a window can't be opened", &error))?;
        self.check(&offers)?;
        let mut found: Vec<_> =
            (0..world).map(|rank| if rank == me { None } else { self.find(rank, &offers[rank]) }).collect();
        let ways = self.gather(&found.iter().map(way).collect::<Vec<_>>())?;
        let needs_line = |one: usize, other: usize| {
            one != other && (ways[one][other] == BY_LINE || ways[other][one] == BY_LINE)
        };
        let lined: Vec<_> = (0..world).map(|rank| needs_line(me, rank)).collect();
        let is_lined = (0..world).any(|one| (0..world).any(|other| needs_line(one, other)));
        let (own, handles) = if is_lined {
            self.connect(memory, &lined)?
        } else {
            (super::OwnMemory::Held(Mutex::new(memory)), Vec::new())
        };
        let sides = offers.iter().enumerate().map(|(rank, offer)| {
            let line = self.lobby.connection(Rank::from_index(rank)).filter(|_| lined[rank]);
            let found = found[rank].take();
            let to = if rank == me { BY_MEMORY } else { ways[me][rank] };
            let channel = line.map(|line| super::Line {
                puts: line.channel(ChannelId(self.number.wrapping_mul(2))),
                end: line.channel(ChannelId(self.number.wrapping_mul(2).wrapping_add(1))),
            });
            let lost = || Error::System(format!("the connection with {} is lost", self.name(rank)));
            let (mapped, theirs) = found.map_or((None, None), |found| (found.mapped, found.bells));
            Ok(Side {
                bytes: usize::try_from(offer.bytes).unwrap_or(usize::MAX),
                mapped,
                to: match (to, theirs) {
                    _ if rank == me => Way::Own,
                    (BY_MEMORY, Some(bells)) => Way::Memory(bells),
                    _ => Way::Line(*handles.get(rank).ok_or_else(lost)?),
                },
                hears_line: rank != me && ways[rank][me] == BY_LINE,
                line: if lined[rank] { Some(channel.ok_or_else(lost)?) } else { None },
                taken: Mutex::default(),
            })
        });
        let sides = sides.collect::<Result<_, Error>>()?;
        let about = offers.into_iter().map(|offer| offer.about).collect();
        let file: Option<OwnedFd> = shared_file.map(|(file, _)| file);
        Ok(Opened { own: Own { memory: own, _file: file }, bells, sides, about })
    }

    /// Everyone hears everyone's offer.
    fn exchange(&self, offer: &Offer) -> Result<Vec<Offer>, Error> {
        let rows = self.gather(&offer.encode())?;
        let read = |(rank, row): (usize, Vec<u8>)| {
            let offer = row.try_into().ok().and_then(|row| Offer::decode(&row));
            offer
                .ok_or_else(|| Error::System(format!("{} speaks of windows in another way", self.name(rank))))
        };
        rows.into_iter().enumerate().map(read).collect()
    }

    /// Everyone hears everyone's row; all are of one size.
    fn gather(&self, row: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = vec![0; row.len() * self.group.world()];
        self.group.all_gather(row, &mut all)?;
        Ok(all.chunks_exact(row.len()).map(<[u8]>::to_vec).collect())
    }

    /// All ranks come to the same, since all have the same offers.
    fn check(&self, offers: &[Offer]) -> Result<(), Error> {
        if let Some(rank) = offers.iter().position(|offer| offer.number != offers[0].number) {
            return Err(Error::Misuse(format!(
                "{} opens its window number {}, and {} its number {}: all ranks open windows in the same order",
                self.name(0),
                offers[0].number,
                self.name(rank),
                offers[rank].number
            )));
        }
        match offers.iter().position(|offer| !offer.is_able) {
            None => Ok(()),
            Some(rank) => Err(Error::System(format!("{} can't open a window", self.name(rank)))),
        }
    }

    /// What this rank can reach of another one through memory.
    fn find(&self, rank: usize, offer: &Offer) -> Option<Found> {
        let members = &self.description.members;
        if members[rank].host != members[self.group.rank()].host {
            return None;
        }
        let declined = |error: io::Error| tracing::debug!(rank, %error, "a window's memory can't be mapped");
        let mapped = offer.file.and_then(|ticket| MappedMemory::open(&ticket).map_err(declined).ok());
        let mapped = mapped.filter(|mapped| mapped.len() as u64 == offer.bytes);
        let world = self.group.world();
        let bells = offer.bells.and_then(|ticket| Bells::open(&ticket, world).map_err(declined).ok());
        // Where there is nothing to map, signals are all there is.
        let is_whole = mapped.is_some() || offer.bytes == 0;
        Some(Found { mapped, bells: bells.filter(|_| is_whole) })
    }

    /// Registers the own memory, and connects with those who need it, one way round or the other. Each rank's handle.
    fn connect(&self, memory: Memory, lined: &[bool]) -> Result<(super::OwnMemory, Vec<Handle>), Error> {
        let name = self.name(self.group.rank());
        let segment = self.lobby.with_endpoint(&name, |endpoint, _| endpoint.register(memory))?;
        let mut missing = None;
        for round in 0..2 {
            for rank in (0..lined.len()).filter(|rank| lined[*rank] && !self.is_connected(*rank)) {
                if let Err(error) = self.link(rank, round) {
                    tracing::debug!(rank, %error, "no connection for windows");
                }
            }
            let is_served = |rank: usize| !lined[rank] || self.is_connected(rank);
            let mut row: Vec<u8> = (0..lined.len()).map(|rank| is_served(rank).into()).collect();
            row.extend(segment.handle().encode());
            let rows = self.gather(&row)?;
            missing = self.forget_halves(&rows)?;
            if missing.is_none() {
                let handle =
                    |row: &Vec<u8>| row[lined.len()..].try_into().map(|bytes| Handle::decode(&bytes));
                let handles = rows.iter().map(handle).collect::<Result<_, _>>();
                let handles = handles.map_err(|_| Error::Internal("a handle has another size".into()))?;
                return Ok((super::OwnMemory::Registered(segment), handles));
            }
        }
        let (one, other) =
            missing.map_or((name.clone(), name), |(one, other)| (self.name(one), self.name(other)));
        Err(Error::System(format!("{one} and {other} can't be connected")))
    }

    /// Where two ends do not agree that they are connected, both begin anew. The first such pair.
    fn forget_halves(&self, rows: &[Vec<u8>]) -> Result<Option<(usize, usize)>, Error> {
        let (me, world) = (self.group.rank(), 0..rows.len());
        let is_missing = |one: usize, other: usize| rows[one][other] == 0 || rows[other][one] == 0;
        for rank in world.clone().filter(|rank| is_missing(me, *rank)) {
            let forget = |connections: &mut Connections| connections.remove(&Rank::from_index(rank));
            drop(self.lobby.with_endpoint("", |_, connections| Ok(forget(connections)))?);
        }
        let mut pairs = world.clone().flat_map(|one| world.clone().map(move |other| (one, other)));
        Ok(pairs.find(|(one, other)| is_missing(*one, *other)))
    }

    fn is_connected(&self, rank: usize) -> bool {
        self.lobby.connection(Rank::from_index(rank)).is_some_and(|connection| !connection.is_over())
    }

    /// Makes the connection with a rank: in the first round the lower rank dials, in the second the higher one.
    fn link(&self, rank: usize, round: u8) -> io::Result<()> {
        // What is said first tells this attempt from those that came to nothing.
        let attempt = (u64::from(self.number) << 8 | u64::from(round)).to_le_bytes();
        let stream = if (self.group.rank() < rank) == (round == 0) {
            let mut stream = self.dial(rank)?;
            stream.set_write_timeout(Some(limits::WINDOW_DIAL_MAX))?;
            stream.write_all(&attempt)?;
            stream
        } else {
            self.await_visit(rank, &attempt)?
        };
        let (name, peer) = (self.name(self.group.rank()), self.name(rank));
        let joined = self.lobby.with_endpoint(&name, |endpoint, connections| {
            let connection = endpoint.connect(&peer, vec![stream])?;
            connections.insert(Rank::from_index(rank), connection);
            Ok(())
        });
        joined.map_err(io::Error::other)
    }

    fn dial(&self, rank: usize) -> io::Result<BlockingConnection> {
        let EpochDescription { members, id, key, .. } = &self.description;
        let credentials = Credentials {
            identity: Identity::new(members[self.group.rank()].peer, RunId(0)),
            target: Target::member(Purpose::Window, *id, members[rank].peer),
            secret: Secret::epoch_key(key),
        };
        dial_blocking(&members[rank].addresses, limits::WINDOW_DIAL_MAX, &credentials)
    }

    fn await_visit(&self, rank: usize, attempt: &[u8; 8]) -> io::Result<BlockingConnection> {
        let until = Instant::now() + limits::WINDOW_VISIT_MAX;
        while let Some(mut stream) = self.lobby.visitor(self.description.members[rank].peer, until) {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let mut said = [0; 8];
            stream.set_read_timeout(Some(left))?;
            if stream.read_exact(&mut said).is_ok() && said == *attempt {
                return Ok(stream);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "it did not come"))
    }

    fn name(&self, rank: usize) -> String {
        self.description.members[rank].name.clone()
    }
}

/// Which way this rank's puts and signals go.
fn way(found: &Option<Found>) -> u8 {
    match found {
        Some(Found { bells: Some(_), .. }) => BY_MEMORY,
        _ => BY_LINE,
    }
}
