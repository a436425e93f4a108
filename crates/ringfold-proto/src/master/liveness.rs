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
        let silence_max = self.config.timing.silence_max;
        let works_until = self.network_works_until();
        if self.isolated && now < works_until {
            self.isolated = false;
            self.silence_check_at = now + silence_max;
            return self.reset_silence(now);
        }
        let mut silent = Vec::new();
        (self.isolated, self.silence_check_at) = (false, Time(u64::MAX));
        for record in self.roster.iter() {
            let due = record.heard_at + silence_max;
            // If no peer is heard from, the master's own network is the likelier cause.
            let works = due < works_until;
            self.isolated |= due <= now && !works;
            let deadline = if works { due } else { record.heard_at + silence_max * ISOLATION_FACTOR };
            if deadline <= now {
                silent.push(record.peer);
            } else {
                // It may be due earlier once another peer is heard from.
                let check_at = if due > now { due } else { deadline };
                self.silence_check_at = self.silence_check_at.min(check_at);
            }
        }
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
        (self.roster.len() > 0).then(|| self.silence_check_at.min(self.next_heartbeat))
    }

    /// The network works until shortly after a peer was heard from, and always with a single peer.
    fn network_works_until(&self) -> Time {
        let last = self.roster.iter().map(|r| r.heard_at).max().filter(|_| self.roster.len() > 1);
        last.map_or(Time(u64::MAX), |last| last + self.config.timing.silence_max / 2)
    }
}
