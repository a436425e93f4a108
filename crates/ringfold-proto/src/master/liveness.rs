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
    pub(super) fn beat(&mut self, now: Time) {
        if now < self.next_beat {
            return;
        }
        if self.next_beat + self.config.timing.silence_max / 2 <= now {
            self.forgive_silence(now);
        }
        self.next_beat = now + self.config.timing.heartbeat;
        for record in self.roster.iter() {
            if let Some(conn) = record.conn {
                let message = Box::new(record.session.say_aside(ToPeer::Heartbeat));
                self.actions.push_back(MasterAction::Send { conn, message });
            }
        }
    }

    /// This master was stopped itself for a while: what was said in that time has not been read yet.
    fn forgive_silence(&mut self, now: Time) {
        for peer in self.roster.iter().map(|r| r.peer).collect::<Vec<_>>() {
            if let Some(record) = self.roster.get_mut(peer) {
                record.heard_at = now;
            }
        }
    }

    pub(super) fn evict_silent(&mut self, now: Time) {
        if self.isolated && self.line_works(now) {
            // Whoever was silent while our line was down has as much time as ever to be heard.
            self.isolated = false;
            return self.forgive_silence(now);
        }
        let silence_max = self.config.timing.silence_max;
        self.isolated = self.roster.iter().any(|r| {
            let due = r.heard_at + silence_max;
            due <= now && !self.line_works(due)
        });
        let is_over = |heard_at: Time| self.silence_ends(heard_at) <= now;
        let silent: Vec<_> = self.roster.iter().filter(|r| is_over(r.heard_at)).map(|r| r.peer).collect();
        for peer in silent {
            self.remove(peer, Departure::Silent);
        }
    }

    /// Evicts peers that have fallen too far behind with what they acknowledge.
    pub(super) fn evict_overfull(&mut self) -> bool {
        let Some(peer) = self.overfull.pop_first() else { return false };
        let is_behind = self.roster.get(peer).is_some_and(|record| record.session.is_overfull());
        if is_behind {
            self.remove(peer, Departure::Misbehaved(ProtocolViolation::NothingAcknowledged));
        }
        true
    }

    pub(super) fn liveness_timeout(&self) -> Option<Time> {
        let earliest = self.roster.iter().map(|r| self.silence_ends(r.heard_at)).min()?;
        Some(earliest.min(self.next_beat))
    }

    /// When a peer has been silent for too long. If nobody at all is heard of, it is likelier our own line than all of
    /// them at once.
    fn silence_ends(&self, heard_at: Time) -> Time {
        let silence_max = self.config.timing.silence_max;
        let due = heard_at + silence_max;
        if self.line_works(due) { due } else { heard_at + silence_max * ISOLATION_FACTOR }
    }

    /// Whether somebody was heard of shortly before that time, or since. With a single peer there is nobody to compare
    /// it with.
    fn line_works(&self, at: Time) -> bool {
        let recent = self.config.timing.silence_max / 2;
        self.roster.iter().count() < 2 || self.roster.iter().any(|r| r.heard_at + recent > at)
    }
}
