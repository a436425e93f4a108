//! Collectives on CUDA devices: kernels of all ranks that read and write each other's memory.
//!
//! A [`DeviceGroup`] uses a [`Group`] to exchange the addresses of memory once, and to detect deaths. Calls are queued on
//! the caller's streams and never wait on the host, so they can be captured in CUDA graphs.
//!
//! `folds.rs` derives what each rank computes from the plans of the host, in rank order; `element.rs` is the table of
//! element types and operations; memory and kernels are in `ringfold_cuda::device_arena`.

pub(crate) mod agreement;
pub(crate) mod element;
mod folds;
pub(crate) mod hosts;
mod launch_queue;
mod launch_watch;
mod packet_limit;
mod rank_names;
pub(crate) mod registrar;
mod stretches;
mod transfers;
mod usual_kernels;
mod window;

use crate::error::invalid;
use crate::group::{BufferLengths, RankContext};
use crate::limits::deadline_after;
use crate::{Error, Group, GroupOp};
use agreement::agree;
use core::time::Duration;
use element::KernelElement;
use folds::Folds;
use hosts::Hosts;
pub use launch_queue::CallEnd;
use launch_queue::LaunchQueue;
pub use packet_limit::{PacketLimit, PacketLimitOrigin};
use parking_lot::Mutex;
use rank_names::RankNames;
use registrar::{Calls, Registrar};
use ringfold_cuda::device_arena::{
    AllReduceCall, AllReduceGraph, ArenaOffer, CallOptions, DeviceArena, ExchangeCall, FoldKernels,
    KernelKind, Specialisation,
};
use ringfold_cuda::nvrtc::Compiler;
use ringfold_cuda::port::abort_page::AbortPage;
use ringfold_cuda::{CudaError, DeviceMemory, Event, Gpu, Stream};
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::Algorithm;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stretches::{Stretch, Stretches};
pub use transfers::DeviceTransfer;
use transfers::TransferQueues;
pub use window::DeviceGroupWindow;

/// How long dropping a group waits for its last kernels.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// The element type and the operation of kernels.
type ReducedElement = (KernelElement, &'static str);

/// The compiler of kernels and their cache.
#[derive(Clone, Default, Debug)]
pub struct KernelSources {
    /// The library of the compiler (NVRTC). `None`: search for it.
    pub compiler: Option<PathBuf>,
    /// The directory of compiled kernels. `None`: do not cache.
    pub cache: Option<PathBuf>,
}

/// What a rank brings into a group.
#[derive(Clone, Copy)]
struct RankDevice<'a> {
    ordinal: Option<i32>,
    sources: &'a KernelSources,
    /// The most bytes to send in packets, if that is given.
    packet_bytes: Option<u64>,
}

/// Why the ranks cannot use a device group, or register memory. The text names the rank.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Collectives by kernels on CUDA devices, which must be able to access each other's memory.
///
/// Several ranks may share a device, as processes or as threads of one process. All ranks make the same calls in the
/// same order; calls are queued, in that order, on streams of the caller's choice. Results are bit-identical on all
/// ranks, and equal to those of [`Group`] on one host.
///
/// If a rank dies, or a kernel waits longer than the timeout of the group, the waiting kernels end. The targets are then
/// undefined, the group has failed, and the next call returns the cause.
pub struct DeviceGroup {
    /// All ranks.
    all: Group,
    /// The ranks of this host, which are all unless there are [`Hosts`].
    group: Group,
    names: RankNames,
    hosts: Option<Hosts>,
    /// `None` only while it is dropped.
    arena: Option<Arc<DeviceArena>>,
    registrar: Registrar,
    folds: Folds,
    queue: Arc<Mutex<LaunchQueue>>,
    transfers: Arc<TransferQueues>,
    /// None if there is only one rank.
    transfer_kernels: Option<Arc<FoldKernels>>,
    /// For [`fork`](Self::fork).
    fork: Mutex<Event>,
    compiler: &'static Compiler,
    cache: Option<PathBuf>,
}

