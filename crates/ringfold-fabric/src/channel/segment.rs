//! Registered memory: what a channel may read here, and what the other end may write.

use super::ChannelError;
use crate::memory::{Lease, RawMemory, View};
use crate::random;
use crate::shared_bytes::SharedBytes;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory that is registered with an endpoint for as long as this value lives.
///
/// The other end writes it whenever it likes, so it is only ever copied from and to; what a signal says to be
/// there is there. Puts that are still queued keep the memory alive beyond this value, until they are flushed or
/// aborted.
pub struct Segment {
    block: Arc<Block>,
    segments: Arc<Segments>,
}

/// A segment's name, drawn at random: only who was given the handle can name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct SegmentId(pub(crate) u64);

/// What the other end needs to know of a segment to put something into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Handle {
    segment: SegmentId,
    bytes: u64,
}

/// A position in the other end's segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub(super) handle: Handle,
    pub(super) offset: u64,
}

/// Some bytes of ours: of a segment, or of memory that nobody else can reach.
#[derive(Clone, Debug)]
pub struct Part {
    source: Source,
    pub(super) range: Range<usize>,
}

#[derive(Clone, Debug)]
enum Source {
    Block(Arc<Block>),
    View(View),
}

impl Segment {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.block.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.block.bytes == 0
    }

    /// What the other end needs to know.
    pub fn handle(&self) -> Handle {
        Handle { segment: self.block.id, bytes: self.block.bytes as u64 }
    }

    /// Copies from the segment.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), ChannelError> {
        let range = self.block.range(offset, into.len())?;
        self.block.memory()?.shared().part(range).copy_to(into);
        Ok(())
    }

    /// An aligned word, which the other end may set at the same time.
    pub fn word(&self, offset: usize) -> Result<u64, ChannelError> {
        let range = self.block.range(offset, size_of::<u64>())?;
        let mut memory = self.block.memory()?;
        let place = word_of(memory.shared().part(range));
        let place =
            place.ok_or_else(|| ChannelError::Misuse(format!("the word at {offset} is not aligned")))?;
        Ok(place.load(Ordering::Acquire))
    }

    /// Copies to the segment.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), ChannelError> {
        let range = self.block.range(offset, from.len())?;
        self.block.memory()?.shared().part(range).copy_from(from);
        Ok(())
    }

    /// Some of its bytes, to be put somewhere.
    pub fn part(&self, range: Range<usize>) -> Result<Part, ChannelError> {
        let range = self.block.range(range.start, range.end.saturating_sub(range.start))?;
        drop(self.block.memory()?);
        Ok(Part { source: Source::Block(self.block.clone()), range })
    }
}

impl From<View> for Part {
    fn from(view: View) -> Self {
        let range = 0..view.len();
        Self { source: Source::View(view), range }
    }
}

impl Part {
    /// The next so many bytes, for a socket to send.
    pub(super) fn take(&mut self, bytes: usize) -> Lease {
        let range = self.range.start..self.range.start + bytes;
        self.range.start += bytes;
        match &self.source {
            // Nobody makes a part of a block without memory.
            Source::Block(block) => {
                block.memory().map_or_else(|_| Vec::new().into(), |memory| memory.lease(range))
            }
            Source::View(view) => view.lease(range),
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.segments.lock().remove(&self.block.id.0);
    }
}

impl Handle {
    /// Bytes of a handle.
    pub const BYTES: usize = size_of::<Self>();

    /// How many bytes the segment has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A position in the segment.
    pub fn at(self, offset: u64) -> Place {
        Place { handle: self, offset }
    }

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(*self)
    }

    /// From its bytes. The owner checks whether the segment exists.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        zerocopy::transmute!(*bytes)
    }

    pub(super) fn segment(&self) -> SegmentId {
        self.segment
    }
}

impl Place {
    /// Whether so many bytes fit there, as far as the handle tells.
    pub(super) fn holds(&self, bytes: usize) -> bool {
        self.offset.checked_add(bytes as u64).is_some_and(|end| end <= self.handle.bytes)
    }
}

/// Memory that the host cannot write itself, such as a GPU's, and a writer for it.
///
/// What is asked of the sinks of one stream happens in the order in which it was asked for, if not at once.
pub trait Sink: Send + Sync {
    /// Writes bytes at an offset. They may be on their way when this returns.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), String>;

    /// Sets an aligned word behind everything that was written to sinks of the same stream.
    fn set_word(&self, offset: usize, value: u64) -> Result<(), String>;

    /// Waits until everything is where it belongs.
    fn settle(&self) -> Result<(), String>;

    /// The stream that it belongs to.
    fn stream(&self) -> u64;
}

/// A segment's memory.
pub(super) struct Block {
    id: SegmentId,
    bytes: usize,
    ground: Ground,
}

enum Ground {
    Memory(Mutex<RawMemory>),
    Sink(Arc<dyn Sink>),
}

