//! Groups of fixed ranks: collectives, transfers and windows without a master.

mod address_exchange;
mod board_events;
mod board_path;
pub(crate) mod bootstrap;
pub(crate) mod bootstrap_listener;
mod buffers;
mod builder;
mod core;
mod driver;
mod environment;
mod link_path;
mod long_wait;
mod member_name;
mod notes;
mod operation;
mod queue;
mod retired;
mod split;
mod vocabulary;
mod window_hub;
mod work;

pub use address_exchange::AddressExchange;
pub use bootstrap::Bootstrap;
pub use bootstrap_listener::BootstrapListener;
pub use builder::{GroupBuilder, Media};
pub(crate) use long_wait::WatchedWait;
pub(crate) use operation::{BufferLengths, OperationRequest, RankContext};
pub use operation::{GroupBuffers, GroupOp, GroupSlices, Operation, TransferTag};
pub use retired::finish_retired;
pub use vocabulary::{OPERATIONS, OpArguments};
pub(crate) use window_hub::{Connections, WindowHub};
pub use work::GroupWork;

use self::core::Core;
use crate::board::Board;
use crate::window::{Window, WindowMemory};
use crate::{Element, Error};
use ringfold_proto::cause::Cause;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::Tuning;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::IntoBytes;

/// A group of fixed ranks. All ranks make the same calls in the same order.
///
/// Results are bit-identical on all ranks. Ranks on one host use shared memory, others TCP. If a rank dies, or an operation times out, the group fails on all
/// ranks: every call returns an error that names the missing ranks. Dropping the last handle [retires](Group::retire)
/// the group.
///
/// ```
/// use ringfold::{Bootstrap, Group, ReduceOp};
///
/// # fn main() -> Result<(), ringfold::Error> {
/// # let file = std::env::temp_dir().join(format!("ringfold-doc-{}", std::process::id()));
/// let ranks = (0..2).map(|rank| {
///     let at = Bootstrap::File(file.clone());
///     std::thread::spawn(move || {
///         let group = Group::builder().rank(rank).world(2).bootstrap(at).connect()?;
///         let mut data = [rank as f32, 1.0];
///         group.all_reduce(&mut data, ReduceOp::Sum)?;
///         assert_eq!(data, [1.0, 2.0]);
///         group.barrier()
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     rank.join().unwrap()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child must not end, or use, the group of its parent.
        if self.core.engine().is_of_parent() {
            return;
        }
        // Operations in flight are completed for the other ranks.
        if self.core.is_quiet() { self.core.close() } else { self.core.retire() }
    }
}

