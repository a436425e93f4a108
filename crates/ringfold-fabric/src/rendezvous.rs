//! Two that have told each other an invitation, and connect at each other's door.
//!
//! Whoever wants the connection first dials; the other one need not do anything, since its door is opened by a thread. If
//! both dial at once, the one with the lower invitation goes on. A stranger who comes to the door has to prove that it
//! knows the key of an invitation, and has a few seconds for that.

use crate::channel::{Connection, Endpoint};
use crate::clock::Clock;
use crate::connection::{self, BlockingConnection};
use crate::dialer::{Credentials, dial_blocking};
use crate::listener::{Listener, Outcome};
use crate::poller::{Poller, Readiness};
use crate::{host, limits, random};
use parking_lot::{Condvar, Mutex};
use ringfold_proto::handshake::{Established, Identity, Secret, DialTarget};
use ringfold_proto::hello::{Hello, Purpose, ConnectionRejection};
use ringfold_proto::id::{EpochId, PeerId, RunId};
use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A door where an endpoint's connections are made.
#[derive(Debug)]
pub struct Rendezvous {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

/// One connection to be. Whoever is told its number and its key may connect for as long as this lives.
#[derive(Debug)]
pub struct Invitation {
    shared: Arc<Shared>,
    id: u64,
    key: [u8; 32],
}

/// What the other side has told of its invitation.
#[derive(Clone)]
pub struct Invited {
    /// Whose door it is.
    pub host: u128,
    /// Where the door is.
    pub addresses: Vec<SocketAddr>,
    /// The invitation's number.
    pub id: u64,
    /// Its key.
    pub key: [u8; 32],
}

struct Shared {
    id: u128,
    endpoint: Arc<Endpoint>,
    poller: Arc<Poller>,
    is_closing: AtomicBool,
    invitations: Mutex<HashMap<u64, Known>>,
    changed: Condvar,
}

/// An invitation of ours.
struct Known {
    key: [u8; 32],
    state: State,
}

enum State {
    /// Nobody has come, and nobody has asked.
    Open,
    /// Someone here dials.
    Dialling,
    /// Someone has come, with an invitation of that number.
    Arrived(u64, Connection),
    /// There is a connection, and there will be no other.
    Met,
}

/// What whoever was dialled says: the connection is taken.
const TAKEN: u8 = 1;
/// Or it has dialled itself, and that one is to be taken.
const CROSSED: u8 = 0;

/// How long someone who can't be dialled has to dial us.
const ARRIVAL_GRACE: Duration = Duration::from_secs(1);

impl Rendezvous {
    /// Opens a door at one address of this host, or at all, on a port that is free.
    pub fn open(endpoint: Arc<Endpoint>, at: Option<IpAddr>) -> io::Result<Self> {
        let poller = Arc::new(Poller::new()?);
        let listener = Listener::bind_in(at, 0..=0, &poller)?;
        let port = listener.address().port();
        let own =
            || core::iter::once(IpAddr::V4(Ipv4Addr::LOCALHOST)).chain(host::outward_addresses()).collect();
        let hosts: Vec<IpAddr> = at.filter(|ip| !ip.is_unspecified()).map_or_else(own, |ip| vec![ip]);
        let shared = Arc::new(Shared {
            id: random::id()?,
            endpoint,
            poller,
            is_closing: AtomicBool::new(false),
            invitations: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ringfold-listen".into())
            .spawn(move || of_thread.accept_all(listener))?;
        let addresses = hosts.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        Ok(Self { shared, addresses, thread: Some(thread) })
    }

    /// A number that no other one has.
    pub fn id(&self) -> u128 {
        self.shared.id
    }

    /// Where the door is, this host's own way first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A new invitation. The door is open for it from now on.
    pub fn invite(&self) -> io::Result<Invitation> {
        let (id, key) = (u64::from_le_bytes(random::bytes()?), random::bytes()?);
        self.shared.invitations.lock().insert(id, Known { key, state: State::Open });
        Ok(Invitation { shared: self.shared.clone(), id, key })
    }

    /// The connection with whoever has told of its invitation and was told ours.
    pub fn meet(
        &self,
        mine: &Invitation,
        theirs: &Invited,
        name: &str,
        deadline: Instant,
    ) -> io::Result<Connection> {
        if let Some(met) = self.shared.begin(mine.id, theirs.id)? {
            return Ok(met);
        }
        let dialled = self.shared.dial(mine, theirs, deadline);
        let patience = match dialled {
            Ok(Some(stream)) => {
                let connection = self.shared.endpoint.connect(name, vec![stream])?;
                self.shared.set(mine.id, State::Met);
                return Ok(connection);
            }
            // It has dialled, or is about to.
            Ok(None) => deadline,
            Err(_) => deadline.min(Instant::now() + ARRIVAL_GRACE),
        };
        let arrived = self.shared.await_arrival(mine.id, theirs.id, patience);
        match (arrived, dialled) {
            (Some(connection), _) => Ok(connection),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(io::Error::new(io::ErrorKind::TimedOut, "it did not come")),
        }
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.poller.kick();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been told.
            let _ = thread.join();
        }
    }
}

impl Invitation {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its key.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

impl Drop for Invitation {
    fn drop(&mut self) {
        let known = self.shared.invitations.lock().remove(&self.id);
        // Whoever has come and was not taken is let go of without the lock.
        drop(known);
    }
}

impl Shared {
    /// Takes whoever has come, or begins to dial.
    fn begin(&self, mine: u64, theirs: u64) -> io::Result<Option<Connection>> {
        let mut invitations = self.invitations.lock();
        let gone = || io::Error::new(io::ErrorKind::InvalidInput, "the invitation is not of this door");
        let known = invitations.get_mut(&mine).ok_or_else(gone)?;
        match core::mem::replace(&mut known.state, State::Met) {
            State::Open => {
                known.state = State::Dialling;
                Ok(None)
            }
            State::Arrived(from, connection) if from == theirs => Ok(Some(connection)),
            State::Arrived(..) => Err(io::Error::other("somebody else has come with its invitation")),
            state @ (State::Dialling | State::Met) => {
                known.state = state;
                Err(io::Error::new(io::ErrorKind::InvalidInput, "an invitation is for one connection"))
            }
        }
    }