impl DeviceGroup {
    /// Opens a device group: a collective call. `ordinal` is the device of this rank, if it has one.
    ///
    /// If one rank cannot take part, or the group has [`Integrity`], all ranks return the same [`Unsupported`]. If the ranks are on several hosts, the group
    /// only does all-reduces.
    pub fn open(
        group: &Group,
        ordinal: Option<i32>,
        sources: &KernelSources,
    ) -> Result<Result<Self, Unsupported>, Error> {
        Self::open_with(group, ordinal, sources, None)
    }

    /// As [`open`](Self::open), with the most bytes to send in packets. The smallest number of all ranks counts, and what fits.
    ///
    /// `None`: that of [`PacketLimit::of`].
    pub fn open_with(
        group: &Group,
        ordinal: Option<i32>,
        sources: &KernelSources,
        packet_bytes: Option<u64>,
    ) -> Result<Result<Self, Unsupported>, Error> {
        if group.integrity() != Integrity::NONE {
            // All ranks have the same integrity, so all of them return here.
            let why = format!("kernels check neither payloads nor results (integrity {})", group.integrity());
            return Ok(Err(Unsupported(why)));
        }
        let (description, _) = group.window_context()?;
        let shape = GroupShape::of(&description);
        let device = RankDevice { ordinal, sources, packet_bytes };
        if shape.is_on_one_host() {
            let ranks = (0..group.world()).collect();
            return Self::open_on_host(group, group, ranks, device);
        }
        hosts::open(group, &shape.hosts, device)
    }

    /// Opens the group of the ranks of one host, which have these numbers among all.
    fn open_on_host(
        all: &Group,
        group: &Group,
        ranks: Vec<usize>,
        device: RankDevice<'_>,
    ) -> Result<Result<Self, Unsupported>, Error> {
        let sources = device.sources;
        let mine = prepare(group, device);
        let encoded = mine.as_ref().map(|(offer, _)| offer.encode()).map_err(Clone::clone);
        let offers = match agree(group, encoded)? {
            Ok(offers) => offers,
            Err(why) => return Ok(Err(Unsupported(why))),
        };
        let Ok((offer, compiler)) = mine else {
            return Err(Error::Internal("this rank failed to prepare, but the ranks agreed".into()));
        };
        let page = AbortPage::standalone();
        page.set_spin_timeout(group.timeout());
        let registrar = Registrar::new(group)?;
        let arena = DeviceArena::join(offer, &offers, page.clone(), registrar.on_unregistered());
        let transfers = transfers::specialisation(group.world());
        let load = |arena: DeviceArena| {
            let is_alone = group.world() == 1;
            let gpu = *arena.gpu();
            let kernels = || FoldKernels::load(&gpu, &transfers, compiler, sources.cache.as_deref());
            let kernels = if is_alone { None } else { Some(kernels()?) };
            usual_kernels::load(&arena, compiler, sources.cache.as_deref())?;
            Ok((arena, kernels))
        };
        let arena = arena.and_then(load);
        let joined = arena.as_ref().map(|_| Vec::new()).map_err(CudaError::to_string);
        if let Err(why) = agree(group, joined)? {
            return Ok(Err(Unsupported(why)));
        }
        let (arena, transfer_kernels) = arena.map_err(Error::from)?;
        let arena = Arc::new(arena);
        let queue = Arc::new(Mutex::new(LaunchQueue::counted(group.launches()?)));
        let transfers = Arc::new(TransferQueues::new(group.world()));
        let calls = Calls { collectives: queue.clone(), transfers: transfers.clone() };
        registrar.start(&arena, calls)?;
        // Weak: the page is released with the arena, not by the thread that closes the group.
        let page = Arc::downgrade(&page);
        all.on_failure(move |error| {
            if let Some(page) = page.upgrade() {
                page.set(&error.to_string());
            }
        });
        let fork = Mutex::new(arena.gpu().create_event()?);
        let folds = Folds::new(group.rank(), group.world());
        let (arena, cache) = (Some(arena), sources.cache.clone());
        Ok(Ok(Self {
            all: all.clone(),
            group: group.clone(),
            names: RankNames::new(all, group.rank(), &ranks)?,
            hosts: None,
            arena,
            registrar,
            folds,
            queue,
            transfers,
            transfer_kernels,
            fork,
            compiler,
            cache,
        }))
    }

