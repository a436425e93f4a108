//! What steers the choice and the cutting of plans. It is agreed by the whole group: it travels in
//! the epoch's description, and nothing local may change a plan on one rank alone.

use crate::limits;
use core::fmt;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// How a collective is carried out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Algorithm {
    /// Around the ring, one neighbour on either side: least traffic, world − 1 hops.
    Ring = 1,
    /// Every part goes straight to its owner and from it to everyone: two hops.
    Direct = 2,
    /// Everyone sends everything to everyone: one hop, for small messages.
    OneShot = 3,
    /// Recursive halving, then doubling: about 2·log₂(world) hops.
    Halving = 4,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::OneShot => "one-shot",
            Self::Halving => "halving",
        })
    }
}

/// What things cost on one medium. Whole numbers, so that all ranks come to the same sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportCosts {
    /// Waiting for another rank once.
    pub hop_ns: u32,
    /// Sending or taking a frame, whatever its length.
    pub frame_ns: u32,
    /// Moving 1024 bytes from one rank to another, while as many come the other way.
    pub sent_ns_per_kib: u32,
    /// Combining 1024 bytes with others.
    pub reduced_ns_per_kib: u32,
    /// What moving costs between ranks that are not neighbours on the ring, in percent of what it costs between
    /// those that are: the ring was laid along the best links.
    pub beside_ring_percent: u16,
}

/// The numbers that decide which plan is made. As text, what is left out has its default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Payload bytes of a data frame at most.
    pub chunk_bytes: u32,
    /// Slots that a receiver grants to one operation per sender.
    pub window_slots: u16,
    /// Slots per pair and epoch that a sender may fill without being granted them.
    pub eager_slots: u16,
    /// Bytes of a slot of the memory that all ranks of a group on one host share.
    pub board_slot_bytes: u32,
    /// Slots that each rank has there; a power of two.
    pub board_depth: u16,
    /// Messages up to this size are read there by everyone from everyone.
    pub board_one_shot_bytes_max: u32,
    /// TransportCosts between hosts.
    pub tcp: TransportCosts,
    /// TransportCosts within one host.
    pub shared: TransportCosts,
    /// Take this algorithm wherever it is possible, whatever it costs.
    pub forced: Option<Algorithm>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tuning {
    /// What holds unless somebody measured something better.
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

    /// Windows that cover the longest way between members, there and back, at the rate that links may have.
    pub fn for_round_trip(self, longest: Duration) -> Self {
        let bytes = longest.as_micros().saturating_mul(u128::from(limits::LINK_BYTES_PER_US));
        let slots = bytes.div_ceil(u128::from(self.chunk_bytes.max(1)));
        let slots = u16::try_from(slots).unwrap_or(u16::MAX).min(limits::WINDOW_SLOTS_MAX);
        Self { window_slots: self.window_slots.max(slots), ..self }
    }

    /// Brings what a remote or a user wrote within the bounds that the executor counts on.
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
        let price = |ns: u32| ns.min(limits::COST_NS_MAX);
        Self {
            hop_ns: price(self.hop_ns),
            frame_ns: price(self.frame_ns),
            sent_ns_per_kib: price(self.sent_ns_per_kib),
            reduced_ns_per_kib: price(self.reduced_ns_per_kib),
            beside_ring_percent: self.beside_ring_percent.clamp(1, 10_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_written_is_brought_within_bounds() {
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
    fn text_names_what_it_changes_and_nothing_else() {
        let text = serde_json::to_string_pretty(&Tuning::DEFAULT).unwrap();
        assert_eq!(serde_json::from_str::<Tuning>(&text).unwrap(), Tuning::DEFAULT);
        let some: Tuning = serde_json::from_str(r#"{"chunk_bytes": 4096, "forced": "one-shot"}"#).unwrap();
        let expected = Tuning { chunk_bytes: 4096, forced: Some(Algorithm::OneShot), ..Tuning::DEFAULT };
        assert_eq!(some, expected);
        let wrong = serde_json::from_str::<Tuning>(r#"{"chunk_byte": 4096}"#).unwrap_err();
        assert!(wrong.to_string().contains("unknown field `chunk_byte`"), "{wrong}");
    }

    #[test]
    fn windows_cover_bandwidth_times_delay_within_bounds() {
        let slots = |us| Tuning::DEFAULT.for_round_trip(Duration::from_micros(us)).window_slots;
        assert_eq!(slots(20), Tuning::DEFAULT.window_slots);
        // 2 ms at 10 Gbit/s are 2.5 MB.
        assert_eq!(slots(2000), 39);
        assert_eq!(slots(u64::MAX), limits::WINDOW_SLOTS_MAX);
    }
}
