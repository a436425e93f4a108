//! A join token or group token.

use core::{fmt, ops::Deref};

/// A token. Its `Debug` output does not show it.
#[derive(Clone, Default)]
pub(crate) struct Token(pub(crate) String);

impl Deref for Token {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { ".." })
    }
}
