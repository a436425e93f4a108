//! The encoded description of registered memory.

use super::transport::TransportFlags;
use ringfold_fabric::channel::Handle;
use ringfold_fabric::shared_memory::FileTicket;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The description of registered memory that peers need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MemoryRecord {
    /// The id of the host.
    pub(super) host: u64,
    /// The id of the process.
    pub(super) process: u128,
    /// The id of the port.
    pub(super) port: u128,
    /// The memory's id in its process.
    pub(super) id: u64,
    /// The address in its process.
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) transports: TransportFlags,
    /// Whether it is device memory.
    pub(super) is_device: bool,
    /// The file to map it from.
    pub(super) file: Option<FileTicket>,
    /// Its handle on TCP connections.
    pub(super) segment: Option<Handle>,
    /// The encoded `IpcRecord` of device memory.
    pub(super) ipc: Option<Vec<u8>>,
}

const MAGIC: [u8; 4] = *b"RFm1";

/// The largest encoded `IpcRecord`.
const IPC_BYTES_MAX: usize = 256;

const IS_DEVICE: u32 = 1;
const HAS_FILE: u32 = 2;
const HAS_SEGMENT: u32 = 4;

/// The layout of a record. File ticket, segment handle and IPC record follow.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct MemoryHeader {
    magic: [u8; 4],
    flags: U32,
    host: U64,
    process: U128,
    port: U128,
    id: U64,
    address: U64,
    bytes: U64,
    transports: U32,
    ipc_bytes: U32,
}

impl MemoryRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |is: bool, bit: u32| if is { bit } else { 0 };
        let flags = flag(self.is_device, IS_DEVICE)
            | flag(self.file.is_some(), HAS_FILE)
            | flag(self.segment.is_some(), HAS_SEGMENT);
        let ipc = self.ipc.as_deref().unwrap_or_default();
        let header = MemoryHeader {
            magic: MAGIC,
            flags: flags.into(),
            host: self.host.into(),
            process: self.process.into(),
            port: self.port.into(),
            id: self.id.into(),
            address: self.address.into(),
            bytes: self.bytes.into(),
            transports: self.transports.bits().into(),
            ipc_bytes: (ipc.len() as u32).into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(self.file.iter().flat_map(FileTicket::encode));
        bytes.extend(self.segment.iter().flat_map(Handle::encode));
        bytes.extend(ipc);
        bytes
    }

    /// Decodes a record; none if the bytes are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = MemoryHeader::read_from_prefix(bytes).ok()?;
        let flags = header.flags.get();
        if header.magic != MAGIC || flags & !(IS_DEVICE | HAS_FILE | HAS_SEGMENT) != 0 {
            return None;
        }
        let (mut file, mut segment) = (None, None);
        if flags & HAS_FILE != 0 {
            file = Some(FileTicket::decode(chunk(&mut rest)?));
        }
        if flags & HAS_SEGMENT != 0 {
            segment = Some(Handle::decode(chunk(&mut rest)?));
        }
        let (address, bytes, ipc_bytes) =
            (header.address.get(), header.bytes.get(), header.ipc_bytes.get() as usize);
        // No address within the memory may wrap around.
        address.checked_add(bytes)?;
        let is_valid = rest.len() == ipc_bytes
            && ipc_bytes <= IPC_BYTES_MAX
            && file.is_none_or(|file: FileTicket| file.bytes == bytes)
            && segment.is_none_or(|segment: Handle| segment.bytes() == bytes);
        let transports = TransportFlags::from_bits(header.transports.get())?;
        is_valid.then(|| Self {
            host: header.host.get(),
            process: header.process.get(),
            port: header.port.get(),
            id: header.id.get(),
            address,
            bytes,
            transports,
            is_device: flags & IS_DEVICE != 0,
            file,
            segment,
            ipc: (!rest.is_empty()).then(|| rest.to_vec()),
        })
    }
}

fn chunk<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (chunk, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(chunk)
}

#[cfg(test)]
pub(crate) mod tests;
