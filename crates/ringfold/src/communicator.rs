//! A peer of an elastic run.

mod builder;
mod options;

pub use builder::CommunicatorBuilder;

use crate::all_reduce::{AllReduce, Buffers, ReduceInfo, Reduction};
use crate::driver::{Driver, WorkerReport};
use crate::engine::Engine;
use crate::error::invalid;
use crate::shared_state::{self, SharedState, StateTensor, SyncCompany, SyncInfo};
use crate::staging::{StagedState, Staging};
use crate::traffic::TrafficReport;
use crate::transfer::{self, Transfer};
use crate::work::{Pending, Work};
use crate::{Element, Error};
use options::CommunicatorOptions;
use parking_lot::Mutex;
use ringfold_fabric::memory::{Memory, lend, lend_mut};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::{Attributes, Member};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{CallId, Revision, Tag};
use ringfold_proto::peer::{Completion, Failure, FailureKind, Peer};
use ringfold_proto::shared_state::{SyncOffer, SyncStrategy};
use ringfold_proto::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A peer of an elastic run: joins, takes part in votes and collectives, and leaves when dropped.
///
/// Any thread may make calls. A call waits for its result, until this peer is evicted, the master is lost, or the
/// deadline has passed; the error then names the peers that it waited for.
///
/// ```
/// use ringfold::{AllReduce, Communicator, Master};
///
/// let master = Master::builder().listen("127.0.0.1:0").build();
/// master.run()?;
/// let address = master.addresses()[0].to_string();
///
/// // Usually each peer is a process.
/// let first = Communicator::builder(&address).name("first").build()?;
/// first.connect()?;
/// let second = std::thread::spawn({
///     let address = address.clone();
///     move || {
///         let second = Communicator::builder(&address).name("second").build()?;
///         second.connect()?; // returns when the first peer has admitted it
///         let mut values = [10.0f32, 20.0];
///         second.all_reduce(&mut values, AllReduce::sum())?;
///         Ok::<_, ringfold::Error>(values)
///     }
/// });
/// while first.attributes().group_world < 2 {
///     first.update_topology()?;
/// }
/// let mut values = [1.0f32, 2.0];
/// let info = first.all_reduce(&mut values, AllReduce::sum())?;
/// assert_eq!(values, [11.0, 22.0]);
/// assert_eq!(info.world, 2);
/// assert_eq!(second.join().unwrap()?, values);
/// # Ok::<(), ringfold::Error>(())
/// ```
pub struct Communicator {
    config: CommunicatorOptions,
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Communicator {
    /// Configures a communicator. The address of the master is `"host:port"` or `"[::1]:48148"`; if it is empty, that of
    /// `RINGFOLD_MASTERS`.
    pub fn builder(master: impl Into<String>) -> CommunicatorBuilder {
        CommunicatorBuilder::new(master.into())
    }

    /// The name of this peer in errors and logs.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Registers with the master, and waits until the peers of the run have admitted this one.
    ///
    /// May be called again if the master was not reached or rejected this peer.
    pub fn connect(&self) -> Result<(), Error> {
        if self.engine.lock().is_none() {
            self.config.examine()?;
        }
        let engine = {
            let mut slot = self.engine.lock();
            if slot.is_some() {
                return Err(Error::Misuse("connect was already called on this communicator".into()));
            }
            slot.insert(Arc::new(self.config.engine()?)).clone()
        };
        let timeout = self.config.connect_timeout;
        let connected = vote(&engine, |peer, now| peer.connect(now, timeout));
        if let Err(Error::Failed(Failure::MasterLost(_) | Failure::JoinRejected(_))) = &connected {
            *self.engine.lock() = None;
            engine.close();
        }
        connected.map(drop)
    }

    /// Admits the peers that wait to join. All peers of the run call it together.
    pub fn update_topology(&self) -> Result<(), Error> {
        vote(&*self.engine()?, |peer, now| peer.update_topology(now, None)).map(drop)
    }

    /// Whether peers wait to join. All peers of the run call it together.
    pub fn are_peers_pending(&self) -> Result<bool, Error> {
        let answer = vote(&*self.engine()?, |peer, now| peer.are_peers_pending(now, None))?;
        Ok(answer == Completion::Pending(true))
    }

    /// Measures unknown bandwidths, and adopts the best ring. All peers of the run call it together.
    pub fn optimize_topology(&self) -> Result<(), Error> {
        vote(&*self.engine()?, |peer, now| peer.optimize_topology(now, None)).map(drop)
    }

    /// World sizes. Only `connect`, `update_topology`, `optimize_topology` and collectives change them.
    ///
    /// After a successful collective `group_world` equals [`ReduceInfo::world`](crate::ReduceInfo): the number of peers
    /// in the result. All peers see the same sizes after the same operation.
    pub fn attributes(&self) -> Attributes {
        let engine = self.engine.lock().clone();
        engine.and_then(|engine| engine.with_waiter(|driver| driver.attributes()).ok()).unwrap_or_default()
    }

    /// The members of the group, oldest first. Only `connect`, `update_topology`, `optimize_topology` and collectives that succeed
    /// change them: all peers see the same ones after the same operation.
    pub fn members(&self) -> Vec<GroupMember> {
        let engine = self.engine.lock().clone();
        let members = engine.and_then(|engine| engine.with_waiter(|driver| driver.members()).ok());
        let member = |member: &Member| GroupMember { peer: member.peer.0, name: member.name.clone() };
        members.iter().flat_map(|members| members.iter().map(member)).collect()
    }

    /// The id of this peer in the run; none before it is connected.
    pub fn id(&self) -> Option<u128> {
        let engine = self.engine.lock().clone();
        engine.and_then(|engine| engine.with_waiter(|driver| driver.id().0).ok())
    }

    /// The number of links to other peers that use shared memory; the other links use TCP.
    pub fn shared_links(&self) -> usize {
        let engine = self.engine.lock().clone();
        engine.and_then(|engine| engine.with_waiter(|driver| driver.shared_links()).ok()).unwrap_or_default()
    }

    /// What this peer has sent and received in the run, in total and per peer.
    pub fn traffic(&self) -> TrafficReport {
        let engine = self.engine.lock().clone();
        engine.map(|engine| engine.traffic()).unwrap_or_default()
    }

    /// Forgets the quantisation errors that all-reduces with [`AllReduce::error_feedback`] have left: those of a tag, or
    /// all. Frees their memory.
    pub fn clear_error_feedback(&self, tag: Option<u64>) {
        let engine = self.engine.lock().clone();
        if let Some(engine) = engine {
            // A peer that has left has none.
            let _ = engine.with_waiter(|driver| driver.clear_residuals(tag.map(Tag)));
        }
    }

    /// Reduces in place, together with all peers of the group. After a failure the data is restored.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], options: AllReduce) -> Result<ReduceInfo, Error> {
        lend_mut(data.as_mut_bytes(), |memory| {
            self.reduce(Reduction { dtype: T::DTYPE, buffers: Buffers::InPlace(memory), options })
        })
    }

