//! Dialling rank 0 at all addresses that it may have, until one of them turns out to be it.

use super::Arrival;
use super::join::{Failed, Lead};
use crate::Error;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialer};
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_proto::handshake::{Identity, Secret, Target};
use ringfold_proto::id::RunId;
use std::net::IpAddr;
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
    pub(super) connection: BlockingConnection,
    /// Where it was found.
    pub(super) seen: IpAddr,
}

/// Dials. Someone may well listen and say nothing: rank 0 listens before it looks. So a connection that was accepted is
/// kept, as long as nothing else is announced.
pub(super) fn reach(lead: &Lead<'_>, arrival: &Arrival) -> Result<Reached, Failed> {
    let (poller, clock) = (Arc::new(Poller::new()?), Clock::start());
    let begun = Instant::now();
    let credentials = Credentials {
        identity: Identity::new(arrival.member.peer, RunId(0)),
        target: Target::master(),
        secret: Secret::token(&format!("{}{}", lead.secret, arrival.token)),
    };
    let answer_max = arrival.until.saturating_duration_since(begun);
    let timing = DialTiming { head_start: HEAD_START, answer_max };
    let mut dialer = Dialer::new(clock.now(), lead.addresses.iter().copied(), credentials, timing, &poller);
    let mut next_read = begun + REREAD;
    let mut ready = Readiness::default();
    loop {
        match dialer.advance(clock.now()) {
            Ok(Some(dialed)) => {
                let seen = dialed.connection.peer_address()?.ip();
                return Ok(Reached { connection: dialed.connection.into_blocking()?, seen });
            }
            Ok(None) => {}
            Err(error) => {
                let knows_another = error.failures.iter().any(|(_, rejection)| rejection.is_about_secret());
                let is_final = lead.is_certain && knows_another;
                let why = error.to_string();
                return Err(if is_final { Failed::Final(Error::NoGroup(why)) } else { Failed::Retry(why) });
            }
        }
        arrival.vigil.check().map_err(Failed::Final)?;
        let now = Instant::now();
        let is_late = now >= arrival.until
            || lead.is_certain && begun.elapsed() >= SILENCE_MAX
            || !dialer.failures().is_empty() && begun.elapsed() >= DOUBTFUL_SILENCE_MAX;
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
        if let Some(at) = dialer.poll_timeout() {
            patience = patience.min(at.since(clock.now()));
        }
        poller.wait(&mut ready, patience)?;
    }
}
