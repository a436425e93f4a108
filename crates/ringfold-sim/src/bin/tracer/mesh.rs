//! Making links: who is wanted, who dials, who knocks at our door.

use crate::knock::{CONNECT_MAX, KNOCKS_MAX, Knock};
use crate::random;
use crate::socket::Socket;
use crate::timing::{LINK_AGAIN, LINK_MAX};
use ringfold_proto::epoch::Member;
use ringfold_proto::handshake::{Acceptor, Dialler, Identity, Secret, Target};
use ringfold_proto::hello::{Hello, Purpose, Refusal};
use ringfold_proto::id::{EpochId, PeerId, RunId};
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Links in the making.
pub struct Mesh {
    me: PeerId,
    listener: TcpListener,
    wishes: BTreeMap<PeerId, Wish>,
    guests: Vec<Knock>,
}

/// A link that is wanted. The lower id dials, so that two who want each other do not make two.
struct Wish {
    member: Member,
    epoch: EpochId,
    key: Secret,
    attempt: Attempt,
    give_up: Time,
}

enum Attempt {
    /// The other end dials.
    Theirs,
    /// We dial, at this time.
    Due(Time),
    /// We have dialled.
    Knocking(Box<Knock>),
}

/// What came of a wish.
pub enum LinkNews {
    /// There is a connection.
    Up(PeerId, Socket),
    /// There will be none.
    Failed(PeerId),
}

impl Mesh {
    /// Listens on a free port of the loopback.
    pub fn open(me: PeerId) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        Ok(Self { me, listener, wishes: BTreeMap::new(), guests: Vec::new() })
    }

    /// Where others dial.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A link with this member is wanted. A newer wish replaces an older one, whose key nobody may know any
    /// more.
    pub fn wish(&mut self, now: Time, member: Member, epoch: EpochId, key: &[u8; 32]) {
        let attempt = if self.me < member.peer { Attempt::Due(now) } else { Attempt::Theirs };
        let key = Secret::epoch_key(key);
        self.wishes.insert(member.peer, Wish { member, epoch, key, attempt, give_up: now + LINK_MAX });
    }

    /// The link is no longer wanted.
    pub fn forget(&mut self, peer: PeerId) {
        self.wishes.remove(&peer);
    }

    /// Moves on whatever can be moved.
    pub fn turn(&mut self, now: Time, run: RunId) -> io::Result<Vec<LinkNews>> {
        let identity = Identity::new(self.me, run);
        self.accept(now, identity)?;
        let mut news = self.receive_guests(now);
        let mut ended = Vec::new();
        for (peer, wish) in &mut self.wishes {
            if let Some(end) = wish.turn(now, identity)? {
                news.push(end);
                ended.push(*peer);
            }
        }
        ended.iter().for_each(|peer| self.forget(*peer));
        Ok(news)
    }

    fn accept(&mut self, now: Time, identity: Identity) -> io::Result<()> {
        while self.guests.len() < KNOCKS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let acceptor = Acceptor::new(identity, random::nonce()?);
                    self.guests.push(Knock::accepting(now, Socket::new(stream)?, acceptor));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whoever is wanted and proves to be a member of the epoch is let in.
    fn receive_guests(&mut self, now: Time) -> Vec<LinkNews> {
        let mut news = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            let wishes = &self.wishes;
            let secrets = |hello: &Hello| secret_for(wishes, hello);
            match guest.turn(now, &secrets) {
                Ok(None) => self.guests.push(guest),
                Ok(Some(established)) => {
                    // While it proved itself the wish may have been replaced or fulfilled.
                    let is_wanted = |wish: &mut Wish| wish.epoch == established.epoch && wish.is_theirs();
                    if self.wishes.get_mut(&established.peer).is_some_and(is_wanted) {
                        self.wishes.remove(&established.peer);
                        news.push(LinkNews::Up(established.peer, guest.into_socket()));
                    }
                }
                // It was told why, and will come again if that helps.
                Err(_) => {}
            }
        }
        news
    }
}

fn secret_for(wishes: &BTreeMap<PeerId, Wish>, hello: &Hello) -> Result<Secret, Refusal> {
    if hello.purpose != Purpose::Data {
        return Err(Refusal::WrongPurpose);
    }
    let wish = wishes.get(&hello.session).filter(|wish| wish.epoch == hello.epoch && wish.is_theirs());
    wish.map(|wish| wish.key.clone()).ok_or(Refusal::UnknownEpoch)
}

impl Wish {
    fn is_theirs(&self) -> bool {
        matches!(self.attempt, Attempt::Theirs)
    }

    fn turn(&mut self, now: Time, identity: Identity) -> io::Result<Option<LinkNews>> {
        let peer = self.member.peer;
        if now >= self.give_up {
            return Ok(Some(LinkNews::Failed(peer)));
        }
        match std::mem::replace(&mut self.attempt, Attempt::Due(now + LINK_AGAIN)) {
            Attempt::Theirs => self.attempt = Attempt::Theirs,
            Attempt::Due(at) if now < at => self.attempt = Attempt::Due(at),
            Attempt::Due(_) => {
                let target = Target::member(Purpose::Data, self.epoch, peer);
                let dialler = Dialler::new(identity, target, self.key.clone(), random::nonce()?);
                // Whoever does not listen is dead, or will listen later: both are found out by trying again.
                let reach = |at| TcpStream::connect_timeout(at, CONNECT_MAX).and_then(Socket::new).ok();
                if let Some(socket) = self.member.addresses.iter().find_map(reach) {
                    self.attempt = Attempt::Knocking(Box::new(Knock::dialling(now, socket, dialler)));
                }
            }
            Attempt::Knocking(mut knock) => match knock.turn(now, &|_: &Hello| Err(Refusal::WrongPurpose)) {
                Ok(None) => self.attempt = Attempt::Knocking(knock),
                Ok(Some(_)) => return Ok(Some(LinkNews::Up(peer, knock.into_socket()))),
                Err(rejected) if rejected.retryable => {}
                Err(_) => return Ok(Some(LinkNews::Failed(peer))),
            },
        }
        Ok(None)
    }
}
