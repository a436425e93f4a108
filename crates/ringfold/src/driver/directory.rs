//! Addresses and credentials of the members, for background threads that dial them.

use parking_lot::Mutex;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::limits;
use ringfold_fabric::mesh::VisitDialer;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::relay::Relays;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{EpochId, PeerId, RunId};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Directory {
    me: PeerId,
    poller: Arc<Poller>,
    state: Mutex<State>,
}

struct State {
    dialer: VisitDialer,
    run: RunId,
    epoch: EpochId,
    key: [u8; 32],
    addresses: HashMap<PeerId, Vec<SocketAddr>>,
    /// The members that this one has links with.
    neighbours: Vec<PeerId>,
    relays: Relays,
    /// Members whose link goes through a relay.
    relayed: HashSet<PeerId>,
    /// Names of members, also of earlier epochs.
    names: HashMap<PeerId, String>,
}

/// Names that are kept beyond those of the epoch.
const NAMES_MAX: usize = 4096;

impl Directory {
    pub(crate) fn new(me: PeerId, poller: Arc<Poller>, dialer: VisitDialer) -> Self {
        let (run, epoch, key, addresses, names) = Default::default();
        let (relays, relayed, neighbours) = Default::default();
        let state = State { dialer, run, epoch, key, addresses, neighbours, names, relays, relayed };
        Self { me, poller, state: Mutex::new(state) }
    }

    pub(crate) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    pub(crate) fn set_run(&self, run: RunId) {
        self.state.lock().run = run;
    }

    /// Dials members; it uses QUIC from the first epoch with a member on another host on.
    pub(crate) fn dialer(&self) -> VisitDialer {
        self.state.lock().dialer.clone()
    }

    /// The run of this peer; zero before it is known.
    pub(crate) fn run(&self) -> RunId {
        self.state.lock().run
    }

    pub(crate) fn set_epoch(&self, description: &EpochDescription, dialer: VisitDialer) {
        let mut state = self.state.lock();
        state.dialer = dialer;
        (state.epoch, state.key) = (description.id, description.key);
        state.addresses =
            description.members.iter().map(|member| (member.peer, member.addresses.clone())).collect();
        let rank = description.rank_of(self.me);
        let neighbours = rank.map(|rank| description.neighbours(rank)).unwrap_or_default();
        state.neighbours = neighbours.iter().map(|member| member.peer).collect();
        if state.names.len() > NAMES_MAX {
            state.names.clear();
        }
        state.names.extend(description.members.iter().map(|member| (member.peer, member.name.clone())));
        let State { relayed, addresses, .. } = &mut *state;
        relayed.retain(|peer| addresses.contains_key(peer));
    }

    /// The members that this one has links with.
    pub(crate) fn neighbours(&self) -> Vec<PeerId> {
        self.state.lock().neighbours.clone()
    }

    /// The name of a member, or an empty one.
    pub(crate) fn name_of(&self, peer: PeerId) -> String {
        self.state.lock().names.get(&peer).cloned().unwrap_or_default()
    }

    pub(crate) fn set_relays(&self, relays: Relays) {
        self.state.lock().relays = relays;
    }

    /// Sets whether the link with a member goes through a relay.
    pub(crate) fn set_relayed(&self, peer: PeerId, is_relayed: bool) {
        let relayed = &mut self.state.lock().relayed;
        if is_relayed {
            relayed.insert(peer)
        } else {
            relayed.remove(&peer)
        };
    }

    /// The relays, and how long a member is dialled directly before they are used.
    pub(crate) fn relays_for(&self, peer: PeerId) -> (Relays, Duration) {
        let state = self.state.lock();
        let head_start =
            if state.relayed.contains(&peer) { Duration::ZERO } else { limits::RELAY_HEAD_START };
        (state.relays.clone(), head_start)
    }

    /// Connects to a member, and waits until that has succeeded or failed.
    pub(crate) fn dial(
        &self,
        peer: PeerId,
        purpose: Purpose,
        timeout: Duration,
    ) -> io::Result<BlockingConnection> {
        let (credentials, addresses, dialer) = {
            let state = self.state.lock();
            let credentials = Credentials {
                identity: Identity::new(self.me, state.run),
                target: DialTarget::member(purpose, state.epoch, peer),
                secret: Secret::epoch_key(&state.key),
            };
            (credentials, state.addresses.get(&peer).cloned().unwrap_or_default(), state.dialer.clone())
        };
        let ((relays, head_start), name) = (self.relays_for(peer), self.name_of(peer));
        let dialed = dialer.dial(&addresses, timeout, &credentials, (&relays, head_start));
        dialed.map_err(|error| io::Error::new(error.kind(), format!("failed to connect to {name}: {error}")))
    }
}
