//! Opens a window: the ranks exchange offers, map memory, and connect over TCP for the rest.
//!
//! All ranks take the same steps together, so they all succeed or all fail.

use super::offer::WindowOffer;
use super::{ExposedMemory, PeerWindow, PutPath, WindowMemory};
use crate::group::{Connections, WindowHub};
use crate::{Error, Group, limits};
use parking_lot::Mutex;
use ringfold_fabric::channel::{ChannelId, Handle};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::{Credentials, dial_blocking};
use ringfold_fabric::memory::RawMemory;
use ringfold_fabric::shared_memory::MappedMemory;
use ringfold_fabric::signal_counters::SignalCounters;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{Rank, RunId};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Opening<'a> {
    pub(super) group: &'a Group,
    pub(super) hub: Arc<WindowHub>,
    pub(super) description: EpochDescription,
    pub(super) number: u32,
}

pub(super) struct Opened {
    pub(super) own: ExposedMemory,
    pub(super) signals: Arc<SignalCounters>,
    pub(super) peers: Vec<PeerWindow>,
    pub(super) about: Vec<Vec<u8>>,
}

/// How one rank's puts and signals reach another, as exchanged between the ranks.
const BY_MEMORY: u8 = 1;
const BY_TCP: u8 = 2;

/// What this rank has mapped of another one.
struct MappedPeer {
    memory: Option<MappedMemory>,
    signals: Option<SignalCounters>,
}

