//! Variants of Ringfold that are measured in turn with the plain collective.

use super::bench_op::BenchOp;
use ringfold::Integrity;
use serde::{Serialize, Serializer};
use std::fmt;

/// What the ranks check or promise beyond the plain collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Variant {
    #[serde(serialize_with = "serialize_word")]
    pub(crate) integrity: Integrity,
    pub(crate) reproducible: bool,
}

impl Variant {
    pub(crate) const PLAIN: Self = Self { integrity: Integrity::NONE, reproducible: false };

    /// Whether a collective is another one with it than without it.
    pub(crate) fn applies_to(self, kind: BenchOp) -> bool {
        self == Self::PLAIN
            || self.integrity.payloads
            || self.integrity.results && kind == BenchOp::AllReduce
            || self.reproducible && kind.reduces()
    }
}

fn serialize_word<S: Serializer>(integrity: &Integrity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(integrity)
}

/// `plain`, `integrity all`, `reproducible`.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.integrity, self.reproducible) {
            (Integrity::NONE, false) => f.pad("plain"),
            (Integrity::NONE, true) => f.pad("reproducible"),
            (integrity, false) => f.pad(&format!("integrity {integrity}")),
            (integrity, true) => f.pad(&format!("integrity {integrity}, reproducible")),
        }
    }
}

/// Parses what `--integrity` measures.
pub(crate) fn parse_integrity(text: &str) -> Result<Integrity, String> {
    let words = "must be payloads, results or all";
    match text.parse() {
        Ok(Integrity::NONE) => Err(format!("nothing to measure: {words}")),
        Ok(integrity) => Ok(integrity),
        Err(_) => Err(format!("invalid integrity {text:?}: {words}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_applies_where_it_changes_the_collective() {
        let of = |word: &str| Variant { integrity: word.parse().unwrap(), reproducible: false };
        let reproducible = Variant { reproducible: true, ..Variant::PLAIN };
        let cases = [
            (Variant::PLAIN, [true, true, true]),
            (of("payloads"), [true, true, true]),
            (of("results"), [true, false, false]),
            (of("all"), [true, true, true]),
            (reproducible, [true, true, false]),
        ];
        for (variant, expected) in cases {
            let kinds = [BenchOp::AllReduce, BenchOp::Reduce, BenchOp::Broadcast];
            assert_eq!(kinds.map(|kind| variant.applies_to(kind)), expected, "{variant}");
        }
        assert_eq!(of("all").to_string(), "integrity all");
        assert!(parse_integrity("results").is_ok() && parse_integrity("none").is_err());
    }
}
