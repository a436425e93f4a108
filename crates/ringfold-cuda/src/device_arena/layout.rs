//! The layout of an arena. The kernels get it as macros.

use core::ops::Range;

/// The largest world: kernels are compiled for a world size, and hold an operand of each rank in registers.
pub const WORLD_MAX: usize = 16;

/// Room for one rank's data in packets, in bytes, times the square of the number of ranks. `packet_limits.rs` says how much of it is
/// used.
const PACKET_BYTES_ALL: usize = 4 << 20;

/// Bounds on that room.
const PACKET_BYTES_MIN: usize = 16 << 10;
const PACKET_BYTES_MAX: usize = 1 << 20;

/// The most blocks of a kernel: the number of flags.
pub const BLOCKS_MAX: u32 = 512;

/// Threads of a block: the maximum, since each multiprocessor runs one block.
pub(super) const THREADS: u32 = 1024;

/// Multiprocessors of a device that are left free of our blocks.
///
/// A rank may have to run another kernel (one that fills a tensor, say) before its part of a collective that others
/// already wait for. With our blocks on every multiprocessor even tiny kernels were observed not to start, probably
/// because a multiprocessor repartitions its memory only when idle.
const MULTIPROCESSORS_SPARED: u32 = 8;

/// The most memories that can be registered.
pub(super) const SLOTS_MAX: usize = 1024;

/// The bit where the slot starts in the code of registered memory; the offset is below.
pub(super) const SLOT_SHIFT: u32 = 48;

/// Total size of all ranks' staging areas: they fit into the cache of one device.
const STAGING_BYTES_ALL: usize = 32 << 20;

/// Bounds on one rank's staging areas, in bytes.
const STAGING_BYTES_MIN: usize = 2 << 20;
const STAGING_BYTES_MAX: usize = 8 << 20;

/// The most bytes of a send that go in packets.
pub(super) const SMALL_TRANSFER_BYTES: usize = 64 << 10;

/// The most transfers of one launch.
pub(super) const TRANSFERS_MAX: usize = 2 * WORLD_MAX;

/// The most transfers of one launch that may wait for each other: parameters are at most 4 KiB.
pub(super) const BATCH_MAX: usize = 96;

/// The blocks of such launches on a device. They wait for other ranks, so they must fit beside a collective.
const BATCH_BLOCKS_ALL: u32 = 4;

/// Blocks that move a message through a staging area. They wait for those of the other rank, so they are few: with messages
/// between all ranks, those of one device run at the same time.
pub(super) fn transfer_blocks(world: usize) -> usize {
    (TRANSFER_BLOCKS_MAX / (world - 1).max(1)).max(1)
}

const TRANSFER_BLOCKS_MAX: usize = 8;

/// The blocks of all ranks' large calls that wait for other ranks, on a device that several groups share.
const SHARED_BLOCKS_ALL: usize = 16;

/// The staging area of the messages to one rank: two pieces for each block.
const TRANSFER_STAGING_BYTES: usize = 2 << 20;

const ALIGN: usize = 256;
const PAIR_BYTES: usize = 256;

/// Where a pair has the number of small messages that the other rank has received: `Pair` in the source.
const PAIR_CONSUMED: usize = 32;

/// Where it has the number of those that this rank has sent.
fn pair_small_sent(world: usize) -> usize {
    PAIR_CONSUMED + 8 + 2 * 4 * transfer_blocks(world) + 8
}
const FLAG_STRIDE: usize = WORLD_MAX;
const MAILBOX_BYTES: usize = 32;

/// Offsets in an arena, for one world size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ArenaLayout {
    world: usize,
    epochs: usize,
    flags: usize,
    mailboxes: usize,
    packets: usize,
    /// The most bytes of a rank's data that fit into packets.
    packet_bytes: usize,
    staging: usize,
    /// Size of each of the two staging areas.
    staging_bytes: usize,
    pairs: usize,
    transfer_packets: usize,
    transfer_staging: usize,
    bytes: usize,
}

