//! All-reduces between the devices of several hosts.
//!
//! The ranks of a host reduce on the device, to the first of them. That rank's device hands the sum over to a thread, piece by
//! piece, which reduces it with the first ranks of the other hosts: one flow between two hosts. Meanwhile the next pieces
//! are copied. Then the ranks of the host get the result on the device. Nothing of this blocks a thread of the caller.

use super::agreement::agree;
use super::launch_queue::{CallEnd, LaunchQueue};
use super::{DeviceGroup, DeviceTransfer, RankDevice, RankNames, Unsupported};
use crate::error::invalid;
use crate::{Error, Group, GroupOp};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use ringfold_cuda::device_arena::{
    BRIDGE_PIECE_BYTES, BRIDGE_SLOTS, BridgePiece, DeviceBridge, HostBridge, KernelKind, Specialisation,
};
use ringfold_cuda::{DeviceMemory, Stream};
use ringfold_kernels::divide;
use ringfold_proto::cause::{Cause, MissingPeer, PeerName, Wait, WaitingPeer};
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::Member;
use ringfold_proto::reduce_op::ReduceOp;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// The fewest bytes of a piece, unless the tensor is smaller: each piece costs a round trip between the hosts.
const PIECE_BYTES_MIN: usize = 4 << 20;

/// In how many pieces a tensor goes, if they are not too small or too large.
const PIECES: usize = 4;

/// How long the thread waits for other hosts in addition to one and a half times the timeout.
const THREAD_PATIENCE: Duration = Duration::from_secs(1);

/// How long kernels wait in addition to twice the timeout: the thread notices first, and knows which host is late.
const KERNEL_PATIENCE: Duration = Duration::from_secs(5);

/// How long a group that is being closed serves graphs that hand over nothing.
const CLOSING_GRACE: Duration = Duration::from_secs(1);
const CLOSING_POLL: Duration = Duration::from_millis(1);

/// How long the thread polls without a pause after a piece, and the pauses after that.
const POLL_BUSILY: Duration = Duration::from_micros(200);
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// How often an idle thread looks whether the group has failed.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// What a device group on several hosts has in addition to that of the ranks of this host.
pub(super) struct Hosts {
    /// On the first rank of a host.
    bridge: Option<Bridge>,
    queue: Mutex<LaunchQueue>,
}

/// A device's way to the other hosts.
struct Bridge {
    device: DeviceBridge,
    leaders: Group,
    work: Arc<(Mutex<BridgeWork>, Condvar)>,
    thread: JoinHandle<()>,
}

/// What the thread has to do.
#[derive(Default)]
struct BridgeWork {
    /// The pieces that were queued, except those in graphs.
    queued: u64,
    /// Whether a graph may hand over pieces at any time.
    has_graphs: bool,
    is_closed: bool,
}

/// What the thread does with a piece, as a number that goes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PieceJob {
    slot: usize,
    bytes: usize,
    dtype: DType,
    op: ReduceOp,
    /// Zero is that of the group.
    timeout: Duration,
}

impl PieceJob {
    const BYTES_BITS: u32 = 26;
    const SLOT_BITS: u32 = 4;
    const NUMBER_BITS: u32 = 5;

    pub(crate) fn encode(self) -> u64 {
        let timeout = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX).min((1 << 24) - 1);
        // A timeout below a millisecond is not none.
        let timeout = timeout.max(u64::from(!self.timeout.is_zero()));
        let fields = [
            (self.bytes as u64, Self::BYTES_BITS),
            (self.slot as u64, Self::SLOT_BITS),
            (self.dtype as u64, Self::NUMBER_BITS),
            (self.op as u64, Self::NUMBER_BITS),
            (timeout, 24),
        ];
        fields.iter().rev().fold(0, |word, (value, bits)| word << bits | value)
    }

    pub(crate) fn decode(mut word: u64) -> Option<Self> {
        let mut take = |bits: u32| {
            let value = word & ((1 << bits) - 1);
            word >>= bits;
            value
        };
        let (bytes, slot) = (take(Self::BYTES_BITS) as usize, take(Self::SLOT_BITS) as usize);
        let dtype = DType::from_number(take(Self::NUMBER_BITS) as u8)?;
        let op = ReduceOp::from_number(take(Self::NUMBER_BITS) as u8)?;
        let timeout = Duration::from_millis(take(24));
        let is_valid = slot < BRIDGE_SLOTS && bytes <= BRIDGE_PIECE_BYTES;
        is_valid.then_some(Self { slot, bytes, dtype, op, timeout })
    }
}

