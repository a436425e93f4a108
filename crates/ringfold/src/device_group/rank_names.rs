//! The names of ranks in the errors that kernels report.

use crate::{Error, Group};
use ringfold_cuda::port::abort_page::{DeviceError, DeviceWait};
use ringfold_proto::cause::{Cause, PeerName, Wait, WaitingPeer};
use ringfold_proto::epoch::Member;

/// The names of the ranks of this host in the whole group, for errors.
#[derive(Clone)]
pub(super) struct RankNames {
    me: usize,
    names: Vec<PeerName>,
}

impl RankNames {
    pub(super) fn new(all: &Group, me: usize, ranks: &[usize]) -> Result<Self, Error> {
        let (description, _) = all.window_context()?;
        let members = ranks.iter().filter_map(|rank| description.members.get(*rank));
        Ok(Self { me, names: members.map(Member::peer_name).collect() })
    }

    /// The cause of an error that a kernel has reported.
    pub(super) fn cause(&self, left: &DeviceError) -> Cause {
        let named = |rank: usize| self.names.get(rank).cloned();
        let peer = left.peer.and_then(|peer| usize::try_from(peer).ok()).and_then(named);
        let me = named(self.me);
        match (left.what, peer, me) {
            (DeviceWait::Bounds, _, Some(me)) => {
                tracing::error!(rank = self.me, "{left}");
                Cause::Unable { who: me }
            }
            (DeviceWait::Argument, Some(peer), Some(me)) => Cause::Mismatch {
                one: WaitingPeer { who: me, call: "a collective on its CUDA device".into() },
                other: WaitingPeer { who: peer, call: "another one, or with another type or size".into() },
            },
            (_, peer, _) => Cause::Timeout(Wait::for_peers(peer)),
        }
    }
}
