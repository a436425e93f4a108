//! Where everything is in an arena. The kernels are told by macros.

/// The largest world: kernels are compiled for one, and hold an operand of each rank in registers.
pub const WORLD_MAX: usize = 16;

/// Up to so many bytes, together, every rank's data is pushed to all others in packets. Beyond, two meetings of all ranks
/// cost less than packets, which are twice as long as what they carry.
const PACKET_BYTES_ALL: usize = 16 << 20;

/// What a rank pushes, at least and at most.
const PACKET_BYTES_MIN: usize = 256 << 10;
const PACKET_BYTES_MAX: usize = 1 << 20;

/// The most blocks of a kernel, for which there are flags.
pub const BLOCKS_MAX: u32 = 512;

/// Threads of a block: as many as a block can have, since there is one on a multiprocessor.
pub(super) const THREADS: u32 = 1024;

/// Multiprocessors of a device that have none of our blocks. A rank may have to run another kernel (that fills a tensor, say)
/// before its part of what the others already wait for. With a block of ours on every multiprocessor such kernels were seen
/// not to begin, however small they were; probably because a multiprocessor divides its memory anew only while it is empty.
const MULTIPROCESSORS_SPARED: u32 = 4;

/// Pieces of memory that can be registered.
pub(super) const SLOTS_MAX: usize = 1024;

/// The bit from which on a place in registered memory tells the slot; below is the offset.
pub(super) const SLOT_SHIFT: u32 = 48;

/// Bytes of all ranks' staging areas together: they stay in the cache of one device.
const STAGING_BYTES_ALL: usize = 32 << 20;

/// Bytes of one rank's staging areas, at least and at most.
const STAGING_BYTES_MIN: usize = 2 << 20;
const STAGING_BYTES_MAX: usize = 8 << 20;

const ALIGN: usize = 256;
const FLAG_STRIDE: usize = WORLD_MAX;
const MAIL_BYTES: usize = 32;

/// Offsets in an arena, for a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    epochs: usize,
    flags: usize,
    mail: usize,
    packets: usize,
    /// Up to so many bytes a rank's data travels in packets.
    packet_bytes: usize,
    staging: usize,
    /// Of each of the two staging areas.
    staging_bytes: usize,
}

impl Layout {
    pub(super) fn of(world: usize) -> Self {
        let epochs = ALIGN;
        let flags = epochs + (BLOCKS_MAX as usize * 4).next_multiple_of(ALIGN);
        let mail = flags + (BLOCKS_MAX as usize * FLAG_STRIDE * 4).next_multiple_of(ALIGN);
        let packets = mail + (world * MAIL_BYTES).next_multiple_of(ALIGN);
        let packet_bytes =
            (PACKET_BYTES_ALL / (world * world)).clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX) & !(ALIGN - 1);
        let staging = packets + 2 * world * 2 * packet_bytes;
        let both = (STAGING_BYTES_ALL / world).clamp(STAGING_BYTES_MIN, STAGING_BYTES_MAX);
        let staging_bytes = (both / 2) & !(ALIGN - 1);
        Self { epochs, flags, mail, packets, packet_bytes, staging, staging_bytes }
    }

    pub(super) fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    pub(super) fn bytes(&self) -> usize {
        self.staging + 2 * self.staging_bytes
    }

    /// What the source calls them.
    pub(super) fn macros(&self) -> Vec<(String, String)> {
        let bytes = |name: &str, value: usize| (name.to_owned(), format!("{value}ull"));
        let number = |name: &str, value: u32| (name.to_owned(), value.to_string());
        vec![
            bytes("RF_EPOCHS", self.epochs),
            bytes("RF_FLAGS", self.flags),
            bytes("RF_MAIL", self.mail),
            bytes("RF_PACKETS", self.packets),
            bytes("RF_STAGING", self.staging),
            bytes("RF_STAGING_BYTES", self.staging_bytes),
            number("RF_FLAG_STRIDE", FLAG_STRIDE as u32),
            number("RF_PACKETS_MAX", (self.packet_bytes / 8) as u32),
            number("RF_SLOT_SHIFT", SLOT_SHIFT),
            number("RF_THREADS", THREADS),
        ]
    }
}

/// How many blocks each rank may have at most, if the ranks are on these devices with so many multiprocessors: blocks that
/// wait for each other must all be running. None if a device is too small for the ranks that are on it.
pub(super) fn blocks_max(ranks: &[([u8; 16], u32)]) -> Option<u32> {
    let share = |(gpu, multiprocessors): &([u8; 16], u32)| {
        let crowd = ranks.iter().filter(|(other, _)| other == gpu).count() as u32;
        (multiprocessors - MULTIPROCESSORS_SPARED.min(multiprocessors / 2)) / crowd
    };
    ranks.iter().map(share).min().filter(|blocks| *blocks > 0).map(|blocks| blocks.min(BLOCKS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_ranks_together_fit_the_smallest_device() {
        let (large, small) = (([1; 16], 132), ([2; 16], 20));
        assert_eq!(blocks_max(&[large]), Some(128));
        assert_eq!(blocks_max(&[large; 8]), Some(16));
        assert_eq!(blocks_max(&[large, small, small, large]), Some(8));
        assert_eq!(blocks_max(&[([3; 16], 1)]), Some(1));
        assert_eq!(blocks_max(&[([3; 16], 2); 3]), None);
    }

    #[test]
    fn parts_of_an_arena_do_not_overlap_and_are_aligned() {
        for world in 1..=WORLD_MAX {
            let layout = Layout::of(world);
            let ends = [
                (layout.epochs, BLOCKS_MAX as usize * 4),
                (layout.flags, BLOCKS_MAX as usize * FLAG_STRIDE * 4),
                (layout.mail, world * MAIL_BYTES),
                (layout.packets, 2 * world * 2 * layout.packet_bytes),
                (layout.staging, 2 * layout.staging_bytes),
                (layout.bytes(), 0),
            ];
            for pair in ends.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0 && pair[1].0 % 16 == 0, "{layout:?}");
            }
            // Every block has room for a vector of each rank.
            assert!(layout.staging_bytes / BLOCKS_MAX as usize >= 16 * world, "{layout:?}");
        }
    }
}