    /// Queues an all-reduce. Source and target may be the same memory. With a `timeout`, its kernels wait so long for a rank.
    pub fn all_reduce(
        &self,
        source: &DeviceMemory,
        target: &DeviceMemory,
        dtype: DType,
        op: ReduceOp,
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<CallEnd, Error> {
        let Some((mut call, kernel)) = self.all_reduce_call(source, target, dtype, op)? else {
            return self.queue_nothing(stream);
        };
        if let Some(hosts) = &self.hosts {
            return self.all_reduce_between_hosts(hosts, (source, target), (dtype, op), stream, timeout);
        }
        let timeout = timeout.unwrap_or_default();
        let capture = self.prepare_capture(stream, [source, target], |bytes| self.is_bulk(bytes))?;
        (call.common.timeout, call.common.is_captured) = (timeout, capture.is_some());
        let operands = [source, target];
        self.queue(KernelKind::AllReduce, kernel, operands, (stream, capture), |arena, kernels| match kernels
        {
            Some(kernels) => arena.all_reduce(kernels, &call, stream),
            None => arena.copy(target, source, stream),
        })
    }

    /// Captures an all-reduce in a graph, `calls` times one after the other, to time it. All ranks must do so.
    ///
    /// All calls must have ended before the graph is launched. It must be dropped before the group.
    pub fn all_reduce_graph(
        &self,
        source: &DeviceMemory,
        target: &DeviceMemory,
        dtype: DType,
        op: ReduceOp,
        calls: u32,
    ) -> Result<AllReduceGraph, Error> {
        self.check()?;
        self.require_one_host("a graph of all-reduces")?;
        let call = self.all_reduce_call(source, target, dtype, op)?.filter(|_| self.world() > 1);
        let Some((call, (element, op))) = call else {
            return Err(invalid!("invalid all-reduce for a graph: no data, or only one rank"));
        };
        let (element, element_bytes) = (element.name, element.bytes);
        let (world, kind) = (self.world(), KernelKind::AllReduce);
        let wanted = Specialisation { element, element_bytes, op, world, kind };
        let kernels = self.kernels(&mut self.queue.lock(), &wanted)?;
        Ok(self.arena()?.capture_all_reduces(&kernels, &call, calls)?)
    }

    /// The launch of an all-reduce and the type and operation of its kernels. None without data.
    fn all_reduce_call<'a>(
        &self,
        source: &'a DeviceMemory,
        target: &'a DeviceMemory,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Option<(AllReduceCall<'a>, ReducedElement)>, Error> {
        let name = element::operation(op, dtype)?;
        let element = element::reduced(dtype);
        if source.len() != target.len() {
            return Err(invalid!(
                "invalid buffers: the source has {} bytes, the target {}",
                source.len(),
                target.len()
            ));
        }
        if source.address() != target.address() && overlap(source, target) {
            return Err(invalid!("invalid buffers: source and target overlap, but are not the same"));
        }
        let count = self.count(source, dtype, element)?;
        if count == 0 {
            return Ok(None);
        }
        let descriptor = Descriptor::all_reduce(count, dtype, op);
        let fold = self.folds.of(&descriptor)?;
        let fingerprint = descriptor.fingerprint(Algorithm::OneShot, 0);
        let common = CallOptions { fingerprint, ..CallOptions::default() };
        Ok(Some((AllReduceCall { source, target, count, fold, common }, (element, name))))
    }

