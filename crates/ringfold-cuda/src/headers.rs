//! The device headers, embedded.

/// Every header: the name that it is included by, and its text.
pub const HEADERS: &[(&str, &str)] = &[];
