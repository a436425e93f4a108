//! The exit codes of the commands.

/// Everything succeeded.
pub const SUCCESS: i32 = 0;
/// Something failed; the reason is on standard error.
pub const FAILURE: i32 = 1;
/// The arguments are invalid.
pub const USAGE: i32 = 2;
