//! From the host to devices.

use crate::device::Device;
use crate::device_memory::DeviceMemory;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::queued::Queued;

/// Bytes, and where they go.
pub struct Piece<'a> {
    /// The memory that is written.
    pub target: &'a DeviceMemory,
    /// Where in it.
    pub offset: usize,
    /// What is written there; fastest from page-locked memory.
    pub bytes: &'a [u8],
}

/// Copies all, after what was queued, and returns when everything is in place. After an error any part of it may be.
///
/// # Panics
/// If a piece does not fit into its target.
pub fn upload(pieces: &[Piece<'_>], after: &Queued) -> Result<(), CudaError> {
    for Piece { target, offset, bytes } in pieces {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= target.len());
        assert!(fits, "{} bytes at {offset} are not in {target:?}", bytes.len());
    }
    let mut devices: Vec<&'static Device> = Vec::new();
    let result = pieces.iter().try_for_each(|piece| queue(piece, after, &mut devices));
    let result = result.and_then(|()| {
        let ends = devices.iter().map(|device| device.up.mark());
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        ends.iter().try_for_each(Event::wait)
    });
    // The bytes are only lent: nothing may read them once this has returned.
    result.inspect_err(|_| devices.iter().for_each(|device| device.up.drain()))
}

fn queue(piece: &Piece<'_>, after: &Queued, devices: &mut Vec<&'static Device>) -> Result<(), CudaError> {
    let Piece { target, offset, bytes } = *piece;
    let Some(device) = target.device().filter(|_| !bytes.is_empty()) else { return Ok(()) };
    let _current = device.current()?;
    if devices.iter().all(|other| other.ordinal != device.ordinal) {
        after.before(&device.up, device.ordinal)?;
        devices.push(device);
    }
    let address = target.address() + offset as u64;
    // SAFETY: both ends have so many bytes, and `upload` waits before it lets go of either.
    let code = unsafe { (device.api.copy_up)(address, bytes.as_ptr().cast(), bytes.len(), device.up.handle) };
    check(device.api, "copying to a CUDA device", code)
}
