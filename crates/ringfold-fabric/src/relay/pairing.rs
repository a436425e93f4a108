//! Which waiting connections of a relay belong together. Pure: it knows no sockets.

use super::{RelayRequest, RelayRole};
use crate::limits;
use ringfold_proto::id::PeerId;
use ringfold_proto::time::Time;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// One half of a pair: a member, and whom it wants to be joined with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Half {
    pub(super) from: PeerId,
    pub(super) request: RelayRequest,
}

impl Half {
    /// The half that it waits for.
    fn counterpart(self) -> Self {
        let Self { from, request: RelayRequest { role, other } } = self;
        Self { from: other, request: RelayRequest { role: role.opposite(), other: from } }
    }

    /// How long it may wait.
    fn wait_max(self) -> core::time::Duration {
        match self.request.role {
            RelayRole::Dial => limits::RELAY_DIAL_WAIT_MAX,
            RelayRole::Await => limits::RELAY_STAND_BY_MAX,
        }
    }
}

/// What became of a half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed<K> {
    /// It is joined with this one, which does not wait any more.
    Joined(K),
    /// It waits. This older one of the same pair does not wait any more.
    Waits { replaced: Option<K> },
    /// Too many wait.
    Full,
}

/// The waiting halves, by a key of the caller.
#[derive(Debug)]
pub(super) struct Pairing<K> {
    /// Oldest first, with deadlines.
    waiting: HashMap<Half, VecDeque<(K, Time)>>,
    halves: HashMap<K, Half>,
    by_member: HashMap<PeerId, usize>,
    waiting_max: usize,
}

impl<K> Default for Pairing<K> {
    fn default() -> Self {
        Self::new(limits::RELAY_WAITING_MAX)
    }
}

impl<K> Pairing<K> {
    /// At most so many halves wait.
    pub(super) fn new(waiting_max: usize) -> Self {
        Self { waiting: HashMap::new(), halves: HashMap::new(), by_member: HashMap::new(), waiting_max }
    }
}

impl<K: Copy + Eq + Hash> Pairing<K> {
    /// Joins a half with its counterpart, the newest if there are several: older ones may be dead. Otherwise it waits.
    pub(super) fn place(&mut self, now: Time, key: K, half: Half) -> Placed<K> {
        let newest = self.waiting.get(&half.counterpart()).and_then(|queue| queue.back());
        if let Some((other, _)) = newest.copied() {
            self.remove(other);
            return Placed::Joined(other);
        }
        let of_pair =
            self.waiting.get(&half).filter(|queue| queue.len() >= limits::RELAY_WAITING_PER_PAIR_MAX);
        let replaced = of_pair.and_then(|queue| queue.front()).map(|(oldest, _)| *oldest);
        replaced.inspect(|oldest| self.remove(*oldest));
        let of_member = self.by_member.get(&half.from).copied().unwrap_or(0);
        if self.halves.len() >= self.waiting_max || of_member >= limits::RELAY_WAITING_PER_MEMBER_MAX {
            return Placed::Full;
        }
        self.waiting.entry(half).or_default().push_back((key, now + half.wait_max()));
        self.halves.insert(key, half);
        *self.by_member.entry(half.from).or_default() += 1;
        Placed::Waits { replaced }
    }

    /// A half does not wait any more.
    pub(super) fn remove(&mut self, key: K) {
        let Some(half) = self.halves.remove(&key) else { return };
        if let Some(queue) = self.waiting.get_mut(&half) {
            queue.retain(|(of, _)| *of != key);
            if queue.is_empty() {
                self.waiting.remove(&half);
            }
        }
        if let Some(count) = self.by_member.get_mut(&half.from) {
            *count -= 1;
            if *count == 0 {
                self.by_member.remove(&half.from);
            }
        }
    }

