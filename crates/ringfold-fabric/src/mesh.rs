//! Making links: who is wanted, who dials, and which incoming connections belong to them.
//!
//! Of two who want each other the one with the lower id dials. The other one waits for a moment and then dials
//! too, so that it is enough if one of them can be reached. They never end up with two links, because the lower id
//! chooses: it takes the connection on which it is told, or tells, the verdict first, and ends all others. What the
//! higher one is told is the lower one's choice: the verdict where it dialled, the head of a stream where it did not.

mod attempt;
mod head;

use crate::connection::{BlockingConnection, Connection};
use crate::dialer::{Backoff, Credentials, DialTiming};
use crate::limits;
use crate::link::Link;
use crate::listener::{Listener, Outcome};
use crate::poller::{Poller, Token};
use crate::segment::Ticket;
use crate::shared_link::Opened;
use attempt::{Attempt, Dialling, Receiving, Wanted};
use head::StreamHead;
use ringfold_proto::epoch::Member;
use ringfold_proto::handshake::{Established, Identity, Secret, SecretFor, Target};
use ringfold_proto::hello::{Hello, Purpose, Refusal};
use ringfold_proto::id::{EpochId, PeerId, RunId};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
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
    listener: Listener,
    /// Streams that a link gets which we dial.
    streams: u16,
    /// The host whose members we share memory with.
    shares_on: Option<u64>,
    /// How long a link may take.
    patience: Duration,
    wishes: BTreeMap<PeerId, Wish>,
    /// Incoming streams of links that have not said which one they are.
    unnamed: HashMap<Token, Unnamed>,
    admitted: VecDeque<Admitted>,
    news: VecDeque<MeshNews>,
}

/// An epoch whose members may come: its key, and who they are.
type Admitted = (EpochId, Secret, Vec<PeerId>);

/// A member's connection for a link, until it says which stream it is.
#[derive(Debug)]
struct Unnamed {
    established: Established,
    connection: Connection,
    deadline: Time,
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
    backoff: Backoff,
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
        /// The connection.
        connection: BlockingConnection,
    },
}

