//! The handles of kernels: plain values, laid out as the device headers declare them.
//!
//! Mutable state is behind pointers, so handles may be copied. All sizes and pointers are multiples of 8.

use crate::port::abort_page::ABORT_PAGE_BYTES;
use zerocopy::{Immutable, IntoBytes};

/// A 32-bit number, padded to eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Padded {
    number: i32,
    zeros: u32,
}

impl From<i32> for Padded {
    fn from(number: i32) -> Self {
        Self { number, zeros: 0 }
    }
}

/// The handle to push triggers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct FifoHandle {
    /// The slots.
    pub triggers: u64,
    /// The number of pushed triggers.
    pub head: u64,
    /// The number of popped triggers.
    pub tail: u64,
    /// The last tail that a kernel has read.
    pub tail_cache: u64,
    /// The abort page.
    pub abort_page: u64,
    /// The most triggers that are pushed and not popped.
    pub size: i32,
    /// The number of slots is two to this power.
    pub slot_bits: u32,
}

/// The handle to wait for signals of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct HostSemaphoreHandle {
    /// The word that counts signals.
    pub inbound: u64,
    /// The number of consumed signals.
    pub expected: u64,
    /// The abort page.
    pub abort_page: u64,
    /// The rank that signals.
    pub peer: Padded,
}

/// The handle to wait and signal through memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct MemorySemaphoreHandle {
    /// The word that counts signals.
    pub inbound: u64,
    /// The peer's word, mapped in this process.
    pub remote_inbound: u64,
    /// The number of consumed signals.
    pub expected: u64,
    /// The abort page.
    pub abort_page: u64,
    /// The peer's rank.
    pub peer: Padded,
}

/// The handle to access mapped memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct MemoryChannelHandle {
    /// The semaphore.
    pub semaphore: MemorySemaphoreHandle,
    /// The peer's memory.
    pub target: u64,
    /// This rank's memory.
    pub source: u64,
    /// Where the peer's packets arrive; 0 if unused.
    pub packet_buffer: u64,
}

/// The handle to push requests to a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct BasePortChannelHandle {
    /// The semaphore's id in the proxy.
    pub semaphore_id: Padded,
    /// The semaphore.
    pub semaphore: HostSemaphoreHandle,
    /// The proxy's FIFO.
    pub fifo: FifoHandle,
}

/// The handle to push requests between two fixed memories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct PortChannelHandle {
    /// The base handle.
    pub base: BasePortChannelHandle,
    /// The id of the target memory.
    pub target_id: u32,
    /// The id of the source memory.
    pub source_id: u32,
}

/// A handle as bytes.
pub trait HandleBytes {
    /// The bytes that kernels read.
    fn bytes(&self) -> &[u8];
}

impl<T: IntoBytes + Immutable> HandleBytes for T {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Name in the device headers and size of each handle, and of the types behind its pointers.
pub const HANDLE_SIZES: [(&str, usize); 8] = [
    ("AbortPage", ABORT_PAGE_BYTES),
    ("ProxyTrigger", 16),
    ("FifoDeviceHandle", size_of::<FifoHandle>()),
    ("Host2DeviceSemaphoreDeviceHandle", size_of::<HostSemaphoreHandle>()),
    ("MemoryDevice2DeviceSemaphoreDeviceHandle", size_of::<MemorySemaphoreHandle>()),
    ("MemoryChannelDeviceHandle", size_of::<MemoryChannelHandle>()),
    ("BasePortChannelDeviceHandle", size_of::<BasePortChannelHandle>()),
    ("PortChannelDeviceHandle", size_of::<PortChannelHandle>()),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_the_layout_of_the_device_headers() {
        let fifo =
            FifoHandle { triggers: 1, head: 2, tail: 3, tail_cache: 4, abort_page: 5, size: 6, slot_bits: 3 };
        let semaphore = HostSemaphoreHandle { inbound: 11, expected: 12, abort_page: 13, peer: (-1).into() };
        let base = BasePortChannelHandle { semaphore_id: 9.into(), semaphore, fifo };
        let channel = PortChannelHandle { base, target_id: 7, source_id: 8 };
        let channel = channel.bytes();
        let word = |at: usize| u64::from_le_bytes(channel[at..at + 8].try_into().unwrap());
        assert_eq!(word(0), 9);
        assert_eq!([word(8), word(16), word(24), word(32)], [11, 12, 13, u64::from(u32::MAX)]);
        assert_eq!([40, 48, 56, 64, 72, 80].map(word), [1, 2, 3, 4, 5, 6 | 3 << 32]);
        assert_eq!(word(88), 7 | 8 << 32);

        let semaphore = MemorySemaphoreHandle {
            inbound: 1,
            remote_inbound: 2,
            expected: 3,
            abort_page: 4,
            peer: 5.into(),
        };
        let channel = MemoryChannelHandle { semaphore, target: 6, source: 7, packet_buffer: 8 };
        let channel = channel.bytes();
        let words: Vec<u64> =
            channel.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn sizes_are_those_of_the_device_headers() {
        let sizes = HANDLE_SIZES.map(|(_, bytes)| bytes);
        assert_eq!(sizes[2..], [48, 32, 40, 64, 88, 96]);
    }
}
