//! Who is alive. A peer is silent only if neither the master nor any neighbour had a byte from it (R9).

use super::{Master, MasterAction};
use crate::cause::Departure;
use crate::id::PeerId;
use crate::message::ToPeer;
use crate::time::Time;

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
        let limit = self.config.timing.silence_max;
        let silent: Vec<_> =
            self.roster.iter().filter(|r| r.heard_at + limit <= now).map(|r| r.peer).collect();
        for peer in silent {
            self.remove(now, peer, Departure::Silent);
        }
        let behind: Vec<_> = self.roster.iter().filter(|r| r.session.is_overfull()).map(|r| r.peer).collect();
        for peer in behind {
            self.remove(now, peer, Departure::Misbehaved("it acknowledges nothing".into()));
        }
    }

    pub(super) fn liveness_timeout(&self) -> Option<Time> {
        let earliest = self.roster.iter().map(|r| r.heard_at + self.config.timing.silence_max).min()?;
        Some(earliest.min(self.next_beat))
    }
}
