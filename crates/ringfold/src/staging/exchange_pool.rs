//! The device memory that a peer shares with peers of its host: its own areas, and theirs that it has opened.

use crate::device_plan::DevicePlan;
use parking_lot::Mutex;
use ringfold_cuda::device_arena::{ExchangeArea, PeerArea};
use ringfold_cuda::{CudaError, Gpu, release_soon};
use ringfold_proto::id::PeerId;
use std::collections::HashMap;
use std::sync::Arc;

/// Free areas that are kept, and the sum of their capacities: half of their memory. More operations may be in flight.
const FREE_AREAS_MAX: usize = 16;
const FREE_BYTES_MAX: usize = 2 << 30;

/// The areas of a peer that are kept open, the most recently used. The driver frees an area when all have closed it.
const OPEN_AREAS_MAX: usize = 24;

/// An area of a peer is closed if this many others of it were used since: its owner may have freed it.
const UNUSED_MAX: u64 = 64;

/// The smallest step between the sizes of areas, so that tensors of similar size share them.
const AREA_STEP_MIN: usize = 2 << 20;

/// An area of a peer: a device of this process, and the offer.
type AreaKey = (i32, Vec<u8>);

/// The opened areas of a peer.
struct OpenedAreas<T> {
    /// The most recently used last, each with the number of its last use.
    areas: Vec<(AreaKey, u64, T)>,
    uses: u64,
}

/// Areas of this peer that no operation uses, and opened areas of others.
#[derive(Default)]
pub(crate) struct ExchangePool {
    /// The most recently used last.
    free: Mutex<Vec<ExchangeArea>>,
    opened: Mutex<HashMap<PeerId, OpenedAreas<Arc<PeerArea>>>>,
}

impl ExchangePool {
    /// Takes an area for `bytes`, which is returned when the lease is dropped.
    pub(super) fn take(&self, gpu: &Gpu, bytes: usize) -> Result<AreaLease<'_>, CudaError> {
        let mut free = self.free.lock();
        let of_gpu = free.iter().enumerate().filter(|(_, area)| area.gpu() == *gpu);
        let best = best_fit(of_gpu.map(|(index, area)| (index, area.capacity())), bytes);
        if let Some(index) = best {
            return Ok(AreaLease { pool: self, area: Some(free.remove(index)) });
        }
        // A larger one replaces one that is too small.
        let is_smaller = |area: &ExchangeArea| area.gpu() == *gpu && area.capacity() < bytes;
        let smaller = free.iter().position(is_smaller).map(|index| free.remove(index));
        drop(free);
        drop(smaller);
        let area = match ExchangeArea::allocate(gpu, area_bytes(bytes)) {
            Err(CudaError::OutOfMemory { .. }) => {
                // Free the others before failing.
                let free = core::mem::take(&mut *self.free.lock());
                drop(free);
                ExchangeArea::allocate(gpu, area_bytes(bytes))?
            }
            other => other?,
        };
        Ok(AreaLease { pool: self, area: Some(area) })
    }

    /// Opens the areas for `bytes` that the other members of a plan have offered; none in place of the own one. What is
    /// open of peers that are no members is closed.
    pub(super) fn open(
        &self,
        plan: &DevicePlan,
        offers: Vec<Vec<u8>>,
        gpu: &Gpu,
        bytes: usize,
    ) -> Result<Vec<Option<Arc<PeerArea>>>, CudaError> {
        let mut unused = Vec::new();
        let mut opened = self.opened.lock();
        unused.extend(take_others(&mut opened, &plan.members));
        let mut offers = offers.into_iter();
        let mut areas = Vec::with_capacity(plan.members.len());
        for (rank, peer) in plan.members.iter().enumerate() {
            let offer = if rank == plan.me { None } else { offers.next() };
            let Some(offer) = offer else {
                areas.push(None);
                continue;
            };
            let of_peer = opened.entry(*peer).or_insert_with(OpenedAreas::new);
            let open = |(_, offer): &AreaKey| PeerArea::open(offer, gpu).map(Arc::new);
            let area = of_peer.open((gpu.ordinal(), offer), open)?;
            area.checked(&(0..bytes))?;
            areas.push(Some(area));
            unused.extend(of_peer.take_unused());
        }
        drop(opened);
        if !unused.is_empty() {
            release_soon(move || drop(unused));
        }
        Ok(areas)
    }

    /// Closes the areas of peers that are no members, soon: closing may block.
    pub(crate) fn keep_members(self: &Arc<Self>, members: Vec<PeerId>) {
        if self.opened.try_lock().is_some_and(|opened| opened.is_empty()) {
            return;
        }
        let pool = self.clone();
        release_soon(move || {
            let others: Vec<_> = take_others(&mut pool.opened.lock(), &members).collect();
            drop(others);
        });
    }
}

