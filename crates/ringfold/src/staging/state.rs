//! Stages shared states with tensors on CUDA devices, which are hashed there and copied only if somebody needs them.

use crate::Error;
use crate::shared_state::{StateMemory, StateTensor, SyncedTensor, TensorBytes, TensorContent, hash_all};
use crate::transfer::Fetched;
use core::ops::Range;
use ringfold_cuda::nvrtc::Compiler;
use ringfold_cuda::{
    CudaError, DefaultStreamMark, DeviceMemory, Download, Leaf, UploadPiece, default_cache, hash_leaves,
    upload,
};
use ringfold_fabric::memory::Memory;
use ringfold_kernels::{LEAF_BYTES, LeafHash, leaf_hash, root_hash};
use ringfold_proto::shared_state::StateEntry;
use std::sync::Arc;

pub(crate) struct StagedState {
    pub(crate) entries: Vec<StateEntry>,
    pub(crate) tensors: Vec<SyncedTensor>,
    pub(crate) targets: DeviceTargets,
}

/// The device memory of tensors.
pub(crate) struct DeviceTargets {
    /// By entry; `None` for host tensors.
    devices: Vec<Option<DeviceMemory>>,
    queued: Arc<DefaultStreamMark>,
}

/// Device memory of a state from which on it is hashed on the device; below, copying it takes about as long.
const DEVICE_HASH_BYTES_MIN: usize = 4 << 20;

impl StagedState {
    /// Hashes all tensors: those on devices there, or while they are downloaded.
    pub(crate) fn new(tensors: Vec<StateTensor>) -> Result<Self, Error> {
        let devices: Vec<_> = tensors.iter().map(|tensor| tensor.memory.on_device().cloned()).collect();
        let queued = Arc::new(DefaultStreamMark::record(devices.iter().flatten())?);
        let on_devices: Vec<_> = devices.iter().flatten().cloned().collect();
        let (hashes, copies) = match hash_on_devices(&on_devices, &queued) {
            Some(hashes) => (hash_rest(&tensors, hashes)?, None),
            None => {
                let (hashes, copies) = hash_downloads(&tensors, on_devices, &queued)?;
                (hashes, Some(copies))
            }
        };
        let mut copies = copies.map(Vec::into_iter);
        let (mut entries, mut synced) = (Vec::with_capacity(hashes.len()), Vec::with_capacity(hashes.len()));
        for (tensor, hash) in tensors.into_iter().zip(hashes) {
            let count = tensor.count();
            let StateTensor { key, dtype, memory, allow_content_inequality } = tensor;
            let content = match (memory, &mut copies) {
                (StateMemory::Host(memory), _) => memory.into(),
                (StateMemory::Device(memory), None) => TensorContent::on_device(memory, queued.clone()),
                (StateMemory::Device(_), Some(copies)) => copies
                    .next()
                    .ok_or_else(|| Error::Internal("the download of a tensor is missing".into()))?
                    .into(),
            };
            entries.push(StateEntry { key: key.clone(), dtype, count, allow_content_inequality, hash });
            synced.push(SyncedTensor { key, dtype, content });
        }
        Ok(Self { entries, tensors: synced, targets: DeviceTargets { devices, queued } })
    }
}

/// The hashes of tensors on devices, computed there; none if they are small, or that is not possible.
fn hash_on_devices(tensors: &[DeviceMemory], queued: &DefaultStreamMark) -> Option<Vec<u128>> {
    if tensors.iter().map(DeviceMemory::len).sum::<usize>() < DEVICE_HASH_BYTES_MIN {
        return None;
    }
    let compiler = Compiler::load(None).map_err(|error| CudaError::Unsupported(error.to_string()));
    let leaves = compiler
        .and_then(|compiler| hash_leaves(tensors, LEAF_BYTES, queued, compiler, default_cache().as_deref()));
    match leaves {
        Ok(leaves) => Some(tensors.iter().zip(leaves).map(|(tensor, leaves)| root(tensor, leaves)).collect()),
        Err(error) => {
            tracing::info!(%error, "failed to hash tensors on their device: hashing them on the host");
            None
        }
    }
}

fn root(tensor: &DeviceMemory, leaves: Vec<Leaf>) -> u128 {
    let hash = |leaf| match leaf {
        Leaf::Hash(hash) => LeafHash(hash),
        Leaf::Short(bytes) => leaf_hash(&bytes),
    };
    root_hash(&leaves.into_iter().map(hash).collect::<Vec<_>>(), tensor.len() as u64).0
}

/// Hashes tensors in host memory, and inserts the hashes of the others, in the order of the state.
fn hash_rest(tensors: &[StateTensor], on_devices: Vec<u128>) -> Result<Vec<u128>, Error> {
    let on_host: Vec<_> = tensors.iter().filter_map(|tensor| tensor.memory.on_host()).collect();
    let on_host = hash_all(&on_host.iter().map(|memory| memory as &dyn TensorBytes).collect::<Vec<_>>())?;
    let (mut on_host, mut on_devices) = (on_host.into_iter(), on_devices.into_iter());
    let next = |tensor: &StateTensor| match tensor.memory {
        StateMemory::Host(_) => on_host.next(),
        StateMemory::Device(_) => on_devices.next(),
    };
    let all: Option<Vec<_>> = tensors.iter().map(next).collect();
    all.ok_or_else(|| Error::Internal("the hash of a tensor is missing".into()))
}

/// Downloads tensors from devices, and hashes all tensors meanwhile. Returns the downloaded ones, too.
fn hash_downloads(
    tensors: &[StateTensor],
    on_devices: Vec<DeviceMemory>,
    queued: &DefaultStreamMark,
) -> Result<(Vec<u128>, Vec<Memory>), Error> {
    let download = Download::start(on_devices, queued)?;
    let hashes = {
        let mut next = 0..;
        let bytes: Vec<_> = tensors.iter().map(|t| bytes_of(&t.memory, &download, &mut next)).collect();
        hash_all(&bytes.iter().map(|bytes| &**bytes).collect::<Vec<_>>())?
    };
    Ok((hashes, download.finish()?))
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
