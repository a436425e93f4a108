//! Notices links on which operations wait and nothing moves (R9).
//!
//! A peer that waits for others itself, or that has not called yet, is no fault. So whoever waits on a link says from
//! time to time that it is alive, and drivers say so on all links, whatever happens. Only silence is a stall.

use super::Executor;
use crate::event::ExecutorEvent;
use crate::limits;
use crate::workspace::Workspace;
use core::time::Duration;
use ringfold_proto::id::PeerId;
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use std::collections::BTreeMap;

/// What operations want of a link.
#[derive(Clone, Copy, Default)]
struct Need {
    /// Since when operations depend on the other end; the oldest of them.
    since: Option<Time>,
}

impl<W: Workspace> Executor<W> {
    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_look
    }

    /// Looks after the links that operations wait on.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.next_look.is_none_or(|at| now < at) {
            return;
        }
        self.next_look = None;
        let interval = self.look_interval();
        let needs = self.needs();
        for (peer, link) in &mut self.flights.links {
            let need = needs.get(peer);
            if need.is_some() && link.is_quiet(now, interval) {
                link.said(now);
                self.out.say(*peer, LinkMessage::Ping);
            }
            if let Some(direction) = link.stall(now, need.and_then(|need| need.since), self.stall_after) {
                self.out.tell(ExecutorEvent::Stalled { peer: *peer, direction });
            }
        }
        if self.in_flight() > 0 {
            self.next_look = Some(now + interval);
        }
    }

    /// There is something to look after.
    pub(super) fn look_soon(&mut self, now: Time) {
        if self.next_look.is_none() {
            self.next_look = Some(now + self.look_interval());
        }
    }

    fn look_interval(&self) -> Duration {
        self.stall_after / limits::PINGS_PER_STALL
    }

    /// The peers that unfinished operations still exchange frames with.
    fn needs(&self) -> BTreeMap<PeerId, Need> {
        let mut needs = BTreeMap::<PeerId, Need>::new();
        for epoch in self.epochs.values() {
            for op in epoch.ops.values().filter(|op| !op.finished) {
                for rank in op.ranks().filter(|rank| op.depends_on(*rank)) {
                    let need = needs.entry(epoch.membership.members[rank.index()]).or_default();
                    need.since = Some(need.since.map_or(op.started, |since| since.min(op.started)));
                }
            }
        }
        needs
    }
}
