//! Tied tensors: entries of a shared state that are the same memory.

use crate::address_range::AddressRange;
use crate::result::CallError;

/// Marks the entries (name, memory, whether contents may differ) that are the same memory as an earlier entry.
///
/// The caller syncs a temporary copy for a marked entry, because memory can be lent only once.
///
/// # Errors
/// Entries that overlap without being equal, or equal entries of which only one may differ between peers.
pub fn find_aliases(entries: &[(&str, AddressRange, bool)]) -> Result<Vec<bool>, CallError> {
    let mut is_alias = vec![false; entries.len()];
    let mut order: Vec<_> = (0..entries.len()).filter(|i| entries[*i].1.bytes > 0).collect();
    order.sort_unstable_by_key(|i| (entries[*i].1, *i));
    for pair in order.windows(2) {
        let ((one, before, loose), (other, after, also_loose)) = (entries[pair[0]], entries[pair[1]]);
        if before == after && loose != also_loose {
            return Err(CallError::invalid_argument(format!(
                "invalid shared state: {one:?} and {other:?} are the same memory, but only one may differ between peers"
            )));
        }
        if before == after {
            is_alias[pair[1]] = true;
        } else if before.overlaps(after) {
            return Err(CallError::invalid_argument(format!(
                "invalid shared state: {one:?} and {other:?} overlap in part"
            )));
        }
    }
    Ok(is_alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tied_tensors_are_valid_and_overlapping_tensors_are_not() {
        let at = |name, start, bytes| (name, AddressRange { start, bytes }, false);
        let tied = [at("a", 4096, 16), at("b", 8192, 16), at("c", 4096, 16), at("d", 4096, 16)];
        assert_eq!(find_aliases(&tied), Ok(vec![false, false, true, true]));
        assert!(find_aliases(&[at("a", 4096, 16), at("b", 4096, 12)]).is_err());
        assert!(find_aliases(&[at("a", 4096, 16), at("b", 4100, 16)]).is_err());
        assert!(find_aliases(&[at("a", 4096, 16), at("b", 4112, 16)]).is_ok());
        assert!(find_aliases(&[at("a", 4096, 0), at("b", 4096, 16)]).is_ok());
        let loose = ("b", AddressRange { start: 4096, bytes: 16 }, true);
        assert!(find_aliases(&[at("a", 4096, 16), loose]).is_err() && find_aliases(&[loose, loose]).is_ok());
    }
}
