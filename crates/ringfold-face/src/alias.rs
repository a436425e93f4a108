//! Entries of a shared state that are the same memory: tied tensors.

use crate::result::Failure;
use crate::span::Span;

/// Which entries are the same memory as an earlier one. Those that overlap in part are refused.
///
/// Memory has one holder. A tied tensor is given a copy of its own, which is let go of afterwards: what arrives for
/// one name arrives for the other, too.
pub fn aliases(entries: &[(&str, Span)]) -> Result<Vec<bool>, Failure> {
    let mut is_alias = vec![false; entries.len()];
    let mut order: Vec<_> = (0..entries.len()).filter(|i| entries[*i].1.bytes > 0).collect();
    order.sort_unstable_by_key(|i| (entries[*i].1, *i));
    for pair in order.windows(2) {
        let ((one, before), (other, after)) = (entries[pair[0]], entries[pair[1]]);
        if before == after {
            is_alias[pair[1]] = true;
        } else if before.overlaps(after) {
            return Err(Failure::argument(format!("{one:?} and {other:?} overlap, and are not the same")));
        }
    }
    Ok(is_alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tied_tensors_are_legal_and_overlapping_ones_are_not() {
        let at = |start, bytes| Span { start, bytes };
        let tied = [("a", at(4096, 16)), ("b", at(8192, 16)), ("c", at(4096, 16)), ("d", at(4096, 16))];
        assert_eq!(aliases(&tied), Ok(vec![false, false, true, true]));
        assert!(aliases(&[("a", at(4096, 16)), ("b", at(4096, 12))]).is_err());
        assert!(aliases(&[("a", at(4096, 16)), ("b", at(4100, 16))]).is_err());
        assert!(aliases(&[("a", at(4096, 16)), ("b", at(4112, 16))]).is_ok());
        assert!(aliases(&[("a", at(4096, 0)), ("b", at(4096, 16))]).is_ok());
    }
}
