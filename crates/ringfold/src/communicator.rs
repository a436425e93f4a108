//! A peer's part in a run.

mod builder;

pub use builder::CommunicatorBuilder;

use crate::all_reduce::{AllReduce, Buffers, ReduceInfo, Reduction};
use crate::driver::{Driver, Note, NoteSender};
use crate::engine::Engine;
use crate::shared_state::{self, SharedState, StateTensor, SyncInfo};
use crate::staging::{StagedState, Staging};
use crate::transfer::{self, Transfer};
use crate::work::{Pending, Work};
use crate::{Element, Error};
use builder::Config;
use parking_lot::Mutex;
use ringfold_fabric::memory::{Memory, lend, lend_mut};
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::Attributes;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{CallId, Revision, Tag};
use ringfold_proto::peer::{Completion, Failure, FailureKind, Peer};
use ringfold_proto::shared_state::{SyncOffer, SyncStrategy};
use ringfold_proto::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A peer's part in a run: it joins, takes part in votes and collectives, and leaves when it is dropped.
///
/// Calls may be made from any thread. Every call that waits does so until its answer is there, the run has lost this
/// peer or its master for good, or its deadline has passed; the error says whom it waited for.
///
/// ```
/// use ringfold::{AllReduce, Communicator, Master};
///
/// let master = Master::builder().listen("127.0.0.1:0").build();
/// master.run()?;
/// let address = master.addresses()[0].to_string();
///
/// // In earnest each of these is a process of its own.
/// let first = Communicator::builder(&address).name("first").build()?;
/// first.connect()?;
/// let second = std::thread::spawn({
///     let address = address.clone();
///     move || {
///         let second = Communicator::builder(&address).name("second").build()?;
///         second.connect()?; // returns when the first one has let it in
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
    config: Config,
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Communicator {
    /// Describes a communicator with the master at this address: `"host:port"`, `"10.0.0.7:48148"` or
    /// `"[::1]:48148"`.
    pub fn builder(master: impl Into<String>) -> CommunicatorBuilder {
        CommunicatorBuilder::new(master.into())
    }

    /// What others call this peer.
    pub fn name(&self) -> &str {
        self.config.name()
    }

    /// Registers with the master, and waits until the peers of the run have let this one in. If the master can't be
    /// reached it may be called again.
    pub fn connect(&self) -> Result<(), Error> {
        let engine = {
            let mut slot = self.engine.lock();
            if slot.is_some() {
                return Err(Error::Misuse("this communicator has been connected before".into()));
            }
            slot.insert(Arc::new(self.config.engine()?)).clone()
        };
        let patience = self.config.connect_patience();
        let connected = vote(&engine, |peer, now| peer.connect(now, patience));
        if let Err(Error::Failed(Failure::MasterLost(_) | Failure::TurnedAway(_))) = &connected {
            *self.engine.lock() = None;
            engine.close();
        }
        connected.map(drop)
    }

    /// Lets in whoever waits to join, together with all peers of the run.
    pub fn update_topology(&self) -> Result<(), Error> {
        vote(&*self.engine()?, |peer, now| peer.update_topology(now, None)).map(drop)
    }

    /// Asks, together with all peers of the run, whether anyone waits to join.
    pub fn are_peers_pending(&self) -> Result<bool, Error> {
        let answer = vote(&*self.engine()?, |peer, now| peer.are_peers_pending(now, None))?;
        Ok(answer == Completion::Pending(true))
    }

    /// Measures the ways between peers that were not measured yet, and takes the best ring, together with all peers
    /// of the run.
    pub fn optimize_topology(&self) -> Result<(), Error> {
        vote(&*self.engine()?, |peer, now| peer.optimize_topology(now, None)).map(drop)
    }

    /// World sizes. They change only by `connect`, `update_topology`, `optimize_topology` and collectives.
    ///
    /// After a collective that succeeded `group_world` equals [`ReduceInfo::world`](crate::ReduceInfo): how many peers
    /// are in the result. All peers see the same sizes after the same operation.
    pub fn attributes(&self) -> Attributes {
        let engine = self.engine.lock().clone();
        engine.and_then(|engine| engine.with_waiter(|driver| driver.attributes()).ok()).unwrap_or_default()
    }

    /// How many peers this one talks to through shared memory now; with the others it talks over TCP.
    pub fn shared_links(&self) -> usize {
        let engine = self.engine.lock().clone();
        engine.and_then(|engine| engine.with_waiter(|driver| driver.shared_links()).ok()).unwrap_or_default()
    }

    /// Reduces in place, together with all peers of the group. After a failure the data is as before.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], options: AllReduce) -> Result<ReduceInfo, Error> {
        lend_mut(data.as_mut_bytes(), |memory| {
            self.reduce(Reduction { dtype: T::DTYPE, buffers: Buffers::InPlace(memory), options })
        })
    }

    /// Reduces `send` into `recv`, which are of one length. After a failure `recv` is undefined.
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

    /// Reduces memory of any kind, and returns when that has ended.
    pub fn reduce(&self, reduction: Reduction) -> Result<ReduceInfo, Error> {
        let engine = self.engine()?;
        match launch(&engine, reduction)? {
            Launched::Plain(call) => {
                let ended = engine.wait(call);
                ended.result.map(|_| ended.info)
            }
            Launched::Staged(staging) => staging.run_here().result,
        }
    }

    /// Starts to reduce a vector, which comes back when that has ended.
    pub fn all_reduce_async<T: Element>(
        &self,
        data: Vec<T>,
        options: AllReduce,
    ) -> Result<Pending<T>, Error> {
        let buffers = Buffers::InPlace(Memory::from_vec(data));
        self.all_reduce_memory(T::DTYPE, buffers, options).map(Pending::new)
    }

    /// Starts to reduce memory of any kind.
    pub fn all_reduce_memory(
        &self,
        dtype: DType,
        buffers: Buffers,
        options: AllReduce,
    ) -> Result<Work, Error> {
        let engine = self.engine()?;
        let work = launch(&engine, Reduction { dtype, buffers, options })?.into_work(&engine)?;
        // If this peer has just left, waiting for the work says so.
        let _ = engine.with(|_| ());
        Ok(work)
    }

    /// Reduces all, with at most so many in flight at once, and again whatever was aborted because a peer or a link was
    /// lost, until all have succeeded.
    /// The number in flight need not be the same on all peers; the tags must be, and different from each other.
    /// The sums of what was moved are reported, and the world that the last one ran in.
    pub fn all_reduce_many(
        &self,
        mut all: Vec<Reduction>,
        in_flight_max: usize,
    ) -> Result<ReduceInfo, Error> {
        if in_flight_max == 0 {
            return Err(Error::BadArgument("at least one operation has to be in flight".into()));
        }
        let engine = self.engine()?;
        let mut info = ReduceInfo::default();
        // Peers may list them in different orders. In flight they are in one order: otherwise each peer could fill its
        // allowance with what the others have not begun.
        all.sort_by_key(|reduction| reduction.options.tag);
        let mut todo: VecDeque<_> = all.into();
        let mut going: VecDeque<(DType, AllReduce, Work)> = VecDeque::new();
        let mut failure = None;
        loop {
            let may_launch = failure.is_none() && going.len() < in_flight_max;
            if let Some(reduction) = todo.pop_front_if(|_| may_launch) {
                let (dtype, options) = (reduction.dtype, reduction.options);
                match launch(&engine, reduction).and_then(|launched| launched.into_work(&engine)) {
                    Ok(work) => going.push_back((dtype, options, work)),
                    Err(error) => failure = Some(error),
                }
                continue;
            }
            if let Some((dtype, options, work)) = going.pop_front() {
                match work.finish() {
                    (Ok(done), _) => {
                        info.world = done.world;
                        info.tx_bytes += done.tx_bytes;
                        info.rx_bytes += done.rx_bytes;
                    }
                    (Err(Error::Failed(failure @ Failure::Aborted(_))), Some(buffers))
                        if is_transient(&failure) =>
                    {
                        tracing::debug!(%failure, "an all-reduce is tried again");
                        // Before all that comes later: whatever the limits of the peers are, all of them always have the
                        // first one in flight that is not done, and so it ends.
                        let place = todo.partition_point(|other| other.options.tag < options.tag);
                        todo.insert(place, Reduction { dtype, buffers, options });
                    }
                    (Err(error), _) => failure = Some(error),
                }
                continue;
            }
            return failure.map_or(Ok(info), Err);
        }
    }

    /// Agrees on the shared state with all peers of the group. Entries that differ from what was elected are fetched.
    pub fn sync_shared_state(
        &self,
        state: &mut SharedState<'_>,
        strategy: SyncStrategy,
    ) -> Result<SyncInfo, Error> {
        let revision = state.revision();
        let info = state.lend(|tensors| self.sync_memory(revision, tensors, strategy))?;
        state.set_revision(info.revision);
        Ok(info)
    }

    /// As [`Communicator::sync_shared_state`], of memory of any kind.
    pub fn sync_memory(
        &self,
        revision: u64,
        tensors: Vec<StateTensor>,
        strategy: SyncStrategy,
    ) -> Result<SyncInfo, Error> {
        let engine = self.engine()?;
        shared_state::check(&tensors)?;
        let StagedState { entries, tensors, homes } = StagedState::new(tensors)?;
        let hashes = entries.iter().map(|entry| entry.hash).collect();
        let offer = SyncOffer { revision: Revision(revision), strategy, entries };
        let started = engine.with_waiter(|driver| {
            let (connect, done) = links_of(driver, driver.note_sender());
            driver.sync(offer, Transfer::new(tensors, hashes, connect, done))
        })?;
        let call = started.map_err(|refused| {
            let (error, transfer) = *refused;
            transfer.stop();
            error
        })?;
        let mut ended = engine.wait(call);
        let (moved, fetched) = ended.transfer.take().map(Transfer::finish).unwrap_or_default();
        match ended.result? {
            Completion::Synced(revision) => {
                homes.receive(&fetched)?;
                Ok(SyncInfo { revision: revision.0, tx_bytes: moved.tx_bytes, rx_bytes: moved.rx_bytes })
            }
            other => Err(Error::Internal(format!("a sync ended as {other:?}"))),
        }
    }

    /// Says goodbye. Calls that are under way fail; so do all later ones.
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

