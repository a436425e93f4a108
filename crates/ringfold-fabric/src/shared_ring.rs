//! The memory of a link between two processes: a ring of records and cells for payloads, in each direction.

mod cells;
mod ring;
#[cfg(test)]
mod tests;
mod way;

pub use cells::Cells;
pub(crate) use cells::Tenancy;
pub(crate) use ring::{BODY_BYTES_MAX, Inlet, Outlet, Record, Source};
pub(crate) use way::{SEGMENT_BYTES, Way, Word, find, lay_out};
