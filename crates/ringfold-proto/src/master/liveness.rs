//! Liveness: a peer is silent if neither the master nor a neighbour received a byte from it (R9).

use super::{Master, MasterAction};
use crate::cause::{Departure, ProtocolViolation};
use crate::id::PeerId;
use crate::message::ToPeer;
use crate::time::Time;

/// How much longer all peers may be silent than one.
const ISOLATION_FACTOR: u32 = 3;

impl Master {
    pub(super) fn handle_heartbeat(
        &mut self,
        now: Time,
        from: PeerId,
        heard: Vec<PeerId>,
        ended: Vec<PeerId>,
    ) {
        for peer in &heard {
            if let Some(record) = self.roster.get_mut(*peer) {
                record.heard_at = record.heard_at.max(now);
            }
        }
        self.note_links(now, from, &heard, &ended);
    }

    pub(super) fn send_heartbeats(&mut self, now: Time) {
        if now < self.next_heartbeat {
            return;
        }
        if self.next_heartbeat + self.config.timing.silence_max / 2 <= now {
            self.reset_silence(now);
        }
        self.next_heartbeat = now + self.config.timing.heartbeat;
        for record in self.roster.iter() {
            if let Some(conn) = record.conn {
                let message = Box::new(record.session.unnumbered(ToPeer::Heartbeat));
                self.actions.push_back(MasterAction::Send { conn, message });
            }
        }
    }

    /// Restarts all silence deadlines: this master was stopped or cut off, and has not read what arrived meanwhile.
    fn reset_silence(&mut self, now: Time) {
        self.roster.iter_mut().for_each(|record| record.heard_at = now);
    }

    pub(super) fn evict_silent(&mut self, now: Time) {
        if self.isolated && self.network_works(now) {
            self.isolated = false;
            return self.reset_silence(now);
        }
        let silence_max = self.config.timing.silence_max;
        self.isolated = self.roster.iter().any(|r| {
            let due = r.heard_at + silence_max;
            due <= now && !self.network_works(due)
        });
        let is_over = |heard_at: Time| self.silence_deadline(heard_at) <= now;
        let silent: Vec<_> = self.roster.iter().filter(|r| is_over(r.heard_at)).map(|r| r.peer).collect();
        for peer in silent {
            self.remove(peer, Departure::Silent);
        }
    }

    /// Evicts a peer with too many unacknowledged messages.
    pub(super) fn evict_lagging(&mut self) -> bool {
        let Some(peer) = self.lagging.pop_first() else { return false };
        let is_behind = self.roster.get(peer).is_some_and(|record| record.session.is_outbox_full());
        if is_behind {
            self.remove(peer, Departure::Misbehaved(ProtocolViolation::NothingAcknowledged));
        }
        true
    }

    pub(super) fn liveness_timeout(&self) -> Option<Time> {
        let earliest = self.roster.iter().map(|r| self.silence_deadline(r.heard_at)).min()?;
        Some(earliest.min(self.next_heartbeat))
    }

    /// When a peer counts as silent. If no peer is heard from, the master's own network is the likelier cause.
    fn silence_deadline(&self, heard_at: Time) -> Time {
        let silence_max = self.config.timing.silence_max;
        let due = heard_at + silence_max;
        if self.network_works(due) { due } else { heard_at + silence_max * ISOLATION_FACTOR }
    }

    /// Whether any peer was heard from shortly before that time, or since. True with a single peer.
    fn network_works(&self, at: Time) -> bool {
        let recent = self.config.timing.silence_max / 2;
        self.roster.iter().count() < 2 || self.roster.iter().any(|r| r.heard_at + recent > at)
    }
}
