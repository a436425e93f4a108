//! A shared state with tensors on devices: they are hashed while they come down, and what was fetched goes up.

use crate::Error;
use crate::shared_state::{Arriving, HostTensor, StateMemory, StateTensor, hash_all};
use crate::transfer::Fetched;
use core::ops::Range;
use ringfold_cuda::{DeviceMemory, Download, Piece, Queued, upload};
use ringfold_fabric::memory::Memory;
use ringfold_proto::shared_state::StateEntry;

/// A shared state whose contents are on the host, hashed.
pub(crate) struct Staged {
    /// What it says of itself.
    pub(crate) entries: Vec<StateEntry>,
    /// Its contents.
    pub(crate) tensors: Vec<HostTensor>,
    /// Where those belong that are copies.
    pub(crate) homes: Homes,
}

/// Where the tensors of a state are, if that is not where they are worked on.
pub(crate) struct Homes {
    devices: Vec<Option<DeviceMemory>>,
    queued: Queued,
}

impl Staged {
    /// Brings down what is on devices, and hashes everything meanwhile.
    pub(crate) fn new(tensors: Vec<StateTensor>) -> Result<Self, Error> {
        let devices: Vec<_> = tensors.iter().map(|tensor| tensor.memory.on_device().cloned()).collect();
        let queued = Queued::now(devices.iter().flatten())?;
        let download = Download::start(devices.iter().flatten().cloned().collect(), &queued)?;
        let hashes = {
            let mut next = 0..;
            let contents: Vec<_> = tensors.iter().map(|t| content(&t.memory, &download, &mut next)).collect();
            hash_all(&contents.iter().map(|content| &**content).collect::<Vec<_>>())?
        };
        let mut copies = download.finish()?.into_iter();
        let (mut entries, mut on_host) = (Vec::with_capacity(hashes.len()), Vec::with_capacity(hashes.len()));
        for (tensor, hash) in tensors.into_iter().zip(hashes) {
            let count = tensor.count();
            let StateTensor { key, dtype, memory, allow_content_inequality } = tensor;
            let memory = match memory {
                StateMemory::Host(memory) => memory,
                StateMemory::Device(_) => {
                    copies.next().ok_or_else(|| Error::Internal("a tensor has not come down".into()))?
                }
            };
            entries.push(StateEntry { key: key.clone(), dtype, count, allow_content_inequality, hash });
            on_host.push(HostTensor { key, dtype, memory });
        }
        Ok(Self { entries, tensors: on_host, homes: Homes { devices, queued } })
    }
}

impl Homes {
    /// Brings up what was fetched for tensors on devices.
    pub(crate) fn receive(&self, fetched: &[Fetched]) -> Result<(), Error> {
        let mut pieces = Vec::new();
        for Fetched { entry, offset, memory } in fetched {
            if let Some(target) = &self.devices[*entry] {
                pieces.push(Piece { target, offset: *offset, bytes: memory.as_slice() });
            }
        }
        Ok(upload(&pieces, &self.queued)?)
    }
}

fn content<'a>(
    memory: &'a StateMemory,
    download: &'a Download,
    sources: &mut impl Iterator<Item = usize>,
) -> Box<dyn Arriving + 'a> {
    match memory {
        StateMemory::Host(memory) => Box::new(Here(memory)),
        StateMemory::Device(memory) => {
            Box::new(Coming { download, source: sources.next().unwrap_or_default(), bytes: memory.len() })
        }
    }
}

/// A tensor on the host.
struct Here<'a>(&'a Memory);

impl Arriving for Here<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_here(&self) -> bool {
        true
    }

    fn arrived(&self, range: Range<usize>) -> Result<&[u8], Error> {
        Ok(&self.0.as_slice()[range])
    }
}

/// A tensor on its way down.
struct Coming<'a> {
    download: &'a Download,
    source: usize,
    bytes: usize,
}

impl Arriving for Coming<'_> {
    fn len(&self) -> usize {
        self.bytes
    }

    fn is_here(&self) -> bool {
        false
    }

    fn arrived(&self, range: Range<usize>) -> Result<&[u8], Error> {
        Ok(self.download.arrived(self.source, range)?)
    }
}
