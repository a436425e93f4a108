//! The tuning of plans. It is part of the epoch's description, because all ranks must choose the same plan.

use crate::limits;
use core::fmt;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// The algorithm of a collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Algorithm {
    /// Around the ring: least traffic, world − 1 hops per pass.
    Ring = 1,
    /// Every part goes to its owner, and from it to all: two hops.
    Direct = 2,
    /// All ranks send everything to all: one hop, for small messages.
    OneShot = 3,
    /// Recursive halving, then doubling: about 2·log₂(world) hops; in a reduce-scatter halving alone.
    Halving = 4,
    /// Along trees that fit the measured network.
    Trees = 5,
    /// Recursive doubling: log₂(world) hops, for small messages.
    Doubling = 6,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::OneShot => "one-shot",
            Self::Halving => "halving",
            Self::Trees => "trees",
            Self::Doubling => "doubling",
        })
    }
}

/// The cost model of one transport. Integers, so that all ranks compute the same sums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportCosts {
    /// Waiting for another rank once.
    pub hop_ns: u32,
    /// Sending or receiving a frame of any length.
    pub frame_ns: u32,
    /// Sending 1024 bytes while receiving as many.
    pub sent_ns_per_kib: u32,
    /// Reducing 1024 bytes.
    pub reduced_ns_per_kib: u32,
    /// The cost of sending between ranks that are not neighbours on the ring, in percent of that between neighbours.
    pub beside_ring_percent: u16,
}

/// The parameters of the choice of plans. In JSON, missing fields have their default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Most bytes of elements in a data frame.
    pub chunk_bytes: u32,
    /// Slots that a receiver grants to one operation per sender.
    pub window_slots: u16,
    /// Slots per pair and epoch that need no grant.
    pub eager_slots: u16,
    /// Bytes of a slot of a shared-memory board.
    pub board_slot_bytes: u32,
    /// Slots of each rank on a board; a power of two.
    pub board_depth: u16,
    /// Messages up to this size are read by all ranks from all slots of a board.
    pub board_one_shot_bytes_max: u32,
    /// Costs between hosts.
    pub tcp: TransportCosts,
    /// Costs within one host.
    pub shared: TransportCosts,
    /// Use this algorithm wherever it is possible.
    pub forced: Option<Algorithm>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tuning {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        chunk_bytes: 64 * 1024,
        window_slots: 16,
        eager_slots: 4,
        board_slot_bytes: 64 * 1024,
        board_depth: 8,
        board_one_shot_bytes_max: 16 * 1024,
        tcp: TransportCosts {
            hop_ns: 20_000,
            frame_ns: 3_000,
            sent_ns_per_kib: 230,
            reduced_ns_per_kib: 100,
            beside_ring_percent: 125,
        },
        shared: TransportCosts {
            hop_ns: 2_000,
            frame_ns: 1_000,
            sent_ns_per_kib: 100,
            reduced_ns_per_kib: 60,
            beside_ring_percent: 100,
        },
        forced: None,
    };

    /// Adapts to ranks that are all on one host, except what differs from the defaults: sending a
    /// frame through the kernel takes longer than waiting for one, and a rank with many eager slots runs ahead of ranks that
    /// wait for a core.
    pub fn for_loopback(self) -> Self {
        let (mut tcp, mut eager_slots) = (self.tcp, self.eager_slots);
        if tcp == Self::DEFAULT.tcp {
            tcp = TransportCosts { hop_ns: 4_000, frame_ns: 6_000, beside_ring_percent: 100, ..tcp };
        }
        if eager_slots == Self::DEFAULT.eager_slots {
            eager_slots = limits::EAGER_SLOTS_MAX;
        }
        Self { tcp, eager_slots, ..self }
    }

    /// Adapts to the longest round trip: windows cover it at the highest rate of a link, and plans with fewer hops are
    /// preferred if it is long.
    pub fn for_round_trip(self, longest: Duration) -> Self {
        let (mut tcp, mut eager_slots) = (self.tcp, self.eager_slots);
        if longest >= limits::LONG_ROUND_TRIP {
            let one_way = u32::try_from(longest.as_nanos() / 2).unwrap_or(u32::MAX);
            tcp.hop_ns = tcp.hop_ns.saturating_add(one_way);
            tcp.sent_ns_per_kib = tcp.sent_ns_per_kib.max(limits::LONG_LINK_NS_PER_KIB);
            // What fits needs no grant, which would take another way.
            eager_slots = eager_slots.max(limits::EAGER_SLOTS_MAX);
        }
        let bytes = longest.as_micros().saturating_mul(u128::from(limits::LINK_BYTES_PER_US));
        let slots = bytes.div_ceil(u128::from(self.chunk_bytes.max(1)));
        let slots = u16::try_from(slots).unwrap_or(u16::MAX).min(limits::WINDOW_SLOTS_MAX);
        Self { window_slots: self.window_slots.max(slots), eager_slots, tcp, ..self }
    }

    /// Frames of an operation up to which a receiver grants no slots by itself. Of many eager slots, and of their bytes, half
    /// may be on their way back.
    pub fn eager_frames_max(&self) -> usize {
        let eager = usize::from(self.eager_slots);
        if eager >= limits::EAGER_SLOTS_MANY { (self.eager_chunks_max() / 2).max(1) } else { eager }
    }

    /// Full chunks that may be in eager slots at a time. Of many eager slots a part of the window, because granted slots are
    /// used again while they are in the cache; the other eager ones are for short frames.
    pub fn eager_chunks_max(&self) -> usize {
        let eager = usize::from(self.eager_slots);
        let part = usize::from(self.window_slots).div_ceil(limits::EAGER_PARTS_OF_WINDOW);
        if eager >= limits::EAGER_SLOTS_MANY { eager.min(part) } else { eager }
    }

    /// Clamps received or configured values to the limits.
    pub fn bounded(self) -> Self {
        let slot_bytes =
            self.board_slot_bytes.clamp(limits::BOARD_SLOT_BYTES_MIN, limits::BOARD_SLOT_BYTES_MAX);
        let board_slot_bytes = slot_bytes - slot_bytes % limits::BOARD_SLOT_BYTES_STEP;
        let depth = self.board_depth.clamp(limits::BOARD_DEPTH_MIN, limits::BOARD_DEPTH_MAX);
        Self {
            chunk_bytes: self.chunk_bytes.clamp(16, limits::CHUNK_BYTES_MAX as u32),
            window_slots: self.window_slots.clamp(1, limits::WINDOW_SLOTS_MAX),
            eager_slots: self.eager_slots.clamp(1, limits::EAGER_SLOTS_MAX),
            board_slot_bytes,
            board_depth: depth.next_power_of_two(),
            board_one_shot_bytes_max: self.board_one_shot_bytes_max.min(board_slot_bytes),
            tcp: self.tcp.bounded(),
            shared: self.shared.bounded(),
            forced: self.forced,
        }
    }
}

