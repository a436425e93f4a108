//! Remembers which epochs are in the past.

use crate::limits;
use ringfold_proto::id::{EpochId, GroupId, Incarnation};
use std::collections::VecDeque;

/// The newest epoch of each group and master incarnation, and the last closed epochs.
#[derive(Debug, Default)]
pub(super) struct EpochHistory {
    newest: VecDeque<((GroupId, Incarnation), u64)>,
    closed: VecDeque<EpochId>,
}

impl EpochHistory {
    /// Records an opened epoch. All older ones of its group and incarnation are in the past.
    pub(super) fn opened(&mut self, epoch: EpochId) {
        let kind = (epoch.group, epoch.incarnation);
        if let Some((_, counter)) = self.newest.iter_mut().find(|(other, _)| *other == kind) {
            *counter = epoch.counter.max(*counter);
            return;
        }
        if self.newest.len() >= limits::INCARNATIONS_REMEMBERED_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back((kind, epoch.counter));
    }

    /// Records an epoch that was closed or will never be opened.
    pub(super) fn closed(&mut self, epoch: EpochId) {
        if self.closed.contains(&epoch) {
            return;
        }
        if self.closed.len() >= limits::CLOSED_EPOCHS_REMEMBERED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(epoch);
    }

    /// Whether an epoch will never be opened.
    pub(super) fn is_past(&self, epoch: EpochId) -> bool {
        let kind = (epoch.group, epoch.incarnation);
        self.newest.iter().any(|(other, newest)| *other == kind && epoch.counter < *newest)
            || self.closed.contains(&epoch)
    }
}
