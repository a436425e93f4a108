//! Who is alive. A peer is silent only if neither the master nor any neighbour had a byte from it (R9).

use super::{Master, MasterAction};
use crate::cause::{Departure, ProtocolViolation};
use crate::id::PeerId;
use crate::message::ToPeer;
use crate::time::Time;

/// How much longer everybody may be silent than somebody.
const ISOLATION_FACTOR: u32 = 3;

impl Master {
    pub(super) fn handle_heartbeat(&mut self, now: Time, heard: Vec<PeerId>) {
        for peer in heard {
            if let Some(record) = self.roster.get_mut(peer) {
                record.heard_at = record.heard_at.max(now);
            }
        }
    }

    /// Tells everyone that the master is alive.
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

    /// This master was stopped itself for a while: what was said in that time has not been read yet.
    fn reset_silence(&mut self, now: Time) {
        for peer in self.roster.iter().map(|r| r.peer).collect::<Vec<_>>() {
            if let Some(record) = self.roster.get_mut(peer) {
                record.heard_at = now;
            }
        }
    }

    pub(super) fn evict_silent(&mut self, now: Time) {
        if self.isolated && self.network_works(now) {
            // Whoever was silent while our line was down has as much time as ever to be heard.
            self.isolated = false;
            return self.reset_silence(now);
        }
        let silence_max = self.config.timing.silence_max;
        self.isolated = self.roster.iter().any(|r| {
            let due = r.heard_at + silence_max;
            due <= now && !self.network_works(due)
        });
        let is_over = |heard_at: Time| self.silence_ends(heard_at) <= now;
        let silent: Vec<_> = self.roster.iter().filter(|r| is_over(r.heard_at)).map(|r| r.peer).collect();
        for peer in silent {
            self.remove(peer, Departure::Silent);
        }
    }

    /// Evicts peers that have fallen too far behind with what they acknowledge.
    pub(super) fn evict_lagging(&mut self) -> bool {
        let Some(peer) = self.lagging.pop_first() else { return false };
        let is_behind = self.roster.get(peer).is_some_and(|record| record.session.is_outbox_full());
        if is_behind {
            self.remove(peer, Departure::Misbehaved(ProtocolViolation::NothingAcknowledged));
        }
        true
    }

    pub(super) fn liveness_timeout(&self) -> Option<Time> {
        let earliest = self.roster.iter().map(|r| self.silence_ends(r.heard_at)).min()?;
        Some(earliest.min(self.next_heartbeat))
    }

    /// When a peer has been silent for too long. If nobody at all is heard of, it is likelier our own line than all of
    /// them at once.
    fn silence_ends(&self, heard_at: Time) -> Time {
        let silence_max = self.config.timing.silence_max;
        let due = heard_at + silence_max;
        if self.network_works(due) { due } else { heard_at + silence_max * ISOLATION_FACTOR }
    }

    /// Whether somebody was heard of shortly before that time, or since. With a single peer there is nobody to compare
    /// it with.
    fn network_works(&self, at: Time) -> bool {
        let recent = self.config.timing.silence_max / 2;
        self.roster.iter().count() < 2 || self.roster.iter().any(|r| r.heard_at + recent > at)
    }
}
