//! Symbols instead of numbers: an element records the values that it was computed from, and their order.

use std::fmt;

/// One peer's input to one call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Contribution(pub u32);

/// An element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// The contributions in it, sorted, with repetitions.
    pub terms: Vec<Contribution>,
    /// A hash of the expression, which depends on order and association.
    pub shape: u64,
    /// The position of the element; `POISON` after combining different positions.
    pub position: u64,
    /// How often it was finalized.
    pub settled: u8,
}

const POISON: u64 = u64::MAX;

impl Symbol {
    /// A peer's own value at a position.
    pub fn own(contribution: Contribution, position: u64) -> Self {
        let shape = mix(u64::from(contribution.0) ^ 0x5eed, position);
        Self { terms: vec![contribution], shape, position, settled: 0 }
    }

    /// The content of uninitialized memory.
    pub fn blank(position: u64) -> Self {
        Self { terms: Vec::new(), shape: 0, position, settled: 0 }
    }

    pub fn combine(left: &Self, right: &Self) -> Self {
        let mut terms = left.terms.clone();
        terms.extend_from_slice(&right.terms);
        terms.sort_unstable();
        let position = if left.position == right.position { left.position } else { POISON };
        let settled = left.settled.saturating_add(right.settled);
        Self { terms, shape: mix(left.shape, right.shape), position, settled }
    }

    /// Faulty memory or a faulty wire: bits change. Different `bits` make different symbols.
    pub fn flip(&mut self, bits: u32) {
        self.shape ^= 1 + u64::from(bits);
        self.settled ^= 1;
    }

    /// A hash of symbols.
    pub fn digest(symbols: &[Self]) -> u64 {
        let word = mix;
        symbols.iter().fold(symbols.len() as u64, |digest, symbol| {
            let digest = symbol.terms.iter().fold(digest, |digest, term| word(digest, u64::from(term.0)));
            [symbol.shape, symbol.position, u64::from(symbol.settled)].into_iter().fold(digest, word)
        })
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<_> = self.terms.iter().map(|t| t.0.to_string()).collect();
        write!(f, "[{}]@{}", terms.join("+"), self.position)
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(29) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}
