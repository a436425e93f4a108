//! Contributions to an all-reduce whose result shows which peers took part, how often, and in which operation.
//!
//! A plain sum is *packed*: every element is a number in base four with one digit per peer, and each peer adds one to
//! its own digit. So every element of the result shows how often each peer was counted. The digit of a peer rotates with
//! the position, the tag and the step, so that a misplaced chunk or one of another operation is detected. Other
//! operations and quantised sums are *one-hot*: each element belongs to one peer, in rotation, which contributes another
//! value than the others. All numbers are exact in the element type.

use half::{bf16, f16};
use ringfold::{Element, ReduceOp};

/// The maximum number of peers.
pub const PEERS_MAX: u32 = 64;

/// The contribution of the owner to an average or a quantised sum; the others contribute zero. Its integer average is
/// not zero, and twice its value fits into eight bits.
const SHARE: u8 = 60;
/// The error of a count: averages are truncated and quantised values rounded.
const TOLERANCE: f64 = 0.25;

/// An element type of contributions.
pub trait ContributionElement: Element + PartialEq {
    /// Non-negative numbers of this many bits are exact.
    const EXACT_BITS: u32;
    /// Converts a number that is exact in this type.
    fn from_number(number: u64) -> Self;
    /// Converts to a float; exact for one-hot contributions.
    fn to_f64(self) -> f64;
    /// Converts to a number; none for fractions and negative values.
    fn to_number(self) -> Option<u64>;
}