    /// Reduces `send` into `recv`, which have the same length. After a failure `recv` is undefined.
    pub fn all_reduce_into<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        options: AllReduce,
    ) -> Result<ReduceInfo, Error> {
        lend(send.as_bytes(), |source| {
            lend_mut(recv.as_mut_bytes(), |target| {
                let buffers = Buffers::OutOfPlace { source, target };
                self.reduce(Reduction { dtype: T::DTYPE, buffers, options })
            })
        })
    }

    /// Reduces host or device memory, and waits for the result.
    pub fn reduce(&self, reduction: Reduction) -> Result<ReduceInfo, Error> {
        let engine = self.engine()?;
        match self.launch(&engine, reduction)? {
            Launched::Plain(call) => {
                let ended = engine.wait(call);
                ended.result.map(|_| ended.info)
            }
            Launched::Staged(staging) => staging.run_blocking().result,
        }
    }

    fn launch(&self, engine: &Arc<Engine>, reduction: Reduction) -> Result<Launched, Error> {
        let Reduction { dtype, buffers, options } = reduction;
        let reproducible = options.reproducible || self.config.reproducible;
        let options = AllReduce { reproducible, ..options };
        let options = if self.config.resume { options.resume_if_possible() } else { options };
        let feedback = options.error_feedback;
        let integrity = self.config.integrity;
        let descriptor = Descriptor { integrity, ..options.descriptor(dtype, buffers.check(dtype)?)? };
        let tag = Tag(options.tag);
        match buffers.on_host() {
            Ok(buffers) => {
                let call =
                    engine.with_waiter(|driver| driver.start(tag, descriptor, feedback, Some(buffers)))??;
                Ok(Launched::Plain(call))
            }
            Err(pair) => Staging::launch(engine, tag, descriptor, feedback, pair).map(Launched::Staged),
        }
    }

    /// Starts to reduce a vector; [`Pending::wait`] returns it.
    pub fn all_reduce_async<T: Element>(
        &self,
        data: Vec<T>,
        options: AllReduce,
    ) -> Result<Pending<T>, Error> {
        let buffers = Buffers::InPlace(Memory::from_vec(data));
        self.reduce_async(Reduction { dtype: T::DTYPE, buffers, options }).map(Pending::new)
    }

    /// Starts to reduce host or device memory.
    pub fn reduce_async(&self, reduction: Reduction) -> Result<Work, Error> {
        let engine = self.engine()?;
        let work = self.launch(&engine, reduction)?.into_work(&engine)?;
        // If this peer has just left, waiting for the work reports it.
        let _ = engine.with(|_| ());
        Ok(work)
    }

    /// Runs many all-reduces; repeats those that were aborted by the loss of a peer or link.
    ///
    /// At most `in_flight_max` run at a time; this may differ between peers. The tags must be distinct, and the same on
    /// all peers. The result has the total bytes and the world of the last all-reduce.
    pub fn all_reduce_many(
        &self,
        mut all: Vec<Reduction>,
        in_flight_max: usize,
    ) -> Result<ReduceInfo, Error> {
        if in_flight_max == 0 {
            return Err(invalid!("invalid in_flight_max 0: must be at least 1"));
        }
        let engine = self.engine()?;
        let mut info = ReduceInfo::default();
        // All peers launch in the same order. Otherwise each could fill its limit with operations that the others have
        // not launched.
        all.sort_by_key(|reduction| reduction.options.tag);
        let mut todo: VecDeque<_> = all.into();
        let mut in_flight: VecDeque<(DType, AllReduce, Work)> = VecDeque::new();
        let mut failure = None;
        loop {
            let may_launch = failure.is_none() && in_flight.len() < in_flight_max;
            if let Some(reduction) = todo.pop_front_if(|_| may_launch) {
                let (dtype, options) = (reduction.dtype, reduction.options);
                match self.launch(&engine, reduction).and_then(|launched| launched.into_work(&engine)) {
                    Ok(work) => in_flight.push_back((dtype, options, work)),
                    Err(error) => failure = Some(error),
                }
                continue;
            }
            if let Some((dtype, options, work)) = in_flight.pop_front() {
                match work.finish() {
                    (Ok(done), _) => {
                        info.world = done.world;
                        info.tx_bytes += done.tx_bytes;
                        info.rx_bytes += done.rx_bytes;
                    }
                    (Err(Error::Failed(failure @ Failure::Aborted(_))), Some(buffers))
                        if is_transient(&failure) =>
                    {
                        tracing::debug!(%failure, "retrying an all-reduce");
                        // In order of tags: so all peers always have the first unfinished one in flight, and it ends.
                        let index = todo.partition_point(|other| other.options.tag < options.tag);
                        todo.insert(index, Reduction { dtype, buffers, options });
                    }
                    (Err(error), _) => failure = Some(error),
                }
                continue;
            }
            return failure.map_or(Ok(info), Err);
        }
    }

    /// Synchronizes the shared state of the group: fetches entries that differ from the elected ones.
    pub fn sync_shared_state(
        &self,
        state: &mut SharedState<'_>,
        strategy: SyncStrategy,
    ) -> Result<SyncInfo, Error> {
        let revision = state.revision();
        let info = state.lend(|tensors| self.sync_memory(revision, tensors, strategy, SyncCompany::Alone))?;
        state.set_revision(info.revision);
        Ok(info)
    }

    /// As [`Communicator::sync_shared_state`], for host or device memory.
    pub fn sync_memory(
        &self,
        revision: u64,
        tensors: Vec<StateTensor>,
        strategy: SyncStrategy,
        company: SyncCompany,
    ) -> Result<SyncInfo, Error> {
        let engine = self.engine()?;
        shared_state::check(&tensors)?;
        let StagedState { entries, tensors, targets } = StagedState::new(tensors)?;
        let hashes = entries.iter().map(|entry| entry.hash).collect();
        let offer = SyncOffer { revision: Revision(revision), strategy, entries };
        let started = engine.with_waiter(|driver| {
            let (connect, done) = transfer_callbacks(driver);
            driver.sync(offer, company, Transfer::new(tensors, hashes, connect, done))
        })?;
        let call = started.map_err(|refused| {
            let (error, transfer) = *refused;
            transfer.stop();
            error
        })?;
        let mut ended = engine.wait(call);
        let failure = ended.transfer.as_ref().and_then(Transfer::failure);
        let (moved, fetched) = ended.transfer.take().map(Transfer::finish).unwrap_or_default();
        match ended.result.map_err(|error| failure.unwrap_or(error))? {
            Completion::Synced(revision) => {
                targets.upload(&fetched)?;
                Ok(SyncInfo { revision: revision.0, tx_bytes: moved.tx_bytes, rx_bytes: moved.rx_bytes })
            }
            other => Err(Error::Internal(format!("unexpected result of a sync: {other:?}"))),
        }
    }

    /// Leaves the run. Calls in progress and all later calls fail.
    pub fn leave(&self) {
        let engine = self.engine.lock().clone();
        if let Some(engine) = engine {
            engine.close();
        }
    }

    pub(crate) fn engine(&self) -> Result<Arc<Engine>, Error> {
        let engine = self.engine.lock().clone();
        engine.ok_or_else(|| Error::Misuse("this communicator is not connected".into()))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A member of a peer group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMember {
    /// Its id in the run.
    pub peer: u128,
    /// Its name in errors and logs.
    pub name: String,
}

/// Whether the same operation may succeed among the remaining peers.
fn is_transient(failure: &Failure) -> bool {
    failure.is_retryable() && failure.kind() != FailureKind::Timeout
}

/// Makes a call of the peer machine and waits for its result.
fn vote(
    engine: &Engine,
    make: impl FnOnce(&mut Peer, Time) -> Result<CallId, Failure>,
) -> Result<Completion, Error> {
    let call = engine.with_waiter(|driver| driver.call(make))??;
    engine.wait(call).result
}

enum Launched {
    Plain(CallId),
    /// It needs a thread that copies from and to the device.
    Staged(Staging),
}

impl Launched {
    fn into_work(self, engine: &Arc<Engine>) -> Result<Work, Error> {
        match self {
            Self::Plain(call) => Ok(Work::new(engine.clone(), call)),
            Self::Staged(staging) => staging.run_in_background().map(Work::staged),
        }
    }
}

/// The callbacks of a transfer: one dials a source, the other reports that a fetch has ended.
fn transfer_callbacks(driver: &Driver) -> (transfer::Connect, transfer::Done) {
    let directory = driver.directory();
    let connect: transfer::Connect =
        Arc::new(move |peer, timeout| directory.dial(peer, Purpose::State, timeout));
    // The sender is not Sync.
    let reports = Mutex::new(driver.report_sender());
    let done: transfer::Done =
        Arc::new(move |number, complete| reports.lock().send(WorkerReport::Fetched { number, complete }));
    (connect, done)
}
