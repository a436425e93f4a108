//! Suspicion: a peer whose connection ended is dead if its neighbours' links with it ended too; otherwise it may resume
//! (P10).

use super::Master;
use super::group::EpochStage;
use super::roster::LinkReport;
use crate::cause::Departure;
use crate::event::Event;
use crate::id::PeerId;
use crate::time::Time;

/// What the connected neighbours of a suspect report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Testimony {
    /// No neighbour has, or had, a link with it.
    None,
    /// All links with it ended, at about the same time.
    Dead,
    /// A link with it is up.
    Alive,
}

impl Master {
    /// A peer's connection ended: it is dead, or resumes its session on another one.
    pub(super) fn suspect(&mut self, now: Time, peer: PeerId) {
        self.suspects.insert(peer, now);
        self.notify(Event::Suspected(self.peer_name(peer)));
    }

    /// A peer's heartbeat: it heard from these peers, and its links with those ended.
    pub(super) fn note_links(&mut self, now: Time, from: PeerId, heard: &[PeerId], ended: &[PeerId]) {
        let group = self.roster.group_of(from);
        let is_near = |peer: &&PeerId| self.roster.group_of(**peer) == group && **peer != from;
        let heard: Vec<_> = heard.iter().filter(is_near).copied().collect();
        let ended = ended.iter().filter(is_near).copied().collect();
        self.roster.report_links(now, from, heard, ended);
    }

    /// Removes the suspects that are dead, or have not resumed in time.
    pub(super) fn advance_suspects(&mut self, now: Time) -> bool {
        let is_over = |(peer, since): (&PeerId, &Time)| match self.testimony(*peer, *since) {
            Testimony::Dead => true,
            _ => self.resume_deadline(*peer, *since) <= now,
        };
        let Some(peer) = self.suspects.iter().find(|s| is_over(*s)).map(|(peer, _)| *peer) else {
            return false;
        };
        self.remove(peer, Departure::ConnectionLost);
        true
    }

    pub(super) fn suspicion_timeout(&self) -> Option<Time> {
        self.suspects.iter().map(|(peer, since)| self.resume_deadline(*peer, *since)).min()
    }

    fn resume_deadline(&self, peer: PeerId, since: Time) -> Time {
        let timing = &self.config.timing;
        match self.testimony(peer, since) {
            Testimony::Alive => since + timing.restore_grace,
            Testimony::None | Testimony::Dead => since + timing.suspect_max,
        }
    }

    /// What the neighbours report that are connected themselves.
    ///
    /// Links that had ended a while before say nothing: the suspect lived after that, since its connection was there.
    fn testimony(&self, suspect: PeerId, since: Time) -> Testimony {
        let is_recent = |ended: Time| ended + self.config.timing.suspect_max / 2 >= since;
        let Some(id) = self.roster.group_of(suspect) else { return Testimony::None };
        let epoch = match self.groups.get(&id).map(|group| &group.stage) {
            Some(EpochStage::Open { description } | EpochStage::Proposed { description, .. }) => {
                Some(description.id)
            }
            // Between two epochs the links of the last one are kept.
            _ => None,
        };
        let seat = self.roster.get(suspect).and_then(|record| record.seat.as_ref());
        let is_witness = |witness: PeerId| match epoch {
            Some(epoch) => seat.is_some_and(|s| s.epoch == epoch && s.neighbours.contains(&witness)),
            None => self.roster.is_accepted(witness) && self.roster.group_of(witness) == Some(id),
        };
        let reports = self.roster.reports_about(suspect).filter_map(|(witness, report)| {
            let is_connected = self.roster.get(witness).is_some_and(|record| record.conn.is_some());
            match report {
                _ if !is_connected || !is_witness(witness) => None,
                LinkReport::Up => Some(true),
                LinkReport::Ended(at) => is_recent(at).then_some(false),
            }
        });
        reports.fold(Testimony::None, |so_far, is_up| match (so_far, is_up) {
            (Testimony::Alive, _) | (_, true) => Testimony::Alive,
            (Testimony::None | Testimony::Dead, false) => Testimony::Dead,
        })
    }
}