impl Mesh {
    /// Listens, and has no wishes.
    pub fn new(
        me: PeerId,
        listener: Listener,
        streams: u16,
        patience: Duration,
        poller: &Arc<Poller>,
    ) -> Self {
        Self {
            me,
            run: RunId(0),
            poller: poller.clone(),
            listener,
            streams: streams.clamp(1, limits::STREAMS_MAX),
            shares_on: None,
            patience,
            wishes: BTreeMap::new(),
            unnamed: HashMap::new(),
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
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
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
            backoff: Backoff::new(Duration::from_millis(1), limits::REDIAL_PAUSE),
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
        let unnamed = self.unnamed.values().map(|unnamed| unnamed.deadline);
        let wishes = self.wishes.values().map(|wish| wish.attempt.timeout().min(wish.give_up));
        unnamed.chain(wishes).chain(self.listener.poll_timeout()).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.listener.handle_timeout(now);
        self.take_outcomes(now);
        self.unnamed.retain(|_, unnamed| unnamed.deadline > now);
        for (peer, wish) in self.wishes.extract_if(.., |_, wish| wish.give_up <= now) {
            self.news.push_back(MeshNews::Failed(peer, wish.trouble));
        }
        let late: Vec<_> =
            self.wishes.values().filter(|w| w.attempt.timeout() <= now).map(|w| w.member.peer).collect();
        for peer in late {
            self.advance_attempt(now, peer, None);
        }
        self.dial_due(now);
    }

    /// Something can be done with a socket. Says whether it is one of ours.
    pub fn handle_ready(&mut self, now: Time, token: Token) -> bool {
        let identity = self.identity();
        let secrets = Secrets { me: self.me, wishes: &self.wishes, admitted: &self.admitted };
        if self.listener.handle_ready(now, token, identity, &secrets) {
            self.take_outcomes(now);
        } else if self.unnamed.contains_key(&token) {
            self.hear_head(now, token);
        } else if let Some(wish) = self.wishes.values().find(|wish| wish.attempt.has(token)) {
            self.advance_attempt(now, wish.member.peer, Some(token));
        } else {
            return false;
        }
        true
    }

    fn identity(&self) -> Identity {
        Identity::new(self.me, self.run)
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                Outcome::Established(established, connection, _) => {
                    self.receive(now, established, connection)
                }
                // It was told why, and will come again if that helps.
                Outcome::Rejected(from, rejection) => {
                    tracing::debug!(%from, %rejection, "rejected an incoming connection");
                }
            }
        }
    }

    /// A member has come.
    fn receive(&mut self, now: Time, established: Established, connection: Connection) {
        let Established { peer, purpose, .. } = established;
        if purpose != Purpose::Data {
            match connection.into_blocking() {
                Ok(connection) => self.news.push_back(MeshNews::Visitor { peer, purpose, connection }),
                Err(error) => tracing::debug!(peer = peer.short(), %error, "rejected an incoming connection"),
            }
            return;
        }
        // The lower id has chosen when it has said so: its own attempt is over, and it makes no other.
        if self.me < peer
            && let Some(wish) = self.wishes.get_mut(&peer)
            && wish.epoch == established.epoch
            && !wish.attempt.is_receiving()
        {
            wish.attempt = Attempt::Due(now + limits::HANDSHAKE_MAX);
        }
        let token = connection.token();
        self.unnamed
            .insert(token, Unnamed { established, connection, deadline: now + limits::HANDSHAKE_MAX });
        self.hear_head(now, token);
    }

    /// An incoming stream may have said which one it is.
    fn hear_head(&mut self, now: Time, token: Token) {
        let Some(mut unnamed) = self.unnamed.remove(&token) else { return };
        // What follows the head belongs to the link, so no byte of it may be lost: it stays in the connection's input.
        let filled = unnamed.connection.fill();
        let head = unnamed.connection.take(StreamHead::take);
        let why = match (head, filled) {
            (None, Ok(_)) => return drop(self.unnamed.insert(token, unnamed)),
            (Some(Ok(head)), _) => {
                return self.take_stream(now, &unnamed.established, head, unnamed.connection);
            }
            (Some(Err(why)), _) => why.to_owned(),
            (None, Err(error)) => error.to_string(),
        };
        let peer = unnamed.established.peer;
        tracing::debug!(peer = peer.short(), why, "rejected a stream");
        // If it was our choice, there is nothing left to wait for.
        if self.me < peer
            && let Some(wish) = self.wishes.get_mut(&peer)
            && matches!(wish.attempt, Attempt::Due(_))
        {
            wish.fail(now, why);
        }
    }

    /// A stream of a link that the other end dialled.
    fn take_stream(
        &mut self,
        now: Time,
        established: &Established,
        head: StreamHead,
        connection: Connection,
    ) {
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
        let Some(mut streams) = receiving.take(head, connection) else { return };
        let link = match (offer, streams.pop()) {
            (Some(ticket), Some(stream)) => answer(stream, &ticket, shares),
            (_, last) => {
                streams.extend(last);
                Link::new(streams)
            }
        };
        self.fulfil(peer, link);
    }

    /// There is a link. Another connection that claims to bring one would be told a second choice, and is dropped.
    fn fulfil(&mut self, peer: PeerId, link: Link) {
        self.wishes.remove(&peer);
        self.unnamed.retain(|_, unnamed| unnamed.established.peer != peer);
        self.drop_claiming(peer);
        self.news.push_back(MeshNews::Up(peer, link));
    }

    fn drop_claiming(&mut self, peer: PeerId) {
        self.listener.drop_claiming(|hello| hello.purpose == Purpose::Data && hello.session == peer);
    }

    fn dial_due(&mut self, now: Time) {
        let identity = self.identity();
        for wish in self.wishes.values_mut() {
            if !matches!(wish.attempt, Attempt::Due(at) if at <= now) {
                continue;
            }
            let Member { peer, host, addresses, .. } = &wish.member;
            let target = Target::member(Purpose::Data, wish.epoch, *peer);
            let credentials = Credentials { identity, target, secret: wish.key.clone() };
            // Only the lower id may be told several verdicts: it chooses one.
            let head_start = if self.me < *peer { limits::DIAL_HEAD_START } else { Duration::MAX };
            let wanted = Wanted {
                streams: self.streams,
                shares: self.shares_on == Some(*host),
                timing: DialTiming { head_start, ..DialTiming::default() },
            };
            match Dialling::begin(now, addresses, credentials, wanted, &self.poller) {
                Ok(dialling) => wish.attempt = Attempt::Dialling(Box::new(dialling)),
                Err(error) => wish.fail(now, error.to_string()),
            }
        }
    }

    /// Moves on what a token of an attempt is of, or what is due of it.
    fn advance_attempt(&mut self, now: Time, peer: PeerId, token: Option<Token>) {
        let Some(wish) = self.wishes.get_mut(&peer) else { return };
        let had_chosen = wish.attempt.has_chosen();
        let outcome = match &mut wish.attempt {
            Attempt::Due(_) => return,
            Attempt::Dialling(dialling) => dialling.advance(now, token, &self.poller),
            Attempt::Receiving(_) => Err("not all streams of the link came in time".into()),
        };
        match outcome {
            Ok(None) if self.me < peer && wish.attempt.has_chosen() && !had_chosen => {
                self.drop_claiming(peer)
            }
            Ok(None) => {}
            Ok(Some(link)) => self.fulfil(peer, link),
            Err(why) => {
                tracing::debug!(peer = wish.member.name, why, "no link was made; trying again");
                wish.fail(now, why);
            }
        }
    }
}