    /// Queues a collective other than a transfer, as [`Group::run_slices`] runs it on the host.
    ///
    /// Input and output are one buffer each, one per rank, or none; in place they are the same.
    pub fn run(
        &self,
        op: &GroupOp,
        dtype: DType,
        input: &[DeviceMemory],
        output: &[DeviceMemory],
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<CallEnd, Error> {
        if let (GroupOp::AllReduce(op), [source], [target]) = (op, input, output) {
            return self.all_reduce(source, target, dtype, *op, stream, timeout);
        }
        self.require_one_host(op.name())?;
        self.run_on_host(op, dtype, input, output, stream, timeout)
    }

    /// Queues a collective of the ranks of this host.
    fn run_on_host(
        &self,
        op: &GroupOp,
        dtype: DType,
        input: &[DeviceMemory],
        output: &[DeviceMemory],
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<CallEnd, Error> {
        let timeout = timeout.unwrap_or_default();
        if matches!(op, GroupOp::Send { .. } | GroupOp::Recv { .. }) {
            return Err(invalid!("invalid operation {}: it is a transfer", op.name()));
        }
        let (me, world) = (self.group.rank(), self.group.world());
        let bytes = |buffers: &[DeviceMemory]| buffers.iter().map(DeviceMemory::len).collect::<Vec<_>>();
        let (inputs, outputs) = (bytes(input), bytes(output));
        let lengths = BufferLengths::OutOfPlace { input: inputs.iter().sum(), output: outputs.iter().sum() };
        // Kernels reduce in rank order.
        let context = RankContext::plain(me, world);
        let request = context.request(op, dtype, lengths)?;
        context.check_pieces(op, &request, &inputs, &outputs)?;
        let stretch =
            |memory: &DeviceMemory| Stretch { address: memory.address(), bytes: memory.len() as u64 };
        let stretches = |buffers: &[DeviceMemory]| buffers.iter().map(stretch).collect::<Vec<_>>();
        let all = Stretches::of(&request, (me, world), &stretches(input), &stretches(output))?;
        let (kind, element) = if all.is_fold {
            (KernelKind::Fold, (element::reduced(dtype), element::operation(request.descriptor.op, dtype)?))
        } else {
            (KernelKind::Move, (element::moved(dtype), element::MOVE))
        };
        if all.agreed == Some(0) && !matches!(op, GroupOp::Barrier) {
            return self.queue_nothing(stream);
        }
        let pairs =
            |stretches: &[Stretch]| stretches.iter().map(|s| (s.address, s.bytes)).collect::<Vec<_>>();
        let (gives, takes) = (pairs(&all.gives), pairs(&all.takes));
        let fingerprint = request.descriptor.fingerprint(Algorithm::OneShot, 0);
        let fingerprint = request.layout.add_to_fingerprint(fingerprint);
        let memory: Vec<_> = input.iter().chain(output).collect();
        let capture = self.prepare_capture(stream, memory.iter().copied(), |bytes| self.is_bulk(bytes))?;
        let common = CallOptions { fingerprint, timeout, is_captured: capture.is_some() };
        let call = ExchangeCall {
            memory: &memory,
            gives: &gives,
            takes: &takes,
            is_alike: all.is_alike,
            agreed: all.agreed,
            common,
        };
        self.queue(kind, element, memory.iter().copied(), (stream, capture), |arena, kernels| match kernels {
            Some(kernels) => arena.exchange(kernels, &call, stream),
            None => match (input, output) {
                ([source], [target]) => arena.copy(target, source, stream),
                _ => Ok(()),
            },
        })
    }

    /// Registers the allocation that memory is in, and waits a moment until all ranks have opened it, which they do by
    /// themselves.
    ///
    /// All ranks then access tensors in it in place, which avoids most of the traffic of large operations. A hint: memory
    /// that is used is registered anyway, from the second operation on. It may be freed at any time; this is noticed.
    pub fn register(&self, memory: &DeviceMemory) -> Result<Result<(), Unsupported>, Error> {
        self.check()?;
        if memory.is_empty() {
            return Ok(Ok(()));
        }
        let registered = self.registrar.register(self.arena()?, memory.address());
        self.check()?;
        Ok(registered.map_err(Unsupported))
    }

    /// Makes the other ranks close the allocation that memory is in, unless a graph uses it. Later operations on it register
    /// it again.
    pub fn deregister(&self, memory: &DeviceMemory) -> Result<(), Error> {
        self.check()?;
        self.registrar.deregister(self.arena()?, memory.address());
        Ok(())
    }

    /// Whether a tensor of this rank is in registered memory.
    pub fn is_registered(&self, memory: &DeviceMemory) -> bool {
        self.arena.as_ref().is_some_and(|arena| arena.is_registered(memory))
    }

    /// Waits until all calls queued by this rank are done, except those in graphs.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = deadline_after(timeout);
        self.queue.lock().synchronize(deadline)?;
        self.hosts.as_ref().map_or(Ok(()), |hosts| hosts.synchronize(deadline))?;
        self.check()
    }

    /// The number of unfinished calls of this rank, except those in graphs; `None` while another thread queues one.
    pub fn unfinished(&self) -> Result<Option<usize>, Error> {
        let _current = self.arena()?.gpu().make_current()?;
        if let Some(hosts) = &self.hosts {
            return hosts.unfinished();
        }
        let Some(mut queue) = self.queue.try_lock() else { return Ok(None) };
        let collectives = queue.unfinished()?;
        Ok(self.transfers.unfinished()?.map(|transfers| transfers + collectives))
    }

    /// Sets how long kernels wait for a rank, also those that are queued already.
    pub fn set_timeout(&self, timeout: Duration) {
        if let Some(arena) = &self.arena {
            arena.page().set_spin_timeout(timeout);
        }
        if let Some(hosts) = &self.hosts {
            self.group.set_timeout(timeout);
            hosts.set_timeout(timeout);
        }
    }

    /// The cause, if the group has failed. A kernel that timed out fails the group on all ranks.
    pub fn failure(&self) -> Option<Error> {
        if let Some(error) = self.all.failure() {
            return Some(error);
        }
        let left = self.arena.as_ref().and_then(|arena| arena.page().error())?;
        let cause = self.names.cause(&left, |rank| self.registrar.describe_wait(rank));
        self.all.abort_with(cause.clone());
        Some(self.all.failure().unwrap_or_else(|| Error::GroupFailed(Box::new(cause))))
    }

    /// Fails the group on all ranks.
    pub fn abort(&self) {
        self.all.abort();
    }

    /// Whether all ranks are on one host. Otherwise it only does all-reduces.
    pub fn is_on_one_host(&self) -> bool {
        self.hosts.is_none()
    }

    fn require_one_host(&self, what: &str) -> Result<(), Error> {
        if self.is_on_one_host() {
            return Ok(());
        }
        Err(invalid!("unsupported between the devices of several hosts: {what}"))
    }

    /// The number of ranks of this host.
    fn world(&self) -> usize {
        self.group.world()
    }

    /// The ordinal of the device.
    pub fn ordinal(&self) -> i32 {
        self.arena.as_ref().map_or(-1, |arena| arena.gpu().ordinal())
    }

    /// The device.
    pub fn gpu(&self) -> Result<Gpu, Error> {
        self.arena().map(|arena| *arena.gpu())
    }

    /// Makes later work on one stream start after what is queued on another now.
    pub fn fork(&self, from: &Stream, to: &Stream) -> Result<(), Error> {
        let _current = self.arena()?.gpu().make_current()?;
        let event = self.fork.lock();
        from.record(&event)?;
        Ok(to.wait(&event)?)
    }

    /// The end of a call that does nothing.
    fn queue_nothing(&self, stream: &Stream) -> Result<CallEnd, Error> {
        self.check()?;
        let arena = self.arena()?;
        let (capture, mut queue) = (stream.capture()?, self.queue.lock());
        queue.join(stream, capture)?;
        queue.end(arena.gpu(), stream, capture, Vec::new())
    }

    fn arena(&self) -> Result<&Arc<DeviceArena>, Error> {
        self.arena.as_ref().ok_or(Error::Left)
    }

    fn check(&self) -> Result<(), Error> {
        self.failure().map_or(Ok(()), Err)
    }

    /// The number of kernel elements in a buffer.
    fn count(&self, source: &DeviceMemory, dtype: DType, element: KernelElement) -> Result<u64, Error> {
        let elements = source.len() / dtype.bytes();
        if elements * dtype.bytes() != source.len() {
            return Err(invalid!(
                "invalid length {} bytes: not a multiple of the size of {dtype}",
                source.len()
            ));
        }
        Ok(elements as u64 * element.parts)
    }

    fn is_bulk(&self, bytes: usize) -> bool {
        self.arena.as_ref().is_some_and(|arena| arena.is_bulk(bytes))
    }

    /// The capture of a stream, if there is one. A graph uses memory as it is registered now, so that is waited for.
    fn prepare_capture<'a>(
        &self,
        stream: &Stream,
        operands: impl IntoIterator<Item = &'a DeviceMemory>,
        is_large: impl Fn(usize) -> bool,
    ) -> Result<Option<u64>, Error> {
        let capture = stream.capture()?;
        if capture.is_some() && self.world() > 1 {
            let arena = self.arena()?;
            for memory in operands.into_iter().filter(|memory| is_large(memory.len())) {
                // Otherwise the graph uses staging areas.
                if let Err(why) = self.registrar.register(arena, memory.address()) {
                    tracing::debug!(why, "a CUDA graph uses staging areas");
                }
            }
        }
        Ok(capture)
    }

