//! Detects stalled links: operations wait on them, and nothing arrives (R9).
//!
//! A peer that waits for others, or has not called yet, is not stalled. So a peer that waits on a link sends pings, and
//! drivers send pings on all links. Only silence is a stall.

use super::Executor;
use crate::event::ExecutorEvent;
use crate::limits;
use crate::workspace::Workspace;
use core::time::Duration;
use ringfold_proto::id::PeerId;
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use std::collections::BTreeMap;

impl<W: Workspace> Executor<W> {
    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_check
    }

    /// Sends pings on the links that operations wait on, and reports stalls.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.next_check.is_none_or(|at| now < at) {
            return;
        }
        self.next_check = None;
        let interval = self.check_interval();
        let waiting_since = self.waiting_since();
        for (peer, link) in &mut self.puts.links {
            let since = waiting_since.get(peer).copied();
            if since.is_some() && link.is_quiet(now, interval) {
                link.record_output(now);
                self.out.send(*peer, LinkMessage::Ping);
            }
            if let Some(direction) = link.stall(now, since, self.stall_after) {
                self.out.emit(ExecutorEvent::Stalled { peer: *peer, direction });
            }
        }
        if self.in_flight() > 0 {
            self.next_check = Some(now + interval);
        }
    }

    /// Schedules the next check, if there is none.
    pub(super) fn schedule_check(&mut self, now: Time) {
        if self.next_check.is_none() {
            self.next_check = Some(now + self.check_interval());
        }
    }

    fn check_interval(&self) -> Duration {
        self.stall_after / limits::PINGS_PER_STALL
    }

    /// The peers that unfinished operations exchange frames with, and the start of the oldest operation.
    fn waiting_since(&self) -> BTreeMap<PeerId, Time> {
        let mut waiting = BTreeMap::<PeerId, Time>::new();
        for epoch in self.epochs.values() {
            for op in epoch.ops.values().filter(|op| !op.finished) {
                for rank in op.ranks().filter(|rank| op.depends_on(*rank)) {
                    let peer = epoch.membership.members[rank.index()];
                    let since = waiting.entry(peer).or_insert(op.started);
                    *since = op.started.min(*since);
                }
            }
        }
        waiting
    }
}
