//! Every bound of this crate in one place. A remote that exceeds one is at fault and is told so.

/// Members of one group, and peers of one run.
pub const WORLD_MAX: usize = 1024;

/// Elements' bytes in one data frame; an abort takes effect at the next one.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;
