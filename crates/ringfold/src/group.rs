//! Groups of fixed ranks: collectives and transfers among processes that start together and end together.

mod aside;
mod board_path;
mod bootstrap;
mod buffers;
mod builder;
mod core;
mod driver;
mod environment;
mod lane;
mod link_path;
mod lobby;
mod notes;
mod notice;
mod operation;
mod place;
mod retired;
mod split;
mod vocabulary;
mod work;

pub(crate) use lobby::{Connections, Lobby};

pub use bootstrap::Bootstrap;
pub use builder::{GroupBuilder, Media};
pub use notice::Notice;
pub use operation::{GroupBuffers, GroupOp, GroupSlices, Operation, TransferTag};
pub use place::MeetingPlace;
pub use retired::finish_retired;
pub use vocabulary::{OPERATIONS, OpArguments};
pub use work::GroupWork;

use self::core::Core;
use crate::window::{Window, WindowMemory};
use crate::{Element, Error};
use ringfold_proto::cause::Cause;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::Tuning;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// A group of fixed ranks. All ranks make the same calls in the same order; results are bit-identical on all of them.
///
/// Ranks of one host share memory, others talk over TCP. If a rank dies, or an operation takes too long, the group is
/// over for everyone: every call fails, and says who was waited for.
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

/// Ends the group when the last one lets go of it.
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child that lets go of the group does not end it for its parent, and may touch nothing of it.
        if self.core.engine().is_of_parent() {
            return;
        }
        // What was begun is not lost for others.
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
    /// Describes a group.
    pub fn builder() -> GroupBuilder {
        GroupBuilder::new()
    }

    /// This process's number.
    pub fn rank(&self) -> usize {
        self.core().standing.me
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.core().standing.world
    }

    /// What the group is called.
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// What errors call each rank.
    pub fn members(&self) -> &[String] {
        &self.core().members
    }

    /// What the group agreed on.
    pub fn tuning(&self) -> Tuning {
        self.core().tuning
    }

    /// Whether collectives go through memory that all ranks share.
    pub fn is_shared(&self) -> bool {
        self.core().board.is_some()
    }

    /// How long an operation may take from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        *self.core().timeout.lock() = timeout;
    }

    /// Waits until all ranks have come.
    pub fn barrier(&self) -> Result<(), Error> {
        self.run_bytes(GroupOp::Barrier, DType::U8, &[], &mut [])
    }

    /// Everyone ends with the combination of everyone's data.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.run_in_place(GroupOp::AllReduce(op), data)
    }

    /// As [`Group::all_reduce`], where the input stays as it is.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.run(GroupOp::AllReduce(op), input, output)
    }

    /// The root ends with the combination of everyone's data; the others' data stays as it is.
    pub fn reduce<T: Element>(&self, data: &mut [T], root: usize, op: ReduceOp) -> Result<(), Error> {
        self.run_in_place(GroupOp::Reduce { root, op }, data)
    }

    /// Everyone ends with the root's data.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.run_in_place(GroupOp::Broadcast { root }, data)
    }

    /// Everyone ends with everyone's data, in the order of ranks.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.run(GroupOp::AllGather, input, output)
    }

    /// As [`Group::all_gather`], where rank `r` brings `counts[r]` elements.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.run(GroupOp::AllGatherV(counts.to_vec()), input, output)
    }

    /// Everyone ends with its part of the combination of everyone's data.
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

    /// The root ends with everyone's data. The others need no output.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Error> {
        self.run(GroupOp::Gather { root }, input, output)
    }

    /// As [`Group::gather`], where rank `r` brings `counts[r]` elements; only the root has to know that.
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.run(GroupOp::GatherV { root, counts: counts.to_vec() }, input, output)
    }

    /// Everyone ends with its part of the root's data. The others need no input.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Error> {
        self.run(GroupOp::Scatter { root }, input, output)
    }

    /// As [`Group::scatter`], where rank `r` gets `counts[r]` elements; only the root has to know that.
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.run(GroupOp::ScatterV { root, counts: counts.to_vec() }, input, output)
    }

    /// Everyone ends with its part of everyone's data.
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

    /// Sends data to one rank, and returns when it has left. What is sent to a rank arrives in the order of sending.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<(), Error> {
        self.run(GroupOp::Send { to, tag: TransferTag::default() }, data, &mut [])
    }

    /// Receives what a rank sends.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        self.run(GroupOp::Recv { from, tag: TransferTag::default() }, &[], data)
    }

    /// An operation on bytes.
    pub fn run_bytes(&self, op: GroupOp, dtype: DType, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.run_slices(op, dtype, GroupSlices::Apart { input, output }, None)
    }

    /// An operation on bytes whose result replaces them.
    pub fn run_bytes_in_place(&self, op: GroupOp, dtype: DType, data: &mut [u8]) -> Result<(), Error> {
        self.run_slices(op, dtype, GroupSlices::InPlace(data), None)
    }

    /// An operation on bytes, in one buffer or in one for each rank. It may take so long, or as long as the group says.
    pub fn run_slices(
        &self,
        op: GroupOp,
        dtype: DType,
        slices: GroupSlices<'_>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.core().run(op, dtype, slices, timeout)
    }

    /// Begins an operation. Collectives run one after the other, in the order in which they were begun; transfers to
    /// or from one rank likewise, but independently of collectives.
    pub fn submit(&self, operation: Operation) -> Result<GroupWork, Error> {
        self.core().submit(operation, None)
    }

    /// As [`Group::submit`], for a collective after whose success something is to be done before anyone is told, by
    /// whichever thread brings it to its end: copying results to where they belong, and the like.
    pub fn submit_then(
        &self,
        operation: Operation,
        then: impl FnOnce(&GroupBuffers) + Send + 'static,
    ) -> Result<GroupWork, Error> {
        self.core().submit(operation, Some(Box::new(then)))
    }

    /// Opens a window: all ranks call it together, in the same order as all other calls, and each lays open memory of
    /// its own, of any size. What is said `about` it the others can read; it is 512 bytes at most.
    pub fn window(&self, memory: impl Into<WindowMemory>, about: &[u8]) -> Result<Window, Error> {
        Window::open(self, memory.into(), about)
    }

    /// What a window has to know of the group.
    pub(crate) fn surroundings(&self) -> Result<(EpochDescription, Arc<Lobby>), Error> {
        self.core().engine.with(|driver| (driver.description().clone(), driver.lobby().clone()))
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_retired(&self) -> bool {
        self.core().lane.is_retired()
    }

    /// How long an operation may take.
    pub(crate) fn timeout(&self) -> Duration {
        *self.core().timeout.lock()
    }

    /// The group is over, for this reason.
    pub(crate) fn give_up(&self, cause: Cause) {
        // A group that is over can't be given up again.
        let _ = self.core().engine.with(|driver| driver.give_up(cause));
    }

    /// Gives the group up, for everyone.
    pub fn abort(&self) {
        let me = Rank::from_index(self.rank());
        // A group that is over can't be given up again.
        let _ = self.core().engine.with(|driver| driver.give_up(Cause::GivenUp { who: driver.name(me) }));
    }

    /// Why the group is over, if it is.
    pub fn failure(&self) -> Option<Error> {
        let fault = self.core().engine.with(|driver| driver.fault().cloned());
        match fault {
            Ok(fault) => fault.map(|cause| Error::Over(Box::new(cause))),
            Err(error) => Some(error),
        }
    }

    /// Has something done once when the group fails, for whatever reason; at once, if it has failed. If this rank leaves
    /// the group before that, it is never done.
    ///
    /// It is done by the thread that finds out, without any lock, so it may call the group. It should return soon:
    /// that thread is not available for anything else meanwhile.
    pub fn when_over(&self, alarm: impl FnOnce(&Error) + Send + 'static) {
        match self.core().engine.with(|driver| driver.lobby().clone()) {
            Ok(lobby) => lobby.when_over(Box::new(alarm)),
            Err(Error::Left) => {}
            Err(error) => alarm(&error),
        }
    }

    /// Takes nothing more: later calls fail with [`Error::Left`]. What was begun runs on in the background, to its end or
    /// its deadline, and then the group is left. Never waits for others; the last handle that is dropped does the same.
    /// A program that ends waits for it with [`finish_retired`].
    pub fn retire(&self) {
        self.core().retire();
    }

    /// Leaves the group at once: what has not ended fails. Nobody is waited for, and what was sent arrives.
    pub fn close(&self) {
        self.core().close();
    }

    fn run<T: Element>(&self, op: GroupOp, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.run_bytes(op, T::DTYPE, input.as_bytes(), output.as_mut_bytes())
    }

    fn run_in_place<T: Element>(&self, op: GroupOp, data: &mut [T]) -> Result<(), Error> {
        self.run_bytes_in_place(op, T::DTYPE, data.as_mut_bytes())
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}
