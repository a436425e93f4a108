//! A copy from a device to the host that is read while it runs.

use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::pinned::Pinned;
use crate::stream_lease::StreamLease;
use ringfold_fabric::memory::{Arrivals, View};
use std::collections::VecDeque;
use std::sync::Arc;

/// A copy in progress of a device memory into page-locked host memory, in pieces of a given order.
///
/// Dropping it waits for all copies.
pub struct PieceDownload {
    stream: StreamLease,
    _source: DeviceMemory,
    view: View,
    arrivals: Arc<Arrivals>,
    /// The pieces that are not known to have arrived, in order.
    pending: VecDeque<(usize, Event)>,
}

impl PieceDownload {
    /// Queues the copies after the mark, without waiting. `order` has the number of every piece once.
    ///
    /// # Panics
    /// If the source does not have the piece.
    pub fn start(
        source: DeviceMemory,
        piece_bytes: usize,
        order: &[usize],
        after: &DefaultStreamMark,
    ) -> Result<Self, CudaError> {
        let nothing = || CudaError::Argument("invalid download: there are no bytes".into());
        let device = source.device().ok_or_else(nothing)?;
        let bytes = source.len();
        let arrivals = Arc::new(Arrivals::new(bytes, piece_bytes));
        assert!(
            order.len() == arrivals.pieces() && order.iter().all(|piece| *piece < order.len()),
            "invalid order of {} pieces: {} expected",
            order.len(),
            arrivals.pieces()
        );
        let block = Pinned::acquire(device, bytes)?;
        let (start, from) = (block.start(), source.address());
        // SAFETY: the owner has the bytes, and a piece is added when the device has written it.
        let view = unsafe { View::arriving(start, bytes, Box::new(block), arrivals.clone()) };
        // From here on, its drop waits for everything that is queued.
        let stream = StreamLease::take(device)?;
        let mut download = Self { stream, _source: source, view, arrivals, pending: VecDeque::new() };
        let stream = &download.stream;
        let _current = device.current()?;
        after.make_wait(stream, device.ordinal)?;
        for piece in order {
            let offset = piece * piece_bytes;
            let bytes = piece_bytes.min(bytes - offset);
            // SAFETY: source and block have so many bytes from the offset on. The source is held, and the piece is not
            // read, until the copy is done.
            let code = unsafe {
                let (target, from) = (start.add(offset), from + offset as u64);
                (device.api.copy_down)(target.cast(), from, bytes, stream.handle)
            };
            let copied = check(device.api, "copying from a CUDA device", code);
            let event = copied.and_then(|()| stream.record_event());
            let event = event.inspect_err(|_| stream.drain())?;
            download.pending.push_back((*piece, event));
        }
        Ok(download)
    }

    /// The bytes on the host, which can be read piece by piece.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// Waits for the next piece, and adds it and those after it that have arrived. False if there was none left.
    pub fn wait_next(&mut self) -> Result<bool, CudaError> {
        let Some((_, event)) = self.pending.front() else { return Ok(false) };
        event.wait()?;
        while let Some((piece, event)) = self.pending.front()
            && event.query()?
        {
            self.arrivals.add(*piece);
            self.pending.pop_front();
        }
        Ok(true)
    }
}

impl Drop for PieceDownload {
    fn drop(&mut self) {
        if let Some((_, last)) = self.pending.back()
            && last.wait().is_err()
        {
            self.stream.drain();
        }
    }
}
