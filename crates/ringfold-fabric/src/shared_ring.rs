//! The memory of a link between two processes: a ring of records and cells for payloads, in each direction.

mod cells;
mod direction;
mod ring;
#[cfg(test)]
mod tests;

pub(crate) use cells::CellTracker;
pub use cells::Cells;
pub(crate) use direction::{LinkDirection, SEGMENT_BYTES, Word, format_segment, open_segment};
pub(crate) use ring::{BODY_BYTES_MAX, Record, RingReader, RingWriter};
