//! The CPU cores that a process may use, and whether all processes of a host have one of their own.
#![allow(missing_docs)] // Fields are named for what they hold.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Cores that are counted on a host.
pub const CORES_MAX: u16 = 1024;

/// The cores of its host that a process may use; without any they are unknown.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct CoreShare {
    /// Ascending runs of cores: the first, and how many.
    pub runs: Vec<(u16, u16)>,
    pub quota: Option<CpuQuota>,
}

/// How many cores the processes of a cgroup may keep busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuQuota {
    /// The number of the cgroup on its host.
    pub cgroup: u64,
    pub cores: u16,
}

impl CoreShare {
    /// Runs of ascending cores; of more than `runs_max` the last are left out.
    pub fn new(cores: impl IntoIterator<Item = u16>, quota: Option<CpuQuota>, runs_max: usize) -> Self {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for core in cores {
            match runs.last_mut() {
                Some((first, count)) if first.checked_add(*count) == Some(core) => *count += 1,
                _ => runs.push((core, 1)),
            }
        }
        runs.truncate(runs_max);
        Self { runs, quota }
    }

    fn cores(&self) -> impl Iterator<Item = u16> {
        self.runs.iter().flat_map(|(first, count)| *first..first.saturating_add(*count).min(CORES_MAX))
    }
}

/// Whether each of these processes of a host can have a core of its own: there is a matching of processes to cores, and
/// each cgroup's quota is enough for its processes.
///
/// ```
/// use ringfold_proto::cores::{CoreShare, each_has_a_core};
///
/// let [one, both] = [vec![0], vec![0, 1]].map(|cores| CoreShare::new(cores, None, 64));
/// assert!(each_has_a_core(&[&both, &one]));
/// assert!(!each_has_a_core(&[&one, &one]));
/// ```
pub fn each_has_a_core(shares: &[&CoreShare]) -> bool {
    let mut quotas: BTreeMap<u64, (usize, u16)> = BTreeMap::new();
    for quota in shares.iter().filter_map(|share| share.quota) {
        let (users, cores) = quotas.entry(quota.cgroup).or_insert((0, quota.cores));
        (*users, *cores) = (*users + 1, quota.cores.min(*cores));
    }
    let mut owners = vec![None; usize::from(CORES_MAX)];
    quotas.values().all(|(users, cores)| *users <= usize::from(*cores))
        && (0..shares.len())
            .all(|process| find_core(process, shares, &mut owners, &mut vec![false; usize::from(CORES_MAX)]))
}

/// Gives a process a core: a free one, or one whose owner can have another.
fn find_core(process: usize, shares: &[&CoreShare], owners: &mut [Option<usize>], seen: &mut [bool]) -> bool {
    let cores = || shares[process].cores().map(usize::from);
    if let Some(free) = cores().find(|core| owners[*core].is_none()) {
        owners[free] = Some(process);
        return true;
    }
    cores().any(|core| {
        let is_new = !core::mem::replace(&mut seen[core], true);
        let moves = is_new && owners[core].is_some_and(|owner| find_core(owner, shares, owners, seen));
        if moves {
            owners[core] = Some(process);
        }
        moves
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(cores: &[u16]) -> CoreShare {
        CoreShare::new(cores.iter().copied(), None, 64)
    }

    fn with_quota(cgroup: u64, cores: u16) -> CoreShare {
        CoreShare { quota: Some(CpuQuota { cgroup, cores }), ..share(&[0, 1, 2, 3]) }
    }

    fn fits(shares: &[CoreShare]) -> bool {
        each_has_a_core(&shares.iter().collect::<Vec<_>>())
    }

    #[test]
    fn cores_are_stored_as_runs() {
        assert_eq!(share(&[0, 1, 2, 5, 7, 8]).runs, [(0, 3), (5, 1), (7, 2)]);
        assert_eq!(CoreShare::new([0, 2, 4], None, 2).runs, [(0, 1), (2, 1)]);
        assert_eq!(CoreShare::default().cores().count(), 0);
        let beyond = CoreShare { runs: vec![(CORES_MAX - 1, 9), (u16::MAX, u16::MAX)], quota: None };
        assert_eq!(beyond.cores().collect::<Vec<_>>(), [CORES_MAX - 1]);
    }

    #[test]
    fn bound_processes_have_a_core_each_and_those_on_one_core_have_not() {
        let bound: Vec<_> = (0..8).map(|core| share(&[core])).collect();
        assert!(fits(&bound));
        assert!(!fits(&[bound, vec![share(&[3])]].concat()));
        // Free processes, as many as cores.
        assert!(fits(&vec![share(&[0, 1, 2, 3]); 4]) && !fits(&vec![share(&[0, 1, 2, 3]); 5]));
    }

    #[test]
    fn a_process_gives_up_a_core_that_another_one_needs() {
        // The first ones take the cores that the last ones need.
        assert!(fits(&[share(&[0, 1, 2]), share(&[0, 1]), share(&[0])]));
        assert!(fits(&[share(&[0, 1]), share(&[1, 2]), share(&[2, 3]), share(&[0])]));
        // Three processes on two cores, beside a core that none of them may use.
        assert!(!fits(&[share(&[0, 1]), share(&[0, 1]), share(&[0, 1]), share(&[2, 3])]));
    }

    #[test]
    fn the_matching_finds_what_trying_all_placements_finds() {
        fn tries(rest: &[u16], taken: u16) -> bool {
            let Some((mask, rest)) = rest.split_first() else { return true };
            (0..5).map(|core| 1 << core).any(|core| mask & !taken & core != 0 && tries(rest, taken | core))
        }
        let mut state = 1_u64;
        for _ in 0..2000 {
            let masks: Vec<u16> = (0..5)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as u16 & (state >> 50) as u16 & 31
                })
                .collect();
            let shares: Vec<_> = masks
                .iter()
                .map(|mask| CoreShare::new((0..5).filter(|core| mask >> core & 1 == 1), None, 64))
                .collect();
            assert_eq!(fits(&shares), tries(&masks, 0), "{masks:?}");
        }
    }

    #[test]
    fn the_quota_of_each_cgroup_must_be_enough() {
        assert!(fits(&[with_quota(1, 2), with_quota(1, 2)]) && !fits(&vec![with_quota(1, 2); 3]));
        assert!(fits(&[with_quota(1, 1), with_quota(2, 1), share(&[3])]));
        assert!(!fits(&[with_quota(1, 0)]));
    }

    #[test]
    fn unknown_cores_are_nobodys_own() {
        assert!(!fits(&[CoreShare::default()]) && fits(&[]));
    }

    #[test]
    fn a_thousand_processes_are_placed_at_once() {
        let all: Vec<_> = (0..CORES_MAX).collect();
        assert!(fits(&vec![share(&all); usize::from(CORES_MAX)]));
    }
}
