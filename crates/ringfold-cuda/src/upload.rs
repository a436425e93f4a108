//! Copies from the host to devices.

use crate::default_stream_mark::DefaultStreamMark;
use crate::device::Device;
use crate::device_memory::DeviceMemory;
use crate::error::{CudaError, check};
use crate::event::Event;

/// Bytes to copy, and their destination.
pub struct UploadPiece<'a> {
    /// The memory to write.
    pub target: &'a DeviceMemory,
    /// The offset in it.
    pub offset: usize,
    /// The data; fastest from page-locked memory.
    pub bytes: &'a [u8],
}

/// Copies all pieces, after the mark, and waits for them. After an error any part may have been written.
///
/// # Panics
/// If a piece does not fit into its target.
pub fn upload(pieces: &[UploadPiece<'_>], after: &DefaultStreamMark) -> Result<(), CudaError> {
    for UploadPiece { target, offset, bytes } in pieces {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= target.len());
        assert!(fits, "{} bytes at offset {offset} are out of bounds of {target:?}", bytes.len());
    }
    let mut devices: Vec<&'static Device> = Vec::new();
    let result = pieces.iter().try_for_each(|piece| queue(piece, after, &mut devices));
    let result = result.and_then(|()| {
        let ends = devices.iter().map(|device| device.upload_stream.record_event());
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        ends.iter().try_for_each(Event::wait)
    });
    // The bytes are borrowed: no copy may read them after the return.
    result.inspect_err(|_| devices.iter().for_each(|device| device.upload_stream.drain()))
}

fn queue(
    piece: &UploadPiece<'_>,
    after: &DefaultStreamMark,
    devices: &mut Vec<&'static Device>,
) -> Result<(), CudaError> {
    let UploadPiece { target, offset, bytes } = *piece;
    let Some(device) = target.device().filter(|_| !bytes.is_empty()) else { return Ok(()) };
    let _current = device.current()?;
    if devices.iter().all(|other| other.ordinal != device.ordinal) {
        after.make_wait(&device.upload_stream, device.ordinal)?;
        devices.push(device);
    }
    let address = target.address() + offset as u64;
    // SAFETY: source and target have so many bytes, and `upload` waits for the copy.
    let code = unsafe {
        (device.api.copy_up)(address, bytes.as_ptr().cast(), bytes.len(), device.upload_stream.handle)
    };
    check(device.api, "copying to a CUDA device", code)
}
