//! Making links: who is wanted, who dials, who knocks at our door.
//!
//! Of two who want each other the one with the lower id dials. The other one waits for a moment and then dials
//! too, so that it is enough if one of them can be reached. They never end up with two links, because the lower id
//! chooses: it takes the connection on which it is told, or tells, the verdict first, and ends all others. What the
//! higher one is told is the lower one's choice: the verdict where it dialled, the head of a stream where it did not.

mod attempt;
mod guest;

use crate::door::Door;
use crate::limits;
use crate::link::Link;
use crate::poller::{Poller, Token};
use crate::random;
use crate::segment::Ticket;
use crate::shared_link::Opened;
use crate::socket::Socket;
use attempt::{Attempt, Dialling, Receiving, Wanted};
use guest::{Guest, StreamHead};
use ringfold_proto::epoch::Member;
use ringfold_proto::handshake::{Acceptor, Established, Identity, Secret};
use ringfold_proto::hello::{Hello, Purpose, Refusal};
use ringfold_proto::id::{EpochId, PeerId, RunId};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Epochs whose members may come for shared state, probes and windows: the newest ones.
const EPOCHS_ADMITTED: usize = 3;

/// Links in the making.
#[derive(Debug)]
pub struct Mesh {
    me: PeerId,
    run: RunId,
    poller: Arc<Poller>,
    door: Door,
    /// Streams that a link gets which we dial.
    streams: u16,
    /// The host whose members we share memory with.
    shares_on: Option<u64>,
    /// How long a link may take.
    patience: Duration,
    wishes: BTreeMap<PeerId, Wish>,
    guests: HashMap<Token, Guest>,
    admitted: VecDeque<(EpochId, Secret, Vec<PeerId>)>,
    news: VecDeque<MeshNews>,
}

/// A link that is wanted.
#[derive(Debug)]
struct Wish {
    member: Member,
    epoch: EpochId,
    key: Secret,
    attempt: Attempt,
    give_up: Time,
    /// How the last attempt failed.
    trouble: String,
    pause: Duration,
}

/// What came of it.
#[derive(Debug)]
pub enum MeshNews {
    /// There is a link.
    Up(PeerId, Link),
    /// There will be none, for this reason.
    Failed(PeerId, String),
    /// A member came for shared state, a probe or windows.
    Visitor {
        /// Who.
        peer: PeerId,
        /// What for.
        purpose: Purpose,
        /// The connection; it blocks.
        stream: TcpStream,
    },
}

impl Mesh {
    /// Listens, and has no wishes.
    pub fn new(me: PeerId, door: Door, streams: u16, patience: Duration, poller: &Arc<Poller>) -> Self {
        Self {
            me,
            run: RunId(0),
            poller: poller.clone(),
            door,
            streams: streams.clamp(1, limits::STREAMS_MAX),
            shares_on: None,
            patience,
            wishes: BTreeMap::new(),
            guests: HashMap::new(),
            admitted: VecDeque::new(),
            news: VecDeque::new(),
        }
    }

    /// Links with members on this host go through memory, where that turns out to work.
    pub fn share_memory_on(mut self, host: u64) -> Self {
        self.shares_on = Some(host);
        self
    }

