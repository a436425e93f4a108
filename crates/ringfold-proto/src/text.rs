//! Names and texts of other processes, which reach terminals and logs.

use core::fmt::{self, Write};

/// The shortest name that may be mistaken for a shown id, in hexadecimal digits.
const ID_DIGITS_MIN: usize = 8;

/// What is wrong with a name of a peer or a group, if anything.
///
/// ```
/// use ringfold_proto::text::name_problem;
/// assert_eq!(name_problem("node-7:4711"), None);
/// assert!(name_problem("a\x1b[2J").is_some() && name_problem("0a1b2c3d").is_some());
/// ```
pub fn name_problem(name: &str) -> Option<&'static str> {
    let looks_like_id = name.len() >= ID_DIGITS_MIN && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    unprintable_problem(name).or_else(|| {
        looks_like_id.then_some(
            "a name must not look like an id: it has 8 or more digits of 0-9 and a-f, and nothing else",
        )
    })
}

/// The same for a name that the master may have made of an id.
pub(crate) fn unprintable_problem(name: &str) -> Option<&'static str> {
    name.chars().any(is_unprintable).then_some("a name must not contain control characters")
}

/// Whether a character could control a terminal, forge a line, or reorder the text around it.
fn is_unprintable(c: char) -> bool {
    let reorders =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders
}

/// The character, or another one in its place that is harmless.
pub fn printable(c: char) -> char {
    if is_unprintable(c) { '\u{fffd}' } else { c }
}

/// Text of other processes without characters that could control a terminal, forge a line, or reorder the text.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Filter<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Filter<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                if !text.chars().any(is_unprintable) {
                    return self.0.write_str(text);
                }
                text.chars().try_for_each(|c| self.0.write_char(printable(c)))
            }
        }
        write!(Filter(f), "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable_and_no_ids() {
        for name in ["a", "node-7:4711", "rank 3 (host:9)", "schöne Maschine", "cafe", "deadbee"] {
            assert_eq!(name_problem(name), None, "{name}");
        }
        for name in ["a\nb", "\x1b]52;c;aGk=\x07", "a\u{9b}2J", "a\u{202e}b", "a\u{2028}b", "a\0"] {
            assert!(name_problem(name).is_some_and(|why| why.contains("control characters")), "{name:?}");
            assert!(!Printable(name).to_string().chars().any(is_unprintable));
        }
        for name in ["deadbeef", "00000000", "0123456789ABCDEF0123456789abcdef"] {
            assert!(name_problem(name).is_some_and(|why| why.contains("like an id")), "{name}");
        }
    }
}