    fn set(&self, mine: u64, state: State) {
        let mut invitations = self.invitations.lock();
        let old = invitations.get_mut(&mine).map(|known| core::mem::replace(&mut known.state, state));
        drop(invitations);
        drop(old);
    }

    /// Dials. None if the other side has dialled, too, and that is to be taken.
    fn dial(
        &self,
        mine: &Invitation,
        theirs: &Invited,
        deadline: Instant,
    ) -> io::Result<Option<BlockingConnection>> {
        let credentials = Credentials {
            identity: Identity::new(PeerId(u128::from(mine.id)), RunId(0)),
            target: DialTarget::member(Purpose::Window, epoch_of(theirs.id), PeerId(theirs.host)),
            secret: Secret::epoch_key(&theirs.key),
        };
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut connection = dial_blocking(&theirs.addresses, left(), &credentials, &self.poller)?;
        connection.set_read_timeout(Some(left().max(Duration::from_millis(1))))?;
        let mut answer = [0];
        connection.read_exact(&mut answer)?;
        connection.set_read_timeout(None)?;
        Ok((answer == [TAKEN]).then_some(connection))
    }

    /// Waits until somebody has come.
    fn await_arrival(&self, mine: u64, theirs: u64, deadline: Instant) -> Option<Connection> {
        let mut invitations = self.invitations.lock();
        loop {
            let known = invitations.get_mut(&mine)?;
            match &known.state {
                State::Arrived(from, _) if *from == theirs => {
                    let State::Arrived(_, connection) = core::mem::replace(&mut known.state, State::Met)
                    else {
                        return None;
                    };
                    return Some(connection);
                }
                State::Dialling => {}
                _ => return None,
            }
            if self.changed.wait_until(&mut invitations, deadline).timed_out()
                && let Some(known) = invitations.get_mut(&mine)
                && matches!(known.state, State::Dialling)
            {
                // It may be tried again.
                known.state = State::Open;
                return None;
            }
        }
    }

    /// What somebody who comes has to know.
    fn secret_for(&self, hello: &Hello) -> Result<Secret, ConnectionRejection> {
        if hello.purpose != Purpose::Window {
            return Err(ConnectionRejection::WrongPurpose);
        }
        let invitations = self.invitations.lock();
        let known =
            invitations.get(&hello.epoch.counter).filter(|_| hello.epoch == epoch_of(hello.epoch.counter));
        known.map(|known| Secret::epoch_key(&known.key)).ok_or(ConnectionRejection::NotAMember)
    }

