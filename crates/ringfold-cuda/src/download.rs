//! Copies from devices to the host, piece by piece.

use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::limits::{PIECE_BYTES, SOURCE_ALIGN};
use crate::pinned::Pinned;
use crate::stream_lease::StreamLease;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use ringfold_fabric::memory::Memory;

/// A copy in progress of several device memories into page-locked host memory, in order.
///
/// Callers may wait for a part and read it while the rest is still being copied. Dropping it waits for all copies.
pub struct Download {
    /// One block for all sources. None if there are no bytes.
    block: Option<Pinned>,
    sources: Vec<DeviceMemory>,
    offsets: Vec<usize>,
    pieces: Vec<DownloadPiece>,
    complete: AtomicUsize,
    /// One for each device.
    streams: Vec<StreamLease>,
}

/// The end of a piece in the block, and the event that completes with it.
struct DownloadPiece {
    end: usize,
    event: Event,
}

impl Download {
    /// Queues the copies after the mark, without waiting.
    pub fn start(sources: Vec<DeviceMemory>, after: &DefaultStreamMark) -> Result<Self, CudaError> {
        let (mut offsets, mut bytes) = (Vec::with_capacity(sources.len()), 0_usize);
        for source in &sources {
            bytes = bytes.next_multiple_of(SOURCE_ALIGN);
            offsets.push(bytes);
            bytes += source.len();
        }
        let block = match sources.iter().find_map(DeviceMemory::device) {
            Some(device) => Some(Pinned::acquire(device, bytes)?),
            None => None,
        };
        // From here on, its drop waits for everything that is queued.
        let (pieces, complete, streams) = (Vec::new(), AtomicUsize::new(0), Vec::new());
        let mut download = Self { block, sources, offsets, pieces, complete, streams };
        download.queue(after).inspect_err(|_| download.drain())?;
        Ok(download)
    }

    /// Waits until these bytes of a source are copied, and returns them.
    ///
    /// # Panics
    /// If the source or the range is out of bounds.
    pub fn wait_for(&self, source: usize, range: Range<usize>) -> Result<&[u8], CudaError> {
        let len = self.sources[source].len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} is out of bounds of {len} bytes");
        let Some(block) = self.block.as_ref().filter(|_| !range.is_empty()) else { return Ok(&[]) };
        let (start, end) = (self.offsets[source] + range.start, self.offsets[source] + range.end);
        self.wait_up_to(end)?;
        // SAFETY: the bytes are in the block, all copies into them are done, and nothing writes them again while the
        // download exists.
        Ok(unsafe { core::slice::from_raw_parts(block.start().add(start), end - start) })
    }

    /// Waits for all copies, and returns a memory for each source.
    pub fn finish(mut self) -> Result<Vec<Memory>, CudaError> {
        self.wait_up_to(usize::MAX)?;
        self.pieces.clear();
        let Some(block) = self.block.take() else {
            return Ok(self.sources.iter().map(|_| Memory::zeroed(0)).collect());
        };
        let (mut rest, mut at) = (block.into_memory(), 0);
        let mut memories = Vec::with_capacity(self.sources.len());
        for (source, offset) in self.sources.iter().zip(&self.offsets) {
            let (_gap, from_here) = rest.split_at(offset - at);
            let (memory, after) = from_here.split_at(source.len());
            memories.push(memory);
            (rest, at) = (after, offset + source.len());
        }
        Ok(memories)
    }

    fn queue(&mut self, after: &DefaultStreamMark) -> Result<(), CudaError> {
        let Some(start) = self.block.as_ref().map(Pinned::start) else { return Ok(()) };
        // The number of the stream that copied last, and how many bytes since its last piece ended.
        let mut open: Option<(usize, usize)> = None;
        for (source, offset) in self.sources.iter().zip(&self.offsets) {
            let Some(device) = source.device() else { continue };
            let of_device = |lease: &StreamLease| lease.device.ordinal == device.ordinal;
            let known = self.streams.iter().position(of_device);
            if let Some((other, _)) = open.take_if(|(other, _)| Some(*other) != known) {
                Self::end_piece(&mut self.pieces, &self.streams[other], *offset)?;
            }
            let _current = device.current()?;
            let number = match known {
                Some(number) => number,
                None => {
                    let stream = StreamLease::take(device)?;
                    after.make_wait(&stream, device.ordinal)?;
                    self.streams.push(stream);
                    self.streams.len() - 1
                }
            };
            let stream = &self.streams[number];
            let mut done = 0;
            while done < source.len() {
                let since = open.map_or(0, |(_, since)| since);
                let bytes = (source.len() - done).min(PIECE_BYTES - since);
                // SAFETY: source and block have so many bytes from here on; the source is held, and the block is not
                // used, until the copy is done.
                let code = unsafe {
                    let target = start.add(offset + done);
                    let from = source.address() + done as u64;
                    (device.api.copy_down)(target.cast(), from, bytes, stream.handle)
                };
                check(device.api, "copying from a CUDA device", code)?;
                done += bytes;
                open = Some((number, since + bytes));
                if since + bytes == PIECE_BYTES {
                    Self::end_piece(&mut self.pieces, stream, offset + done)?;
                    open = None;
                }
            }
        }
        match open {
            Some((number, _)) => Self::end_piece(&mut self.pieces, &self.streams[number], usize::MAX),
            None => Ok(()),
        }
    }

    fn end_piece(pieces: &mut Vec<DownloadPiece>, stream: &StreamLease, end: usize) -> Result<(), CudaError> {
        pieces.push(DownloadPiece { end, event: stream.record_event()? });
        Ok(())
    }

    /// Waits for every piece that begins before `end`.
    fn wait_up_to(&self, end: usize) -> Result<(), CudaError> {
        loop {
            let complete = self.complete.load(Ordering::Acquire);
            let begin = complete.checked_sub(1).map_or(0, |last| self.pieces[last].end);
            let Some(next) = self.pieces.get(complete).filter(|_| begin < end) else { return Ok(()) };
            next.event.wait()?;
            // Another thread may have advanced it further.
            self.complete.fetch_max(complete + 1, Ordering::Release);
        }
    }

    /// Waits until no copy is running, also after errors.
    fn drain(&self) {
        self.streams.iter().for_each(|stream| stream.drain());
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if self.block.is_some() && self.wait_up_to(usize::MAX).is_err() {
            self.drain();
        }
    }
}