/// The ranks of this host, and the first rank of each host.
fn host_ranks(hosts: &[u64], me: usize) -> (Vec<usize>, Vec<usize>) {
    let ranks = || 0..hosts.len();
    let here = ranks().filter(|rank| hosts[*rank] == hosts[me]).collect();
    let firsts = ranks().filter(|rank| !hosts[..*rank].contains(&hosts[*rank])).collect();
    (here, firsts)
}

/// The sizes of the pieces of a tensor, which hold whole elements of any type.
fn piece_bytes(bytes: usize) -> usize {
    bytes.div_ceil(PIECES).next_multiple_of(256).clamp(PIECE_BYTES_MIN, BRIDGE_PIECE_BYTES)
}

/// Opens the device group of ranks on several hosts: a collective call.
pub(super) fn open(
    all: &Group,
    hosts: &[u64],
    device: RankDevice<'_>,
) -> Result<Result<DeviceGroup, Unsupported>, Error> {
    let can_join = match device.ordinal {
        None => Err("no CUDA device".to_owned()),
        Some(_) if all.is_reproducible() => {
            Err("reproducible reductions use no partial sums of hosts".to_owned())
        }
        Some(_) => Ok(Vec::new()),
    };
    if let Err(why) = agree(all, can_join)? {
        return Ok(Err(Unsupported(why)));
    }
    let opened = open_parts(all, hosts, device).inspect_err(|_| {
        // The ranks of other hosts wait for this one.
        all.abort();
    })?;
    let joined = opened.as_ref().map(|_| Vec::new()).map_err(|Unsupported(why)| why.clone());
    match agree(all, joined)? {
        Ok(_) => Ok(opened),
        Err(why) => Ok(Err(Unsupported(why))),
    }
}

fn open_parts(
    all: &Group,
    hosts: &[u64],
    device: RankDevice<'_>,
) -> Result<Result<DeviceGroup, Unsupported>, Error> {
    let (here, firsts) = host_ranks(hosts, all.rank());
    let local = all.split(&here, "host")?;
    fail_with(all, &local, &here)?;
    let leaders = if here[0] == all.rank() { Some(all.split(&firsts, "hosts")?) } else { None };
    if let Some(leaders) = &leaders {
        fail_with(all, leaders, &firsts)?;
        let abort = leaders.aborter();
        all.on_failure(move |error| {
            if let Error::GroupFailed(cause) = error {
                abort((**cause).clone());
            }
        });
    }
    let opened = DeviceGroup::open_on_host(all, &local, here, device)?;
    let Ok(mut opened) = opened else { return Ok(opened) };
    let bridge = leaders.map(|leaders| Bridge::open(&opened, all, leaders)).transpose()?;
    opened.hosts = Some(Hosts { bridge, queue: Mutex::default() });
    Ok(Ok(opened))
}

/// Makes a group fail with a part of it, which has these ranks.
fn fail_with(all: &Group, part: &Group, ranks: &[usize]) -> Result<(), Error> {
    let ((whole, _), (members, _)) = (all.window_context()?, part.window_context()?);
    let names: Vec<_> = members.members.iter().map(Member::peer_name).collect();
    let new_names: Vec<_> = ranks.iter().map(|rank| whole.members[*rank].peer_name()).collect();
    let abort = all.aborter();
    part.on_failure(move |error| {
        if let Error::GroupFailed(cause) = error {
            abort(renamed(cause, |who| {
                let at = names.iter().position(|name| name == who);
                at.map_or_else(|| who.clone(), |at| new_names[at].clone())
            }));
        }
    });
    Ok(())
}

