//! Collectives on CUDA devices: kernels of all ranks that read and write each other's memory.
//!
//! A [`DeviceGroup`] stands beside a [`Group`], over whose links the ranks once tell each other where their memory is, and
//! which notices when one of them dies. Calls are queued on the caller's streams and never wait on the host, so they
//! can be captured in CUDA graphs.
//!
//! What each rank computes comes from the plans that processors run (`folds.rs`), in the order of ranks; element types and
//! operations are one table (`element.rs`); memory and kernels are `ringfold_cuda::device_arena`.

mod agreement;
mod element;
mod folds;
mod line;

use crate::{Error, Group};
use agreement::agree;
use core::time::Duration;
use element::KernelElement;
use folds::Folds;
use line::Line;
use parking_lot::Mutex;
use ringfold_cuda::device_arena::{
    ArenaOffer, DeviceArena, FoldCall, FoldKernels, MemoryOffer, Specialisation,
};
use ringfold_cuda::nvrtc::Compiler;
use ringfold_cuda::port::abort_page::{AbortPage, DeviceError, DeviceWait};
use ringfold_cuda::{CudaError, DeviceMemory, Gpu, Stream};
use ringfold_plan::shape::GroupShape;
use ringfold_proto::cause::{Cause, Waiting};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::Algorithm;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// How long the end of a group's last kernels is waited for when it is closed.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Where kernels come from.
#[derive(Clone, Default, Debug)]
pub struct KernelSources {
    /// The compiler's library; it is looked for if there is none.
    pub compiler: Option<PathBuf>,
    /// Where compiled kernels are kept; nowhere if there is none.
    pub cache: Option<PathBuf>,
}

/// Why the ranks can't have what all of them must have together, in words that name the rank.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

/// Ranks of a group that carry out collectives by kernels on their CUDA devices, be it one device or several that reach each
/// other's memory; several ranks may share one, as processes or as threads of one process.
///
/// All ranks make the same calls in the same order. Calls are queued, in that order, on streams of the caller's choice.
/// Results are bit-identical on all ranks, and equal to those of [`Group`] on one host.
///
/// If a rank dies, kernels that wait for it end within a moment, and so they do if they wait longer than the group's
/// operations may take. Targets are then undefined, the group is over, and the next call says why.
pub struct DeviceGroup {
    group: Group,
    /// None only while it is dropped.
    arena: Option<DeviceArena>,
    folds: Folds,
    line: Mutex<Line>,
    compiler: &'static Compiler,
    cache: Option<PathBuf>,
}

impl DeviceGroup {
    /// Joins devices: all ranks call it together, each with the number of its device, or with none if it has none. If one of
    /// them can't, none of them does, and all say the same.
    pub fn open(
        group: &Group,
        ordinal: Option<i32>,
        sources: &KernelSources,
    ) -> Result<Result<Self, Unfit>, Error> {
        let (description, _) = group.surroundings()?;
        let is_on_one_host = GroupShape::of(&description).is_on_one_host();
        let mine = prepare(group, ordinal, sources, is_on_one_host);
        let told = mine.as_ref().map(|(offer, _)| offer.encode()).map_err(Clone::clone);
        let offers = match agree(group, told)? {
            Ok(offers) => offers,
            Err(why) => return Ok(Err(Unfit(why))),
        };
        let Ok((offer, compiler)) = mine else { return Err(Error::Internal("an offer went astray".into())) };
        let page = AbortPage::alone();
        page.set_spin(group.timeout());
        let arena = DeviceArena::join(offer, &offers, page.clone());
        let told = arena.as_ref().map(|_| Vec::new()).map_err(CudaError::to_string);
        if let Err(why) = agree(group, told)? {
            return Ok(Err(Unfit(why)));
        }
        let arena = arena.map_err(Error::from)?;
        // Not held by the group: its memory is given back with the arena, and not by whoever closes the group.
        let page = Arc::downgrade(&page);
        group.when_over(move |error| {
            if let Some(page) = page.upgrade() {
                page.set(&error.to_string());
            }
        });
        let folds = Folds::new(group.rank(), group.world());
        let (line, cache) = (Mutex::default(), sources.cache.clone());
        Ok(Ok(Self { group: group.clone(), arena: Some(arena), folds, line, compiler, cache }))
    }

