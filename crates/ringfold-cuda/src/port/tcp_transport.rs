//! Writes over TCP. Device memory is staged through page-locked memory, piece by piece.

use super::error::PortError;
use super::registered_memory::{LocalAddress, MemoryAt, RegisteredMemory};
use super::transport::Transport;
use crate::{CudaError, Gpu, HostWords, Stream};
use parking_lot::Mutex;
use ringfold_fabric::channel::{self, Channel, ChannelError, ChannelId, Handle, Mark, Part};
use ringfold_fabric::memory::View;
use std::time::{Duration, Instant};

/// The size of a staged piece, and the most pieces in flight.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 8;

/// Timeouts for room in the send queue, and for a copy from a device.
const QUEUE_MAX: Duration = Duration::from_secs(300);
const DOWNLOAD_MAX: Duration = Duration::from_secs(30);

pub(super) struct TcpTransport {
    channel: Channel,
    port: u128,
    peer: i32,
    staging: Mutex<Option<DownloadStaging>>,
}

/// Page-locked memory, allocated at the start: locking pages later might wait for a spinning kernel.
struct DownloadStaging {
    gpu: Gpu,
    stream: Stream,
    words: HostWords,
    /// A mark after the put of each piece in flight.
    in_flight: [Option<Mark>; PIECES],
    next: usize,
}

impl TcpTransport {
    pub(super) fn new(channels: &channel::Connection, port: u128, peer: i32) -> Self {
        Self { channel: channels.channel(ChannelId(0)), port, peer, staging: Mutex::default() }
    }

    /// Allocates what writes from memory of this device need.
    pub(super) fn prepare(&self, gpu: Gpu) -> Result<(), CudaError> {
        let mut staging = self.staging.lock();
        if staging.is_none() {
            *staging = Some(DownloadStaging::open(gpu)?);
        }
        Ok(())
    }

    pub(super) fn write(&self, dst: MemoryAt<'_>, src: MemoryAt<'_>, bytes: u64) -> Result<(), PortError> {
        let ((dst, dst_offset), (src, src_offset)) = (dst, src);
        let to = self.target(dst)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        match src.local_address(src_offset)? {
            LocalAddress::Host(start) => {
                let keeper = Box::new(src.inner.clone());
                // SAFETY: the keeper has the memory, and the bytes are within it. The user must not write them before
                // they are sent; otherwise a mix of old and new bytes is sent.
                let view = unsafe { View::kept(start, bytes, keeper) };
                self.put(view.into(), to, dst_offset)
            }
            LocalAddress::Device(gpu, address) => {
                let mut staging = self.staging.lock();
                let staging = match &mut *staging {
                    Some(staging) if staging.gpu == gpu => staging,
                    other => other.insert(DownloadStaging::open(gpu)?),
                };
                let mut done = 0;
                while done < bytes {
                    let piece = (bytes - done).min(PIECE_BYTES);
                    staging.next = (staging.next + 1) % PIECES;
                    if let Some(mark) = staging.in_flight[staging.next] {
                        let left = self.channel.flush_to(mark, Instant::now() + QUEUE_MAX);
                        left.map_err(|error| self.explain(error))?;
                    }
                    let view = staging.download(address + done as u64, piece)?;
                    self.put(view.into(), to, dst_offset + done as u64)?;
                    staging.in_flight[staging.next] = Some(self.channel.mark());
                    done += piece;
                }
                Ok(())
            }
        }
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        let to = self.target(dst)?;
        self.queue_when_possible(|| self.channel.set_word(to.at(offset), value))
    }

    pub(super) fn flush(&self, deadline: Instant) -> Result<(), PortError> {
        loop {
            match self.channel.confirm(deadline) {
                Err(ChannelError::Full { .. }) => {
                    self.channel.flush(deadline).map_err(|error| self.explain(error))?
                }
                other => return other.map_err(|error| self.explain(error)),
            }
        }
    }

    /// The handle of the peer's memory.
    fn target(&self, dst: &RegisteredMemory) -> Result<Handle, PortError> {
        let record = &dst.inner.record;
        if record.port != self.port {
            return Err(PortError::Argument(format!(
                "the target memory is not registered by rank {}, the peer of this connection",
                self.peer
            )));
        }
        let none = || {
            PortError::Argument(format!("the target memory is not registered for {}", Transport::Ethernet))
        };
        record.segment.ok_or_else(none)
    }

    fn put(&self, from: Part, to: Handle, offset: u64) -> Result<(), PortError> {
        self.queue_when_possible(|| self.channel.put(from.clone(), to.at(offset)))
    }

    /// Queues an operation, and waits while the queue is full.
    fn queue_when_possible(&self, queue: impl Fn() -> Result<(), ChannelError>) -> Result<(), PortError> {
        let deadline = Instant::now() + QUEUE_MAX;
        loop {
            match queue() {
                // Queued data is sent in time, or the connection is lost.
                Err(ChannelError::Full { .. }) => {
                    self.channel.flush(deadline).map_err(|error| self.explain(error))?;
                    // Words are not puts, so there may be nothing to flush.
                    std::thread::sleep(Duration::from_micros(50));
                    if Instant::now() >= deadline {
                        return Err(PortError::Timeout {
                            peer: self.peer,
                            awaited: "receive written data".into(),
                        });
                    }
                }
                other => return other.map_err(|error| self.explain(error)),
            }
        }
    }

    fn explain(&self, error: ChannelError) -> PortError {
        explain(error, self.peer)
    }
}

/// Converts an error of the TCP connection to a peer.
pub(super) fn explain(error: ChannelError, peer: i32) -> PortError {
    match error {
        ChannelError::Deadline { .. } => PortError::Timeout { peer, awaited: "receive written data".into() },
        ChannelError::Lost { why, .. } => PortError::Lost { peer, why },
        ChannelError::Misuse(why) => PortError::Argument(why),
        ChannelError::Aborted { why, .. } => PortError::Aborted(why),
        other => PortError::System { what: other.to_string(), code: 0 },
    }
}

impl DownloadStaging {
    fn open(gpu: Gpu) -> Result<Self, CudaError> {
        let words = gpu.map_host_words(PIECES * PIECE_BYTES)?;
        Ok(Self { gpu, stream: gpu.create_stream()?, words, in_flight: [None; PIECES], next: 0 })
    }

    /// Copies device memory to the next piece, which must not be in flight.
    fn download(&self, address: u64, bytes: usize) -> Result<View, CudaError> {
        let offset = self.next * PIECE_BYTES;
        // SAFETY: both have so many bytes; the caller holds the source, and this the target.
        unsafe { self.stream.copy(self.words.device_address() + offset as u64, address, bytes) }?;
        if let Err(error) = self.stream.synchronize(Instant::now() + DOWNLOAD_MAX) {
            // The device may still write it, so it is leaked.
            core::mem::forget(self.words.clone());
            return Err(error);
        }
        // SAFETY: the keeper has the memory, and the piece is overwritten only after this is flushed.
        Ok(unsafe { View::kept(self.words.start().add(offset), bytes, Box::new(self.words.clone())) })
    }
}