    /// Queues what `launch` launches, after all calls before; it gets no kernels if this rank is alone.
    fn queue<'a>(
        &self,
        kind: KernelKind,
        (element, op): ReducedElement,
        operands: impl IntoIterator<Item = &'a DeviceMemory>,
        (stream, capture): (&Stream, Option<u64>),
        launch: impl FnOnce(&DeviceArena, Option<&FoldKernels>) -> Result<(), CudaError>,
    ) -> Result<CallEnd, Error> {
        self.check()?;
        let arena = self.arena()?;
        let _current = arena.gpu().make_current()?;
        // Locked until the call is queued: other threads queue after it.
        let mut queue = self.queue.lock();
        queue.join(stream, capture)?;
        let world = self.group.world();
        if world == 1 {
            launch(arena, None)?;
        } else {
            let (element, element_bytes) = (element.name, element.bytes);
            let kernels =
                self.kernels(&mut queue, &Specialisation { element, element_bytes, op, world, kind })?;
            launch(arena, Some(&kernels))?;
        }
        queue.end(arena.gpu(), stream, capture, operands.into_iter().cloned().collect())
    }

    /// The kernels for a call, loaded if needed.
    ///
    /// Loading may wait, with the driver locked, for everything that runs on the device. So this rank's kernels, which
    /// wait for other ranks, must end first: ranks that are threads of this process need the driver to finish theirs.
    fn kernels(&self, queue: &mut LaunchQueue, wanted: &Specialisation) -> Result<Arc<FoldKernels>, Error> {
        let gpu = *self.arena()?.gpu();
        if let Some(kernels) = FoldKernels::loaded(&gpu, wanted) {
            return Ok(kernels);
        }
        queue.synchronize(deadline_after(self.group.timeout()))?;
        Ok(usual_kernels::load_late(&gpu, wanted, self.compiler, self.cache.as_deref())?)
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + CLOSING_MAX;
        self.registrar.end(deadline);
        if let Some(hosts) = self.hosts.take() {
            let is_done = hosts.synchronize(deadline).is_ok();
            hosts.close(is_done, deadline);
            self.group.retire();
        }
        if let Some(arena) = self.arena.take() {
            match Arc::try_unwrap(arena) {
                Ok(arena) => {
                    let is_done = self.queue.lock().synchronize(deadline).is_ok()
                        && self.transfers.wait_until(deadline);
                    arena.close(is_done);
                }
                // The registrar is blocked by the driver. The memory is leaked.
                Err(arena) => core::mem::forget(arena),
            }
        }
    }
}