/// Whether an abort was nobody's mistake: the same operation may succeed with those who are left.
fn is_transient(failure: &Failure) -> bool {
    failure.is_retryable() && failure.kind() != FailureKind::Timeout
}

/// Makes a call of the machine's and waits for its answer.
fn vote(
    engine: &Engine,
    make: impl FnOnce(&mut Peer, Time) -> Result<CallId, Failure>,
) -> Result<Completion, Error> {
    let call = engine.with_waiter(|driver| driver.call(make))??;
    engine.wait(call).result
}

/// A collective that is in flight.
enum Launched {
    /// It runs by itself.
    Plain(CallId),
    /// Someone has to see to it.
    Staged(Staging),
}

impl Launched {
    fn into_work(self, engine: &Arc<Engine>) -> Result<Work, Error> {
        match self {
            Self::Plain(call) => Ok(Work::new(engine.clone(), call)),
            Self::Staged(staging) => staging.run_beside().map(Work::staged),
        }
    }
}

/// Checks and starts a collective.
fn launch(engine: &Arc<Engine>, reduction: Reduction) -> Result<Launched, Error> {
    let Reduction { dtype, buffers, options } = reduction;
    let descriptor = options.descriptor(dtype, buffers.check(dtype)?)?;
    let tag = Tag(options.tag);
    match buffers.on_host() {
        Ok(buffers) => {
            let call = engine.with_waiter(|driver| driver.start(tag, descriptor, Some(buffers)))??;
            Ok(Launched::Plain(call))
        }
        Err(pair) => Staging::launch(engine, tag, descriptor, pair).map(Launched::Staged),
    }
}

/// How a transfer reaches sources, and whom it tells of its end.
fn links_of(driver: &Driver, notes: NoteSender) -> (transfer::Connect, transfer::Done) {
    let directory = driver.directory();
    let connect: transfer::Connect =
        Arc::new(move |peer, patience| directory.reach(peer, Purpose::State, patience));
    // A sender of notes is not for several threads at once.
    let notes = Mutex::new(notes);
    let done: transfer::Done =
        Arc::new(move |number, complete| notes.lock().send(Note::Fetched { number, complete }));
    (connect, done)
}