    /// Everyone's target becomes the combination of everyone's source, which may be the same memory. Queued on the stream.
    pub fn all_reduce(
        &self,
        source: &DeviceMemory,
        target: &DeviceMemory,
        dtype: DType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<(), Error> {
        let name = element::operation(op, dtype)?;
        let element = element::reduced(dtype);
        if source.len() != target.len() {
            return Err(bad(format!(
                "the source has {} bytes, and the target {}",
                source.len(),
                target.len()
            )));
        }
        if source.address() != target.address() && overlap(source, target) {
            return Err(bad("source and target overlap, and are not the same".into()));
        }
        let count = self.count(source, dtype, element)?;
        let descriptor = Descriptor::all_reduce(count, dtype, op);
        self.queue(&descriptor, (element, name), (source, target), count, stream)
    }

    /// Everyone's target becomes everyone's source, one behind the other in the order of ranks. The source may be its own
    /// place in the target. Queued on the stream.
    pub fn all_gather(
        &self,
        source: &DeviceMemory,
        target: &DeviceMemory,
        dtype: DType,
        stream: &Stream,
    ) -> Result<(), Error> {
        let element = element::moved(dtype);
        let world = self.group.world();
        if source.len() * world != target.len() {
            return Err(bad(format!(
                "the source has {} bytes and there are {world} ranks, but the target has {}",
                source.len(),
                target.len()
            )));
        }
        let own_place = target.address() + (source.len() * self.group.rank()) as u64;
        if source.address() != own_place && overlap(source, target) {
            return Err(bad("the source overlaps the target, and is not its own place there".into()));
        }
        let count = self.count(source, dtype, element)?;
        let whole = Descriptor::all_reduce(count * world as u64, dtype, ReduceOp::Sum);
        let descriptor = whole.with_collective(Collective::AllGather);
        self.queue(&descriptor, (element, "Sum"), (source, target), count, stream)
    }

    /// Has tensors in this memory read and written in place by all ranks, which spares most of the traffic of large
    /// operations. All ranks call it together, each with memory of its own; it is kept until the group is closed.
    pub fn register(&self, memory: &DeviceMemory) -> Result<Result<(), Unfit>, Error> {
        self.check()?;
        let arena = self.arena()?;
        let mine = if arena.slots_left() == 0 {
            Err("there is no room for more registered memory".to_owned())
        } else if memory.is_empty() {
            Err("there is nothing to be registered in no bytes".to_owned())
        } else {
            MemoryOffer::of(memory.address(), memory.len()).map_err(|error| error.to_string())
        };
        let offers = match agree(&self.group, mine.map(|offer| offer.encode()))? {
            Ok(offers) => offers,
            Err(why) => return Ok(Err(Unfit(why))),
        };
        let opened = arena.open(memory, &offers);
        let told = opened.as_ref().map(|_| Vec::new()).map_err(CudaError::to_string);
        if let Err(why) = agree(&self.group, told)? {
            return Ok(Err(Unfit(why)));
        }
        let added = opened.and_then(|opened| arena.add(opened));
        // Nobody uses it before all know it; and if the last step failed somewhere, it is not known where.
        match agree(&self.group, added.map(|()| Vec::new()).map_err(|error| error.to_string()))? {
            Ok(_) => Ok(Ok(())),
            Err(why) => {
                self.group.abort();
                Err(Error::System(why))
            }
        }
    }

    /// Whether this rank's part of a tensor's memory was registered.
    pub fn is_registered(&self, memory: &DeviceMemory) -> bool {
        self.arena.as_ref().is_some_and(|arena| arena.is_registered(memory))
    }

    /// Waits until all that this rank has queued is done, other than by graphs.
    pub fn settle(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(timeout).unwrap_or_else(far);
        self.line.lock().settle(deadline)?;
        self.check()
    }

    /// How long kernels that are queued from now on, and those that wait now, may wait for a rank.
    pub fn set_timeout(&self, timeout: Duration) {
        if let Some(arena) = &self.arena {
            arena.page().set_spin(timeout);
        }
    }

    /// Why it is over, if it is. A rank that a kernel has waited for in vain ends the group, for all of its ranks.
    pub fn failure(&self) -> Option<Error> {
        if let Some(error) = self.group.failure() {
            return Some(error);
        }
        let left = self.arena.as_ref().and_then(|arena| arena.page().error())?;
        let cause = self.cause(&left);
        self.group.give_up(cause.clone());
        Some(self.group.failure().unwrap_or_else(|| Error::Over(Box::new(cause))))
    }

    /// Gives the group up, for everyone.
    pub fn abort(&self) {
        self.group.abort();
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.group.world()
    }

    /// The number of the device.
    pub fn ordinal(&self) -> i32 {
        self.arena.as_ref().map_or(-1, |arena| arena.gpu().ordinal())
    }

    /// The device.
    pub fn gpu(&self) -> Result<Gpu, Error> {
        self.arena().map(|arena| *arena.gpu())
    }

    fn arena(&self) -> Result<&DeviceArena, Error> {
        self.arena.as_ref().ok_or(Error::Left)
    }

    fn check(&self) -> Result<(), Error> {
        self.failure().map_or(Ok(()), Err)
    }

    /// How many elements a kernel takes memory as.
    fn count(&self, source: &DeviceMemory, dtype: DType, element: KernelElement) -> Result<u64, Error> {
        let elements = source.len() / dtype.bytes();
        if elements * dtype.bytes() != source.len() {
            return Err(bad(format!("{} bytes are no whole number of elements of {dtype}", source.len())));
        }
        Ok(elements as u64 * element.parts)
    }

    fn queue(
        &self,
        descriptor: &Descriptor,
        (element, op): (KernelElement, &'static str),
        (source, target): (&DeviceMemory, &DeviceMemory),
        count: u64,
        stream: &Stream,
    ) -> Result<(), Error> {
        self.check()?;
        if count == 0 {
            return Ok(());
        }
        let arena = self.arena()?;
        let _current = arena.gpu().turn_to()?;
        let capture = stream.capture()?;
        // Held until it is queued: what others of this process queue meanwhile comes after.
        let mut line = self.line.lock();
        line.join(stream, capture)?;
        if self.group.world() == 1 {
            arena.copy(target, source, stream)?;
        } else {
            let is_gather = descriptor.collective == Collective::AllGather;
            let world = self.group.world();
            let wanted =
                Specialisation { element: element.name, element_bytes: element.bytes, op, world, is_gather };
            let kernels = self.kernels(&mut line, &wanted)?;
            let fingerprint = descriptor.fingerprint(Algorithm::OneShot, 0);
            let fold = self.folds.of(descriptor)?;
            arena.launch(&kernels, &FoldCall { source, target, count, fold, fingerprint }, stream)?;
        }
        match capture {
            None => line.push(arena.gpu(), stream, [source.clone(), target.clone()]),
            Some(capture) => line.push_captured(arena.gpu(), stream, capture),
        }
    }

    /// The kernels for a call. Loading some may wait for all that runs on the device, with the driver locked; so this rank's
    /// own kernels, which wait for others, are waited for before. Ranks that are threads of this process then need no lock
    /// to bring theirs to an end.
    fn kernels(&self, line: &mut Line, wanted: &Specialisation) -> Result<Arc<FoldKernels>, Error> {
        let gpu = *self.arena()?.gpu();
        if let Some(kernels) = FoldKernels::loaded(&gpu, wanted) {
            return Ok(kernels);
        }
        let deadline = Instant::now().checked_add(self.group.timeout()).unwrap_or_else(far);
        line.settle(deadline)?;
        Ok(FoldKernels::load(&gpu, wanted, self.compiler, self.cache.as_deref())?)
    }

    fn cause(&self, left: &DeviceError) -> Cause {
        let named = |rank: usize| {
            let (description, _) = self.group.surroundings().ok()?;
            description.members.get(rank).map(|member| member.named())
        };
        let peer = left.peer.and_then(|peer| usize::try_from(peer).ok()).and_then(named);
        let me = named(self.group.rank());
        match (left.what, peer, me) {
            (DeviceWait::Argument, Some(peer), Some(me)) => Cause::Mismatch {
                one: Waiting { who: me, call: "a collective on its CUDA device".into() },
                other: Waiting { who: peer, call: "another one, or one of another type or size".into() },
            },
            (_, peer, _) => Cause::Timeout { waited_for: peer.into_iter().collect() },
        }
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.take() {
            arena.close(self.line.lock().last(), Instant::now() + CLOSING_MAX);
        }
    }
}

impl core::fmt::Debug for DeviceGroup {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceGroup").field("group", &self.group).field("device", &self.ordinal()).finish()
    }
}

/// What this rank offers to the others, or why it can't.
fn prepare(
    group: &Group,
    ordinal: Option<i32>,
    sources: &KernelSources,
    is_on_one_host: bool,
) -> Result<(ArenaOffer, &'static Compiler), String> {
    let ordinal = ordinal.ok_or("it uses no CUDA device")?;
    if !is_on_one_host {
        return Err("the ranks are on several hosts".into());
    }
    let gpu = Gpu::open(ordinal).map_err(|error| error.to_string())?;
    let compiler = Compiler::load(sources.compiler.as_deref()).map_err(|error| error.to_string())?;
    let offer = ArenaOffer::new(&gpu, group.rank(), group.world()).map_err(|error| error.to_string())?;
    Ok((offer, compiler))
}

fn overlap(one: &DeviceMemory, other: &DeviceMemory) -> bool {
    one.address() < other.address() + other.len() as u64 && other.address() < one.address() + one.len() as u64
}

fn bad(why: String) -> Error {
    Error::BadArgument(why)
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(86_400 * 365)
}

#[cfg(test)]
mod tests;
