//! What a peer posts to the journal.

use super::{Driver, Reduction};
use crate::journal::{PeerEvent, Source};
use crate::transfer::{Moved, Transfer};
use core::time::Duration;
use ringfold_proto::id::{CallId, PeerId};
use ringfold_proto::message::{Phase, ToMaster};
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::shared_state::Assignment;
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::sync::Arc;

/// How often the progress of a sync is reported.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The journal of a peer, and when its calls began.
pub(super) struct DriverJournal {
    source: Arc<Source>,
    votes: HashMap<CallId, (Phase, Time)>,
    sync: Option<SyncWatch>,
}

/// The progress of a sync that was reported.
struct SyncWatch {
    began: Time,
    next_report: Time,
    reported: Moved,
}

impl DriverJournal {
    pub(super) fn new(source: Arc<Source>) -> Self {
        Self { source, votes: HashMap::new(), sync: None }
    }

    pub(super) fn post(&self, event: PeerEvent) {
        self.source.post(event);
    }

    pub(super) fn begin_sync(&mut self, now: Time, began: PeerEvent) {
        self.sync =
            Some(SyncWatch { began: now, next_report: now + PROGRESS_EVERY, reported: Moved::default() });
        self.post(began);
    }

    pub(super) fn note_assignment(&self, assignment: &Assignment) {
        self.post(PeerEvent::SyncAssigned {
            revision: assignment.revision,
            fetches: assignment.fetch.len(),
            sources: assignment.sources.len(),
            fetchers: assignment.fetchers.len(),
        });
    }

    /// Reports the progress of a sync if it is time.
    pub(super) fn watch_sync(&mut self, now: Time, transfer: &Transfer) {
        let Some(watch) = self.sync.as_mut().filter(|watch| watch.next_report <= now) else { return };
        watch.next_report = now + PROGRESS_EVERY;
        let moved = transfer.moved();
        if core::mem::replace(&mut watch.reported, moved) != moved {
            let Moved { tx_bytes: sent_bytes, rx_bytes: received_bytes } = moved;
            self.post(PeerEvent::SyncProgress { sent_bytes, received_bytes });
        }
    }
}

impl Driver {
    /// A call was made. If it is a vote, posts that.
    pub(super) fn note_vote(&mut self, now: Time, call: CallId) {
        if let Some(phase) = self.machine.phase_of(call) {
            self.journal.votes.insert(call, (phase, now));
            self.journal.post(PeerEvent::VoteBegan { phase });
        }
    }

    /// The machine announces an operation to the master that is not complete after a while.
    pub(super) fn note_sent(&self, message: &ToMaster) {
        if let ToMaster::Started { op, descriptor } = message {
            self.journal.post(PeerEvent::OpStarted { op: *op, call: *descriptor });
        }
    }

    pub(super) fn note_lost_link(&self, peer: PeerId, why: String) {
        self.journal.post(PeerEvent::LinkLost { peer: self.machine.name_of(peer), why });
    }

    /// A call has ended.
    pub(super) fn note_ended(
        &mut self,
        call: CallId,
        reduction: Option<&Reduction>,
        result: &Result<Completion, Failure>,
    ) {
        if let Some(reduction) = reduction {
            return self.note_ended_op(reduction, result);
        }
        let since = |began: Time| self.clock.now().since(began);
        if let Some((phase, began)) = self.journal.votes.remove(&call) {
            let failure = result.as_ref().err().cloned();
            return self.journal.post(PeerEvent::VoteEnded { phase, failure, duration: since(began) });
        }
        if let Some((of, transfer)) = &self.syncing
            && *of == call
            && let Some(watch) = self.journal.sync.take()
        {
            let result = match result {
                Ok(Completion::Synced(revision)) => Ok(*revision),
                Ok(_) => return,
                Err(failure) => Err(failure.clone()),
            };
            let Moved { tx_bytes: sent_bytes, rx_bytes: received_bytes } = transfer.moved();
            let duration = since(watch.began);
            self.journal.post(PeerEvent::SyncEnded { result, sent_bytes, received_bytes, duration });
        }
    }

    fn note_ended_op(&self, reduction: &Reduction, result: &Result<Completion, Failure>) {
        let source = &self.journal.source;
        if !(if result.is_ok() { source.wants_ops() } else { source.wants_long_ops() }) {
            return;
        }
        let Reduction { tag, descriptor, began, op, info, .. } = reduction;
        let result = match result {
            Ok(Completion::Reduced { world }) => Ok(*world as usize),
            Ok(_) => return,
            Err(failure) => Err(failure.clone()),
        };
        source.post(PeerEvent::OpEnded {
            op: *op,
            tag: *tag,
            call: *descriptor,
            result,
            sent_bytes: info.tx_bytes,
            received_bytes: info.rx_bytes,
            duration: self.clock.now().since(*began),
        });
    }
}