impl core::fmt::Debug for DeviceGroup {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceGroup").field("group", &self.group).field("device", &self.ordinal()).finish()
    }
}

/// The offer of this rank, or why it cannot take part.
fn prepare(
    group: &Group,
    RankDevice { ordinal, sources, packet_bytes }: RankDevice<'_>,
) -> Result<(ArenaOffer, &'static Compiler), String> {
    let ordinal = ordinal.ok_or("no CUDA device")?;
    let (description, _) = group.window_context().map_err(|error| error.to_string())?;
    let gpu = Gpu::open(ordinal).map_err(|error| error.to_string())?;
    let compiler = Compiler::load(sources.compiler.as_deref()).map_err(|error| error.to_string())?;
    let (rank, world) = (group.rank(), group.world());
    let limit = match packet_bytes {
        Some(bytes) => bytes,
        None => PacketLimit::of(gpu.capability(), world, None).map_err(|error| error.to_string())?.bytes,
    };
    // Groups have random incarnations.
    let id = description.id.incarnation.0.wrapping_add(description.id.counter);
    let offer = ArenaOffer::new(&gpu, (rank, world), id, limit).map_err(|error| error.to_string())?;
    Ok((offer, compiler))
}

fn overlap(one: &DeviceMemory, other: &DeviceMemory) -> bool {
    one.address() < other.address() + other.len() as u64 && other.address() < one.address() + one.len() as u64
}

#[cfg(test)]
mod tests;
