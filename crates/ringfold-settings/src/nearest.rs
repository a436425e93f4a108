//! The known name that is nearest to an unknown one.

/// `: did you mean "NAME"?`, or nothing if no name is near.
pub(crate) fn hint<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let limit = (unknown.len() / 3).clamp(1, 4);
    let near = known.into_iter().map(|name| (distance(unknown, name), name)).min();
    match near.filter(|(distance, _)| *distance <= limit) {
        Some((_, name)) => format!(": did you mean {name:?}?"),
        None => String::new(),
    }
}

/// The number of bytes to insert, remove, replace or swap with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut rows = vec![(0..=right.len()).collect::<Vec<_>>()];
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(a != b);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let names = ["heartbeat", "silence_max", "tls_ca"];
        let hint = |unknown| hint(unknown, names);
        assert_eq!(hint("hearbeat"), ": did you mean \"heartbeat\"?");
        assert_eq!(hint("silcene_max"), ": did you mean \"silence_max\"?");
        assert_eq!(hint("tls-ca"), ": did you mean \"tls_ca\"?");
        assert_eq!(hint("colour"), "");
        assert_eq!(hint(""), "");
    }
}