impl TransportCosts {
    fn bounded(self) -> Self {
        let clamp = |ns: u32| ns.min(limits::COST_NS_MAX);
        Self {
            hop_ns: clamp(self.hop_ns),
            frame_ns: clamp(self.frame_ns),
            sent_ns_per_kib: clamp(self.sent_ns_per_kib),
            reduced_ns_per_kib: clamp(self.reduced_ns_per_kib),
            beside_ring_percent: self.beside_ring_percent.clamp(1, 10_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_are_clamped_to_the_limits() {
        assert_eq!(Tuning::DEFAULT.bounded(), Tuning::DEFAULT);
        let wild = |number: u32| {
            let small = number as u16;
            let prices = TransportCosts {
                hop_ns: number,
                frame_ns: number,
                sent_ns_per_kib: number,
                reduced_ns_per_kib: number,
                beside_ring_percent: small,
            };
            Tuning {
                chunk_bytes: number,
                window_slots: small,
                eager_slots: small,
                board_slot_bytes: number,
                board_depth: small,
                board_one_shot_bytes_max: number,
                tcp: prices,
                shared: prices,
                forced: None,
            }
        };
        for number in [0, 1, 5, 100, 5000, 70_000, u32::MAX] {
            let bounded = wild(number).bounded();
            assert_eq!(bounded, bounded.bounded());
            assert!(bounded.board_depth.is_power_of_two() && bounded.board_depth <= limits::BOARD_DEPTH_MAX);
            assert!(bounded.board_slot_bytes % limits::BOARD_SLOT_BYTES_STEP == 0);
            assert!(bounded.board_one_shot_bytes_max <= bounded.board_slot_bytes);
            assert!(bounded.tcp.hop_ns <= limits::COST_NS_MAX && bounded.tcp.beside_ring_percent > 0);
        }
    }

    #[test]
    fn json_may_omit_fields_and_has_no_unknown_ones() {
        let text = serde_json::to_string_pretty(&Tuning::DEFAULT).unwrap();
        assert_eq!(serde_json::from_str::<Tuning>(&text).unwrap(), Tuning::DEFAULT);
        let some: Tuning = serde_json::from_str(r#"{"chunk_bytes": 4096, "forced": "one-shot"}"#).unwrap();
        let expected = Tuning { chunk_bytes: 4096, forced: Some(Algorithm::OneShot), ..Tuning::DEFAULT };
        assert_eq!(some, expected);
        let wrong = serde_json::from_str::<Tuning>(r#"{"chunk_byte": 4096}"#).unwrap_err();
        assert!(wrong.to_string().contains("unknown field `chunk_byte`"), "{wrong}");
    }

    #[test]
    fn ranks_of_one_host_have_many_eager_slots_for_short_operations() {
        let near = Tuning::DEFAULT.for_loopback();
        assert_eq!((near.eager_slots, near.eager_frames_max(), near.eager_chunks_max()), (64, 2, 4));
        let chosen = Tuning { eager_slots: 2, tcp: Tuning::DEFAULT.shared, ..Tuning::DEFAULT };
        assert_eq!(chosen.for_loopback(), chosen);
    }

    #[test]
    fn windows_cover_bandwidth_times_delay() {
        let slots = |us| Tuning::DEFAULT.for_round_trip(Duration::from_micros(us)).window_slots;
        assert_eq!(slots(20), Tuning::DEFAULT.window_slots);
        // 2 ms at 10 Gbit/s are 2.5 MB.
        assert_eq!(slots(2000), 39);
        assert_eq!(slots(u64::MAX), limits::WINDOW_SLOTS_MAX);
    }

    #[test]
    fn hops_cost_their_delay_on_long_links() {
        let near = Tuning::DEFAULT.for_round_trip(Duration::from_micros(300));
        assert_eq!((near.tcp, near.eager_slots), (Tuning::DEFAULT.tcp, Tuning::DEFAULT.eager_slots));
        let far = Tuning::DEFAULT.for_round_trip(Duration::from_millis(100)).bounded();
        assert_eq!(far.tcp.hop_ns, Tuning::DEFAULT.tcp.hop_ns + 50_000_000);
        assert_eq!(far.eager_slots, limits::EAGER_SLOTS_MAX);
        assert_eq!((near.eager_frames_max(), far.eager_frames_max()), (4, 32));
        assert_eq!((near.eager_chunks_max(), far.eager_chunks_max()), (4, 64));
        assert!(Tuning::DEFAULT.for_round_trip(Duration::MAX).bounded().tcp.hop_ns <= limits::COST_NS_MAX);
    }
}
