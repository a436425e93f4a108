//! The memory of slots: payloads that have arrived.

use crate::limits;
use crate::shared_ring::Cells;
use ringfold_proto::limits::PAYLOAD_BYTES_MAX;

/// A frame's payload, in memory of this process or in the cells of its sender.
#[derive(Debug)]
pub struct SlotBuffer {
    memory: SlotMemory,
    bytes: usize,
}

#[derive(Debug)]
enum SlotMemory {
    Block(Box<[u8]>),
    /// Released when dropped.
    Cells(Cells),
}

impl SlotBuffer {
    /// No payload at all.
    pub fn empty() -> Self {
        Self { memory: SlotMemory::Block(Box::default()), bytes: 0 }
    }

    /// The payload.
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            SlotMemory::Block(block) => &block[..self.bytes],
            SlotMemory::Cells(cells) => cells.as_slice(),
        }
    }

    /// The payload, to be filled. Empty for cells, which are full.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.memory {
            SlotMemory::Block(block) => &mut block[..self.bytes],
            SlotMemory::Cells(_) => &mut [],
        }
    }
}

impl From<Cells> for SlotBuffer {
    fn from(cells: Cells) -> Self {
        Self { bytes: cells.len(), memory: SlotMemory::Cells(cells) }
    }
}

/// Blocks that are not in use, by size, so that a steady state allocates nothing.
#[derive(Debug)]
pub struct SlotPool {
    spare: [Vec<Box<[u8]>>; SIZES.len()],
    spare_bytes: usize,
    spare_bytes_max: usize,
}

/// The sizes of blocks.
const SIZES: [usize; 4] = [256, 8 * 1024, 128 * 1024 + 64, PAYLOAD_BYTES_MAX];

impl Default for SlotPool {
    fn default() -> Self {
        Self::new(limits::SPARE_SLOT_BYTES_MAX)
    }
}

impl SlotPool {
    /// Keeps at most so many bytes of unused memory.
    pub fn new(spare_bytes_max: usize) -> Self {
        Self { spare: SIZES.map(|_| Vec::new()), spare_bytes: 0, spare_bytes_max }
    }

    /// Memory for a payload, whose size the check of its header has bounded.
    pub fn take(&mut self, bytes: usize) -> SlotBuffer {
        let size = SIZES.iter().position(|size| bytes <= *size).expect("payloads are bounded");
        let block = self.spare[size].pop();
        if block.is_some() {
            self.spare_bytes -= SIZES[size];
        }
        let block = block.unwrap_or_else(|| vec![0; SIZES[size]].into_boxed_slice());
        SlotBuffer { memory: SlotMemory::Block(block), bytes }
    }

    /// Keeps memory that is no longer needed.
    pub fn give_back(&mut self, buffer: SlotBuffer) {
        let SlotMemory::Block(block) = buffer.memory else { return };
        let bytes = block.len();
        if self.spare_bytes + bytes <= self.spare_bytes_max
            && let Some(size) = SIZES.iter().position(|size| *size == bytes)
        {
            self.spare[size].push(block);
            self.spare_bytes += bytes;
        }
    }
}