/// What an incoming connection must prove to know.
struct Secrets<'a> {
    me: PeerId,
    wishes: &'a BTreeMap<PeerId, Wish>,
    admitted: &'a VecDeque<Admitted>,
}

impl SecretFor for Secrets<'_> {
    fn secret_for(&self, hello: &Hello) -> Result<Secret, Refusal> {
        let peer = hello.session;
        match hello.purpose {
            Purpose::Data => {
                let wish = self.wishes.get(&peer).filter(|wish| wish.epoch == hello.epoch);
                // Where the lower id has chosen, another verdict would be a second choice.
                let wish = wish.filter(|wish| peer < self.me || !wish.attempt.has_chosen());
                wish.map(|wish| wish.key.clone()).ok_or(Refusal::UnknownEpoch)
            }
            Purpose::State | Purpose::Probe | Purpose::Window => {
                let known = self.admitted.iter().find(|(epoch, ..)| *epoch == hello.epoch);
                let known = known.filter(|(_, _, members)| members.contains(&peer));
                known.map(|(_, key, _)| key.clone()).ok_or(Refusal::UnknownEpoch)
            }
            Purpose::Control => Err(Refusal::WrongPurpose),
        }
    }
}

/// Answers an offer of memory. The link goes through it if it can be opened, else through the stream.
fn answer(mut connection: Connection, ticket: &Ticket, shares: bool) -> Link {
    let opened = match shares {
        true => Opened::new(ticket),
        false => Err(io::Error::other("memory is not shared with that host")),
    };
    connection.send(&[if opened.is_ok() { head::ACCEPTED } else { head::DECLINED }]);
    // A broken connection shows when it is read.
    let _ = connection.flush(&mut Vec::new());
    match opened {
        Ok(opened) => Link::Shared(Box::new(opened.link(connection))),
        Err(error) => {
            tracing::debug!(%error, "offered memory is declined; the link goes through the network");
            Link::new(vec![connection])
        }
    }
}

impl Wish {
    /// An attempt came to nothing: another one is due after a pause that grows.
    fn fail(&mut self, now: Time, why: String) {
        self.trouble = why;
        self.attempt = Attempt::Due(now + self.backoff.next_pause());
    }
}
