//! Up to which size data is sent in packets: a table per architecture.
//!
//! Each rank reads the packets of all others, so the limit falls with the square of the number of ranks. Beyond it, two
//! barriers cost less.

use super::layout::ArenaLayout;

/// Numbers of ranks, ascending, each with the most bytes of a rank's data to send in packets.
type Limits = &'static [(usize, u64)];

/// The limits by compute capability.
///
/// 9.0: in graphs on an H200 that all ranks share. 1 MiB takes 5.1 us in packets with 2 ranks, and 13.9 us with 4, where 2 MiB in
/// place take 10.9 us; 256 KiB take 5.6 us with 4 ranks and 17.7 us with 8, where 64 KiB take 6.8 us.
const MEASURED: &[((i32, i32), Limits)] = &[((9, 0), &[(2, 1 << 20), (4, 256 << 10), (8, 64 << 10)])];

/// The limits of all other devices.
const OTHERS: Limits = &[(2, 1 << 20), (4, 256 << 10), (8, 64 << 10)];

/// The most bytes of a rank's data that fit into the packets of an arena.
pub fn packet_capacity(world: usize) -> u64 {
    ArenaLayout::of(world.max(1)).packet_bytes() as u64
}

/// The most bytes to send in packets on devices of a compute capability, and whether it was measured on such a device.
pub fn shipped_packet_limit(capability: (i32, i32), world: usize) -> (u64, bool) {
    let row = MEASURED.iter().find(|(measured, _)| *measured == capability);
    let limits = row.map_or(OTHERS, |(_, limits)| *limits);
    (limit_of(limits, world).min(packet_capacity(world)), row.is_some())
}

/// The limit of the next larger number of ranks in the list, or of the largest, scaled.
fn limit_of(limits: Limits, world: usize) -> u64 {
    let next = limits.iter().find(|(ranks, _)| *ranks >= world).or(limits.last());
    let square = |ranks: usize| (ranks.max(1) as u64).saturating_pow(2);
    next.map_or(0, |(ranks, bytes)| bytes * square(*ranks) / square(world))
}

#[cfg(test)]
mod tests {
    use super::super::layout::WORLD_MAX;
    use super::*;

    #[test]
    fn limits_fall_with_the_number_of_ranks_and_fit_the_arena() {
        let tables = MEASURED.iter().map(|(capability, _)| *capability).chain([(0, 0)]);
        for capability in tables {
            let limits: Vec<_> = (1..=WORLD_MAX).map(|w| shipped_packet_limit(capability, w).0).collect();
            assert!(limits.windows(2).all(|pair| pair[0] >= pair[1]), "{capability:?}: {limits:?}");
            assert!((1..=WORLD_MAX).all(|world| limits[world - 1] <= packet_capacity(world)));
            assert!(limits.iter().all(|bytes| *bytes >= 4096), "{capability:?}: {limits:?}");
        }
    }

    #[test]
    fn unknown_devices_use_the_default_limits_and_other_worlds_are_scaled() {
        assert_eq!(shipped_packet_limit((9, 0), 4), (256 << 10, true));
        assert_eq!(shipped_packet_limit((7, 5), 4), (256 << 10, false));
        assert_eq!(limit_of(&[(2, 900), (4, 160)], 3), 160 * 16 / 9);
        assert_eq!(limit_of(&[(2, 900), (4, 160)], 8), 40);
        assert_eq!(limit_of(&[], 8), 0);
    }
}
