//! Dialling rank 0 at all addresses that it may have, until one of them turns out to be it.

use super::Arrival;
use super::join::{Failed, Lead};
use crate::Error;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::knock::{Knock, nobody};
use ringfold_fabric::limits::CONNECT_MAX;
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::random;
use ringfold_proto::handshake::{Dialler, HandshakeError, Identity, Secret, Target};
use ringfold_proto::id::RunId;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an address is tried alone, before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(10);

/// How long someone who listens at an address that all know may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// And someone at one of several addresses, others of which could not be reached: it may be a stranger.
const DOUBTFUL_SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often it is looked, while someone listens and says nothing, whether something else is announced by now.
const REREAD: Duration = Duration::from_millis(200);

/// Rank 0, or someone who knows its secret.
pub(super) struct Reached {
    pub(super) stream: TcpStream,
    /// Where it was found.
    pub(super) seen: IpAddr,
}

/// Dials. Someone may well listen and say nothing: rank 0 has opened its door before it comes to it. So a connection
/// that was taken is kept, as long as nothing else is announced.
pub(super) fn reach(lead: &Lead<'_>, arrival: &Arrival) -> Result<Reached, Failed> {
    let poller = Arc::new(Poller::new()?);
    let mut dialling = Dialling {
        arrival,
        secret: Secret::token(&format!("{}{}", lead.secret, arrival.token)),
        poller: poller.clone(),
        clock: Clock::start(),
        untried: lead.addresses.iter(),
        knocks: Vec::new(),
        trouble: "it has no address".into(),
        has_failed: false,
        is_final: false,
    };
    let begun = Instant::now();
    let (mut next_dial, mut next_read) = (begun, begun + REREAD);
    let mut ready = Readiness::default();
    loop {
        let now = Instant::now();
        if now >= next_dial || dialling.knocks.is_empty() {
            dialling.dial_next()?;
            next_dial = now + HEAD_START;
        }
        if let Some(reached) = dialling.turn()? {
            return Ok(reached);
        }
        if dialling.knocks.is_empty() && dialling.untried.len() == 0 {
            let why = core::mem::take(&mut dialling.trouble);
            let is_final = dialling.is_final && lead.is_certain;
            return Err(if is_final { Failed::Final(Error::NoGroup(why)) } else { Failed::Retry(why) });
        }
        arrival.vigil.check().map_err(Failed::Final)?;
        let is_late = now >= arrival.until
            || lead.is_certain && begun.elapsed() >= SILENCE_MAX
            || dialling.has_failed && begun.elapsed() >= DOUBTFUL_SILENCE_MAX
            || begun.elapsed() >= CONNECT_MAX && !dialling.is_connected();
        if is_late {
            return Err(Failed::Retry("it does not answer".into()));
        }
        if let Some((notice, text)) = &lead.source
            && now >= next_read
        {
            next_read = now + REREAD;
            if notice.read().is_ok_and(|found| found.as_ref().is_some_and(|found| found != text)) {
                return Err(Failed::Retry("another place is announced by now".into()));
            }
        }
        let mut patience = arrival.vigil.tick().min(arrival.until.saturating_duration_since(now));
        if lead.source.is_some() {
            patience = patience.min(next_read.saturating_duration_since(now));
        }
        if dialling.untried.len() > 0 {
            patience = patience.min(next_dial.saturating_duration_since(now));
        }
        poller.wait(&mut ready, patience)?;
    }
}

struct Dialling<'a> {
    arrival: &'a Arrival,
    secret: Secret,
    poller: Arc<Poller>,
    clock: Clock,
    untried: core::slice::Iter<'a, SocketAddr>,
    knocks: Vec<Knock>,
    /// How the last one failed.
    trouble: String,
    has_failed: bool,
    /// Whether someone was there who knows another secret.
    is_final: bool,
}

impl Dialling<'_> {
    fn dial_next(&mut self) -> Result<(), Failed> {
        let Some(address) = self.untried.next() else { return Ok(()) };
        let identity = Identity::new(self.arrival.member.peer, RunId(0));
        let dialler = Dialler::new(identity, Target::master(), self.secret.clone(), random::nonce()?);
        let now = self.clock.now();
        match Knock::dial(now, *address, &self.poller, dialler) {
            Ok(mut knock) => {
                knock.await_first_word(now + self.arrival.until.saturating_duration_since(Instant::now()));
                self.knocks.push(knock);
            }
            Err(error) => (self.has_failed, self.trouble) = (true, error.to_string()),
        }
        Ok(())
    }

    /// Moves all handshakes on. There are few.
    fn turn(&mut self) -> Result<Option<Reached>, Failed> {
        let now = self.clock.now();
        let mut index = 0;
        while let Some(knock) = self.knocks.get_mut(index) {
            match knock.turn(now, &nobody) {
                Ok(None) => index += 1,
                Ok(Some(_)) => {
                    let stream = self.knocks.swap_remove(index).into_socket().into_stream()?;
                    let seen = stream.peer_addr()?.ip();
                    return Ok(Some(Reached { stream, seen }));
                }
                Err(rejected) => {
                    (self.has_failed, self.trouble) = (true, rejected.why);
                    self.is_final |= knock.failed().is_some_and(is_about_token);
                    self.knocks.swap_remove(index);
                }
            }
        }
        Ok(None)
    }

    fn is_connected(&self) -> bool {
        self.knocks.iter().any(Knock::is_connected)
    }
}

/// Whether a handshake failed because the two ends know different secrets.
pub(super) fn is_about_token(error: HandshakeError) -> bool {
    use HandshakeError::{BadToken, Impostor, TokenMissing, TokenUnexpected};
    matches!(error, BadToken | Impostor | TokenMissing | TokenUnexpected)
}