/// A cause with other names of the ranks.
fn renamed(cause: &Cause, name: impl Fn(&PeerName) -> PeerName) -> Cause {
    match cause {
        Cause::PeerLost { who, how } => Cause::PeerLost { who: name(who), how: how.clone() },
        Cause::LinkLost { from, to } => Cause::LinkLost { from: name(from), to: name(to) },
        Cause::Timeout(wait) => {
            let renamed = |missing: &MissingPeer| MissingPeer { who: name(&missing.who), ..missing.clone() };
            // The calls of the part are not those of the user.
            let missing = wait.missing.iter().map(renamed).collect();
            Cause::Timeout(Wait { call: None, missing, ..*wait })
        }
        Cause::Unable { who } => Cause::Unable { who: name(who) },
        Cause::AbortedByUser { who } => Cause::AbortedByUser { who: name(who) },
        Cause::Mismatch { one, other } => {
            let renamed = |peer: &WaitingPeer| WaitingPeer { who: name(&peer.who), call: peer.call.clone() };
            Cause::Mismatch { one: renamed(one), other: renamed(other) }
        }
        Cause::EpochEnded => Cause::EpochEnded,
        Cause::Corrupted { from, to } => Cause::Corrupted { from: name(from), to: name(to) },
        Cause::ResultsDiffer { who, agree } => {
            Cause::ResultsDiffer { who: who.iter().map(&name).collect(), agree: *agree }
        }
    }
}

impl DeviceGroup {
    /// Queues an all-reduce between the ranks of all hosts.
    pub(super) fn all_reduce_between_hosts(
        &self,
        hosts: &Hosts,
        (source, target): (&DeviceMemory, &DeviceMemory),
        (dtype, op): (DType, ReduceOp),
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<CallEnd, Error> {
        if op == ReduceOp::PremulSum {
            return Err(invalid!("unsupported reduction {} between hosts", op.name()));
        }
        self.check()?;
        let gpu = self.gpu()?;
        let _current = gpu.make_current()?;
        let (capture, mut queue) = (stream.capture()?, hosts.queue.lock());
        queue.join(stream, capture)?;
        let patience = timeout.unwrap_or_else(|| self.group.timeout()).saturating_mul(2);
        let patience = patience.saturating_add(KERNEL_PATIENCE);
        let sum = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        let is_alone = self.world() == 1;
        if !is_alone {
            let to = if hosts.bridge.is_some() { core::slice::from_ref(target) } else { &[] };
            let reduce = GroupOp::Reduce { root: 0, op: sum };
            self.run_on_host(&reduce, dtype, core::slice::from_ref(source), to, stream, timeout)?;
        }
        if let Some(bridge) = &hosts.bridge {
            let from = if is_alone { source } else { target };
            let job = PieceJob { slot: 0, bytes: 0, dtype, op, timeout: timeout.unwrap_or_default() };
            bridge.queue((from, target), job, stream, capture.is_some())?;
        }
        if !is_alone {
            let transfer = |peer| DeviceTransfer {
                is_send: hosts.bridge.is_some(),
                peer,
                memory: target.clone(),
                dtype,
            };
            let peers = if hosts.bridge.is_some() { 1..self.world() } else { 0..1 };
            self.transfer_on_host(&peers.map(transfer).collect::<Vec<_>>(), stream, Some(patience))?;
        }
        queue.end(&gpu, stream, capture, vec![source.clone(), target.clone()])
    }
}

impl Hosts {
    /// Waits until all calls are done, except those in graphs.
    pub(super) fn synchronize(&self, deadline: Instant) -> Result<(), Error> {
        self.queue.lock().synchronize(deadline)
    }

    /// The number of unfinished calls, except those in graphs; `None` while another thread queues one.
    pub(super) fn unfinished(&self) -> Result<Option<usize>, Error> {
        self.queue.try_lock().map(|mut queue| queue.unfinished()).transpose()
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        if let Some(bridge) = &self.bridge {
            bridge.leaders.set_timeout(timeout);
        }
    }