    /// Where others dial.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.door.address()
    }

    /// The run, once the master has told it.
    pub fn set_run(&mut self, run: RunId) {
        self.run = run;
    }

    /// A link with this member is wanted. A newer wish replaces an older one, whose key nobody may know any more.
    pub fn wish(&mut self, now: Time, member: Member, epoch: EpochId, key: &[u8; 32]) {
        let head_start = if self.me < member.peer { Duration::ZERO } else { limits::DIAL_HEAD_START };
        let wish = Wish {
            epoch,
            key: Secret::epoch_key(key),
            attempt: Attempt::Due(now + head_start),
            give_up: now + self.patience,
            trouble: "it was not dialled, and did not dial".into(),
            pause: Duration::from_millis(1),
            member,
        };
        self.wishes.insert(wish.member.peer, wish);
        self.dial_due(now);
    }

    /// The link is no longer wanted.
    pub fn forget(&mut self, peer: PeerId) {
        self.wishes.remove(&peer);
    }

    /// Members of this epoch may come for shared state, probes and windows.
    pub fn admit(&mut self, epoch: EpochId, key: &[u8; 32], members: Vec<PeerId>) {
        self.admitted.retain(|(known, ..)| *known != epoch);
        self.admitted.push_front((epoch, Secret::epoch_key(key), members));
        self.admitted.truncate(EPOCHS_ADMITTED);
    }

    /// What came of it so far.
    pub fn next_news(&mut self) -> Option<MeshNews> {
        self.news.pop_front()
    }

    /// When to call [`Mesh::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let guests = self.guests.values().map(Guest::deadline);
        let wishes = self.wishes.values().map(|wish| wish.attempt.timeout().min(wish.give_up));
        guests.chain(wishes).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let overdue = |guest: &Guest| guest.deadline() <= now;
        for (_, guest) in self.guests.extract_if(|_, guest| overdue(guest)) {
            tracing::debug!("someone did not end the handshake in time");
            guest.dismiss();
        }
        for (peer, wish) in self.wishes.extract_if(.., |_, wish| wish.give_up <= now) {
            self.news.push_back(MeshNews::Failed(peer, wish.trouble));
        }
        for wish in self.wishes.values_mut().filter(|wish| wish.attempt.timeout() <= now) {
            if !matches!(wish.attempt, Attempt::Due(_)) {
                wish.fail(now, "it took too long".into());
            }
        }
        self.dial_due(now);
    }

    /// Something can be done with a socket. Says whether it is one of ours.
    pub fn handle_ready(&mut self, now: Time, token: Token) -> bool {
        if token == self.door.token() {
            self.open_door(now);
        } else if self.guests.contains_key(&token) {
            self.receive(now, token);
        } else if let Some(wish) = self.wishes.values_mut().find(|wish| wish.attempt.has(token)) {
            let peer = wish.member.peer;
            self.go_on_dialling(now, peer, token);
        } else {
            return false;
        }
        true
    }

    fn identity(&self) -> Identity {
        Identity::new(self.me, self.run)
    }

    fn open_door(&mut self, now: Time) {
        let arrivals: Vec<_> = self.door.arrivals().collect();
        for (stream, from) in arrivals {
            if self.guests.len() >= limits::KNOCKS_MAX {
                tracing::warn!(%from, "too many connections are in their handshake; one more is dropped");
                continue;
            }
            let guest = random::nonce().and_then(|nonce| {
                Guest::new(now, stream, &self.poller, Acceptor::new(self.identity(), nonce))
            });
            match guest {
                Ok(guest) => {
                    let token = guest.token();
                    self.guests.insert(token, guest);
                    self.receive(now, token);
                }
                Err(error) => tracing::warn!(%from, %error, "a connection could not be received"),
            }
        }
    }

    /// Whoever is wanted and proves to be a member of the epoch is let in.
    fn receive(&mut self, now: Time, token: Token) {
        let Some(mut guest) = self.guests.remove(&token) else { return };
        let claim = guest.claim();
        if let Some((peer, false)) = claim
            && self.me < peer
            && self.wishes.get(&peer).is_some_and(|wish| wish.attempt.has_chosen())
        {
            // The lower id has chosen already, and another verdict would be a second choice.
            return;
        }
        let secrets = |hello: &Hello| self.secret_for(hello);
        match guest.turn(now, &secrets) {
            Ok(None) => {
                // The lower id has chosen when it has said so: its own attempt is over, and it makes no other.
                if let Some((peer, true)) = guest.claim()
                    && self.me < peer
                    && let Some(wish) = self.wishes.get_mut(&peer)
                    && !wish.attempt.is_receiving()
                {
                    wish.attempt = Attempt::Due(now + limits::HANDSHAKE_MAX);
                }
                self.guests.insert(token, guest);
            }
            Ok(Some(guest::Arrived::Stream(established, head, socket))) => {
                self.take_stream(now, &established, head, socket);
            }
            Ok(Some(guest::Arrived::Visitor(established, stream))) => {
                let (peer, purpose) = (established.peer, established.purpose);
                self.news.push_back(MeshNews::Visitor { peer, purpose, stream });
            }
            // It was told why, and will come again if that helps.
            Err(rejected) => {
                tracing::debug!(%rejected, "someone at the door is turned away");
                guest.dismiss();
                // If it was our choice, there is nothing left to wait for.
                if let Some((peer, true)) = claim
                    && let Some(wish) = self.wishes.get_mut(&peer)
                    && self.me < peer
                    && matches!(wish.attempt, Attempt::Due(_))
                {
                    wish.fail(now, rejected.why);
                }
            }
        }
    }

    fn secret_for(&self, hello: &Hello) -> Result<Secret, Refusal> {
        match hello.purpose {
            Purpose::Data => {
                let wish = self.wishes.get(&hello.session).filter(|wish| wish.epoch == hello.epoch);
                wish.map(|wish| wish.key.clone()).ok_or(Refusal::UnknownEpoch)
            }
            Purpose::State | Purpose::Probe | Purpose::Window => {
                let known = self.admitted.iter().find(|(epoch, ..)| *epoch == hello.epoch);
                let known = known.filter(|(_, _, members)| members.contains(&hello.session));
                known.map(|(_, key, _)| key.clone()).ok_or(Refusal::UnknownEpoch)
            }
            Purpose::Control => Err(Refusal::WrongPurpose),
        }
    }

    /// A stream of a link that the other end dialled.
    fn take_stream(&mut self, now: Time, established: &Established, head: StreamHead, socket: Socket) {
        let peer = established.peer;
        // While it proved itself the wish may have been replaced or fulfilled.
        let Some(wish) = self.wishes.get_mut(&peer).filter(|wish| wish.epoch == established.epoch) else {
            return;
        };
        let receiving = match &mut wish.attempt {
            Attempt::Receiving(receiving) if receiving.is_of(&head) => receiving,
            attempt => {
                *attempt = Attempt::Receiving(Receiving::new(now, &head));
                let Attempt::Receiving(receiving) = attempt else { return };
                receiving
            }
        };
        let (shares, offer) = (self.shares_on == Some(wish.member.host), head.offer);
        let Some(mut sockets) = receiving.take(head, socket) else { return };
        let link = match (offer, sockets.pop()) {
            (Some(ticket), Some(socket)) => answer(socket, &ticket, shares),
            (_, last) => {
                sockets.extend(last);
                Link::new(sockets)
            }
        };
        self.fulfil(peer, link);
    }

    /// There is a link. Whoever else claims to bring one would be told a second choice, and goes.
    fn fulfil(&mut self, peer: PeerId, link: Link) {
        self.wishes.remove(&peer);
        self.guests.retain(|_, guest| !matches!(guest.claim(), Some((of, _)) if of == peer));
        self.news.push_back(MeshNews::Up(peer, link));
    }

    fn dial_due(&mut self, now: Time) {
        let (identity, streams) = (self.identity(), self.streams);
        for wish in self.wishes.values_mut() {
            if !matches!(wish.attempt, Attempt::Due(at) if at <= now) {
                continue;
            }
            let proof = (wish.epoch, wish.key.clone());
            let wanted = Wanted { streams, shares: self.shares_on == Some(wish.member.host) };
            match Dialling::begin(now, &wish.member, identity, proof, wanted, &self.poller) {
                Ok(dialling) => wish.attempt = Attempt::Dialling(Box::new(dialling)),
                Err(error) => wish.fail(now, error.to_string()),
            }
        }
    }

    fn go_on_dialling(&mut self, now: Time, peer: PeerId, token: Token) {
        let Some(wish) = self.wishes.get_mut(&peer) else { return };
        let Attempt::Dialling(dialling) = &mut wish.attempt else { return };
        match dialling.turn(now, token, &self.poller) {
            Ok(None) => {}
            Ok(Some(link)) => self.fulfil(peer, link),
            Err(why) => {
                tracing::debug!(peer = wish.member.name, why, "dialling failed");
                wish.fail(now, why);
            }
        }
    }
}

/// Answers an offer of memory. The link goes through it if it can be opened, else through the stream.
fn answer(mut socket: Socket, ticket: &Ticket, shares: bool) -> Link {
    let opened = match shares {
        true => Opened::new(ticket),
        false => Err(io::Error::other("memory is not shared with that host")),
    };
    socket.send(&[if opened.is_ok() { guest::ACCEPTED } else { guest::DECLINED }]);
    // A broken connection shows when it is read.
    let _ = socket.flush(&mut Vec::new());
    match opened {
        Ok(opened) => Link::Shared(Box::new(opened.link(socket))),
        Err(error) => {
            tracing::debug!(%error, "offered memory is declined; the link goes through the network");
            Link::new(vec![socket])
        }
    }
}

impl Wish {
    /// An attempt came to nothing: another address is due, or another attempt after a pause that grows.
    fn fail(&mut self, now: Time, why: String) {
        self.trouble = why;
        let addresses = &mut self.member.addresses;
        if !addresses.is_empty() {
            addresses.rotate_left(1);
        }
        self.attempt = Attempt::Due(now + self.pause);
        self.pause = (self.pause * 2).min(limits::REDIAL_PAUSE);
    }
}
