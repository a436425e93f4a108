//! The memory of slots: frames that arrived and were not read.

use crate::limits;
use ringfold_proto::limits::PAYLOAD_BYTES_MAX;

/// A frame's payload.
#[derive(Debug)]
pub struct SlotBuffer {
    block: Box<[u8]>,
    bytes: usize,
}

impl SlotBuffer {
    /// The payload.
    pub fn as_slice(&self) -> &[u8] {
        &self.block[..self.bytes]
    }

    /// The payload, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.block[..self.bytes]
    }
}

/// Blocks that are not in use, by size. Steady state allocates nothing.
#[derive(Debug)]
pub struct SlotPool {
    spare: [Vec<Box<[u8]>>; SIZES.len()],
    spare_bytes: usize,
}

/// The sizes of blocks.
const SIZES: [usize; 4] = [256, 8 * 1024, 128 * 1024 + 64, PAYLOAD_BYTES_MAX];

impl Default for SlotPool {
    fn default() -> Self {
        Self { spare: SIZES.map(|_| Vec::new()), spare_bytes: 0 }
    }
}

impl SlotPool {
    /// Memory for a payload of so many bytes, which a header's check has bounded.
    pub fn take(&mut self, bytes: usize) -> SlotBuffer {
        let size = SIZES.iter().position(|size| bytes <= *size).expect("payloads are bounded");
        let block = self.spare[size].pop();
        if block.is_some() {
            self.spare_bytes -= SIZES[size];
        }
        SlotBuffer { block: block.unwrap_or_else(|| vec![0; SIZES[size]].into_boxed_slice()), bytes }
    }

    /// Memory that is no longer needed.
    pub fn give_back(&mut self, buffer: SlotBuffer) {
        let bytes = buffer.block.len();
        if self.spare_bytes + bytes <= limits::SPARE_SLOT_BYTES_MAX
            && let Some(size) = SIZES.iter().position(|size| *size == bytes)
        {
            self.spare[size].push(buffer.block);
            self.spare_bytes += bytes;
        }
    }
}