    /// Somebody has come who knows the key of an invitation.
    fn receive(&self, who: &Established, mut stream: connection::Connection) -> io::Result<()> {
        let (mine, theirs) = (who.epoch.counter, u64::try_from(who.peer.0).map_err(io::Error::other)?);
        let mut invitations = self.invitations.lock();
        let known = invitations.get_mut(&mine).ok_or_else(|| io::Error::other("it has come too late"))?;
        let is_taken = match known.state {
            State::Open => true,
            State::Dialling => theirs < mine,
            State::Arrived(..) | State::Met => false,
        };
        // One byte always has room.
        stream.send(&[if is_taken { TAKEN } else { CROSSED }]);
        stream.flush(&mut Vec::new())?;
        if is_taken {
            let connection = self.endpoint.connect("the other side", vec![stream.into_blocking()?])?;
            known.state = State::Arrived(theirs, connection);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Accepts connections until the rendezvous is closed.
    fn accept_all(&self, mut listener: Listener) {
        let (clock, mut ready) = (Clock::start(), Readiness::default());
        let identity = Identity::new(PeerId(self.id), RunId(0));
        while !self.is_closing.load(Ordering::SeqCst) {
            let timeout = listener.poll_timeout().map_or(Duration::from_secs(60), |at| at.since(clock.now()));
            if self.poller.wait(&mut ready, timeout.max(Duration::from_millis(1))).is_err() {
                // If it fails once, it fails again at once.
                std::thread::sleep(limits::REDIAL_PAUSE);
            }
            let now = clock.now();
            for token in ready.tokens() {
                listener.handle_ready(now, token, identity, &|hello: &Hello| self.secret_for(hello));
            }
            listener.handle_timeout(now);
            while let Some(outcome) = listener.poll_outcome() {
                match outcome {
                    Outcome::Established(who, connection, from) => {
                        if let Err(error) = self.receive(&who, connection) {
                            tracing::debug!(%from, %error, "lost an incoming connection");
                        }
                    }
                    Outcome::Rejected(from, rejection) => {
                        tracing::debug!(%from, %rejection, "rejected an incoming connection");
                    }
                }
            }
        }
    }
}

/// The epoch that an invitation stands for: knocks know no other name.
fn epoch_of(invitation: u64) -> EpochId {
    EpochId { counter: invitation, ..EpochId::default() }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("id", &format_args!("{:032x}", self.id)).finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Invited {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Without the key.
        f.debug_struct("Invited").field("id", &self.id).field("at", &self.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::ChannelId;
    use std::io::Write;
    use std::net::TcpStream;

    const LONG: Duration = Duration::from_secs(20);

    fn open(name: &str) -> Rendezvous {
        let endpoint = Arc::new(Endpoint::new(name).unwrap());
        Rendezvous::open(endpoint, Some(Ipv4Addr::LOCALHOST.into())).unwrap()
    }

    fn told(of: &Rendezvous, invitation: &Invitation) -> Invited {
        Invited {
            host: of.id(),
            addresses: of.addresses().to_vec(),
            id: invitation.id(),
            key: *invitation.key(),
        }
    }

    fn talk(one: &Connection, other: &Connection) {
        let (one, other) = (one.channel(ChannelId(0)), other.channel(ChannelId(0)));
        one.signal().unwrap();
        other.wait(Instant::now() + LONG).unwrap();
        other.signal().unwrap();
        one.wait(Instant::now() + LONG).unwrap();
    }

    #[test]
    fn the_other_side_need_not_do_anything() {
        let (ann, bob) = (open("ann"), open("bob"));
        for _ in 0..20 {
            let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
            let (to_her, to_him) = (told(&ann, &hers), told(&bob, &his));
            let one = ann.meet(&hers, &to_him, "bob", Instant::now() + LONG).unwrap();
            let other = bob.meet(&his, &to_her, "ann", Instant::now() + LONG).unwrap();
            talk(&one, &other);
            assert!(ann.meet(&hers, &to_him, "bob", Instant::now() + LONG).is_err(), "it was used");
        }
    }

    #[test]
    fn when_both_dial_at_once_there_is_one_connection() {
        let (ann, bob) = (open("ann"), open("bob"));
        for _ in 0..200 {
            let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
            let (to_her, to_him) = (told(&ann, &hers), told(&bob, &his));
            std::thread::scope(|scope| {
                let one = scope.spawn(|| ann.meet(&hers, &to_him, "bob", Instant::now() + LONG).unwrap());
                let other = bob.meet(&his, &to_her, "ann", Instant::now() + LONG).unwrap();
                talk(&one.join().unwrap(), &other);
            });
        }
    }

    #[test]
    fn a_door_may_meet_itself() {
        let ann = open("ann");
        let (one, other) = (ann.invite().unwrap(), ann.invite().unwrap());
        let (to_one, to_other) = (told(&ann, &one), told(&ann, &other));
        let here = ann.meet(&one, &to_other, "there", Instant::now() + LONG).unwrap();
        let there = ann.meet(&other, &to_one, "here", Instant::now() + LONG).unwrap();
        talk(&here, &there);
    }

    #[test]
    fn strangers_get_nothing_and_keep_nobody_from_meeting() {
        let (ann, bob) = (open("ann"), open("bob"));
        let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
        let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(bob.addresses()[0]).unwrap()).collect();
        let mut loud = TcpStream::connect(bob.addresses()[0]).unwrap();
        loud.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut said = Vec::new();
        loud.set_read_timeout(Some(LONG)).unwrap();
        let _ = loud.read_to_end(&mut said);
        let mut forged = told(&bob, &his);
        forged.key[0] ^= 1;
        let mallory = open("mallory");
        let lie = mallory.invite().unwrap();
        let begun = Instant::now();
        let error = mallory.meet(&lie, &forged, "bob", Instant::now() + LONG).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
        let one = ann.meet(&hers, &told(&bob, &his), "bob", Instant::now() + LONG).unwrap();
        talk(&one, &bob.meet(&his, &told(&ann, &hers), "ann", Instant::now() + LONG).unwrap());
        drop(silent);
    }

    #[test]
    fn a_door_that_is_gone_is_found_out_soon() {
        let (ann, bob) = (open("ann"), open("bob"));
        let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
        let to_him = told(&bob, &his);
        drop((his, bob));
        let begun = Instant::now();
        assert!(ann.meet(&hers, &to_him, "bob", begun + LONG).is_err());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let late = ann.invite().unwrap();
        let gone = told(&ann, &late);
        drop(late);
        assert!(ann.meet(&hers, &gone, "nobody", Instant::now() + LONG).is_err());
    }
}
