//! How the ranks of a group find each other.
//!
//! Rank 0 listens, the others come to it and say who they are. When all are there it tells everyone who is in the
//! group, and what it has decided for all of them: order, key, tuning, and the memory that they share if they can.

use crate::Error;
use core::fmt;
use ringfold_fabric::arena::{Arena, Geometry};
use ringfold_fabric::segment::Ticket;
use ringfold_fabric::socket::round_trip;
use ringfold_fabric::{knock, random};
use ringfold_proto::epoch::{EpochDescription, Member};
use ringfold_proto::handshake::{Acceptor, Dialler, HandshakeError, Identity, Secret, Target};
use ringfold_proto::hello::{Hello, Purpose, Refusal};
use ringfold_proto::id::{EpochId, GroupId, Incarnation, PeerId, Rank, RunId};
use ringfold_proto::tuning::Tuning;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Where the ranks of a group meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bootstrap {
    /// Rank 0 listens at this address, `host:port`, and the others dial it.
    Address(String),
    /// Rank 0 listens wherever it can and writes that into this file, which all ranks can read. Whatever is in the
    /// file before is overwritten, and rank 0 removes it when all have come.
    File(PathBuf),
}

impl fmt::Display for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// What a rank brings.
pub(super) struct Arrival {
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) world: usize,
    pub(super) member: Member,
    pub(super) token: String,
    pub(super) tuning: Tuning,
    /// Whether memory may be shared, and whether it must.
    pub(super) may_share: bool,
    pub(super) must_share: bool,
    pub(super) until: Instant,
}

/// What all ranks know when they have met.
pub(super) struct Met {
    pub(super) description: EpochDescription,
    pub(super) arena: Option<Arena>,
}

/// Bytes of one message, at most.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The pause between two attempts to reach rank 0.
const PAUSE: Duration = Duration::from_millis(20);

/// How long rank 0 may take to tell those who came why there will be no group, and how long they wait for that beyond
/// their own time.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// How often rank 0 looks whether those who came are still there.
const LOOK: Duration = Duration::from_millis(50);

/// How long one connection may take to say who it is.
const INTRODUCTION_MAX: Duration = Duration::from_secs(5);

/// Connections that may introduce themselves at the same time.
const INTRODUCTIONS_MAX: usize = 256;

#[derive(Clone, Serialize, Deserialize)]
struct Join {
    group: String,
    rank: u16,
    world: u16,
    member: Member,
    may_share: bool,
}

#[derive(Clone, Serialize, Deserialize)]
enum Reply {
    /// Everyone is there.
    Welcome { description: Box<EpochDescription>, arena: Option<ArenaOffer> },
    /// The group begins; whether its memory is shared.
    Begin { shares: bool },
    /// This rank can't take part, now or at all.
    Refused { why: String, retryable: bool },
    /// This rank has come, and the others are waited for.
    Counted,
}

#[derive(Clone, Serialize, Deserialize)]
struct ArenaOffer {
    ticket: Vec<u8>,
    slot_bytes: u32,
    depth: u16,
}

/// Meets the others.
pub(super) fn meet(at: &Bootstrap, arrival: Arrival) -> Result<Met, Error> {
    if arrival.world == 1 {
        let description = describe(&arrival, Vec::new(), Duration::ZERO)?;
        return Ok(Met { description, arena: None });
    }
    if arrival.rank == Rank(0) { host(at, &arrival) } else { join(at, &arrival) }
}

/// Rank 0's part.
fn host(at: &Bootstrap, arrival: &Arrival) -> Result<Met, Error> {
    let (listener, secret) = listen(at, arrival)?;
    let _announcement = announce(at, &listener, &secret)?;
    let secret = Secret::token(&format!("{secret}{}", arrival.token));
    let mut others = Others::new();
    let gathered = gather(at, &listener, &secret, arrival, &mut others);
    let outcome = gathered.and_then(|()| agree(arrival, &mut others));
    if let Err(error) = &outcome {
        // All who came hear the same.
        let why = match error {
            Error::NoGroup(why) => why.clone(),
            other => format!("rank 0 failed: {other}"),
        };
        let (refused, until) = (Reply::Refused { why, retryable: false }, Instant::now() + LAST_WORDS_MAX);
        for (_, stream) in others.values_mut() {
            let _ = send(stream, &refused, until);
        }
    }
    outcome
}

