//! Connecting two endpoints that have exchanged invitations.
//!
//! The end that needs the connection first dials. A thread at the other end accepts it, without a call there. If both dial
//! at once, the dialer with the lower invitation wins. A dialer has to prove that it knows the key of an invitation.

use crate::channel::{Connection, Endpoint};
use crate::clock::Clock;
use crate::connection::{self, BlockingConnection};
use crate::dialer::{Credentials, dial_blocking};
use crate::listener::{Listener, Outcome};
use crate::poller::{Poller, Readiness};
use crate::tls::Security;
use crate::{host, limits, random};
use parking_lot::{Condvar, Mutex};
use ringfold_proto::handshake::{DialTarget, Established, Identity, Secret};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::{EpochId, Incarnation, PeerId, RunId};
use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Makes the connections of an endpoint.
#[derive(Debug)]
pub struct Rendezvous {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

/// Permits one connection. A peer that knows its number and its key may connect until this is dropped.
#[derive(Debug)]
pub struct Invitation {
    shared: Arc<Shared>,
    id: u64,
    key: [u8; 32],
}

/// The invitation of the other end.
#[derive(Clone)]
pub struct RemoteInvitation {
    /// The id of its rendezvous.
    pub host: u128,
    /// The addresses of its rendezvous.
    pub addresses: Vec<SocketAddr>,
    /// Its number.
    pub id: u64,
    /// Its key.
    pub key: [u8; 32],
}

struct Shared {
    id: u128,
    endpoint: Arc<Endpoint>,
    poller: Arc<Poller>,
    /// The keys of connections that this end dials.
    dialling: Arc<Security>,
    is_closing: AtomicBool,
    invitations: Mutex<HashMap<u64, LocalInvitation>>,
    changed: Condvar,
}

/// A local invitation.
struct LocalInvitation {
    key: [u8; 32],
    state: State,
}

enum State {
    /// Unused.
    Open,
    /// This end dials.
    Dialing,
    /// The other end, with an invitation of that number, has dialled.
    Accepted(u64, Connection),
    /// It was used.
    Used,
}

/// What the dialled peer answers: it uses the connection.
const ACCEPTED: u8 = 1;
/// Or it has dialled itself, and that one is to be taken.
const CROSSED: u8 = 0;

/// How long a peer that cannot be dialled has to dial this end.
const DIAL_GRACE: Duration = Duration::from_secs(1);

impl Rendezvous {
    /// Listens on a free port, at one address of this host or at all.
    pub fn open(endpoint: Arc<Endpoint>, at: Option<IpAddr>) -> io::Result<Self> {
        // The two roles have keys of their own, since an end may connect with itself.
        let (accepting, dialling) = (Arc::new(Security::by_default()?), Arc::new(Security::by_default()?));
        let id = accepting.peer().0;
        let poller = Arc::new(Poller::new()?.with_security(accepting));
        let listener = Listener::bind_in(at, 0..=0, &poller)?;
        let port = listener.address().port();
        let own =
            || core::iter::once(IpAddr::V4(Ipv4Addr::LOCALHOST)).chain(host::outward_addresses()).collect();
        let hosts: Vec<IpAddr> = at.filter(|ip| !ip.is_unspecified()).map_or_else(own, |ip| vec![ip]);
        let shared = Arc::new(Shared {
            id,
            endpoint,
            poller,
            dialling,
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

    /// A unique number.
    pub fn id(&self) -> u128 {
        self.shared.id
    }

    /// Its addresses, loopback first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A new invitation.
    pub fn invite(&self) -> io::Result<Invitation> {
        let (id, key) = (u64::from_le_bytes(random::bytes()?), random::bytes()?);
        self.shared.invitations.lock().insert(id, LocalInvitation { key, state: State::Open });
        Ok(Invitation { shared: self.shared.clone(), id, key })
    }

    /// Connects with the end that has `mine` and made `theirs`.
    pub fn connect(
        &self,
        mine: &Invitation,
        theirs: &RemoteInvitation,
        name: &str,
        deadline: Instant,
    ) -> io::Result<Connection> {
        if let Some(connection) = self.shared.begin(mine.id, theirs.id)? {
            return Ok(connection);
        }
        let dialled = self.shared.dial(mine, theirs, deadline);
        let deadline = match dialled {
            Ok(Some(stream)) => {
                let connection = self.shared.endpoint.connect(name, vec![stream])?;
                self.shared.set(mine.id, State::Used);
                return Ok(connection);
            }
            // The other end has dialled, or is about to.
            Ok(None) => deadline,
            Err(_) => deadline.min(Instant::now() + DIAL_GRACE),
        };
        let accepted = self.shared.await_dial(mine.id, theirs.id, deadline);
        match (accepted, dialled) {
            (Some(connection), _) => Ok(connection),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for the other end to dial"))
            }
        }
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.poller.kick();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its hook.
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
        let invitation = self.shared.invitations.lock().remove(&self.id);
        // An unused connection is dropped without the lock.
        drop(invitation);
    }
}

impl Shared {
    /// Takes the connection that the other end has dialled, or begins to dial.
    fn begin(&self, mine: u64, theirs: u64) -> io::Result<Option<Connection>> {
        let mut invitations = self.invitations.lock();
        let gone = || io::Error::new(io::ErrorKind::InvalidInput, "unknown invitation");
        let invitation = invitations.get_mut(&mine).ok_or_else(gone)?;
        match core::mem::replace(&mut invitation.state, State::Used) {
            State::Open => {
                invitation.state = State::Dialing;
                Ok(None)
            }
            State::Accepted(from, connection) if from == theirs => Ok(Some(connection)),
            State::Accepted(..) => Err(io::Error::other("another peer has used the invitation")),
            state @ (State::Dialing | State::Used) => {
                invitation.state = state;
                Err(io::Error::new(io::ErrorKind::InvalidInput, "the invitation was used before"))
            }
        }
    }

    fn set(&self, mine: u64, state: State) {
        let mut invitations = self.invitations.lock();
        let old =
            invitations.get_mut(&mine).map(|invitation| core::mem::replace(&mut invitation.state, state));
        drop(invitations);
        drop(old);
    }

    /// Dials. None if the other end has dialled too, and its connection wins.
    fn dial(
        &self,
        mine: &Invitation,
        theirs: &RemoteInvitation,
        deadline: Instant,
    ) -> io::Result<Option<BlockingConnection>> {
        let credentials = Credentials {
            identity: Identity::new(self.dialling.peer(), RunId(0)),
            target: DialTarget::member(Purpose::Window, epoch_of(theirs.id, mine.id), PeerId(theirs.host)),
            secret: Secret::epoch_key(&theirs.key),
        };
        let left = || deadline.saturating_duration_since(Instant::now());
        let poller = Poller::new()?.with_security(self.dialling.clone());
        let connection = dial_blocking(&theirs.addresses, left(), &credentials, &poller)?;
        connection.set_read_timeout(Some(left().max(Duration::from_millis(1))))?;
        let mut answer = [0];
        (&connection).read_exact(&mut answer)?;
        connection.set_read_timeout(None)?;
        Ok((answer == [ACCEPTED]).then_some(connection))
    }

    /// Waits for a connection that the other end dials.
    fn await_dial(&self, mine: u64, theirs: u64, deadline: Instant) -> Option<Connection> {
        let mut invitations = self.invitations.lock();
        loop {
            let invitation = invitations.get_mut(&mine)?;
            match &invitation.state {
                State::Accepted(from, _) if *from == theirs => {
                    let State::Accepted(_, connection) =
                        core::mem::replace(&mut invitation.state, State::Used)
                    else {
                        return None;
                    };
                    return Some(connection);
                }
                State::Dialing => {}
                _ => return None,
            }
            if self.changed.wait_until(&mut invitations, deadline).timed_out()
                && let Some(invitation) = invitations.get_mut(&mine)
                && matches!(invitation.state, State::Dialing)
            {
                // Another call may try again.
                invitation.state = State::Open;
                return None;
            }
        }
    }

    /// The key that an incoming connection has to know.
    fn secret_for(&self, hello: &Hello) -> Result<Secret, ConnectionRejection> {
        if hello.purpose != Purpose::Window {
            return Err(ConnectionRejection::WrongPurpose);
        }
        let invitations = self.invitations.lock();
        let invitation =
            invitations.get(&hello.epoch.counter).filter(|_| hello.epoch.group == EpochId::default().group);
        invitation.map(|invitation| Secret::epoch_key(&invitation.key)).ok_or(ConnectionRejection::NotAMember)
    }

    /// A peer has proven that it knows the key of an invitation.
    fn receive(&self, who: &Established, mut stream: connection::Connection) -> io::Result<()> {
        let (mine, theirs) = (who.epoch.counter, who.epoch.incarnation.0);
        let mut invitations = self.invitations.lock();
        let invitation =
            invitations.get_mut(&mine).ok_or_else(|| io::Error::other("its invitation was dropped"))?;
        let is_taken = match invitation.state {
            State::Open => true,
            State::Dialing => theirs < mine,
            State::Accepted(..) | State::Used => false,
        };
        // One byte always fits.
        stream.send(&[if is_taken { ACCEPTED } else { CROSSED }]);
        stream.flush(&mut Vec::new())?;
        if is_taken {
            let connection = self.endpoint.connect("the other end", vec![stream.into_blocking()?])?;
            invitation.state = State::Accepted(theirs, connection);
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
                // It would fail again at once.
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
                            tracing::debug!("lost connection from {from}: {error}");
                        }
                    }
                    Outcome::Rejected(from, rejection) => {
                        tracing::debug!("rejected connection from {from}: {rejection}");
                    }
                }
            }
        }
    }
}

