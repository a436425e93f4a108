//! Charters: who may decide in a run with several masters.
//!
//! Voters are the members of the run and the listed masters. A master leads in a term, which is unique to it, while a quorum
//! of voters supports it. Each change of the members is a new version of the charter. It lists all electorates that may be
//! in force: the ones before the change and the one after it. A quorum of every one of them must know a version before
//! anything is decided by it. So any two quorums have a voter in common, which knows the newer version, or has promised its
//! vote in a newer term and refuses the older one.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::id::{PeerId, Term};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The voters other than the listed masters, and whose vote decides if exactly half of all voters agree.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Electorate {
    /// The members of the run, sorted.
    pub members: Vec<PeerId>,
    /// The master that was active, by its position in the list.
    pub active: u16,
}

impl Electorate {
    pub fn new(members: impl IntoIterator<Item = PeerId>, active: u16) -> Self {
        let members: BTreeSet<_> = members.into_iter().collect();
        Self { members: members.into_iter().collect(), active }
    }

    /// Whether the supporters are a quorum: more than half of the voters, exactly half of them if the active master is one, or
    /// all masters, since every quorum includes a master.
    fn is_quorum(&self, masters: u16, support: &Support) -> bool {
        let voters = self.members.len() + usize::from(masters);
        let members = self.members.iter().filter(|peer| support.members.contains(peer)).count();
        let votes = members + support.masters.len();
        let is_tie_won = 2 * votes == voters && support.masters.contains(&self.active);
        2 * votes > voters || is_tie_won || support.masters.len() == usize::from(masters)
    }
}

/// The electorates that may be in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Charter {
    /// The term of the master that made this version.
    pub term: Term,
    /// Counts the versions of the term.
    pub version: u64,
    /// The newest is the last one.
    pub electorates: Vec<Electorate>,
}

impl Charter {
    /// Before the first member the listed masters alone vote. Since they may have forgotten another charter, all must.
    pub fn initial() -> Self {
        Self { term: Term(0), version: 0, electorates: vec![Electorate::default()] }
    }

    pub fn is_initial(&self) -> bool {
        self.number() == (Term(0), 0)
    }

    /// Charters with higher numbers are newer.
    pub fn number(&self) -> (Term, u64) {
        (self.term, self.version)
    }

    /// The newest electorate.
    pub fn newest(&self) -> Option<&Electorate> {
        self.electorates.last()
    }

    /// The members of the newest electorate.
    pub fn members(&self) -> &[PeerId] {
        self.newest().map_or(&[], |electorate| &electorate.members)
    }

    /// Whether only one electorate can be in force.
    pub fn is_settled(&self) -> bool {
        self.electorates.len() == 1
    }

    /// Whether the supporters are a quorum of every electorate.
    pub fn is_quorum(&self, masters: u16, support: &Support) -> bool {
        self.electorates.iter().all(|electorate| electorate.is_quorum(masters, support))
    }

    /// The next version, in which the members may be others.
    #[must_use]
    pub fn with(&self, term: Term, electorate: Electorate) -> Self {
        let version = if term == self.term { self.version + 1 } else { 1 };
        let others = self.electorates.iter().filter(|known| **known != electorate).cloned();
        let electorates = others.chain([electorate.clone()]).collect();
        Self { term, version, electorates }
    }

    /// The next version, with the newest electorate alone.
    #[must_use]
    pub fn settled(&self) -> Self {
        let electorates = self.electorates.last().cloned().into_iter().collect();
        Self { term: self.term, version: self.version + 1, electorates }
    }
}

/// The voters that support a master.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Support {
    pub members: BTreeSet<PeerId>,
    /// By position in the list.
    pub masters: BTreeSet<u16>,
}

/// What a voter has promised, and the newest charter that it knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VoterRecord {
    /// It supports no master of an earlier term.
    pub promised: Term,
    pub charter: Charter,
}

impl Default for VoterRecord {
    fn default() -> Self {
        Self { promised: Term(0), charter: Charter::initial() }
    }
}

impl VoterRecord {
    /// Whether all counters are far from an overflow, and there is an electorate.
    pub fn is_plausible(&self) -> bool {
        let Charter { term, version, electorates } = &self.charter;
        let counters = [self.promised.0, term.0, *version];
        counters.into_iter().all(|n| n <= limits::COUNTER_MAX) && !electorates.is_empty()
    }

    /// Keeps the newer charter. Returns whether it was the given one.
    pub fn adopt(&mut self, charter: &Charter) -> bool {
        let is_newer = charter.number() > self.charter.number();
        if is_newer {
            self.charter = charter.clone();
        }
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn support(members: &[u128], masters: &[u16]) -> Support {
        Support {
            members: members.iter().map(|id| PeerId(*id)).collect(),
            masters: masters.iter().copied().collect(),
        }
    }

    fn electorate(members: &[u128], active: u16) -> Electorate {
        Electorate::new(members.iter().map(|id| PeerId(*id)), active)
    }

    #[test]
    fn before_the_first_member_the_first_of_two_masters_wins_a_tie() {
        let charter = Charter::initial();
        assert!(charter.is_quorum(2, &support(&[], &[0])) && !charter.is_quorum(2, &support(&[], &[1])));
        assert!(charter.is_quorum(3, &support(&[], &[1, 2])) && !charter.is_quorum(3, &support(&[], &[0])));
    }

    #[test]
    fn two_peers_and_two_masters_survive_the_loss_of_one() {
        let charter = Charter::initial().with(Term(2), electorate(&[1, 2], 0)).settled();
        for (members, masters) in [(&[1, 2][..], &[1][..]), (&[1, 2], &[0]), (&[1], &[0, 1]), (&[2], &[0])] {
            assert!(charter.is_quorum(2, &support(members, masters)), "{members:?} {masters:?}");
        }
        // One peer and the active master are lost together.
        assert!(!charter.is_quorum(2, &support(&[2], &[1])));
    }

    #[test]
    fn a_change_needs_a_quorum_of_both_electorates() {
        let before = Charter::initial().with(Term(3), electorate(&[1, 2, 3, 4], 0)).settled();
        let change = before.with(Term(3), electorate(&[1, 2], 0));
        assert!(!change.is_settled() && change.number() > before.number());
        // Three of five would be a quorum of the new electorate alone.
        assert!(!change.is_quorum(3, &support(&[1, 2], &[0])));
        assert!(change.is_quorum(3, &support(&[1, 2], &[0, 1])));
    }

    #[test]
    fn any_two_quorums_have_a_voter_in_common() {
        let old = electorate(&[1, 2, 3], 1);
        let subsets = |bits: u32| {
            let members = (0..3).filter(|i| bits & (1 << i) != 0).map(|i| i as u128 + 1).collect::<Vec<_>>();
            let masters = (0..3).filter(|i| bits & (8 << i) != 0).map(|i| i as u16).collect::<Vec<_>>();
            support(&members, &masters)
        };
        for a in 0..64 {
            for b in 0..64 {
                // A leader supports itself, so every quorum that is used includes a master.
                let both = [subsets(a), subsets(b)];
                if both.iter().all(|s| !s.masters.is_empty() && old.is_quorum(3, s)) {
                    assert_ne!(a & b, 0, "{both:?}");
                }
            }
        }
    }
}
