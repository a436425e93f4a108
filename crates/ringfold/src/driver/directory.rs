//! Addresses and credentials of the members, for background threads that dial them.

use parking_lot::Mutex;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::mesh::VisitDialer;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{EpochId, PeerId, RunId};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) struct Directory {
    me: PeerId,
    state: Mutex<State>,
}

struct State {
    dialer: VisitDialer,
    run: RunId,
    epoch: EpochId,
    key: [u8; 32],
    addresses: HashMap<PeerId, (String, Vec<SocketAddr>)>,
}

impl Directory {
    pub(crate) fn new(me: PeerId, dialer: VisitDialer) -> Self {
        let (run, epoch, key, addresses) = Default::default();
        Self { me, state: Mutex::new(State { dialer, run, epoch, key, addresses }) }
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
        state.addresses = description
            .members
            .iter()
            .map(|member| (member.peer, (member.name.clone(), member.addresses.clone())))
            .collect();
    }

    /// Connects to a member, and waits until that has succeeded or failed.
    pub(crate) fn dial(
        &self,
        peer: PeerId,
        purpose: Purpose,
        timeout: Duration,
    ) -> io::Result<BlockingConnection> {
        let (credentials, (name, addresses), dialer) = {
            let state = self.state.lock();
            let credentials = Credentials {
                identity: Identity::new(self.me, state.run),
                target: DialTarget::member(purpose, state.epoch, peer),
                secret: Secret::epoch_key(&state.key),
            };
            (credentials, state.addresses.get(&peer).cloned().unwrap_or_default(), state.dialer.clone())
        };
        let dialed = dialer.dial(&addresses, timeout, &credentials);
        dialed.map_err(|error| io::Error::new(error.kind(), format!("failed to connect to {name}: {error}")))
    }
}
