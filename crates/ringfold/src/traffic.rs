//! What a peer has sent and received.

use ringfold_fabric::traffic::{Network, Traffic};
use ringfold_proto::id::PeerId;

/// What a peer has sent and received in a run: control messages, data, shared state and probes.
///
/// See [`Traffic`] for what is counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrafficReport {
    /// In total, with connections whose other end never authenticated.
    pub total: Traffic,
    /// Per peer, the master included. Peers that left long ago may be missing; the total has their bytes.
    pub peers: Vec<PeerTraffic>,
}

/// What was sent to a peer and received from it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub struct PeerTraffic {
    /// The id of the peer during this membership; zero for the master.
    pub peer: u128,
    /// The name of the peer, `"master"`, or empty if it is not known.
    pub name: String,
    pub traffic: Traffic,
}

impl TrafficReport {
    pub(crate) fn new(network: &Network, name_of: impl Fn(PeerId) -> String) -> Self {
        let of = |(peer, traffic): (PeerId, Traffic)| {
            let name = if peer.0 == 0 { "master".into() } else { name_of(peer) };
            PeerTraffic { peer: peer.0, name, traffic }
        };
        Self { total: network.total(), peers: network.per_peer().into_iter().map(of).collect() }
    }
}