type Others = BTreeMap<u16, (Join, TcpStream)>;

/// Decides for all, and tells them.
fn agree(arrival: &Arrival, others: &mut Others) -> Result<Met, Error> {
    let members: Vec<Member> = others.values().map(|(join, _)| join.member.clone()).collect();
    let may_share = arrival.may_share
        && others.values().all(|(join, _)| join.may_share && join.member.host == arrival.member.host);
    // From one rank to another it is at most as far as from both to rank 0.
    let way = |(_, stream): &(Join, TcpStream)| round_trip(stream).unwrap_or_default();
    let mut ways: Vec<_> = others.values().map(way).collect();
    ways.sort_unstable();
    let longest = ways.iter().rev().take(2).sum();
    let description = describe(arrival, members, longest)?;
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
    for (rank, (_, stream)) in others.iter_mut() {
        send(stream, &welcome, arrival.until).map_err(|error| gone(*rank, &error))?;
    }
    let mut shares = arena.is_some();
    for (rank, (_, stream)) in others.iter_mut() {
        let mapped: bool = receive(stream, arrival.until).map_err(|error| gone(*rank, &error))?;
        shares &= mapped;
    }
    if !shares && arrival.must_share {
        let why = if geometry.is_sound() { "they are not on one host" } else { "there are too many of them" };
        return Err(Error::NoGroup(format!("its ranks can't share memory: {why}")));
    }
    for (rank, (_, stream)) in others.iter_mut() {
        send(stream, &Reply::Begin { shares }, arrival.until).map_err(|error| gone(*rank, &error))?;
    }
    Ok(Met { description, arena: arena.filter(|_| shares) })
}

fn gone(rank: u16, error: &io::Error) -> Error {
    Error::NoGroup(format!("rank {rank} was lost while the group formed: {error}"))
}

/// The board's measures for a group.
fn geometry(world: usize, tuning: &Tuning) -> Geometry {
    Geometry { world, slot_bytes: tuning.board_slot_bytes as usize, depth: usize::from(tuning.board_depth) }
}

fn describe(arrival: &Arrival, others: Vec<Member>, longest: Duration) -> Result<EpochDescription, Error> {
    let system = |error: io::Error| Error::system("the group can't be described", &error);
    let members: Vec<_> = std::iter::once(arrival.member.clone()).chain(others).collect();
    let incarnation = Incarnation(u64::from_le_bytes(random::bytes().map_err(system)?));
    Ok(EpochDescription {
        id: EpochId { group: GroupId(0), incarnation, counter: 1 },
        ring: (0..members.len()).map(Rank::from_index).collect(),
        members,
        mesh: true,
        missing: Vec::new(),
        tuning: arrival.tuning.for_round_trip(longest).bounded(),
        key: random::bytes().map_err(system)?,
    })
}

fn listen(at: &Bootstrap, arrival: &Arrival) -> Result<(TcpListener, String), Error> {
    let failed = |error: &io::Error| Error::NoGroup(format!("rank 0 can't listen at {at}: {error}"));
    match at {
        Bootstrap::Address(address) => loop {
            match TcpListener::bind(address) {
                Ok(listener) => return Ok((listener, String::new())),
                // Another group of this program may be meeting there.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() + PAUSE < arrival.until =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(failed(&error)),
            }
        },
        Bootstrap::File(_) => {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|error| failed(&error))?;
            let secret: [u8; 16] = random::bytes().map_err(|error| failed(&error))?;
            Ok((listener, secret.iter().map(|byte| format!("{byte:02x}")).collect()))
        }
    }
}