    /// Ends the thread when it has done what was queued, and lets the other ranks go on. `is_done`: all calls are done.
    ///
    /// The thread goes on after the deadline if other ranks are late.
    pub(super) fn close(self, is_done: bool, deadline: Instant) {
        let Some(Bridge { device, leaders, work, thread }) = self.bridge else { return };
        let has_graphs = {
            let mut work = work.0.lock();
            work.is_closed = true;
            work.has_graphs
        };
        work.1.notify_all();
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(CLOSING_POLL);
        }
        if thread.is_finished() {
            leaders.retire();
        }
        // A graph may still be running.
        device.close(is_done && !has_graphs && thread.is_finished());
    }
}

impl Bridge {
    fn open(device: &DeviceGroup, all: &Group, leaders: Group) -> Result<Self, Error> {
        let (element, element_bytes, op, kind) = ("U8", 1, "Sum", KernelKind::Bridge);
        let wanted = Specialisation { element, element_bytes, op, world: device.world(), kind };
        let kernels = device.kernels(&mut device.queue.lock(), &wanted)?;
        let (mine, host) = DeviceBridge::open(device.arena()?, kernels)?;
        let work = Arc::<(Mutex<BridgeWork>, Condvar)>::default();
        let thread = BridgeThread {
            host,
            all: all.clone(),
            leaders: leaders.clone(),
            names: device.names.clone(),
            work: work.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("ringfold-hosts".into())
            .spawn(move || thread.run())
            .map_err(|error| Error::system("starting a thread for other hosts failed", &error))?;
        Ok(Self { device: mine, leaders, work, thread })
    }

    /// Queues the reduction of a tensor with those of the other hosts. `job` has all but slot and size.
    fn queue(
        &self,
        (from, to): (&DeviceMemory, &DeviceMemory),
        job: PieceJob,
        stream: &Stream,
        is_captured: bool,
    ) -> Result<(), Error> {
        let (total, each) = (from.len(), piece_bytes(from.len()));
        let pieces = total.div_ceil(each);
        // Before anything is queued, which may have to wait for the thread.
        self.announce(pieces, is_captured);
        let range = |piece: usize| piece * each..total.min((piece + 1) * each);
        for piece in 0..pieces + BRIDGE_SLOTS {
            let slot = piece % BRIDGE_SLOTS;
            if let Some(back) = piece.checked_sub(BRIDGE_SLOTS).filter(|back| *back < pieces) {
                let piece = BridgePiece { slot, memory: to, range: range(back) };
                self.device.take_back(&piece, job.timeout, stream)?;
            }
            if piece < pieces {
                let piece = BridgePiece { slot, memory: from, range: range(piece) };
                let job = PieceJob { slot, bytes: piece.range.len(), ..job };
                self.device.hand_over(&piece, job.encode(), stream)?;
            }
        }
        Ok(())
    }

    fn announce(&self, pieces: usize, is_captured: bool) {
        let mut work = self.work.0.lock();
        if is_captured {
            work.has_graphs = true;
        } else {
            work.queued += pieces as u64;
        }
        drop(work);
        self.work.1.notify_all();
    }
}

/// The thread that reduces pieces with the other hosts.
struct BridgeThread {
    host: HostBridge,
    all: Group,
    leaders: Group,
    names: RankNames,
    work: Arc<(Mutex<BridgeWork>, Condvar)>,
}

impl BridgeThread {
    fn run(mut self) {
        let mut done = 0;
        while let Some(is_closing) = self.wait_for_work(done) {
            let job = self.poll(if is_closing { CLOSING_GRACE } else { IDLE_WAIT });
            // A kernel that failed has handed over nothing, and the other hosts wait.
            if let Some(left) = self.host.page().error() {
                self.all.abort_with(self.names.cause(&left, |_| None));
                return;
            }
            let Some(job) = job else {
                // A graph that is not replayed again.
                if is_closing && self.work.0.lock().queued <= done {
                    return;
                }
                continue;
            };
            match self.reduce(job) {
                Ok(()) => self.host.give_back(),
                // It fails the whole group.
                Err(Error::GroupFailed(_)) => return,
                Err(error) => {
                    tracing::error!(%error, "reducing a tensor with other hosts failed");
                    self.all.abort();
                    return;
                }
            }
            done += 1;
        }
    }