macro_rules! integers {
    ($($type:ty: $bits:literal),*) => {$(
        impl ContributionElement for $type {
            const EXACT_BITS: u32 = $bits;
            fn from_number(number: u64) -> Self {
                number as Self
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn to_number(self) -> Option<u64> {
                u64::try_from(self).ok()
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty: $bits:literal, $from:expr, $to:expr);*) => {$(
        impl ContributionElement for $type {
            const EXACT_BITS: u32 = $bits;
            fn from_number(number: u64) -> Self {
                $from(number as f64)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
            fn to_number(self) -> Option<u64> {
                let number: f64 = self.to_f64();
                (number as u64 as f64 == number).then_some(number as u64)
            }
        }
    )*};
}

integers!(u8: 8, i8: 7, u16: 16, i16: 15, u32: 32, i32: 31, u64: 64, i64: 63);
floats!(f16: 11, f16::from_f64, f16::to_f64; bf16: 8, bf16::from_f64, bf16::to_f64;
        f32: 24, |n| n as f32, f64::from; f64: 53, |n| n, |n| n);

/// The contributions to one all-reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contributions {
    /// The reduction.
    pub op: ReduceOp,
    /// Whether the operation quantises.
    pub quantized: bool,
    /// The tag of the operation.
    pub tag: u64,
    /// Distinguishes operations with the same tag.
    pub step: u64,
    /// Peers have numbers below this, the same on all peers.
    pub peers_max: u32,
}

/// The participants of an operation: bit n is the peer with number n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Participants(pub u64);

impl Contributions {
    /// The contribution of a peer.
    pub fn contribution<T: ContributionElement>(&self, number: u32, count: usize) -> Vec<T> {
        assert!(
            number < self.peers_max && self.peers_max <= PEERS_MAX,
            "peer {number} of {}",
            self.peers_max
        );
        let period = if self.is_packed() { self.packing::<T>().period() } else { self.peers_max as usize };
        let pattern: Vec<T> = (0..period.min(count)).map(|index| self.element(number, index)).collect();
        pattern.iter().copied().cycle().take(count).collect()
    }

    /// One element of a peer's contribution.
    fn element<T: ContributionElement>(&self, number: u32, index: usize) -> T {
        let (others, owners) = self.one_hot_values();
        T::from_number(match self.packing::<T>().digit(index, number) {
            Some(digit) if self.is_packed() => 1 << (2 * digit),
            None if self.is_packed() => 0,
            _ if self.owner(index) == number => owners.into(),
            _ => others.into(),
        })
    }

    /// Determines the participants from the result, or why it is wrong. All elements must agree, no peer may be counted
    /// twice, and the number of participants must be the world.
    pub fn check<T: ContributionElement>(&self, result: &[T], world: u32) -> Result<Participants, String> {
        let mut seen = PeerCounts::new(self.peers_max);
        if self.is_packed() {
            let packing = self.packing::<T>();
            let period = packing.period();
            for (index, value) in result.iter().enumerate() {
                // The digits repeat after a period.
                if index >= period {
                    if *value != result[index - period] {
                        let (value, other) = (value.to_f64(), result[index - period].to_f64());
                        return Err(format!("element {index} is {value}, but {other} one period before"));
                    }
                    continue;
                }
                let number =
                    value.to_number().ok_or_else(|| format!("element {index} is {}", value.to_f64()))?;
                for peer in packing.peers(index) {
                    let Some(digit) = packing.digit(index, peer) else { continue };
                    seen.record(index, peer, (number >> (2 * digit)) & 3)?;
                }
                packing.check_unused(index, number)?;
            }
        } else {
            for (index, value) in result.iter().enumerate() {
                seen.record(index, self.owner(index), self.count(value.to_f64(), world, index)?)?;
            }
        }
        seen.participants(world)
    }

    /// Whether this is an exact sum.
    fn is_packed(&self) -> bool {
        self.op == ReduceOp::Sum && !self.quantized
    }

    fn packing<T: ContributionElement>(&self) -> Packing {
        let digits = T::EXACT_BITS / 2;
        Packing {
            digits,
            groups: self.peers_max.div_ceil(digits),
            peers_max: self.peers_max,
            rotation: self.rotation(),
        }
    }

    /// One-hot: the peer that an element belongs to.
    fn owner(&self, index: usize) -> u32 {
        (self.rotation().wrapping_add(index as u64) % u64::from(self.peers_max)) as u32
    }

    /// One-hot: the contributions of the others and of the owner.
    fn one_hot_values(&self) -> (u8, u8) {
        match self.op {
            ReduceOp::Min => (2, 1),
            ReduceOp::Max | ReduceOp::Prod => (1, 2),
            _ => (0, SHARE),
        }
    }

    /// One-hot: how often the owner of an element was counted.
    fn count(&self, value: f64, world: u32, index: usize) -> Result<u64, String> {
        let count = match self.op {
            ReduceOp::Min => 2.0 - value,
            ReduceOp::Max => value - 1.0,
            ReduceOp::Prod => value.log2(),
            ReduceOp::Avg => value * f64::from(world) / f64::from(SHARE),
            _ => value / f64::from(SHARE),
        };
        let whole = count.round();
        if (count - whole).abs() <= TOLERANCE && (0.0..=64.0).contains(&whole) {
            Ok(whole as u64)
        } else {
            Err(format!("element {index} is {value}"))
        }
    }

    /// The rotation of the first element.
    fn rotation(&self) -> u64 {
        mix(mix(self.tag) ^ self.step) >> 32
    }
}

/// The assignment of digits to peers.
struct Packing {
    digits: u32,
    /// With more peers than digits, each element has the digits of one group of peers.
    groups: u32,
    peers_max: u32,
    rotation: u64,
}

impl Packing {
    /// The number of elements after which the digits repeat.
    fn period(&self) -> usize {
        (self.groups * self.digits) as usize
    }

    /// The digit of a peer in an element, if it has one.
    fn digit(&self, index: usize, peer: u32) -> Option<u32> {
        let (group, rotation) = self.group(index);
        (peer / self.digits == group).then(|| (peer % self.digits + rotation) % self.digits)
    }

    /// The peers that have a digit in an element.
    fn peers(&self, index: usize) -> std::ops::Range<u32> {
        let first = self.group(index).0 * self.digits;
        first..(first + self.digits).min(self.peers_max)
    }

    /// Unused digits must be zero.
    fn check_unused(&self, index: usize, number: u64) -> Result<(), String> {
        let used = self.peers(index).filter_map(|peer| self.digit(index, peer));
        let mask = used.fold(0, |mask, digit| mask | 3 << (2 * digit));
        if number & !mask == 0 {
            Ok(())
        } else {
            Err(format!("element {index} is {number:#x}, which is not a sum of contributions"))
        }
    }

    /// The group of peers and the rotation of an element.
    fn group(&self, index: usize) -> (u32, u32) {
        let position = self.rotation.wrapping_add(index as u64);
        let group = position % u64::from(self.groups);
        let rotation = position / u64::from(self.groups) % u64::from(self.digits);
        (group as u32, rotation as u32)
    }
}

/// How often each peer was counted, and the element that showed it first.
struct PeerCounts {
    counts: Vec<Option<(u64, usize)>>,
}

impl PeerCounts {
    fn new(peers_max: u32) -> Self {
        Self { counts: vec![None; peers_max as usize] }
    }

    fn record(&mut self, index: usize, peer: u32, count: u64) -> Result<(), String> {
        match self.counts[peer as usize] {
            _ if count > 1 => Err(format!("element {index} counts peer {peer} {count} times")),
            Some((before, at)) if before != count => Err(format!(
                "element {index} counts peer {peer} {count} times, but element {at} counts it {before} times"
            )),
            Some(_) => Ok(()),
            None => {
                self.counts[peer as usize] = Some((count, index));
                Ok(())
            }
        }
    }

    fn participants(&self, world: u32) -> Result<Participants, String> {
        let took =
            self.counts.iter().enumerate().filter(|(_, seen)| seen.is_some_and(|(count, _)| count == 1));
        let participants = Participants(took.fold(0, |participants, (peer, _)| participants | 1 << peer));
        let number = participants.0.count_ones();
        // A short result does not show all peers.
        let all_visible = self.counts.iter().all(Option::is_some);
        if number == world || (!all_visible && number < world) {
            Ok(participants)
        } else {
            Err(format!("{number} peers were counted ({participants}), but {world} took part"))
        }
    }
}

impl Participants {
    /// The peers with these numbers.
    pub fn of(numbers: impl IntoIterator<Item = u32>) -> Self {
        Self(numbers.into_iter().fold(0, |participants, number| participants | 1 << number))
    }
}

impl std::fmt::Display for Participants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A hash of a result.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut digest = mix(bytes.len() as u64);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        digest = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    for byte in words.remainder() {
        digest = (digest ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    mix(digest)
}

/// Mixes the bits of a number (the finaliser of splitmix64).
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Contributions =
        Contributions { op: ReduceOp::Sum, quantized: false, tag: 7, step: 3, peers_max: 12 };

    /// The result for these peers, in the type's own arithmetic.
    fn reduce<T: ContributionElement>(contributions: &Contributions, peers: &[u32], count: usize) -> Vec<T> {
        let inputs: Vec<Vec<T>> = peers.iter().map(|&peer| contributions.contribution(peer, count)).collect();
        let combine = |index: usize| {
            let values = inputs.iter().map(|input| input[index].to_f64());
            match contributions.op {
                ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
                ReduceOp::Max => values.fold(0.0, f64::max),
                ReduceOp::Prod => values.product(),
                ReduceOp::Avg if T::DTYPE.is_integer() => (values.sum::<f64>() / peers.len() as f64).trunc(),
                _ => values.sum::<f64>() / peers.len() as f64,
            }
        };
        // Wide integers are not exact as floats.
        let sum = |index: usize| inputs.iter().filter_map(|input| input[index].to_number()).sum();
        let of = |index| {
            if contributions.op == ReduceOp::Sum { sum(index) } else { combine(index).round() as u64 }
        };
        (0..count).map(|index| T::from_number(of(index))).collect()
    }

    fn check_all_ops<T: ContributionElement>() {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            for quantized in [false, true] {
                let contributions = Contributions { op, quantized, ..SUM };
                for peers in [&[0][..], &[0, 1], &[3, 7, 11], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]] {
                    let participants =
                        contributions.check(&reduce::<T>(&contributions, peers, 1000), peers.len() as u32);
                    assert_eq!(
                        participants,
                        Ok(Participants::of(peers.iter().copied())),
                        "{op} {} {quantized}",
                        T::DTYPE
                    );
                }
            }
        }
    }

    #[test]
    fn every_type_and_operation_shows_the_participants() {
        macro_rules! check {
            ($($type:ty)*) => { $(check_all_ops::<$type>();)* };
        }
        check!(u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64);
    }

    #[test]
    fn one_element_of_a_wide_type_shows_all_peers() {
        assert_eq!(SUM.check(&reduce::<f32>(&SUM, &[0, 5, 11], 1), 3), Ok(Participants::of([0, 5, 11])));
        // A short result is not an error.
        assert!(SUM.check(&reduce::<u8>(&SUM, &[0, 5, 11], 1), 3).is_ok());
        assert_eq!(SUM.check::<f32>(&[], 3), Ok(Participants(0)));
    }

    #[test]
    fn double_missing_and_foreign_contributions_are_detected_in_every_element() {
        let right = reduce::<f32>(&SUM, &[0, 1, 2], 100);
        for index in 0..right.len() {
            for other in [
                reduce::<f32>(&SUM, &[0, 1, 2, 1], 100),
                reduce::<f32>(&SUM, &[0, 2], 100),
                reduce::<f32>(&Contributions { step: 4, ..SUM }, &[0, 1, 2], 100),
                reduce::<f32>(&Contributions { tag: 8, ..SUM }, &[0, 1, 2], 100),
            ] {
                let mut wrong = right.clone();
                wrong[index] = other[index];
                assert!(SUM.check(&wrong, 3).is_err(), "{index}");
            }
            let mut wrong = right.clone();
            wrong[index] = f32::NAN;
            assert!(SUM.check(&wrong, 3).is_err());
        }
        let mut shifted = right.clone();
        shifted[1..].copy_from_slice(&right[..99]);
        assert!(SUM.check(&shifted, 3).is_err());
        assert!(SUM.check(&right, 2).is_err() && SUM.check(&right, 4).is_err());
    }

    #[test]
    fn one_hot_contributions_show_double_and_missing_peers() {
        let contributions = Contributions { op: ReduceOp::Avg, ..SUM };
        let mut result = reduce::<f32>(&contributions, &[0, 1, 2], 100);
        let owned = result.iter().position(|v| *v > 0.0).expect("an owned element");
        result[owned] *= 2.0;
        assert!(contributions.check(&result, 3).is_err());
        result[owned] = 0.0;
        assert!(contributions.check(&result, 3).is_err());
    }

    #[test]
    fn digests_differ_where_bytes_do() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut digests: Vec<u64> = (0..=100).map(|end| digest(&bytes[..end])).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 101);
        let mut other = bytes.clone();
        other.swap(3, 60);
        assert_ne!(digest(&bytes), digest(&other));
    }
}
