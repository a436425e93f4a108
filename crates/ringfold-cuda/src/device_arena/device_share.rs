//! The groups of this process that share a device.

use crate::api::DEVICE_MPS_ENABLED;
use crate::gpu::Gpu;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The environment variable of the driver with the number of a process's hardware queues.
const QUEUES_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Their number if it is not set.
const QUEUES: usize = 8;
const QUEUES_WITH_MPS: usize = 2;

/// A rank's share of a device. The groups of a process on one device are counted by these: ranks of one group that are threads of
/// the process count once.
pub(super) struct DeviceShare {
    ordinal: i32,
    group: u64,
    /// How many arenas of the same group the rank had on the device.
    opening: u64,
    rank: usize,
    /// The number of ranks of each other group that was on the device before.
    other_worlds: Vec<usize>,
}

/// The number of ranks of all groups: by ordinal, group, opening and rank.
static SHARES: Mutex<BTreeMap<(i32, u64, u64, usize), usize>> = Mutex::new(BTreeMap::new());

impl DeviceShare {
    pub(super) fn take(ordinal: i32, group: u64, (rank, world): (usize, usize)) -> Self {
        let mut shares = SHARES.lock();
        let mut opening = 0;
        while shares.contains_key(&(ordinal, group, opening, rank)) {
            opening += 1;
        }
        let others: BTreeMap<_, _> = shares
            .iter()
            .filter(|(share, _)| share.0 == ordinal && (share.1, share.2) != (group, opening))
            .map(|(share, world)| ((share.1, share.2), *world))
            .collect();
        shares.insert((ordinal, group, opening, rank), world);
        Self { ordinal, group, opening, rank, other_worlds: others.into_values().collect() }
    }

    /// How many other groups of this process were on the device before.
    pub(super) fn other_groups(&self) -> usize {
        self.other_worlds.len()
    }

    /// The numbers of ranks that these groups have.
    pub(super) fn other_worlds(&self) -> BTreeSet<usize> {
        self.other_worlds.iter().copied().collect()
    }

    /// The numbers of groups and of hardware queues, if calls of one group may wait behind those of another because there are
    /// fewer queues than streams.
    pub(super) fn missing_queues(&self, gpu: &Gpu) -> Option<(usize, usize)> {
        // A stream for the asynchronous calls of each group, and the caller's.
        let (groups, queues) = (self.other_groups() + 1, hardware_queues(gpu));
        (groups > 1 && groups + 1 > queues).then_some((groups, queues))
    }
}

impl Drop for DeviceShare {
    fn drop(&mut self) {
        SHARES.lock().remove(&(self.ordinal, self.group, self.opening, self.rank));
    }
}

fn hardware_queues(gpu: &Gpu) -> usize {
    let set = std::env::var(QUEUES_VARIABLE).ok().and_then(|text| text.trim().parse().ok());
    // Drivers that do not know the attribute return an error.
    let has_mps = || gpu.attribute(DEVICE_MPS_ENABLED).is_ok_and(|enabled| enabled != 0);
    set.unwrap_or_else(|| if has_mps() { QUEUES_WITH_MPS } else { QUEUES })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_once_however_many_ranks_are_threads() {
        // No such device: no other test counts there.
        let take = |group, rank| DeviceShare::take(-7, group, (rank, 4));
        let one = take(1, 0);
        assert_eq!((one.other_groups(), take(1, 1).other_groups()), (0, 0));
        // The same group again, and another one.
        let again = take(1, 0);
        assert_eq!((again.other_groups(), take(2, 0).other_groups()), (1, 2));
        assert_eq!(DeviceShare::take(-8, 2, (0, 1)).other_groups(), 0);
        drop(one);
        assert_eq!(take(2, 0).other_groups(), 1);
        drop(again);
        assert_eq!(take(2, 0).other_groups(), 0);
    }

    #[test]
    fn the_sizes_of_other_groups_are_known() {
        let _kept = [(1, 4), (2, 8), (3, 4)].map(|(group, world)| DeviceShare::take(-9, group, (0, world)));
        assert_eq!(DeviceShare::take(-9, 4, (0, 2)).other_worlds(), BTreeSet::from([4, 8]));
    }
}