/// A file that says where rank 0 listens; removed when it is dropped.
struct Announcement(Option<PathBuf>);

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn announce(at: &Bootstrap, listener: &TcpListener, secret: &str) -> Result<Announcement, Error> {
    let Bootstrap::File(path) = at else { return Ok(Announcement(None)) };
    let write = || -> io::Result<()> {
        let port = listener.local_addr()?.port();
        let mut text = format!("ringfold {secret}\n127.0.0.1:{port}\n");
        if let Some(address) = outward_address() {
            text += &format!("{address}:{port}\n");
        }
        // Whoever reads it shall see all of it, or nothing.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        // Whoever reads the secret can take part. Nobody else's file or link is written through.
        let _ = std::fs::remove_file(&draft);
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&draft, path)
    };
    write().map_err(|error| Error::NoGroup(format!("{at} can't be written: {error}")))?;
    Ok(Announcement(Some(path.clone())))
}

/// The address that packets to elsewhere would come from. Nothing is sent to find that out.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

/// Waits until everyone has come.
fn gather(
    at: &Bootstrap,
    listener: &TcpListener,
    secret: &Secret,
    arrival: &Arrival,
    others: &mut Others,
) -> Result<(), Error> {
    let system = |error: io::Error| Error::system("meeting the other ranks", &error);
    listener.set_nonblocking(true).map_err(system)?;
    let (sender, introductions) = mpsc::channel::<Introduction>();
    let mut introducing: Vec<std::thread::JoinHandle<()>> = Vec::new();
    let (mut has_seen_strangers, mut next_look) = (false, Instant::now() + LOOK);
    while others.len() + 1 < arrival.world {
        let now = Instant::now();
        if now >= arrival.until {
            let missing: Vec<_> =
                (1..arrival.world as u16).filter(|rank| !others.contains_key(rank)).collect();
            let hint = if has_seen_strangers { "; someone came who does not know the token" } else { "" };
            return Err(Error::NoGroup(format!("{} did not come to {at} in time{hint}", ranks(&missing))));
        }
        if now >= next_look {
            next_look = now + LOOK;
            look_after(others)?;
        }
        introducing.retain(|thread| !thread.is_finished());
        match listener.accept() {
            Ok((stream, from)) if introducing.len() < INTRODUCTIONS_MAX => {
                let (secret, me, sender) = (secret.clone(), arrival.member.peer, sender.clone());
                let spawned = std::thread::Builder::new().spawn(move || {
                    let introduction = introduce(stream, from, &secret, me);
                    // If nobody listens any more, all have come.
                    let _ = sender.send(introduction.unwrap_or_else(|error| {
                        tracing::debug!(%from, %error, "someone who came is no rank");
                        Introduction::Stranger { lacks_token: is_about_token(&error) }
                    }));
                });
                match spawned {
                    Ok(thread) => introducing.push(thread),
                    // Whoever came tries again.
                    Err(error) => tracing::warn!(%error, "a connection can't introduce itself"),
                }
            }
            Ok(_) => tracing::warn!("too many connections introduce themselves; one more is dropped"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
        }
        match introductions.recv_timeout(Duration::from_millis(2)) {
            Ok(Introduction::Rank(join, mut stream)) => match refusal(&join, arrival, others) {
                None => {
                    // Whoever does not hear that it counts comes again.
                    if send(&mut stream, &Reply::Counted, arrival.until).is_ok() {
                        others.insert(join.rank, (*join, stream));
                    }
                }
                Some((why, retryable)) => {
                    let _ = send(&mut stream, &Reply::Refused { why, retryable }, arrival.until);
                }
            },
            Ok(Introduction::Stranger { lacks_token }) => has_seen_strangers |= lacks_token,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Whoever has come, and has gone again, will be missed.
fn look_after(others: &Others) -> Result<(), Error> {
    for (rank, (_, stream)) in others {
        // They have nothing to say now, so there is something to read only if it is the end.
        let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
        let back = stream.set_nonblocking(false);
        match looked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(gone(*rank, &error)),
            Ok(0) => return Err(gone(*rank, &io::Error::from(io::ErrorKind::UnexpectedEof))),
            Ok(_) => return Err(gone(*rank, &io::Error::other("it spoke out of turn"))),
        }
        back.map_err(|error| gone(*rank, &error))?;
    }
    Ok(())
}

/// Who came.
enum Introduction {
    Rank(Box<Join>, TcpStream),
    Stranger { lacks_token: bool },
}

/// Whether a handshake failed because the two ends know different secrets.
fn is_about_token(error: &io::Error) -> bool {
    use HandshakeError::{BadToken, Impostor, TokenMissing, TokenUnexpected};
    let failed = error.get_ref().and_then(|error| error.downcast_ref::<HandshakeError>());
    matches!(failed, Some(BadToken | Impostor | TokenMissing | TokenUnexpected))
}

/// Why someone can't take part.
fn refusal(join: &Join, arrival: &Arrival, others: &Others) -> Option<(String, bool)> {
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
    Some((format!("rank {} is taken by {}", join.rank, other.0.member.name), false))
}

fn introduce(
    mut stream: TcpStream,
    from: SocketAddr,
    secret: &Secret,
    me: PeerId,
) -> io::Result<Introduction> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let acceptor = Acceptor::new(Identity::new(me, RunId(0)), random::nonce()?);
    let secrets = |hello: &Hello| match hello.purpose {
        Purpose::Control => Ok(secret.clone()),
        _ => Err(Refusal::WrongPurpose),
    };
    let until = Instant::now() + INTRODUCTION_MAX;
    knock::welcome(&mut stream, INTRODUCTION_MAX, acceptor, &secrets)?;
    let mut join: Join = receive(&mut stream, until)?;
    name_unspecified(&mut join.member, from.ip());
    Ok(Introduction::Rank(Box::new(join), stream))
}

/// An address that says "everywhere" becomes one that can be dialled.
fn name_unspecified(member: &mut Member, seen: IpAddr) {
    for address in &mut member.addresses {
        if address.ip().is_unspecified() {
            address.set_ip(seen.to_canonical());
        }
    }
}

/// The part of all other ranks.
fn join(at: &Bootstrap, arrival: &Arrival) -> Result<Met, Error> {
    let mut trouble = format!("nobody listens at {at}");
    while Instant::now() < arrival.until {
        match attempt(at, arrival) {
            Ok(met) => return Ok(met),
            Err(Failed { why, retryable: true }) => trouble = why,
            Err(Failed { why, retryable: false }) => return Err(Error::NoGroup(why)),
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::NoGroup(format!("rank 0 was not found at {at} in time: {trouble}")))
}

/// Why an attempt to join came to nothing.
struct Failed {
    why: String,
    retryable: bool,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self { why: error.to_string(), retryable: true }
    }
}

fn attempt(at: &Bootstrap, arrival: &Arrival) -> Result<Met, Failed> {
    let (addresses, secret) = find(at)?;
    let secret = Secret::token(&format!("{secret}{}", arrival.token));
    let identity = Identity::new(arrival.member.peer, RunId(0));
    let dialler = || Ok(Dialler::new(identity, Target::master(), secret.clone(), random::nonce()?));
    let mut stream = knock::reach(&addresses, INTRODUCTION_MAX, dialler).map_err(|error| {
        // A file may still be that of an earlier run, with another secret.
        let is_final = is_about_token(&error) && matches!(at, Bootstrap::Address(_));
        Failed { why: error.to_string(), retryable: !is_final }
    })?;
    let seen = stream.peer_addr()?.ip();
    let Arrival { rank, world, member, may_share, .. } = arrival;
    let (group, world) = (arrival.name.clone(), *world as u16);
    let join = Join { group, rank: rank.0, world, member: member.clone(), may_share: *may_share };
    send(&mut stream, &join, arrival.until)?;
    let refused = |why, retryable| Failed { why, retryable };
    let out_of_turn = || io::Error::other("it spoke out of turn");
    match receive(&mut stream, arrival.until)? {
        Reply::Counted => {}
        Reply::Refused { why, retryable } => return Err(refused(why, retryable)),
        Reply::Welcome { .. } | Reply::Begin { .. } => return Err(out_of_turn().into()),
    }
    // From here on rank 0 counts on us: another attempt would find our place taken.
    let lost = |error: io::Error| Failed {
        why: match error.kind() {
            io::ErrorKind::TimedOut => format!("not all ranks came to {at} in time"),
            _ => format!("rank 0 is lost: {error}"),
        },
        retryable: false,
    };
    let until = arrival.until + LAST_WORDS_MAX;
    let (mut description, offer) = match receive(&mut stream, until).map_err(lost)? {
        Reply::Welcome { description, arena } => (*description, arena),
        Reply::Refused { why, .. } => return Err(refused(why, false)),
        Reply::Begin { .. } | Reply::Counted => return Err(lost(out_of_turn())),
    };
    let is_ours = description.is_sound(member.peer)
        && description.rank_of(member.peer) == Some(*rank)
        && description.members.len() == arrival.world;
    if !is_ours {
        return Err(lost(io::Error::other("the group it describes makes no sense")));
    }
    name_unspecified(&mut description.members[0], seen);
    description.tuning = description.tuning.bounded();
    let arena = offer.and_then(|offer| map(&offer, arrival.world));
    send(&mut stream, &arena.is_some(), until).map_err(lost)?;
    match receive(&mut stream, until).map_err(lost)? {
        Reply::Begin { shares } => Ok(Met { description, arena: arena.filter(|_| shares) }),
        Reply::Refused { why, .. } => Err(refused(why, false)),
        Reply::Welcome { .. } | Reply::Counted => Err(lost(out_of_turn())),
    }
}

/// Where rank 0 listens, and the secret it has told.
fn find(at: &Bootstrap) -> io::Result<(Vec<SocketAddr>, String)> {
    use std::net::ToSocketAddrs;
    match at {
        Bootstrap::Address(address) => Ok((address.to_socket_addrs()?.collect(), String::new())),
        Bootstrap::File(path) => read_announcement(path),
    }
}

fn read_announcement(path: &Path) -> io::Result<(Vec<SocketAddr>, String)> {
    let odd = || io::Error::other(format!("{} was not written by rank 0", path.display()));
    let mut text = String::new();
    std::fs::File::open(path)?.take(4096).read_to_string(&mut text)?;
    let mut lines = text.lines();
    let secret = lines.next().and_then(|line| line.strip_prefix("ringfold ")).ok_or_else(odd)?;
    let addresses = lines.map(|line| line.parse().map_err(|_| odd())).collect::<io::Result<_>>()?;
    Ok((addresses, secret.to_owned()))
}

fn map(offer: &ArenaOffer, world: usize) -> Option<Arena> {
    let ticket = offer.ticket.as_slice().try_into().ok().and_then(Ticket::decode)?;
    let geometry = Geometry { world, slot_bytes: offer.slot_bytes as usize, depth: usize::from(offer.depth) };
    if !geometry.is_sound() {
        return None;
    }
    match Arena::open(&ticket, geometry) {
        Ok(arena) => Some(arena),
        Err(error) => {
            tracing::debug!(%error, "the group's memory can't be shared");
            None
        }
    }
}

fn send<T: Serialize>(stream: &mut TcpStream, message: &T, until: Instant) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(&bytes)
}

fn receive<T: for<'a> Deserialize<'a>>(stream: &mut TcpStream, until: Instant) -> io::Result<T> {
    let mut length = [0; 4];
    read_exact(stream, &mut length, until)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::other("a message is too long"));
    }
    // The room grows with what arrives, not with what is claimed.
    let mut body = Vec::new();
    while body.len() < length {
        let have = body.len();
        body.resize(length.min(have + 64 * 1024), 0);
        read_exact(stream, &mut body[have..], until)?;
    }
    postcard::from_bytes(&body).map_err(io::Error::other)
}

fn read_exact(stream: &mut TcpStream, mut place: &mut [u8], until: Instant) -> io::Result<()> {
    while !place.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(place) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(bytes) => place = &mut place[bytes..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the others did not come in time"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
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