impl ArenaLayout {
    pub(super) fn of(world: usize) -> Self {
        let epochs = ALIGN;
        let flags = epochs + (BLOCKS_MAX as usize * 4).next_multiple_of(ALIGN);
        let mailboxes = flags + (BLOCKS_MAX as usize * FLAG_STRIDE * 4).next_multiple_of(ALIGN);
        let packets = mailboxes + (world * MAILBOX_BYTES).next_multiple_of(ALIGN);
        let packet_bytes =
            (PACKET_BYTES_ALL / (world * world)).clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX) & !(ALIGN - 1);
        let staging = packets + 2 * world * 2 * packet_bytes;
        let both = (STAGING_BYTES_ALL / world).clamp(STAGING_BYTES_MIN, STAGING_BYTES_MAX);
        let staging_bytes = (both / 2) & !(ALIGN - 1);
        let pairs = staging + 2 * staging_bytes;
        let transfer_packets = pairs + world * PAIR_BYTES;
        let transfer_staging = transfer_packets + world * 2 * 2 * SMALL_TRANSFER_BYTES;
        let bytes = transfer_staging + world * TRANSFER_STAGING_BYTES;
        Self {
            world,
            epochs,
            flags,
            mailboxes,
            packets,
            packet_bytes,
            staging,
            staging_bytes,
            pairs,
            transfer_packets,
            transfer_staging,
            bytes,
        }
    }

    pub(super) fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes of an arena with the state of transfers.
    pub(super) fn pairs(&self) -> Range<usize> {
        self.pairs..self.pairs + self.world * PAIR_BYTES
    }

    /// Whether all small messages that were sent have been received, given the bytes of the pairs.
    pub(super) fn is_all_received(&self, pairs: &[u8]) -> bool {
        let number = |pair: &[u8], at: usize| pair.get(at..at + 4).map(<[u8]>::to_vec);
        let is_received =
            |pair: &[u8]| number(pair, PAIR_CONSUMED) == number(pair, pair_small_sent(self.world));
        pairs.chunks_exact(PAIR_BYTES).all(is_received)
    }

    /// The macros of the kernel source.
    pub(super) fn macros(&self) -> Vec<(String, String)> {
        let bytes = |name: &str, value: usize| (name.to_owned(), format!("{value}ull"));
        let number = |name: &str, value: u32| (name.to_owned(), value.to_string());
        vec![
            bytes("RF_EPOCHS", self.epochs),
            bytes("RF_FLAGS", self.flags),
            bytes("RF_MAILBOXES", self.mailboxes),
            bytes("RF_PACKETS", self.packets),
            bytes("RF_STAGING", self.staging),
            bytes("RF_STAGING_BYTES", self.staging_bytes),
            bytes("RF_PAIRS", self.pairs),
            bytes("RF_PAIR_BYTES", PAIR_BYTES),
            bytes("RF_TRANSFER_PACKETS", self.transfer_packets),
            bytes("RF_TRANSFER_STAGING", self.transfer_staging),
            bytes("RF_TRANSFER_STAGING_BYTES", TRANSFER_STAGING_BYTES),
            bytes("RF_PAIR_CONSUMED", PAIR_CONSUMED),
            bytes("RF_PAIR_SMALL_SENT", pair_small_sent(self.world)),
            number("RF_TRANSFERS_MAX", TRANSFERS_MAX as u32),
            number("RF_BATCH_MAX", BATCH_MAX as u32),
            number("RF_TRANSFER_BLOCKS", transfer_blocks(self.world) as u32),
            number("RF_TRANSFER_PACKETS_MAX", (SMALL_TRANSFER_BYTES / 8) as u32),
            number("RF_SHARED_BLOCKS", (SHARED_BLOCKS_ALL / self.world).max(1) as u32),
            number("RF_FLAG_STRIDE", FLAG_STRIDE as u32),
            number("RF_PACKETS_MAX", (self.packet_bytes / 8) as u32),
            number("RF_MAILBOX_BYTES", MAILBOX_BYTES as u32),
            number("RF_SLOT_SHIFT", SLOT_SHIFT),
            number("RF_BRIDGE_JOBS", super::bridge::JOBS as u32),
            number("RF_THREADS", THREADS),
        ]
    }
}

