//! What kernels are given: plain values of addresses and numbers, laid out as the device headers declare them.
//!
//! All that changes lies behind the addresses, so a handle may be copied. Sizes are multiples of 8, as is every address.

use crate::port::abort_page::ABORT_PAGE_BYTES;

/// The size of a FIFO's handle.
pub const FIFO_HANDLE_BYTES: usize = 48;
/// The size of the handle of a semaphore that the host signals.
pub const HOST_SEMAPHORE_HANDLE_BYTES: usize = 32;
/// The size of the handle of a semaphore that kernels signal.
pub const MEMORY_SEMAPHORE_HANDLE_BYTES: usize = 40;
/// The size of a memory channel's handle.
pub const MEMORY_CHANNEL_HANDLE_BYTES: usize = 64;
/// The size of the handle of a port channel that is told the memories with each put.
pub const BASE_PORT_CHANNEL_HANDLE_BYTES: usize = 88;
/// The size of a port channel's handle.
pub const PORT_CHANNEL_HANDLE_BYTES: usize = 96;

/// What kernels push triggers with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FifoHandle {
    /// The slots.
    pub triggers: u64,
    /// How many were pushed.
    pub head: u64,
    /// How many were popped.
    pub tail: u64,
    /// How many were, when a kernel looked last.
    pub tail_cache: u64,
    /// The page that ends waits.
    pub abort_page: u64,
    /// How many slots there are.
    pub size: i32,
}

/// What kernels wait with for signals of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSemaphoreHandle {
    /// The word that counts signals.
    pub inbound: u64,
    /// How many were waited for.
    pub expected: u64,
    /// The page that ends waits.
    pub abort_page: u64,
    /// The rank that signals.
    pub peer: i32,
}

/// What kernels wait and signal with, through memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySemaphoreHandle {
    /// The word that counts signals.
    pub inbound: u64,
    /// The same of the other side, as it is mapped here.
    pub remote_inbound: u64,
    /// How many were waited for.
    pub expected: u64,
    /// The page that ends waits.
    pub abort_page: u64,
    /// The rank on the other side.
    pub peer: i32,
}

/// What kernels write to mapped memory of another rank with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryChannelHandle {
    /// The semaphore.
    pub semaphore: MemorySemaphoreHandle,
    /// Memory of the other side.
    pub target: u64,
    /// Memory of this side.
    pub source: u64,
    /// Where packets of the other side arrive; 0 if none do.
    pub packet_buffer: u64,
}

/// What kernels ask a proxy with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BasePortChannelHandle {
    /// The semaphore's number in the proxy.
    pub semaphore_id: u32,
    /// The semaphore.
    pub semaphore: HostSemaphoreHandle,
    /// The proxy's FIFO.
    pub fifo: FifoHandle,
}

/// The same, between two memories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortChannelHandle {
    /// What it asks with.
    pub base: BasePortChannelHandle,
    /// The number of the memory that is written.
    pub target_id: u32,
    /// The number of the memory that is read.
    pub source_id: u32,
}

impl FifoHandle {
    /// As kernels read it.
    pub fn bytes(&self) -> [u8; FIFO_HANDLE_BYTES] {
        let words = [self.triggers, self.head, self.tail, self.tail_cache, self.abort_page];
        laid_out(&[&flat(&words), &padded(self.size)])
    }
}

impl HostSemaphoreHandle {
    /// As kernels read it.
    pub fn bytes(&self) -> [u8; HOST_SEMAPHORE_HANDLE_BYTES] {
        laid_out(&[&flat(&[self.inbound, self.expected, self.abort_page]), &padded(self.peer)])
    }
}

impl MemorySemaphoreHandle {
    /// As kernels read it.
    pub fn bytes(&self) -> [u8; MEMORY_SEMAPHORE_HANDLE_BYTES] {
        let words = [self.inbound, self.remote_inbound, self.expected, self.abort_page];
        laid_out(&[&flat(&words), &padded(self.peer)])
    }
}

impl MemoryChannelHandle {
    /// As kernels read it.
    pub fn bytes(&self) -> [u8; MEMORY_CHANNEL_HANDLE_BYTES] {
        laid_out(&[&self.semaphore.bytes(), &flat(&[self.target, self.source, self.packet_buffer])])
    }
}

impl BasePortChannelHandle {
    /// As kernels read it.
    pub fn bytes(&self) -> [u8; BASE_PORT_CHANNEL_HANDLE_BYTES] {
        laid_out(&[&padded(self.semaphore_id as i32), &self.semaphore.bytes(), &self.fifo.bytes()])
    }
}

impl PortChannelHandle {
    /// As kernels read it.
    pub fn bytes(&self) -> [u8; PORT_CHANNEL_HANDLE_BYTES] {
        let ids = [self.target_id.to_le_bytes(), self.source_id.to_le_bytes()].concat();
        laid_out(&[&self.base.bytes(), &ids])
    }
}

/// The name in the device headers of each handle, and of what it points to, and its size.
pub const HANDLE_SIZES: [(&str, usize); 8] = [
    ("AbortPage", ABORT_PAGE_BYTES),
    ("ProxyTrigger", 16),
    ("FifoDeviceHandle", FIFO_HANDLE_BYTES),
    ("Host2DeviceSemaphoreDeviceHandle", HOST_SEMAPHORE_HANDLE_BYTES),
    ("MemoryDevice2DeviceSemaphoreDeviceHandle", MEMORY_SEMAPHORE_HANDLE_BYTES),
    ("MemoryChannelDeviceHandle", MEMORY_CHANNEL_HANDLE_BYTES),
    ("BasePortChannelDeviceHandle", BASE_PORT_CHANNEL_HANDLE_BYTES),
    ("PortChannelDeviceHandle", PORT_CHANNEL_HANDLE_BYTES),
];

/// Parts one behind the other; together they are as long as the handle.
fn laid_out<const BYTES: usize>(parts: &[&[u8]]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    assert_eq!(at, BYTES, "a handle has the size that kernels expect");
    bytes
}

fn flat(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A number, and zeros up to 8 bytes.
fn padded(number: i32) -> [u8; 8] {
    u64::from(number as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_their_parts_where_kernels_look() {
        let fifo = FifoHandle { triggers: 1, head: 2, tail: 3, tail_cache: 4, abort_page: 5, size: 6 };
        let semaphore = HostSemaphoreHandle { inbound: 11, expected: 12, abort_page: 13, peer: -1 };
        let base = BasePortChannelHandle { semaphore_id: 9, semaphore, fifo };
        let channel = PortChannelHandle { base, target_id: 7, source_id: 8 }.bytes();
        let word = |at: usize| u64::from_le_bytes(channel[at..at + 8].try_into().unwrap());
        assert_eq!(word(0), 9);
        assert_eq!([word(8), word(16), word(24), word(32)], [11, 12, 13, u64::from(u32::MAX)]);
        assert_eq!([40, 48, 56, 64, 72, 80].map(word), [1, 2, 3, 4, 5, 6]);
        assert_eq!(word(88), 7 | 8 << 32);

        let semaphore =
            MemorySemaphoreHandle { inbound: 1, remote_inbound: 2, expected: 3, abort_page: 4, peer: 5 };
        let channel = MemoryChannelHandle { semaphore, target: 6, source: 7, packet_buffer: 8 }.bytes();
        let words: Vec<u64> =
            channel.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn sizes_are_multiples_of_eight() {
        assert!(HANDLE_SIZES.iter().all(|(_, bytes)| bytes.is_multiple_of(8)));
    }
}
