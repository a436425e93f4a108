//! The output of the executor that the next poll hands to the medium.

use crate::event::ExecutorEvent;
use crate::medium::{Medium, SlotId, Ticket};
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::VecDeque;

/// Output queued by inputs, which have no access to the medium.
#[derive(Debug)]
pub(super) struct Output<W> {
    events: VecDeque<ExecutorEvent<W>>,
    messages: VecDeque<(PeerId, LinkMessage)>,
    releases: Vec<SlotId>,
    cancels: Vec<Ticket>,
    /// Operations that can make progress.
    awake: VecDeque<OpId>,
}

impl<W> Output<W> {
    pub(super) fn new() -> Self {
        Self {
            events: VecDeque::new(),
            messages: VecDeque::new(),
            releases: Vec::new(),
            cancels: Vec::new(),
            awake: VecDeque::new(),
        }
    }

    pub(super) fn emit(&mut self, event: ExecutorEvent<W>) {
        self.events.push_back(event);
    }

    pub(super) fn next_event(&mut self) -> Option<ExecutorEvent<W>> {
        self.events.pop_front()
    }

    pub(super) fn send(&mut self, to: PeerId, message: LinkMessage) {
        self.messages.push_back((to, message));
    }

    pub(super) fn release(&mut self, slot: SlotId) {
        self.releases.push(slot);
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.cancels.push(ticket);
    }

    pub(super) fn wake(&mut self, op: OpId) {
        self.awake.push_back(op);
    }

    pub(super) fn next_awake(&mut self) -> Option<OpId> {
        self.awake.pop_front()
    }

    /// Whether a poll has work.
    pub(super) fn is_pending(&self) -> bool {
        !(self.messages.is_empty()
            && self.releases.is_empty()
            && self.cancels.is_empty()
            && self.awake.is_empty())
    }

    /// Drops the output for a lost link.
    pub(super) fn forget_link(&mut self, peer: PeerId) {
        self.messages.retain(|(to, _)| *to != peer);
        self.releases.retain(|slot| slot.from != peer);
    }

    /// Hands everything to the medium. Puts are made only by polls, after this, so a fence follows every put of its
    /// operation.
    pub(super) fn carry_out<M: Medium>(&mut self, medium: &mut M) {
        for ticket in self.cancels.drain(..) {
            medium.cancel(ticket);
        }
        for slot in self.releases.drain(..) {
            medium.release(slot);
        }
        for (to, message) in self.messages.drain(..) {
            medium.send(to, message);
        }
    }
}
