//! Large reductions whose operands lie in shared buffers begin here: ranks announce them, and map those of the others.
//!
//! In the first round each rank announces where its operands lie. If those of a rank do not lie in shared buffers, all ranks
//! know it, and run the collective through slots. Otherwise each rank announces in a second round whether it could map the
//! buffers of the others. Nothing was written until then.

use super::exchange::Chunks;
use super::mapped_buffers::MappedBuffers;
use super::operands::Operands;
use core::cell::RefCell;
use core::ops::Range;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_fabric::segment::Ticket;
use ringfold_fabric::shared_buffer::{BufferRange, MappedBuffer};
use ringfold_proto::id::Rank;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The round in which ranks announce where their operands lie.
pub(super) struct SharedOperands<'p> {
    me: Rank,
    world: usize,
    announcement: Announcement,
    /// The bytes of input and output; the same on all ranks. Without output, only inputs are read.
    bytes: (usize, Option<usize>),
    mapped: &'p RefCell<MappedBuffers>,
    /// Whether the operands of all ranks lie in shared buffers, as far as their owners say.
    pub(super) are_shared: bool,
    /// Whether this rank could not map those of another one.
    pub(super) is_refused: bool,
    /// By rank; none of this rank.
    pub(super) tensors: Vec<Option<RankTensors>>,
}

/// The operands of another rank, mapped to read.
pub(super) struct RankTensors {
    input: MappedTensor,
    output: Option<MappedTensor>,
}

struct MappedTensor {
    buffer: Arc<MappedBuffer>,
    offset: u64,
}

/// What a rank announces. Zeros if an operand does not lie in a shared buffer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Announcement {
    input: RangeRecord,
    output: RangeRecord,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RangeRecord {
    ticket: [u8; Ticket::BYTES],
    offset: u64,
}

impl RangeRecord {
    fn of(bytes: Option<&[u8]>) -> Self {
        let range = bytes.and_then(BufferRange::of);
        range.map_or(Self { ticket: [0; Ticket::BYTES], offset: 0 }, |range| Self {
            ticket: range.ticket.encode(),
            offset: range.offset,
        })
    }

    fn is_shared(&self) -> bool {
        Ticket::decode(&self.ticket).is_some()
    }

    /// Maps the buffer; `None` if it cannot be mapped, or has no such range.
    fn map(&self, bytes: usize, mapped: &mut MappedBuffers) -> Option<MappedTensor> {
        let ticket = Ticket::decode(&self.ticket)?;
        let buffer = mapped.find(&ticket).inspect_err(|error| {
            tracing::debug!(%error, "mapping a shared buffer failed: the collective uses slots");
        });
        let buffer = buffer.ok()?;
        buffer.payload(self.offset, bytes)?;
        Some(MappedTensor { buffer, offset: self.offset })
    }
}

impl MappedTensor {
    #[inline]
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        let bytes = self.buffer.payload(self.offset + range.start as u64, range.len());
        bytes.expect("the range was checked when the buffer was mapped")
    }
}

impl RankTensors {
    #[inline]
    pub(super) fn input(&self, range: Range<usize>) -> &[u8] {
        self.input.bytes(range)
    }

    #[inline]
    pub(super) fn output(&self, range: Range<usize>) -> &[u8] {
        self.output.as_ref().expect("the output was mapped").bytes(range)
    }
}

impl<'p> SharedOperands<'p> {
    /// The size of an announcement, which has to fit a slot.
    pub(super) const BYTES: usize = size_of::<Announcement>();

    pub(super) fn new(
        (me, world): (Rank, usize),
        operands: &Operands<'_>,
        bytes: (usize, Option<usize>),
        mapped: &'p RefCell<MappedBuffers>,
    ) -> Self {
        let announcement = Announcement {
            input: RangeRecord::of(operands.one_input()),
            output: RangeRecord::of(operands.one_output().filter(|_| bytes.1.is_some())),
        };
        let are_shared = Self::is_shared(&announcement, bytes.1.is_some());
        let tensors = Vec::with_capacity(world);
        Self { me, world, announcement, bytes, mapped, are_shared, is_refused: false, tensors }
    }

    fn is_shared(announcement: &Announcement, has_output: bool) -> bool {
        announcement.input.is_shared() && (!has_output || announcement.output.is_shared())
    }

    fn map(&self, announcement: &Announcement, mapped: &mut MappedBuffers) -> Option<RankTensors> {
        let input = announcement.input.map(self.bytes.0, mapped)?;
        let output = match self.bytes.1 {
            None => None,
            Some(bytes) => Some(announcement.output.map(bytes, mapped)?),
        };
        Some(RankTensors { input, output })
    }
}

impl Chunks for SharedOperands<'_> {
    fn count(&self) -> u64 {
        1
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        Some(Self::BYTES)
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    fn reads(&self) -> bool {
        true
    }

    fn fill(&mut self, _chunk: u64, slot: &mut [u8]) {
        slot.copy_from_slice(self.announcement.as_bytes());
    }

    fn read(&mut self, _chunk: u64, others: OtherSlots<'_>) {
        let mut announcements = vec![self.announcement; self.world];
        for rank in Ranks::all(self.world).without(self.me) {
            let mut bytes = [0; Self::BYTES];
            others.copy(rank, &mut bytes);
            let announcement: Announcement = zerocopy::transmute!(bytes);
            self.are_shared &= Self::is_shared(&announcement, self.bytes.1.is_some());
            announcements[rank.index()] = announcement;
        }
        let mut mapped = self.mapped.borrow_mut();
        mapped.drop_freed();
        if !self.are_shared {
            return;
        }
        for (rank, announcement) in announcements.iter().enumerate() {
            let is_other = rank != self.me.index();
            let tensors = is_other.then(|| self.map(announcement, &mut mapped)).flatten();
            self.is_refused |= is_other && tensors.is_none();
            self.tensors.push(tensors);
        }
    }
}
