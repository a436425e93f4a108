//! Connections that wait at relays for members that cannot reach this one.

use super::{RelayLeg, RelayRequest, RelayRole, Relays};
use crate::dialer::Backoff;
use crate::limits;
use crate::poller::{Poller, Token};
use crate::transport::Transport;
use ringfold_proto::handshake::Identity;
use ringfold_proto::id::PeerId;
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// One waiting connection per relay, for each of some members. One that was joined, or was lost, is replaced.
#[derive(Debug, Default)]
pub(crate) struct StandBy {
    legs: BTreeMap<(PeerId, SocketAddr), Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// None until the next attempt.
    leg: Option<RelayLeg>,
    next_at: Time,
    backoff: Backoff,
}

impl Waiting {
    fn new(now: Time) -> Self {
        let backoff = Backoff::new(limits::RELAY_RETRY_MIN, limits::RELAY_RETRY_MAX);
        Self { leg: None, next_at: now, backoff }
    }

    fn deadline(&self) -> Time {
        self.leg.as_ref().map_or(self.next_at, RelayLeg::deadline)
    }
}

impl StandBy {
    /// Waits at these relays for a member, and at no others.
    pub(crate) fn await_member(&mut self, now: Time, peer: PeerId, relays: impl Iterator<Item = SocketAddr>) {
        let relays: Vec<_> = relays.collect();
        self.legs.retain(|(of, relay), _| *of != peer || relays.contains(relay));
        for relay in relays {
            self.legs.entry((peer, relay)).or_insert_with(|| Waiting::new(now));
        }
    }

    /// Waits for a member no more.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.legs.retain(|(of, _), _| *of != peer);
    }

    /// The members that it waits for.
    pub(crate) fn members(&self) -> Vec<PeerId> {
        let mut members: Vec<_> = self.legs.keys().map(|(peer, _)| *peer).collect();
        members.dedup();
        members
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.legs.values().map(Waiting::deadline).min()
    }

    /// Whether a token belongs to one of its connections.
    pub(crate) fn owns(&self, token: Token) -> bool {
        self.legs.values().filter_map(|waiting| waiting.leg.as_ref()).any(|leg| leg.owns(token))
    }

    /// Advances what a token belongs to, or what is due. Returns connections that were joined: a member dials on them.
    pub(crate) fn advance(
        &mut self,
        now: Time,
        token: Option<Token>,
        identity: Identity,
        relays: &Relays,
        poller: &Arc<Poller>,
    ) -> Vec<(SocketAddr, Arc<Transport>)> {
        let mut joined = Vec::new();
        for ((peer, relay), waiting) in &mut self.legs {
            let is_concerned = match (token, &waiting.leg) {
                (Some(token), Some(leg)) => leg.owns(token),
                (Some(_), None) => false,
                (None, _) => waiting.deadline() <= now,
            };
            if !is_concerned {
                continue;
            }
            if waiting.leg.is_none() {
                let request = RelayRequest { role: RelayRole::Await, other: *peer };
                match RelayLeg::dial(now, *relay, identity, relays, request, poller) {
                    Ok(leg) => waiting.leg = Some(leg),
                    Err(error) => {
                        tracing::debug!("failed to dial relay {relay}: {error}");
                        waiting.next_at = now + waiting.backoff.next_pause();
                        continue;
                    }
                }
            }
            let Some(leg) = &mut waiting.leg else { continue };
            match leg.advance(now) {
                Ok(None) => {}
                Ok(Some(transport)) => {
                    joined.push((*relay, transport));
                    // The member may need another one.
                    *waiting = Waiting::new(now);
                }
                Err(rejection) => {
                    tracing::debug!("not waiting for {} any more: {rejection}", peer.short());
                    waiting.leg = None;
                    waiting.next_at = now + waiting.backoff.next_pause();
                }
            }
        }
        joined
    }
}