    /// Removes and returns the halves that have waited too long.
    pub(super) fn expire(&mut self, now: Time) -> Vec<K> {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return Vec::new();
        }
        let late = self.waiting.values().flatten().filter(|(_, deadline)| *deadline <= now);
        let late: Vec<_> = late.map(|(key, _)| *key).collect();
        late.iter().for_each(|key| self.remove(*key));
        late
    }

    /// The next deadline.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.values().filter_map(|queue| queue.front()).map(|(_, deadline)| *deadline).min()
    }

    /// How many wait.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.halves.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const NOW: Time = Time(1_000_000_000);

    fn half(from: u128, role: RelayRole, other: u128) -> Half {
        Half { from: PeerId(from), request: RelayRequest { role, other: PeerId(other) } }
    }

    fn dial(from: u128, other: u128) -> Half {
        half(from, RelayRole::Dial, other)
    }

    fn awaits(from: u128, other: u128) -> Half {
        half(from, RelayRole::Await, other)
    }

    const WAITS: Placed<u32> = Placed::Waits { replaced: None };

    #[test]
    fn two_halves_that_name_each_other_are_joined_once_in_either_order() {
        let mut pairing = Pairing::default();
        assert_eq!(pairing.place(NOW, 1, dial(10, 20)), WAITS);
        assert_eq!(pairing.place(NOW, 2, awaits(20, 10)), Placed::Joined(1));
        assert_eq!(pairing.place(NOW, 3, awaits(20, 10)), WAITS);
        assert_eq!(pairing.place(NOW, 4, dial(10, 20)), Placed::Joined(3));
        assert_eq!(pairing.len(), 0);
    }

    #[test]
    fn halves_that_do_not_name_each_other_are_never_joined() {
        let mut pairing = Pairing::default();
        let all = [
            dial(10, 20),
            dial(20, 10),
            dial(30, 20),
            awaits(20, 40),
            awaits(40, 10),
            awaits(30, 10),
            dial(10, 40 + 1),
        ];
        for (key, half) in all.into_iter().enumerate() {
            assert_eq!(pairing.place(NOW, key, half), Placed::Waits { replaced: None }, "{half:?}");
        }
        assert_eq!(pairing.len(), all.len());
    }

    #[test]
    fn the_newest_half_is_joined_and_the_oldest_of_too_many_replaced() {
        let mut pairing = Pairing::default();
        let most = limits::RELAY_WAITING_PER_PAIR_MAX as u32;
        for key in 0..most {
            assert_eq!(pairing.place(NOW, key, awaits(20, 10)), WAITS);
        }
        assert_eq!(pairing.place(NOW, most, awaits(20, 10)), Placed::Waits { replaced: Some(0) });
        assert_eq!(pairing.len(), most as usize);
        assert_eq!(pairing.place(NOW, 99, dial(10, 20)), Placed::Joined(most));
    }

    #[test]
    fn a_flood_is_limited_per_member_and_in_total() {
        let mut pairing = Pairing::default();
        let per_member = limits::RELAY_WAITING_PER_MEMBER_MAX as u32;
        for key in 0..per_member {
            assert_eq!(pairing.place(NOW, key, awaits(20, 1000 + u128::from(key))), WAITS);
        }
        assert_eq!(pairing.place(NOW, per_member, awaits(20, 7)), Placed::Full);
        // Others are served, and it is served again once one of its halves has ended.
        assert_eq!(pairing.place(NOW, per_member, awaits(21, 7)), WAITS);
        pairing.remove(0);
        assert_eq!(pairing.place(NOW, 0, awaits(20, 7)), WAITS);
        let total = limits::RELAY_WAITING_MAX as u32;
        for key in per_member + 1..total {
            assert_eq!(pairing.place(NOW, key, awaits(u128::from(key) + 100, 7)), WAITS);
        }
        assert_eq!(pairing.place(NOW, total, awaits(99, 7)), Placed::Full);
        // What leaves a place is still joined.
        assert_eq!(pairing.place(NOW, total, dial(7, 20)), Placed::Joined(0));
    }

    #[test]
    fn a_half_without_a_counterpart_expires() {
        let mut pairing = Pairing::default();
        assert_eq!(pairing.poll_timeout(), None);
        pairing.place(NOW, 1, dial(10, 20));
        pairing.place(NOW + Duration::from_secs(1), 2, awaits(30, 20));
        assert_eq!(pairing.poll_timeout(), Some(NOW + limits::RELAY_DIAL_WAIT_MAX));
        assert_eq!(pairing.expire(NOW), [0_i32; 0]);
        assert_eq!(pairing.expire(NOW + limits::RELAY_DIAL_WAIT_MAX), [1]);
        assert_eq!(pairing.place(NOW, 3, awaits(20, 10)), Placed::Waits { replaced: None });
        assert_eq!(pairing.expire(NOW + Duration::from_secs(3600)).len(), 2);
        assert_eq!((pairing.len(), pairing.by_member.len(), pairing.waiting.len()), (0, 0, 0));
    }
}
