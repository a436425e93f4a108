//! The relays of a mesh: where this member waits for members that cannot reach it.

use super::{LinkRequest, Mesh, Secrets};
use crate::join_token::JoinToken;
use crate::poller::Token;
use crate::relay::Relays;
use ringfold_proto::epoch::RelayAddress;
use ringfold_proto::id::PeerId;
use ringfold_proto::time::Time;

impl Mesh {
    /// Sets the join token, which relays require. A member that volunteers is a relay itself: its visitors for that purpose are reported.
    pub fn with_relay_token(mut self, token: JoinToken, volunteers: bool) -> Self {
        (self.relays.token, self.volunteers) = (token, volunteers);
        self
    }

    /// Uses these relays for links that cannot be made directly.
    pub fn use_relays(&mut self, now: Time, addresses: Vec<RelayAddress>) {
        if self.relays.addresses != addresses {
            self.relays.addresses = addresses;
            for peer in self.stand_by.members() {
                self.stand_by.await_member(now, peer, self.relays.between(self.me, peer));
            }
        }
    }

    /// The relays in use.
    pub fn relays(&self) -> &Relays {
        &self.relays
    }

    /// Whether the last link with a member went through a relay.
    pub fn is_relayed(&self, peer: PeerId) -> bool {
        self.relayed.contains(&peer)
    }

    /// Whether this end waits at relays for the other one.
    pub(super) fn may_await(&self, request: &LinkRequest) -> bool {
        let peer = request.member.peer;
        peer < self.me
            && self.relays.between(self.me, peer).next().is_some()
            && !self.stand_by.members().contains(&peer)
    }

    /// Waits at relays for members that have not reached this one in time.
    pub(super) fn await_at_relays(&mut self, now: Time) {
        let due =
            self.requests.values().filter(|request| request.relays_at <= now && self.may_await(request));
        for peer in due.map(|request| request.member.peer).collect::<Vec<_>>() {
            tracing::debug!("no direct link with {}: waiting for it at the relays", peer.short());
            self.stand_by.await_member(now, peer, self.relays.between(self.me, peer));
        }
    }

    /// What a relay has joined is an incoming connection.
    pub(super) fn advance_stand_by(&mut self, now: Time, token: Option<Token>) {
        let identity = self.identity();
        let joined = self.stand_by.advance(now, token, identity, &self.relays, &self.poller);
        if joined.is_empty() {
            return;
        }
        let relay = self.volunteers.then_some(&self.relays.token);
        let secrets = Secrets { me: self.me, requests: &self.requests, admitted: &self.admitted, relay };
        for (from, transport) in joined {
            self.listener.adopt(now, transport, from, identity, &secrets);
        }
        self.take_outcomes(now);
    }
}