/// The epoch that stands for the invitations of both ends in handshakes: of the one that is dialled, and of the one that dials.
fn epoch_of(dialled: u64, dialling: u64) -> EpochId {
    EpochId { counter: dialled, incarnation: Incarnation(dialling), ..EpochId::default() }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("id", &format_args!("{:032x}", self.id)).finish_non_exhaustive()
    }
}

impl core::fmt::Debug for RemoteInvitation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Without the key.
        f.debug_struct("RemoteInvitation")
            .field("id", &self.id)
            .field("at", &self.addresses)
            .finish_non_exhaustive()
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

    fn remote(of: &Rendezvous, invitation: &Invitation) -> RemoteInvitation {
        RemoteInvitation {
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
    fn the_other_end_needs_no_call() {
        let (ann, bob) = (open("ann"), open("bob"));
        for _ in 0..20 {
            let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
            let (to_her, to_him) = (remote(&ann, &hers), remote(&bob, &his));
            let one = ann.connect(&hers, &to_him, "bob", Instant::now() + LONG).unwrap();
            let other = bob.connect(&his, &to_her, "ann", Instant::now() + LONG).unwrap();
            talk(&one, &other);
            assert!(ann.connect(&hers, &to_him, "bob", Instant::now() + LONG).is_err(), "it was used");
        }
    }

    #[test]
    fn two_that_dial_at_once_get_one_connection() {
        let (ann, bob) = (open("ann"), open("bob"));
        for _ in 0..200 {
            let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
            let (to_her, to_him) = (remote(&ann, &hers), remote(&bob, &his));
            std::thread::scope(|scope| {
                let one = scope.spawn(|| ann.connect(&hers, &to_him, "bob", Instant::now() + LONG).unwrap());
                let other = bob.connect(&his, &to_her, "ann", Instant::now() + LONG).unwrap();
                talk(&one.join().unwrap(), &other);
            });
        }
    }

    #[test]
    fn a_rendezvous_may_connect_to_itself() {
        let ann = open("ann");
        let (one, other) = (ann.invite().unwrap(), ann.invite().unwrap());
        let (to_one, to_other) = (remote(&ann, &one), remote(&ann, &other));
        let here = ann.connect(&one, &to_other, "there", Instant::now() + LONG).unwrap();
        let there = ann.connect(&other, &to_one, "here", Instant::now() + LONG).unwrap();
        talk(&here, &there);
    }

    #[test]
    fn strangers_are_rejected_and_disturb_nobody() {
        let (ann, bob) = (open("ann"), open("bob"));
        let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
        let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(bob.addresses()[0]).unwrap()).collect();
        let mut loud = TcpStream::connect(bob.addresses()[0]).unwrap();
        loud.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut said = Vec::new();
        loud.set_read_timeout(Some(LONG)).unwrap();
        let _ = loud.read_to_end(&mut said);
        let mut forged = remote(&bob, &his);
        forged.key[0] ^= 1;
        let mallory = open("mallory");
        let lie = mallory.invite().unwrap();
        let begun = Instant::now();
        let error = mallory.connect(&lie, &forged, "bob", Instant::now() + LONG).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
        let one = ann.connect(&hers, &remote(&bob, &his), "bob", Instant::now() + LONG).unwrap();
        talk(&one, &bob.connect(&his, &remote(&ann, &hers), "ann", Instant::now() + LONG).unwrap());
        drop(silent);
    }

    #[test]
    fn a_closed_rendezvous_is_detected_soon() {
        let (ann, bob) = (open("ann"), open("bob"));
        let (hers, his) = (ann.invite().unwrap(), bob.invite().unwrap());
        let to_him = remote(&bob, &his);
        drop((his, bob));
        let begun = Instant::now();
        assert!(ann.connect(&hers, &to_him, "bob", begun + LONG).is_err());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let late = ann.invite().unwrap();
        let gone = remote(&ann, &late);
        drop(late);
        assert!(ann.connect(&hers, &gone, "nobody", Instant::now() + LONG).is_err());
    }
}
