//! The status of the run with its masters, as any of them knows it.

use super::Coordinator;
use crate::charter::Support;
use crate::status::{Health, MasterEntry, MasterRole, RunStatus};
use crate::time::Time;

impl Coordinator {
    /// The state of the run. On a master that does not lead it has no peers.
    pub fn status(&self, now: Time) -> RunStatus {
        let leader = self.leader(now);
        let mut run = match (self.machine(), leader) {
            (Some(machine), _) => machine.status(now),
            (None, Some(index)) => {
                let at = self.address(index).map_or_else(String::new, |at| format!(", at {at}"));
                let verdict = format!("standing by: master {} of the list{at} is active", index + 1);
                RunStatus { verdict, ..RunStatus::default() }
            }
            (None, None) => RunStatus {
                verdict: "no master is active: the log of this one says why".into(),
                health: Health::Degraded,
                ..RunStatus::default()
            },
        };
        run.masters = (0..self.list.len()).map(|index| self.master_entry(now, index, leader)).collect();
        let lost = run.masters.iter().filter(|master| master.role == MasterRole::Lost).count();
        // Other problems are more urgent.
        if leader.is_some() && lost > 0 && run.health == Health::Healthy {
            run.health = Health::Degraded;
            run.verdict = self.lost_verdict(&run.masters, lost);
        }
        run
    }

    fn address(&self, index: u16) -> Option<String> {
        self.list.addresses.get(usize::from(index))?.first().map(ToString::to_string)
    }

    fn master_entry(&self, now: Time, index: u16, leader: Option<u16>) -> MasterEntry {
        let is_active = leader == Some(index);
        let entry = |role, term, heard_s, behind| {
            let role = if is_active { MasterRole::Active } else { role };
            MasterEntry { position: index + 1, address: self.address(index), role, term, heard_s, behind }
        };
        if index == self.list.me {
            let role = if self.blank { MasterRole::Blank } else { MasterRole::Standby };
            return entry(role, Some(self.voter.promised.0), Some(0.0), Some(0));
        }
        let Some(other) = self.others.get(&index) else {
            return entry(MasterRole::Unknown, None, None, None);
        };
        let heard_s = other.last_heard.map(|at| now.since(at).as_secs_f64());
        let Some(status) = other.status.as_ref().filter(|_| other.is_heard(now, &self.config.timing)) else {
            return entry(MasterRole::Lost, None, heard_s, None);
        };
        let (known, newest) = (&status.voter.charter, &self.voter.charter);
        let seen = if known.term < newest.term { 0 } else { known.version };
        let role = if status.blank { MasterRole::Blank } else { MasterRole::Standby };
        let behind = newest.version.saturating_sub(seen);
        entry(role, Some(status.voter.promised.0), heard_s, Some(behind))
    }

    /// Who is lost, and whether the run survives another loss.
    fn lost_verdict(&self, masters: &[MasterEntry], lost: usize) -> String {
        let here = masters.len() - lost;
        let standbys = masters.iter().filter(|master| master.role == MasterRole::Standby);
        // Those that could elect another one if the active master were lost.
        let others = Support {
            members: self.voter.charter.members().iter().copied().collect(),
            masters: standbys.map(|master| master.position - 1).collect(),
        };
        let survives = !others.masters.is_empty() && self.voter.charter.is_quorum(self.list.len(), &others);
        let what = match survives {
            true => {
                let lost = masters.iter().filter(|master| master.role == MasterRole::Lost);
                let names: Vec<_> = lost.map(|master| master.address.clone().unwrap_or_default()).collect();
                format!("{} is not heard", names.join(", "))
            }
            false => "one more loss stops the run".into(),
        };
        format!("degraded: {here} of {} masters: {what}", masters.len())
    }
}
