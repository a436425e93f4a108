//! Writes over TCP. Memory of a device is downloaded piece by piece, into page-locked memory that is sent from there.

use super::error::PortError;
use super::registered_memory::{Place, RegisteredMemory};
use super::transport::Transport;
use crate::{CudaError, Gpu, HostWords, Stream};
use parking_lot::Mutex;
use ringfold_fabric::channel::{self, Channel, ChannelError, ChannelId, Handle, Mark, Part};
use ringfold_fabric::memory::View;
use std::time::{Duration, Instant};

/// Bytes of a device that are downloaded at once.
const PIECE_BYTES: usize = 1 << 20;

/// Pieces that may be on their way at once.
const PIECES: usize = 8;

/// How long a write waits until there is room for it.
const ROOM_MAX: Duration = Duration::from_secs(300);

/// How long a copy from a device may take.
const DOWNLOAD_MAX: Duration = Duration::from_secs(30);

/// The way over TCP.
pub(super) struct TcpRoad {
    channel: Channel,
    /// The port at the other side.
    port: u128,
    peer: i32,
    staging: Mutex<Option<Staging>>,
}

/// What memory of a device goes through: page-locked memory, all of which is there from the beginning. Whoever locks pages
/// while a kernel spins may have to wait for that.
struct Staging {
    gpu: Gpu,
    stream: Stream,
    words: HostWords,
    /// Behind the put of each piece that may be on its way.
    under_way: [Option<Mark>; PIECES],
    next: usize,
}

impl TcpRoad {
    pub(super) fn new(line: &channel::Connection, port: u128, peer: i32) -> Self {
        Self { channel: line.channel(ChannelId(0)), port, peer, staging: Mutex::default() }
    }

    /// Sees to it that memory of a device can be written from without allocating anything then.
    pub(super) fn prepare(&self, gpu: Gpu) -> Result<(), CudaError> {
        let mut staging = self.staging.lock();
        if staging.is_none() {
            *staging = Some(Staging::open(gpu)?);
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        bytes: u64,
    ) -> Result<(), PortError> {
        let to = self.target(dst)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        match src.place(src_offset)? {
            Place::Host(start) => {
                let keeper = Box::new(src.inner.clone());
                // SAFETY: the keeper has the memory, and the bytes are within it. That nobody writes them before they
                // have left is asked of the user; whoever does so sends some of both.
                let view = unsafe { View::kept(start, bytes, keeper) };
                self.put(view.into(), to, dst_offset)
            }
            Place::Device(gpu, address) => {
                let mut staging = self.staging.lock();
                let staging = match &mut *staging {
                    Some(staging) if staging.gpu == gpu => staging,
                    other => other.insert(Staging::open(gpu)?),
                };
                let mut done = 0;
                while done < bytes {
                    let piece = (bytes - done).min(PIECE_BYTES);
                    staging.next = (staging.next + 1) % PIECES;
                    if let Some(mark) = staging.under_way[staging.next] {
                        let left = self.channel.flush_to(mark, Instant::now() + ROOM_MAX);
                        left.map_err(|error| self.explain(error))?;
                    }
                    let view = staging.download(address + done as u64, piece)?;
                    self.put(view.into(), to, dst_offset + done as u64)?;
                    staging.under_way[staging.next] = Some(self.channel.mark());
                    done += piece;
                }
                Ok(())
            }
        }
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        let to = self.target(dst)?;
        self.with_room(|| self.channel.set_word(to.at(offset), value))
    }

    /// Waits until everything so far is where it belongs.
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

    /// What names memory at the other side.
    fn target(&self, dst: &RegisteredMemory) -> Result<Handle, PortError> {
        let record = &dst.inner.record;
        if record.port != self.port {
            return Err(PortError::Argument(format!(
                "this memory was not registered by rank {}, where the connection goes",
                self.peer
            )));
        }
        let none =
            || PortError::Argument(format!("this memory was not registered for {}", Transport::Ethernet));
        record.segment.ok_or_else(none)
    }

    fn put(&self, from: Part, to: Handle, offset: u64) -> Result<(), PortError> {
        self.with_room(|| self.channel.put(from.clone(), to.at(offset)))
    }

    /// Queues something, when there is room for it.
    fn with_room(&self, queue: impl Fn() -> Result<(), ChannelError>) -> Result<(), PortError> {
        let deadline = Instant::now() + ROOM_MAX;
        loop {
            match queue() {
                // Everything before it leaves in time, or the connection is lost.
                Err(ChannelError::Full { .. }) => {
                    self.channel.flush(deadline).map_err(|error| self.explain(error))?;
                    // Words do not count as puts, so there may be nothing to flush.
                    std::thread::sleep(Duration::from_micros(50));
                    if Instant::now() >= deadline {
                        return Err(PortError::Timeout {
                            peer: self.peer,
                            awaited: "take what was written".into(),
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

/// What went wrong on a connection with a rank.
pub(super) fn explain(error: ChannelError, peer: i32) -> PortError {
    match error {
        ChannelError::Deadline { .. } => PortError::Timeout { peer, awaited: "take what was written".into() },
        ChannelError::Lost { why, .. } => PortError::Lost { peer, why },
        ChannelError::Misuse(why) => PortError::Argument(why),
        ChannelError::Aborted { why, .. } => PortError::Aborted(why),
        other => PortError::System { what: other.to_string(), code: 0 },
    }
}

impl Staging {
    fn open(gpu: Gpu) -> Result<Self, CudaError> {
        let words = gpu.map_host_words(PIECES * PIECE_BYTES)?;
        Ok(Self { gpu, stream: gpu.create_stream()?, words, under_way: [None; PIECES], next: 0 })
    }

    /// A copy of memory of the device, in the next place. Nothing of what was there is read any more.
    fn download(&self, address: u64, bytes: usize) -> Result<View, CudaError> {
        let place = self.next * PIECE_BYTES;
        // SAFETY: both have so many bytes: the source is held by the caller, and the place by this.
        unsafe { self.stream.copy(self.words.device_address() + place as u64, address, bytes) }?;
        if let Err(error) = self.stream.synchronize(Instant::now() + DOWNLOAD_MAX) {
            // The device may write it at any time, so it is never let go of.
            core::mem::forget(self.words.clone());
            return Err(error);
        }
        // SAFETY: the keeper has the memory, and the place is written again only when this was flushed.
        Ok(unsafe { View::kept(self.words.start().add(place), bytes, Box::new(self.words.clone())) })
    }
}