/// The most blocks per rank, given each rank's device and its multiprocessors.
///
/// Blocks that wait for each other must all be running. None if a device is too small for its ranks.
pub(super) fn blocks_max(ranks: &[([u8; 16], u32)]) -> Option<u32> {
    let share = |(gpu, multiprocessors): &([u8; 16], u32)| {
        let sharers = ranks.iter().filter(|(other, _)| other == gpu).count() as u32;
        (multiprocessors - MULTIPROCESSORS_SPARED.min(multiprocessors / 2)) / sharers
    };
    ranks.iter().map(share).min().filter(|blocks| *blocks > 0).map(|blocks| blocks.min(BLOCKS_MAX))
}

/// The blocks of a rank's batches.
pub(super) fn batch_blocks(ranks: &[([u8; 16], u32)]) -> u32 {
    let sharers = |(gpu, _): &([u8; 16], u32)| ranks.iter().filter(|(other, _)| other == gpu).count() as u32;
    let most = ranks.iter().map(sharers).max().unwrap_or(1);
    (BATCH_BLOCKS_ALL / most).max(1)
}

/// The most bytes of a packet call on a device that several groups share: the blocks of all its ranks fit beside those of
/// another group whose ranks wait for each other, except those of the rank that they wait for.
pub(super) fn shared_packet_limit(ranks: &[([u8; 16], u32)], groups: u32) -> u64 {
    let room = |(gpu, multiprocessors): &([u8; 16], u32)| {
        let sharers = ranks.iter().filter(|(other, _)| other == gpu).count() as u32;
        let spared = MULTIPROCESSORS_SPARED.min(multiprocessors / 2);
        ((multiprocessors - spared) / sharers + spared) / sharers / groups.max(1)
    };
    let blocks = ranks.iter().map(room).min().unwrap_or(1).max(1);
    u64::from(blocks) * u64::from(THREADS) * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_ranks_together_fit_the_smallest_device() {
        let (large, small) = (([1; 16], 132), ([2; 16], 20));
        assert_eq!(blocks_max(&[large]), Some(124));
        assert_eq!(blocks_max(&[large; 8]), Some(15));
        assert_eq!((batch_blocks(&[large, small]), batch_blocks(&[large; 3])), (4, 1));
        assert_eq!(blocks_max(&[large, small, small, large]), Some(6));
        assert_eq!(blocks_max(&[([3; 16], 1)]), Some(1));
        assert_eq!(blocks_max(&[([3; 16], 2); 3]), None);
    }

    #[test]
    fn packets_of_a_shared_device_leave_room_for_another_group() {
        let large = ([1; 16], 132);
        assert_eq!(shared_packet_limit(&[large; 2], 1), 35 * 8192);
        assert_eq!(shared_packet_limit(&[large; 2], 4), 8 * 8192);
        assert_eq!(shared_packet_limit(&[large; 8], 1), 2 * 8192);
        assert_eq!(shared_packet_limit(&[large; 8], 9), 8192);
    }

    #[test]
    fn messages_that_nobody_has_received_are_found() {
        let layout = ArenaLayout::of(3);
        let mut pairs = vec![0; layout.pairs().len()];
        assert!(layout.is_all_received(&pairs));
        pairs[PAIR_BYTES + pair_small_sent(3)] = 2;
        assert!(!layout.is_all_received(&pairs));
        pairs[PAIR_BYTES + PAIR_CONSUMED] = 2;
        assert!(layout.is_all_received(&pairs));
    }

    #[test]
    fn the_parts_of_an_arena_are_disjoint_and_aligned() {
        for world in 1..=WORLD_MAX {
            let layout = ArenaLayout::of(world);
            let ends = [
                (layout.epochs, BLOCKS_MAX as usize * 4),
                (layout.flags, BLOCKS_MAX as usize * FLAG_STRIDE * 4),
                (layout.mailboxes, world * MAILBOX_BYTES),
                (layout.packets, 2 * world * 2 * layout.packet_bytes),
                (layout.staging, 2 * layout.staging_bytes),
                (layout.pairs, world * PAIR_BYTES),
                (layout.transfer_packets, world * 4 * SMALL_TRANSFER_BYTES),
                (layout.transfer_staging, world * TRANSFER_STAGING_BYTES),
                (layout.bytes(), 0),
            ];
            for pair in ends.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0 && pair[1].0 % 16 == 0, "{layout:?}");
            }
            // Every block has space for a vector of each rank.
            assert!(layout.staging_bytes / BLOCKS_MAX as usize >= 16 * world, "{layout:?}");
        }
    }
}