impl Opening<'_> {
    pub(super) fn run(self, memory: WindowMemory, about: &[u8]) -> Result<Opened, Error> {
        let (me, world) = (self.group.rank(), self.group.world());
        let (memory, shared_file) = memory.into_parts();
        let signals = SignalCounters::create(world).map(Arc::new);
        let offer = WindowOffer {
            number: self.number,
            is_able: signals.is_ok(),
            bytes: memory.len() as u64,
            file: shared_file.as_ref().map(|(_, ticket)| *ticket),
            signals: signals.as_ref().ok().map(|signals| signals.ticket()),
            about: about.to_vec(),
        };
        let offers = self.exchange(&offer)?;
        let signals = signals.map_err(|error| Error::system("opening a window failed", &error))?;
        self.check(&offers)?;
        let mut mapped: Vec<_> =
            (0..world).map(|rank| if rank == me { None } else { self.map(rank, &offers[rank]) }).collect();
        let paths = self.gather(&mapped.iter().map(path_code).collect::<Vec<_>>())?;
        let needs_tcp = |one: usize, other: usize| {
            one != other && (paths[one][other] == BY_TCP || paths[other][one] == BY_TCP)
        };
        let by_tcp: Vec<_> = (0..world).map(|rank| needs_tcp(me, rank)).collect();
        let uses_tcp = (0..world).any(|one| (0..world).any(|other| needs_tcp(one, other)));
        let (own, handles) = if uses_tcp {
            self.connect(memory, &by_tcp)?
        } else {
            (super::OwnMemory::Held(Mutex::new(memory)), Vec::new())
        };
        let peers = offers.iter().enumerate().map(|(rank, offer)| {
            let connection = self.hub.connection(Rank::from_index(rank)).filter(|_| by_tcp[rank]);
            let channels = connection.map(|connection| super::PeerChannels {
                puts: connection.channel(ChannelId(self.number.wrapping_mul(2))),
                end: connection.channel(ChannelId(self.number.wrapping_mul(2).wrapping_add(1))),
            });
            let lost = || Error::System(format!("the connection to {} was lost", self.name(rank)));
            let (memory, signals) =
                mapped[rank].take().map_or((None, None), |peer| (peer.memory, peer.signals));
            Ok(PeerWindow {
                bytes: usize::try_from(offer.bytes).unwrap_or(usize::MAX),
                mapped: memory,
                to: match signals {
                    _ if rank == me => PutPath::Own,
                    Some(signals) if paths[me][rank] == BY_MEMORY => PutPath::Mapped(signals),
                    _ => PutPath::Tcp(*handles.get(rank).ok_or_else(lost)?),
                },
                signals_by_tcp: rank != me && paths[rank][me] == BY_TCP,
                channels: if by_tcp[rank] { Some(channels.ok_or_else(lost)?) } else { None },
                consumed: Mutex::default(),
            })
        });
        let peers = peers.collect::<Result<_, Error>>()?;
        let about = offers.into_iter().map(|offer| offer.about).collect();
        let file: Option<OwnedFd> = shared_file.map(|(file, _)| file);
        Ok(Opened { own: ExposedMemory { memory: own, _file: file }, signals, peers, about })
    }

    fn exchange(&self, offer: &WindowOffer) -> Result<Vec<WindowOffer>, Error> {
        let rows = self.gather(&offer.encode())?;
        let read = |(rank, row): (usize, Vec<u8>)| {
            let offer = row.try_into().ok().and_then(|row| WindowOffer::decode(&row));
            offer.ok_or_else(|| Error::System(format!("invalid window offer from {}", self.name(rank))))
        };
        rows.into_iter().enumerate().map(read).collect()
    }

    /// Exchanges a row of all ranks, of the same size.
    fn gather(&self, row: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = vec![0; row.len() * self.group.world()];
        self.group.all_gather(row, &mut all)?;
        Ok(all.chunks_exact(row.len()).map(<[u8]>::to_vec).collect())
    }

    /// Checks the offers. All ranks have the same offers, and so the same result.
    fn check(&self, offers: &[WindowOffer]) -> Result<(), Error> {
        if let Some(rank) = offers.iter().position(|offer| offer.number != offers[0].number) {
            return Err(Error::Misuse(format!(
                "{} opens its window {}, but {} its window {}: all ranks must open windows in the same order",
                self.name(0),
                offers[0].number,
                self.name(rank),
                offers[rank].number
            )));
        }
        match offers.iter().position(|offer| !offer.is_able) {
            None => Ok(()),
            Some(rank) => Err(Error::System(format!("{} failed to open a window", self.name(rank)))),
        }
    }

    /// Maps the memory of another rank, as far as possible.
    fn map(&self, rank: usize, offer: &WindowOffer) -> Option<MappedPeer> {
        let members = &self.description.members;
        if members[rank].host != members[self.group.rank()].host {
            return None;
        }
        let declined = |error: io::Error| tracing::debug!(rank, %error, "mapping the memory of a window failed; using TCP");
        let memory = offer.file.and_then(|ticket| MappedMemory::open(&ticket).map_err(declined).ok());
        let memory = memory.filter(|memory| memory.len() as u64 == offer.bytes);
        let world = self.group.world();
        let signals =
            offer.signals.and_then(|ticket| SignalCounters::open(&ticket, world).map_err(declined).ok());
        // Without memory to map, signals are enough.
        let is_whole = memory.is_some() || offer.bytes == 0;
        Some(MappedPeer { memory, signals: signals.filter(|_| is_whole) })
    }

    /// Registers this rank's memory, and connects over TCP. Returns the handles of all ranks.
    fn connect(&self, memory: RawMemory, by_tcp: &[bool]) -> Result<(super::OwnMemory, Vec<Handle>), Error> {
        let name = self.name(self.group.rank());
        let segment = self.hub.with_endpoint(&name, |endpoint, _| endpoint.register(memory))?;
        let mut missing = None;
        for round in 0..2 {
            for rank in (0..by_tcp.len()).filter(|rank| by_tcp[*rank] && !self.is_connected(*rank)) {
                if let Err(error) = self.link(rank, round) {
                    tracing::debug!(rank, %error, "connecting windows failed");
                }
            }
            let is_served = |rank: usize| !by_tcp[rank] || self.is_connected(rank);
            let mut row: Vec<u8> = (0..by_tcp.len()).map(|rank| is_served(rank).into()).collect();
            row.extend(segment.handle().encode());
            let rows = self.gather(&row)?;
            missing = self.drop_half_connections(&rows)?;
            if missing.is_none() {
                let handle =
                    |row: &Vec<u8>| row[by_tcp.len()..].try_into().map(|bytes| Handle::decode(&bytes));
                let handles = rows.iter().map(handle).collect::<Result<_, _>>();
                let handles =
                    handles.map_err(|_| Error::Internal("invalid size of a window handle".into()))?;
                return Ok((super::OwnMemory::Registered(segment), handles));
            }
        }
        let (one, other) =
            missing.map_or((name.clone(), name), |(one, other)| (self.name(one), self.name(other)));
        Err(Error::System(format!("connecting the windows of {one} and {other} failed")))
    }

    /// Drops connections that only one end has, so that both retry. Returns the first such pair.
    fn drop_half_connections(&self, rows: &[Vec<u8>]) -> Result<Option<(usize, usize)>, Error> {
        let (me, world) = (self.group.rank(), 0..rows.len());
        let is_missing = |one: usize, other: usize| rows[one][other] == 0 || rows[other][one] == 0;
        for rank in world.clone().filter(|rank| is_missing(me, *rank)) {
            let forget = |connections: &mut Connections| connections.remove(&Rank::from_index(rank));
            drop(self.hub.with_endpoint("", |_, connections| Ok(forget(connections)))?);
        }
        let mut pairs = world.clone().flat_map(|one| world.clone().map(move |other| (one, other)));
        Ok(pairs.find(|(one, other)| is_missing(*one, *other)))
    }

    fn is_connected(&self, rank: usize) -> bool {
        self.hub.connection(Rank::from_index(rank)).is_some_and(|connection| !connection.is_over())
    }

    /// Connects to a rank. In round 0 the lower rank dials, in round 1 the higher one.
    fn link(&self, rank: usize, round: u8) -> io::Result<()> {
        // Sent first: it distinguishes this attempt from failed ones.
        let attempt = (u64::from(self.number) << 8 | u64::from(round)).to_le_bytes();
        let stream = if (self.group.rank() < rank) == (round == 0) {
            let stream = self.dial(rank)?;
            stream.set_write_timeout(Some(limits::WINDOW_DIAL_MAX))?;
            (&stream).write_all(&attempt)?;
            stream
        } else {
            self.accept(rank, &attempt)?
        };
        let (name, peer) = (self.name(self.group.rank()), self.name(rank));
        let joined = self.hub.with_endpoint(&name, |endpoint, connections| {
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
            target: DialTarget::member(Purpose::Window, *id, members[rank].peer),
            secret: Secret::epoch_key(key),
        };
        dial_blocking(&members[rank].addresses, limits::WINDOW_DIAL_MAX, &credentials, self.hub.poller())
    }

    fn accept(&self, rank: usize, attempt: &[u8; 8]) -> io::Result<BlockingConnection> {
        let until = Instant::now() + limits::WINDOW_ACCEPT_MAX;
        while let Some(stream) = self.hub.accept(self.description.members[rank].peer, until) {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let mut received = [0; 8];
            stream.set_read_timeout(Some(left))?;
            if (&stream).read_exact(&mut received).is_ok() && received == *attempt {
                return Ok(stream);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for the connection"))
    }

    fn name(&self, rank: usize) -> String {
        self.description.members[rank].name.clone()
    }
}

fn path_code(mapped: &Option<MappedPeer>) -> u8 {
    match mapped {
        Some(MappedPeer { signals: Some(_), .. }) => BY_MEMORY,
        _ => BY_TCP,
    }
}
