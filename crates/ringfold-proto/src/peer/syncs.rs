//! Syncs of a peer: the verdict of the election, and the fetches.

use super::calls::{Call, CallKind};
use super::{Failure, Peer, PeerAction};
use crate::cause::{ProtocolViolation, StateRejection};
use crate::id::CallId;
use crate::message::ToMaster;
use crate::shared_state::SyncVerdict;

impl Peer {
    pub(super) fn handle_elected(&mut self, round: u64, verdict: SyncVerdict) {
        if round != self.rounds.sync.saturating_add(1) {
            return;
        }
        let syncing = self.calls.iter_mut().find_map(|(id, call)| match &mut call.kind {
            CallKind::Vote { request, rejected } => Some((*id, request.offer()?.entries.len(), rejected)),
            _ => None,
        });
        let Some((id, entries, rejected)) = syncing else { return };
        match verdict {
            SyncVerdict::Rejected(why) => *rejected = Some(Failure::StateRejected(why)),
            SyncVerdict::Elected(assignment) => {
                if assignment.fetch.iter().any(|f| f.entry as usize >= entries) {
                    return self.end_membership(Failure::master_misbehaved(ProtocolViolation::Assignment));
                }
                *rejected = None;
                self.assignments += 1;
                self.actions.push_back(PeerAction::Sync { call: id, number: self.assignments, assignment });
            }
        }
    }

    /// How many bytes of the shared state were fetched, and of how many, for the next heartbeat; none outside of a fetch.
    pub fn handle_fetching(&mut self, progress: Option<(u64, u64)>) {
        self.fetching = progress;
    }

    /// The fetches of an assignment have ended; whether the elected content is complete.
    pub fn handle_fetched(&mut self, call: CallId, number: u64, complete: bool) {
        if number != self.assignments {
            return;
        }
        let Some(Call { kind: CallKind::Vote { rejected, .. }, .. }) = self.calls.get_mut(&call) else {
            return;
        };
        *rejected = (!complete).then_some(Failure::StateRejected(StateRejection::HoldersLost));
        self.send(ToMaster::SyncDone { round: self.rounds.sync.saturating_add(1), complete });
    }
}
