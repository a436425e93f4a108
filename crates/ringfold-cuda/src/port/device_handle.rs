//! What kernels are given: plain values of addresses and numbers, laid out as the device headers declare them.
//!
//! All that changes lies behind the addresses, so a handle may be copied. Sizes are multiples of 8, as is every address.

use crate::port::abort_page::ABORT_PAGE_BYTES;
use zerocopy::{Immutable, IntoBytes};

/// A number of four bytes, and zeros up to eight.
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

/// What kernels push triggers with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
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
    pub size: Padded,
}

/// What kernels wait with for signals of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct HostSemaphoreHandle {
    /// The word that counts signals.
    pub inbound: u64,
    /// How many were waited for.
    pub expected: u64,
    /// The page that ends waits.
    pub abort_page: u64,
    /// The rank that signals.
    pub peer: Padded,
}

/// What kernels wait and signal with, through memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
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
    pub peer: Padded,
}

/// What kernels write to mapped memory of another rank with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct BasePortChannelHandle {
    /// The semaphore's number in the proxy.
    pub semaphore_id: Padded,
    /// The semaphore.
    pub semaphore: HostSemaphoreHandle,
    /// The proxy's FIFO.
    pub fifo: FifoHandle,
}

/// The same, between two memories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct PortChannelHandle {
    /// What it asks with.
    pub base: BasePortChannelHandle,
    /// The number of the memory that is written.
    pub target_id: u32,
    /// The number of the memory that is read.
    pub source_id: u32,
}

macro_rules! handles {
    ($($name:ident),*) => {$(
        impl $name {
            /// As kernels read it.
            pub fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }
        }
    )*};
}
handles!(
    FifoHandle,
    HostSemaphoreHandle,
    MemorySemaphoreHandle,
    MemoryChannelHandle,
    BasePortChannelHandle,
    PortChannelHandle
);

/// The name in the device headers of each handle, and of what it points to, and its size.
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
    fn handles_have_their_parts_where_kernels_look() {
        let fifo = FifoHandle { triggers: 1, head: 2, tail: 3, tail_cache: 4, abort_page: 5, size: 6.into() };
        let semaphore = HostSemaphoreHandle { inbound: 11, expected: 12, abort_page: 13, peer: (-1).into() };
        let base = BasePortChannelHandle { semaphore_id: 9.into(), semaphore, fifo };
        let channel = PortChannelHandle { base, target_id: 7, source_id: 8 };
        let channel = channel.bytes();
        let word = |at: usize| u64::from_le_bytes(channel[at..at + 8].try_into().unwrap());
        assert_eq!(word(0), 9);
        assert_eq!([word(8), word(16), word(24), word(32)], [11, 12, 13, u64::from(u32::MAX)]);
        assert_eq!([40, 48, 56, 64, 72, 80].map(word), [1, 2, 3, 4, 5, 6]);
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
