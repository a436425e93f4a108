//! Entries of a shared state that are the same memory: tied tensors.

use crate::result::Failure;
use crate::span::Span;

/// Which entries (name, place, whether contents may differ) are the same memory as an earlier one. Those that overlap
/// in part are refused, and those of which only some may differ.
///
/// Memory has one holder. A tied tensor is given a copy of its own, which is let go of afterwards: what arrives for
/// one name arrives for the other, too.
pub fn aliases(entries: &[(&str, Span, bool)]) -> Result<Vec<bool>, Failure> {
    let mut is_alias = vec![false; entries.len()];
    let mut order: Vec<_> = (0..entries.len()).filter(|i| entries[*i].1.bytes > 0).collect();
    order.sort_unstable_by_key(|i| (entries[*i].1, *i));
    for pair in order.windows(2) {
        let ((one, before, loose), (other, after, also_loose)) = (entries[pair[0]], entries[pair[1]]);
        if before == after && loose != also_loose {
            return Err(Failure::argument(format!(
                "{one:?} and {other:?} are the same memory: either both may differ between peers or neither"
            )));
        }
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
        let at = |name, start, bytes| (name, Span { start, bytes }, false);
        let tied = [at("a", 4096, 16), at("b", 8192, 16), at("c", 4096, 16), at("d", 4096, 16)];
        assert_eq!(aliases(&tied), Ok(vec![false, false, true, true]));
        assert!(aliases(&[at("a", 4096, 16), at("b", 4096, 12)]).is_err());
        assert!(aliases(&[at("a", 4096, 16), at("b", 4100, 16)]).is_err());
        assert!(aliases(&[at("a", 4096, 16), at("b", 4112, 16)]).is_ok());
        assert!(aliases(&[at("a", 4096, 0), at("b", 4096, 16)]).is_ok());
        let loose = ("b", Span { start: 4096, bytes: 16 }, true);
        assert!(aliases(&[at("a", 4096, 16), loose]).is_err() && aliases(&[loose, loose]).is_ok());
    }
}