impl Block {
    fn range(&self, offset: usize, bytes: usize) -> Result<Range<usize>, ChannelError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(offset..end),
            _ => Err(ChannelError::Misuse(format!(
                "{bytes} bytes at {offset} are not within a segment of {} bytes",
                self.bytes
            ))),
        }
    }

    /// Nothing that holds this lock can fail half-way in a way that matters for bytes.
    fn memory(&self) -> Result<MutexGuard<'_, RawMemory>, ChannelError> {
        match &self.ground {
            Ground::Memory(memory) => Ok(memory.lock().unwrap_or_else(PoisonError::into_inner)),
            Ground::Sink(_) => Err(ChannelError::Misuse("the host can't reach this segment's memory".into())),
        }
    }
}

/// All segments of an endpoint.
#[derive(Default)]
pub(super) struct Segments {
    known: Mutex<HashMap<u64, Weak<Block>>>,
}

impl Segments {
    /// Registers memory.
    pub fn register(self: &Arc<Self>, memory: RawMemory) -> io::Result<Segment> {
        self.add(memory.len(), Ground::Memory(Mutex::new(memory)))
    }

    /// Registers memory that is written through someone.
    pub fn register_sink(self: &Arc<Self>, bytes: usize, sink: Arc<dyn Sink>) -> io::Result<Segment> {
        self.add(bytes, Ground::Sink(sink))
    }

    fn add(self: &Arc<Self>, bytes: usize, ground: Ground) -> io::Result<Segment> {
        let id = SegmentId(u64::from_le_bytes(random::bytes()?));
        let block = Arc::new(Block { id, bytes, ground });
        self.lock().insert(id.0, Arc::downgrade(&block));
        Ok(Segment { block, segments: self.clone() })
    }

    /// Whether the host can write so many bytes there; if the other end may not put them there, why.
    pub fn check(&self, id: SegmentId, offset: u64, bytes: usize) -> Result<bool, String> {
        self.find(id, offset, bytes).map(|(block, _)| matches!(block.ground, Ground::Memory(_)))
    }

    /// Writes bytes. If there is a sink that has to be waited for, it is that.
    pub fn place(&self, id: SegmentId, offset: u64, bytes: &[u8]) -> Result<Option<Arc<dyn Sink>>, String> {
        let (block, range) = self.find(id, offset, bytes.len())?;
        match &block.ground {
            Ground::Memory(_) => {
                let mut memory = block.memory().map_err(|error| error.to_string())?;
                memory.shared().part(range).copy_from(bytes);
                Ok(None)
            }
            Ground::Sink(sink) => sink.write(range.start, bytes).map(|()| Some(sink.clone())),
        }
    }

    /// Sets a word, behind all that `settle` sees to for a word in that stream, or in memory of the host.
    pub fn set_word(
        &self,
        id: SegmentId,
        offset: u64,
        value: u64,
        settle: impl FnOnce(Option<u64>) -> Result<(), String>,
    ) -> Result<Option<Arc<dyn Sink>>, String> {
        let (block, range) = self.find(id, offset, size_of::<u64>())?;
        let refusal = || format!("a word at {offset} of {id:?}, which is not aligned");
        match &block.ground {
            Ground::Memory(_) => {
                settle(None)?;
                let mut memory = block.memory().map_err(|error| error.to_string())?;
                let word = word_of(memory.shared().part(range)).ok_or_else(refusal)?;
                word.store(value, Ordering::Release);
                Ok(None)
            }
            Ground::Sink(sink) => {
                settle(Some(sink.stream()))?;
                sink.set_word(range.start, value).map(|()| Some(sink.clone()))
            }
        }
    }

    /// Shows bytes to be written to someone, without letting go of them meanwhile.
    pub fn write<T>(
        &self,
        id: SegmentId,
        offset: u64,
        bytes: usize,
        user: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, String> {
        let (block, range) = self.find(id, offset, bytes)?;
        let mut memory = block.memory().map_err(|error| error.to_string())?;
        // SAFETY: the lock is held, so nothing else in this process uses the bytes. They are payload, which the user fills
        // from a socket and does not read.
        Ok(user(unsafe { memory.shared().part(range).assume_exclusive() }))
    }

    fn find(&self, id: SegmentId, offset: u64, bytes: usize) -> Result<(Arc<Block>, Range<usize>), String> {
        let Some(block) = self.lock().get(&id.0).and_then(Weak::upgrade) else {
            return Err(format!("a put of {bytes} bytes into {id:?}, which is not registered"));
        };
        let refusal = || {
            format!(
                "a put of {bytes} bytes at {offset} is outside of {id:?}, which has {} bytes",
                block.bytes
            )
        };
        let start = usize::try_from(offset).map_err(|_| refusal())?;
        let range = block.range(start, bytes).map_err(|_| refusal())?;
        Ok((block, range))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<Block>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word that eight bytes are, if they are aligned.
fn word_of(bytes: SharedBytes<'_>) -> Option<&AtomicU64> {
    bytes.as_ptr().addr().is_multiple_of(size_of::<u64>()).then(|| bytes.word(0))
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {:08x}", self.0 >> 32)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.block.fmt(f)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.id, self.bytes)
    }
}