    /// Waits until there may be a piece; whether the group is being closed. None if there will be none.
    fn wait_for_work(&self, done: u64) -> Option<bool> {
        let (work, changed) = &*self.work;
        let mut work = work.lock();
        loop {
            let has_failed = self.leaders.failure().is_some();
            // Graphs may hand over more than was queued.
            if has_failed || work.queued > done || work.has_graphs {
                return (!has_failed).then_some(work.is_closed);
            }
            if work.is_closed {
                return None;
            }
            changed.wait_for(&mut work, IDLE_WAIT);
        }
    }

    /// Polls for a piece for a while.
    fn poll(&self, patience: Duration) -> Option<u64> {
        let began = Instant::now();
        loop {
            if let Some(job) = self.host.job() {
                return Some(job);
            }
            let spent = began.elapsed();
            if spent >= patience {
                return None;
            }
            if spent < POLL_BUSILY { std::thread::yield_now() } else { std::thread::sleep(POLL_PAUSE) }
        }
    }

    fn reduce(&mut self, job: u64) -> Result<(), Error> {
        let Some(job) = PieceJob::decode(job) else {
            return Err(Error::Internal(format!("invalid job {job:#x} from a device")));
        };
        let PieceJob { slot, bytes, dtype, op, timeout } = job;
        let data = self.host.piece(slot, bytes);
        let sum = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        // Longer than the ranks of another host wait for each other: they know who is missing.
        let timeout = if timeout.is_zero() { self.leaders.timeout() } else { timeout };
        let timeout = timeout.saturating_add(timeout / 2).saturating_add(THREAD_PATIENCE);
        let slices = crate::GroupSlices::InPlace(data);
        self.leaders.run_slices(GroupOp::AllReduce(sum), dtype, slices, Some(timeout))?;
        if op == ReduceOp::Avg {
            divide(dtype, self.host.piece(slot, bytes), self.all.world() as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_round_trip_and_invalid_ones_are_rejected() {
        let job = PieceJob {
            slot: 3,
            bytes: BRIDGE_PIECE_BYTES,
            dtype: DType::C128,
            op: ReduceOp::BitXor,
            timeout: Duration::from_millis(12_345),
        };
        assert_eq!(PieceJob::decode(job.encode()), Some(job));
        let short = PieceJob { timeout: Duration::from_nanos(1), bytes: 0, slot: 0, ..job };
        assert_eq!(PieceJob::decode(short.encode()).unwrap().timeout, Duration::from_millis(1));
        let endless = PieceJob { timeout: Duration::MAX, dtype: DType::U8, op: ReduceOp::Sum, ..job };
        assert_eq!(PieceJob::decode(endless.encode()).unwrap().bytes, BRIDGE_PIECE_BYTES);
        assert_eq!(PieceJob::decode(u64::MAX), None);
    }

    #[test]
    fn each_host_has_a_first_rank() {
        assert_eq!(host_ranks(&[7, 9, 7, 9, 5], 2), (vec![0, 2], vec![0, 1, 4]));
        assert_eq!(host_ranks(&[7, 9, 7, 9, 5], 4), (vec![4], vec![0, 1, 4]));
    }

    #[test]
    fn pieces_are_few_and_fit_into_their_slots() {
        for bytes in [1, 1000, 5 << 20, 100 << 20, 1 << 30, usize::MAX / 8] {
            let each = piece_bytes(bytes);
            assert!(each <= BRIDGE_PIECE_BYTES && each.is_multiple_of(16), "{bytes}");
            assert!(bytes.div_ceil(each) <= PIECES || each == BRIDGE_PIECE_BYTES, "{bytes}");
        }
    }
}
