//! Stages shared states with tensors on CUDA devices, and hashes them while they are downloaded.

use crate::Error;
use crate::shared_state::{HostTensor, StateMemory, StateTensor, TensorBytes, hash_all};
use crate::transfer::Fetched;
use core::ops::Range;
use ringfold_cuda::{DefaultStreamMark, DeviceMemory, Download, UploadPiece, upload};
use ringfold_fabric::memory::Memory;
use ringfold_proto::shared_state::StateEntry;

pub(crate) struct StagedState {
    pub(crate) entries: Vec<StateEntry>,
    pub(crate) tensors: Vec<HostTensor>,
    pub(crate) targets: DeviceTargets,
}

/// The device memory of the tensors that were copied to the host.
pub(crate) struct DeviceTargets {
    /// By entry; `None` for host tensors.
    devices: Vec<Option<DeviceMemory>>,
    queued: DefaultStreamMark,
}

impl StagedState {
    /// Downloads tensors from devices, and hashes all tensors meanwhile.
    pub(crate) fn new(tensors: Vec<StateTensor>) -> Result<Self, Error> {
        let devices: Vec<_> = tensors.iter().map(|tensor| tensor.memory.on_device().cloned()).collect();
        let queued = DefaultStreamMark::record(devices.iter().flatten())?;
        let download = Download::start(devices.iter().flatten().cloned().collect(), &queued)?;
        let hashes = {
            let mut next = 0..;
            let bytes: Vec<_> = tensors.iter().map(|t| bytes_of(&t.memory, &download, &mut next)).collect();
            hash_all(&bytes.iter().map(|bytes| &**bytes).collect::<Vec<_>>())?
        };
        let mut copies = download.finish()?.into_iter();
        let (mut entries, mut on_host) = (Vec::with_capacity(hashes.len()), Vec::with_capacity(hashes.len()));
        for (tensor, hash) in tensors.into_iter().zip(hashes) {
            let count = tensor.count();
            let StateTensor { key, dtype, memory, allow_content_inequality } = tensor;
            let memory = match memory {
                StateMemory::Host(memory) => memory,
                StateMemory::Device(_) => copies
                    .next()
                    .ok_or_else(|| Error::Internal("the download of a tensor is missing".into()))?,
            };
            entries.push(StateEntry { key: key.clone(), dtype, count, allow_content_inequality, hash });
            on_host.push(HostTensor { key, dtype, memory });
        }
        Ok(Self { entries, tensors: on_host, targets: DeviceTargets { devices, queued } })
    }
}

impl DeviceTargets {
    pub(crate) fn upload(&self, fetched: &[Fetched]) -> Result<(), Error> {
        let mut pieces = Vec::new();
        for Fetched { entry, offset, memory } in fetched {
            if let Some(target) = &self.devices[*entry] {
                pieces.push(UploadPiece { target, offset: *offset, bytes: memory.as_slice() });
            }
        }
        Ok(upload(&pieces, &self.queued)?)
    }
}

fn bytes_of<'a>(
    memory: &'a StateMemory,
    download: &'a Download,
    sources: &mut impl Iterator<Item = usize>,
) -> Box<dyn TensorBytes + 'a> {
    match memory {
        StateMemory::Host(memory) => Box::new(memory),
        StateMemory::Device(memory) => Box::new(DownloadedBytes {
            download,
            source: sources.next().unwrap_or_default(),
            bytes: memory.len(),
        }),
    }
}

impl TensorBytes for &Memory {
    fn len(&self) -> usize {
        Memory::len(self)
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn wait_for(&self, range: Range<usize>) -> Result<&[u8], Error> {
        Ok(&self.as_slice()[range])
    }
}

struct DownloadedBytes<'a> {
    download: &'a Download,
    source: usize,
    bytes: usize,
}

impl TensorBytes for DownloadedBytes<'_> {
    fn len(&self) -> usize {
        self.bytes
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn wait_for(&self, range: Range<usize>) -> Result<&[u8], Error> {
        Ok(self.download.wait_for(self.source, range)?)
    }
}
