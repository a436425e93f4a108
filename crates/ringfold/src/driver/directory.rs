//! Where members are, and how to prove to them that we are one: for threads that dial by themselves.

use parking_lot::Mutex;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::{Credentials, dial_blocking};
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::handshake::{Identity, Secret, Target};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{EpochId, PeerId, RunId};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What is known of the members of the newest epoch.
pub(crate) struct Directory {
    me: PeerId,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    run: RunId,
    epoch: EpochId,
    key: [u8; 32],
    addresses: HashMap<PeerId, Vec<SocketAddr>>,
}

impl Directory {
    /// Nobody is known.
    pub(crate) fn new(me: PeerId) -> Self {
        Self { me, known: Mutex::default() }
    }

    /// The run that we are part of.
    pub(crate) fn set_run(&self, run: RunId) {
        self.known.lock().run = run;
    }

    /// The run that we are part of; zero before it is known.
    pub(crate) fn run(&self) -> RunId {
        self.known.lock().run
    }

    /// These are the members from now on.
    pub(crate) fn set_epoch(&self, description: &EpochDescription) {
        let mut known = self.known.lock();
        (known.epoch, known.key) = (description.id, description.key);
        known.addresses =
            description.members.iter().map(|member| (member.peer, member.addresses.clone())).collect();
    }

    /// Connects to a member, and waits for it.
    pub(crate) fn reach(
        &self,
        peer: PeerId,
        purpose: Purpose,
        patience: Duration,
    ) -> io::Result<BlockingConnection> {
        let (credentials, addresses) = {
            let known = self.known.lock();
            let credentials = Credentials {
                identity: Identity::new(self.me, known.run),
                target: Target::member(purpose, known.epoch, peer),
                secret: Secret::epoch_key(&known.key),
            };
            (credentials, known.addresses.get(&peer).cloned().unwrap_or_default())
        };
        dial_blocking(&addresses, patience, &credentials)
    }
}
