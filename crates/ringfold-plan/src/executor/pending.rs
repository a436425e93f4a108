//! The input of a peer for an epoch that is not open yet. It is kept, within limits, until the epoch opens or is past
//! (R2).

use crate::event::Violation;
use crate::limits;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, OpId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::{BTreeMap, BTreeSet};

/// Frames and messages of one peer for one epoch, before it opens.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) epoch: EpochId,
    /// Frames in eager slots, in order of arrival.
    pub(super) frames: Vec<DataHeader>,
    /// Operations for which the peer requested slots.
    pub(super) wants: BTreeSet<OpId>,
    /// Slots that the peer has granted.
    pub(super) grants: BTreeMap<OpId, Vec<u16>>,
}

impl Pending {
    pub(super) fn new(epoch: EpochId) -> Self {
        Self { epoch, frames: Vec::new(), wants: BTreeSet::new(), grants: BTreeMap::new() }
    }

    /// Checks whether a frame can be kept. The number of eager slots of the epoch is unknown, so the maximum applies.
    pub(super) fn check(&self, header: &DataHeader) -> Result<(), Violation> {
        if !header.eager || header.slot >= limits::EAGER_SLOTS_MAX {
            return Err(Violation::NoSuchSlot(header.slot));
        }
        if self.frames.iter().any(|other| other.slot == header.slot) {
            return Err(Violation::SlotFull(header.slot));
        }
        Ok(())
    }

    /// Keeps a message. Only requests and grants are valid before we have sent anything in that epoch.
    pub(super) fn keep(&mut self, message: LinkMessage) -> Result<(), Violation> {
        match message {
            LinkMessage::Want { op } => {
                self.wants.insert(op);
                if self.wants.len() > limits::OPS_IN_FLIGHT_MAX {
                    return Err(Violation::TooManyWants);
                }
            }
            LinkMessage::Grant { op, slots } => {
                let kept = self.grants.entry(op).or_default();
                if kept.len() + slots.len() > usize::from(limits::WINDOW_SLOTS_MAX) {
                    return Err(Violation::TooManyGrants);
                }
                kept.extend_from_slice(&slots);
                if self.grants.len() > limits::OPS_IN_FLIGHT_MAX {
                    return Err(Violation::TooManyGrants);
                }
            }
            LinkMessage::Return { slots, .. } => {
                return Err(Violation::BadReturn(slots.first().copied().unwrap_or(0)));
            }
            LinkMessage::Fenced { .. }
            | LinkMessage::Mismatch { .. }
            | LinkMessage::Ping
            | LinkMessage::Abort { .. }
            | LinkMessage::Goodbye { .. }
            | LinkMessage::Note { .. }
            | LinkMessage::Inquiry { .. }
            | LinkMessage::Activity { .. }
            | LinkMessage::Device { .. } => {}
        }
        Ok(())
    }

    /// The number of kept items.
    pub(super) fn kept(&self) -> usize {
        self.frames.len() + self.wants.len() + self.grants.len()
    }
}
