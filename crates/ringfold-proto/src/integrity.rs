//! What operations check beyond TCP's checksums: their payloads, and whether all peers have the same result.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

/// What an operation checks. The same on all peers.
///
/// ```
/// use ringfold_proto::integrity::Integrity;
/// assert_eq!("results".parse(), Ok(Integrity { payloads: false, results: true }));
/// assert_eq!(Integrity::ALL.to_string(), "all");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Integrity {
    /// Frames carry a checksum of their payload, which the receiver checks before it uses the payload.
    pub payloads: bool,
    /// Peers compare digests of their results before the operation ends.
    pub results: bool,
}

/// A word that is none of [`Integrity::WORDS`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid integrity {0:?}: must be none, payloads, results or all")]
pub struct InvalidIntegrity(pub String);

impl Integrity {
    /// Nothing is checked.
    pub const NONE: Self = Self { payloads: false, results: false };
    /// Payloads and results are checked.
    pub const ALL: Self = Self { payloads: true, results: true };
    /// The words for settings.
    pub const WORDS: [&'static str; 4] = ["none", "payloads", "results", "all"];

    /// One bit for payloads (1) and one for results (2).
    pub fn bits(self) -> u8 {
        u8::from(self.payloads) | u8::from(self.results) << 1
    }

    /// The reverse of [`Integrity::bits`]; none for other bits.
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits < 4).then_some(Self { payloads: bits & 1 != 0, results: bits & 2 != 0 })
    }
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS[usize::from(self.bits())])
    }
}

impl FromStr for Integrity {
    type Err = InvalidIntegrity;

    fn from_str(word: &str) -> Result<Self, InvalidIntegrity> {
        let known = (0..4).zip(Self::WORDS).find(|(_, known)| *known == word);
        known.and_then(|(bits, _)| Self::from_bits(bits)).ok_or_else(|| InvalidIntegrity(word.to_owned()))
    }
}

/// The peers or ranks whose results differ from those of others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dissent<K> {
    /// Those that are not of the majority; if there is none, all.
    pub who: Vec<K>,
    /// The size of the majority; 0 if there is none.
    pub agree: u32,
}

impl<K: Copy + Ord> Dissent<K> {
    /// Compares the digests of results; none if all are equal. A peer without one differs from those that have one.
    ///
    /// ```
    /// use ringfold_proto::integrity::Dissent;
    /// let digests = [(0, Some(7)), (1, Some(8)), (2, Some(7))].into();
    /// assert_eq!(Dissent::of(&digests), Some(Dissent { who: vec![1], agree: 2 }));
    /// ```
    pub fn of(digests: &BTreeMap<K, Option<u64>>) -> Option<Self> {
        let mut counts: BTreeMap<Option<u64>, usize> = BTreeMap::new();
        digests.values().for_each(|digest| *counts.entry(*digest).or_default() += 1);
        if counts.len() < 2 {
            return None;
        }
        let majority = counts.into_iter().find(|(_, count)| 2 * count > digests.len());
        let differs = |digest: &Option<u64>| majority.is_none_or(|(of_most, _)| *digest != of_most);
        let who = digests.iter().filter(|(_, digest)| differs(digest)).map(|(peer, _)| *peer).collect();
        Some(Self { who, agree: majority.map_or(0, |(_, count)| count as u32) })
    }
}