/// Takes out the areas of peers that are no members.
fn take_others<T>(
    opened: &mut HashMap<PeerId, OpenedAreas<T>>,
    members: &[PeerId],
) -> impl Iterator<Item = T> {
    let others = opened.extract_if(|peer, _| !members.contains(peer));
    others.flat_map(|(_, of_peer)| of_peer.areas).map(|(_, _, area)| area)
}

impl<T: Clone> OpenedAreas<T> {
    fn new() -> Self {
        Self { areas: Vec::new(), uses: 0 }
    }

    /// Returns an area, which is opened if it is not open.
    fn open<E>(&mut self, key: AreaKey, open: impl Fn(&AreaKey) -> Result<T, E>) -> Result<T, E> {
        let known = self.areas.iter().position(|(known, ..)| *known == key);
        let area = match known {
            Some(index) => self.areas.remove(index).2,
            None => open(&key).or_else(|_| {
                // The driver may take it for one that is open, which its owner has freed.
                self.areas.clear();
                open(&key)
            })?,
        };
        self.uses += 1;
        self.areas.push((key, self.uses, area.clone()));
        Ok(area)
    }

    /// Takes out the areas that were not used for long.
    fn take_unused(&mut self) -> impl Iterator<Item = T> {
        let is_used = |(_, used, _): &(AreaKey, u64, T)| self.uses - used <= UNUSED_MAX;
        let first = self.areas.iter().position(is_used).unwrap_or(self.areas.len());
        let excess = self.areas.len().saturating_sub(OPEN_AREAS_MAX);
        self.areas.drain(..first.max(excess)).map(|(_, _, area)| area)
    }
}

/// The capacity of an area for so many bytes: rounded up in steps of an eighth.
fn area_bytes(bytes: usize) -> usize {
    let step = (bytes.checked_next_power_of_two().unwrap_or(0) / 8).max(AREA_STEP_MIN);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// The smallest of the areas, given by index and capacity, that fits, unless more than half of it would be unused.
fn best_fit(areas: impl Iterator<Item = (usize, usize)>, bytes: usize) -> Option<usize> {
    let fitting = bytes..=area_bytes(bytes).saturating_mul(2);
    let best = areas.filter(|(_, capacity)| fitting.contains(capacity)).min_by_key(|(_, capacity)| *capacity);
    best.map(|(index, _)| index)
}

/// How many of the areas, given by capacity, the least recently used first, are too many.
fn excess(capacities: &[usize]) -> usize {
    let mut sum = 0_usize;
    let kept = capacities.iter().rev().take(FREE_AREAS_MAX).take_while(|capacity| {
        sum = sum.saturating_add(**capacity);
        sum <= FREE_BYTES_MAX
    });
    capacities.len() - kept.count()
}

/// An area in use.
pub(super) struct AreaLease<'a> {
    pool: &'a ExchangePool,
    /// None only while it is dropped.
    area: Option<ExchangeArea>,
}

impl AreaLease<'_> {
    pub(super) fn area(&self) -> &ExchangeArea {
        self.area.as_ref().expect("it is there until the lease is dropped")
    }
}