impl ::core::fmt::Debug for Group {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name())
            .field("rank", &self.rank())
            .field("world", &self.world())
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Configures a group.
    pub fn builder() -> GroupBuilder {
        GroupBuilder::new()
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.core().context.me
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.core().context.world
    }

    /// Whether its reductions are [reproducible](GroupBuilder::reproducible).
    pub fn is_reproducible(&self) -> bool {
        self.core().context.reproducible
    }

    /// What its operations [check](GroupBuilder::integrity).
    pub fn integrity(&self) -> Integrity {
        self.core().context.integrity
    }

    /// The name of the group.
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// The name of each rank in errors.
    pub fn members(&self) -> &[String] {
        &self.core().members
    }

    /// The tuning of the group: that of rank 0.
    pub fn tuning(&self) -> Tuning {
        self.core().tuning
    }

    /// Whether collectives use a board of shared memory: all ranks are on one host, and nothing is [checked](Self::integrity).
    pub fn is_shared(&self) -> bool {
        self.core().board.is_some()
    }

    /// Scatters and all-to-alls with a piece of so many bytes are [direct](Self::copies_directly), if they can be.
    pub const DIRECT_COPY_BYTES_MIN: usize = Board::DIRECT_BYTES_MIN;

    /// Whether large scatters and all-to-alls are direct: each rank reads the memory of the others, with one copy instead
    /// of two. All ranks of a group [on one host](Self::is_shared) decide the same when they connect.
    ///
    /// # Errors
    /// Why not, in words: the ranks are not on one host, the group has [integrity](Self::integrity), a rank may not read the
    /// memory of another one, or the setting `direct_copy` is off.
    pub fn copies_directly(&self) -> Result<(), &str> {
        match self.core().direct_copy.get() {
            Some(agreed) => agreed.as_ref().copied().map_err(String::as_str),
            None if self.integrity() != Integrity::NONE => Err("the group checks payloads or results"),
            None => Err("the ranks do not share memory"),
        }
    }

    /// All-reduces and reduce-scatters of so many bytes read [shared buffers](crate::SharedBuffer) in place, if the ranks
    /// [share memory](Self::is_shared) and the buffers of all of them are shared.
    pub const SHARED_BUFFER_BYTES_MIN: usize = Board::SHARED_BYTES_MIN;

    /// How many collectives of this rank have read [shared buffers](crate::SharedBuffer) of the other ranks in place.
    pub fn shared_collectives(&self) -> u64 {
        self.core().shared_collectives.load(Ordering::Relaxed)
    }

    /// The threads with which this rank reduces [shared buffers](crate::SharedBuffer) in place: the setting `fold_threads`.
    pub fn fold_threads(&self) -> usize {
        self.core().board.as_ref().map_or(1, |board| board.lock().threads())
    }

    /// Sets the timeout of later operations.
    pub fn set_timeout(&self, timeout: Duration) {
        *self.core().timeout.lock() = timeout;
    }

    /// Waits until all ranks have called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.run_bytes(GroupOp::Barrier, DType::U8, &[], &mut [])
    }

    /// Reduces the data of all ranks, in place; all ranks get the result.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.run_in_place(GroupOp::AllReduce(op), data)
    }

    /// As [`Group::all_reduce`], with separate buffers.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.run(GroupOp::AllReduce(op), input, output)
    }

    /// Reduces the data of all ranks; only the root gets the result, in place.
    pub fn reduce<T: Element>(&self, data: &mut [T], root: usize, op: ReduceOp) -> Result<(), Error> {
        self.run_in_place(GroupOp::Reduce { root, op }, data)
    }

    /// Copies the root's data to all ranks.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.run_in_place(GroupOp::Broadcast { root }, data)
    }

    /// Concatenates the data of all ranks, in rank order, on all ranks.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.run(GroupOp::AllGather, input, output)
    }

    /// As [`Group::all_gather`], where rank `r` contributes `counts[r]` elements.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.run(GroupOp::AllGatherV(counts.to_vec()), input, output)
    }

    /// Reduces the data of all ranks; each rank gets its part of the result.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.run(GroupOp::ReduceScatter(op), input, output)
    }

    /// As [`Group::reduce_scatter`], where the part of rank `r` has `counts[r]` elements.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.run(GroupOp::ReduceScatterV(counts.to_vec(), op), input, output)
    }

    /// Concatenates the data of all ranks on the root. The other ranks need no output.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Error> {
        self.run(GroupOp::Gather { root }, input, output)
    }

    /// As [`Group::gather`], where rank `r` contributes `counts[r]` elements. Only the root uses `counts`.
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.run(GroupOp::GatherV { root, counts: counts.to_vec() }, input, output)
    }

    /// Distributes the parts of the root's data. The other ranks need no input.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Error> {
        self.run(GroupOp::Scatter { root }, input, output)
    }

    /// As [`Group::scatter`], where rank `r` gets `counts[r]` elements. Only the root uses `counts`.
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.run(GroupOp::ScatterV { root, counts: counts.to_vec() }, input, output)
    }

    /// Sends one part of the input to each rank, and receives one part from each.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.run(GroupOp::AllToAll, input, output)
    }

    /// As [`Group::all_to_all`], where `send[r]` elements go to rank `r` and `receive[r]` come from it.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send: &[usize],
        output: &mut [T],
        receive: &[usize],
    ) -> Result<(), Error> {
        let op = GroupOp::AllToAllV { send: send.to_vec(), receive: receive.to_vec() };
        self.run(op, input, output)
    }

    /// Sends data to a rank, and returns when the buffer may be reused. Sends to a rank arrive in order.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<(), Error> {
        self.run(GroupOp::Send { to, tag: TransferTag::default() }, data, &mut [])
    }

    /// Receives data from a rank.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        self.run(GroupOp::Recv { from, tag: TransferTag::default() }, &[], data)
    }

    /// Runs an operation on bytes.
    pub fn run_bytes(&self, op: GroupOp, dtype: DType, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.run_slices(op, dtype, GroupSlices::OutOfPlace { input, output }, None)
    }

    /// Runs an operation on bytes, in place.
    pub fn run_bytes_in_place(&self, op: GroupOp, dtype: DType, data: &mut [u8]) -> Result<(), Error> {
        self.run_slices(op, dtype, GroupSlices::InPlace(data), None)
    }

    /// Runs an operation on bytes, in one buffer or one per rank. Without a timeout the group's applies.
    pub fn run_slices(
        &self,
        op: GroupOp,
        dtype: DType,
        slices: GroupSlices<'_>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.core().run(op, dtype, slices, timeout)
    }

    /// Starts an operation. Collectives run in the order in which they were started.
    ///
    /// So do the transfers to or from one rank, which do not wait for collectives.
    pub fn submit(&self, operation: Operation) -> Result<GroupWork, Error> {
        self.core().submit(operation, None)
    }

    /// As [`Group::submit`], for a collective: after its success `then` runs, before it counts as done.
    ///
    /// `then` runs on the thread that completes the operation, for example to copy results.
    pub fn submit_then(
        &self,
        operation: Operation,
        then: impl FnOnce(&GroupBuffers) + Send + 'static,
    ) -> Result<GroupWork, Error> {
        self.core().submit(operation, Some(Box::new(then)))
    }

    /// Opens a window: a collective call in which each rank exposes memory, of any size, to the others.
    ///
    /// `about` is user data that the other ranks can read, at most 512 bytes.
    pub fn window(&self, memory: impl Into<WindowMemory>, about: &[u8]) -> Result<Window, Error> {
        Window::open(self, memory.into(), about)
    }

    /// The description of the group, and what its windows share with the driver.
    pub(crate) fn window_context(&self) -> Result<(EpochDescription, Arc<WindowHub>), Error> {
        self.core().engine.with(|driver| (driver.description().clone(), driver.windows().clone()))
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.core().queue.is_retired()
    }

    pub(crate) fn timeout(&self) -> Duration {
        *self.core().timeout.lock()
    }

    /// Fails the group with a cause; does nothing if it has failed.
    pub(crate) fn abort_with(&self, cause: Cause) {
        let _ = self.core().engine.with(|driver| driver.abort(cause));
    }

    /// Fails the group as `abort_with` does, without keeping this rank in it.
    pub(crate) fn aborter(&self) -> impl Fn(Cause) + Send + use<> {
        let core = self.core().clone();
        move |cause| {
            let _ = core.engine.with(|driver| driver.abort(cause));
        }
    }

    /// Fails the group on all ranks.
    pub fn abort(&self) {
        self.core().abort();
    }

    /// The cause, if the group has failed.
    pub fn failure(&self) -> Option<Error> {
        self.core().failure()
    }

    /// Calls `callback` once when the group fails, or at once if it has. Never, if this rank leaves first.
    ///
    /// The thread that detects the failure calls it, without holding a lock: it may call the group. It should return
    /// soon.
    pub fn on_failure(&self, callback: impl FnOnce(&Error) + Send + 'static) {
        match self.core().engine.with(|driver| driver.windows().clone()) {
            Ok(windows) => windows.on_failure(Box::new(callback)),
            Err(Error::Left) => {}
            Err(error) => callback(&error),
        }
    }

    /// Leaves the group when the operations in flight have ended, without waiting for that.
    ///
    /// Later calls fail with [`Error::Left`]. The operations continue in the background, until their end or deadline. Before a program exits it waits for
    /// them with [`finish_retired`].
    pub fn retire(&self) {
        self.core().retire();
    }

    /// Leaves the group at once. Operations in flight fail; data that was already sent arrives.
    pub fn close(&self) {
        self.core().close();
    }

    fn run<T: Element>(&self, op: GroupOp, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.run_bytes(op, T::DTYPE, input.as_bytes(), output.as_mut_bytes())
    }

    fn run_in_place<T: Element>(&self, op: GroupOp, data: &mut [T]) -> Result<(), Error> {
        self.run_bytes_in_place(op, T::DTYPE, data.as_mut_bytes())
    }

    /// Whether each rank of this host can have a core of its own.
    pub(crate) fn has_own_core(&self) -> bool {
        self.core().engine.with(|driver| driver.has_own_core()).unwrap_or(false)
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}