impl Drop for AreaLease<'_> {
    fn drop(&mut self) {
        let Some(area) = self.area.take() else { return };
        // Nothing may read or write the user's memory from here on.
        area.drain();
        if area.capacity() > FREE_BYTES_MAX {
            return;
        }
        let mut free = self.pool.free.lock();
        free.push(area);
        let capacities: Vec<_> = free.iter().map(ExchangeArea::capacity).collect();
        let excess: Vec<_> = free.drain(..excess(&capacities)).collect();
        drop(free);
        // Freed without the lock, since that takes long.
        drop(excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_waste_at_most_a_quarter_above_the_smallest_step() {
        for bytes in [1, 256 << 10, 2 << 20, (2 << 20) + 1, 100 << 20, 256 << 20, (1 << 30) + 1] {
            let capacity = area_bytes(bytes);
            assert!(capacity >= bytes && capacity <= bytes + (bytes / 4).max(AREA_STEP_MIN), "{bytes}");
        }
        assert_eq!(area_bytes(256 << 20), 256 << 20);
    }

    #[test]
    fn areas_of_a_peer_are_opened_once_and_closed_when_unused() {
        let mut opened = OpenedAreas::new();
        let key = |number: u8| (0, vec![number]);
        let open = |key: &AreaKey| Ok::<_, ()>((key.0, key.1[0]));
        let fail = |_: &AreaKey| Err(());
        assert_eq!(opened.open(key(1), open), Ok((0, 1)));
        assert_eq!(opened.open(key(1), fail), Ok((0, 1)), "it is open");
        assert_eq!(opened.open((1, vec![1]), open), Ok((1, 1)), "for another device");
        assert!((0..UNUSED_MAX - 1).all(|_| opened.open(key(2), open).is_ok()));
        assert_eq!(opened.take_unused().count(), 0);
        assert!(opened.open(key(2), open).is_ok());
        assert_eq!(opened.take_unused().collect::<Vec<_>>(), [(0, 1)]);
        assert!((10..10 + OPEN_AREAS_MAX as u8).all(|number| opened.open(key(number), open).is_ok()));
        assert_eq!(opened.take_unused().collect::<Vec<_>>(), [(1, 1), (0, 2)]);

        let attempts = core::cell::Cell::new(0);
        let fail_once = |key: &AreaKey| {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 1 { Err(()) } else { Ok((key.0, key.1[0])) }
        };
        assert_eq!(opened.open(key(3), fail_once), Ok((0, 3)));
        assert_eq!(opened.areas.len(), 1, "all others were closed");
        assert_eq!(opened.open(key(4), fail), Err(()));

        let mut peers = HashMap::from([(PeerId(7), opened)]);
        assert_eq!(take_others(&mut peers, &[PeerId(7)]).count(), 0);
        assert_eq!(take_others(&mut peers, &[PeerId(8)]).count(), 0);
        assert!(peers.is_empty());
    }

    #[test]
    fn the_best_fit_is_at_most_half_unused() {
        let fit = |mib: &[usize], bytes| best_fit(mib.iter().map(|mib| mib << 20).enumerate(), bytes);
        assert_eq!(fit(&[64, 16, 10, 7], 8 << 20), Some(2));
        assert_eq!(fit(&[64, 17, 7], 8 << 20), None);
        assert_eq!(fit(&[2], 1), Some(0), "the smallest size fits all that is shorter");
        assert_eq!(fit(&[], 1), None);
    }

    #[test]
    fn the_least_recently_used_areas_are_freed_beyond_the_limits() {
        assert_eq!(excess(&[1; FREE_AREAS_MAX]), 0);
        assert_eq!(excess(&[1; FREE_AREAS_MAX + 2]), 2);
        assert_eq!(excess(&[1, FREE_BYTES_MAX - 1, 1]), 1);
        assert_eq!(excess(&[1, FREE_BYTES_MAX, 1]), 2);
    }
}
