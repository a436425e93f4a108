//! Sends and receives between devices.
//!
//! The transfers with one rank in one direction are a chain: each starts after the one before. Chains do not wait for each
//! other, so those of a batch get streams of their own, unless one stream is enough.

use super::DeviceGroup;
use super::launch_queue::{CallEnd, LaunchQueue};
use crate::error::invalid;
use crate::group::{BufferLengths, RankContext};
use crate::{Error, GroupOp};
use core::time::Duration;
use parking_lot::Mutex;
use ringfold_cuda::device_arena::{CallOptions, FoldKernels, KernelKind, Specialisation, Transfer};
use ringfold_cuda::{DeviceMemory, Stream};
use ringfold_proto::dtype::DType;
use ringfold_proto::tuning::Algorithm;
use std::time::Instant;

/// A send or a receive of a batch.
#[derive(Clone, Debug)]
pub struct DeviceTransfer {
    /// Whether it is a send.
    pub is_send: bool,
    /// The other rank.
    pub peer: usize,
    /// What is sent, or where the message is stored.
    pub memory: DeviceMemory,
    /// The type of its elements.
    pub dtype: DType,
}

/// The chains of a rank and the streams of batches.
pub(super) struct TransferQueues {
    chains: Mutex<Vec<LaunchQueue>>,
    /// The stream of each chain, for batches, and those of captured ones. None before it is needed.
    streams: Mutex<Vec<Option<Stream>>>,
}

impl TransferQueues {
    pub(super) fn new(world: usize) -> Self {
        let chains = (0..2 * world).map(|_| LaunchQueue::default()).collect();
        let streams = Mutex::new((0..4 * world).map(|_| None).collect());
        Self { chains: Mutex::new(chains), streams }
    }

    /// The number of calls of each chain so far.
    pub(super) fn issued(&self) -> Vec<u64> {
        self.chains.lock().iter().map(LaunchQueue::issued).collect()
    }

    /// Whether the first so many calls of each chain are done.
    pub(super) fn have_ended(&self, calls: &[u64]) -> bool {
        self.chains.lock().iter_mut().zip(calls).all(|(chain, calls)| chain.has_ended(*calls))
    }

    /// Whether all transfers are done, except those in graphs.
    pub(super) fn is_idle(&self) -> bool {
        self.chains.lock().iter_mut().all(LaunchQueue::is_idle)
    }

    /// The number of unfinished transfers, except those in graphs; `None` while another thread queues one.
    pub(super) fn unfinished(&self) -> Result<Option<usize>, Error> {
        let Some(mut chains) = self.chains.try_lock() else { return Ok(None) };
        chains.iter_mut().map(LaunchQueue::unfinished).sum::<Result<usize, Error>>().map(Some)
    }

    /// Waits for all transfers. False after the deadline.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        self.chains.lock().iter_mut().all(|chain| chain.synchronize(deadline).is_ok())
    }
}

/// What decides how the transfers of a batch are queued.
#[derive(Clone, Copy, Debug)]
struct Link {
    is_send: bool,
    peer: usize,
    is_small: bool,
    /// Whether it is a send of memory that is not registered: its blocks wait for those of the receiver.
    is_pushed: bool,
}

impl Link {
    fn chain(self) -> usize {
        2 * self.peer + usize::from(self.is_send)
    }
}

/// The chains of a batch, each with its transfers in order; and whether all of them can be launched together on one stream.
///
/// It is if no transfer can keep another one from starting: the small ones run at once in one kernel. Of large ones, sends are
/// announced before anything waits, so that one receive may wait for its sender; but a send through a staging area waits.
fn chains_of(batch: &[Link]) -> (Vec<Vec<usize>>, bool) {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for (index, link) in batch.iter().enumerate() {
        match chains.iter_mut().find(|chain| batch[chain[0]].chain() == link.chain()) {
            Some(chain) => chain.push(index),
            None => chains.push(vec![index]),
        }
    }
    let receives = batch.iter().filter(|link| !link.is_send).count();
    let all_small = batch.iter().all(|link| link.is_small);
    let all_large = !batch.iter().any(|link| link.is_small);
    let can_wait = receives > 1 || batch.len() > 1 && batch.iter().any(|link| link.is_pushed);
    let is_joint = chains.iter().all(|chain| chain.len() == 1) && (all_small || all_large && !can_wait);
    (chains, is_joint)
}

/// A batch that is being queued.
struct Batch<'a> {
    transfers: &'a [DeviceTransfer],
    parts: Vec<Transfer<'a>>,
    links: Vec<Link>,
    options: CallOptions,
    capture: Option<u64>,
}

impl DeviceGroup {
    /// Queues sends and receives, which may wait for each other's ranks. The call ends when all have.
    ///
    /// Small messages are sent at once; a larger one when its receiver takes it.
    pub fn transfer<'a>(
        &self,
        batch: &'a [DeviceTransfer],
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<CallEnd, Error> {
        let all = batch.iter().map(|transfer| self.checked(transfer)).collect::<Result<Vec<_>, _>>()?;
        self.check()?;
        let arena = self.arena()?;
        let _current = arena.gpu().make_current()?;
        let sends = batch.iter().filter(|transfer| transfer.is_send).map(|transfer| &transfer.memory);
        let capture = self.prepare_capture(stream, sends, Transfer::is_large)?;
        let options = CallOptions {
            fingerprint: 0,
            timeout: timeout.unwrap_or_default(),
            is_captured: capture.is_some(),
        };
        let part = |(transfer, fingerprint): (&'a DeviceTransfer, u64)| {
            let DeviceTransfer { is_send, peer, memory, .. } = transfer;
            let mut part = Transfer { is_send: *is_send, peer: *peer, memory, fingerprint, code: 0 };
            part.code = arena.code_of(&part, capture.is_some());
            part
        };
        let parts: Vec<_> = batch.iter().zip(all).map(part).collect();
        let link = |part: &Transfer<'_>| {
            let is_small = part.is_small();
            let is_pushed = part.is_send && !is_small && part.code == 0;
            Link { is_send: part.is_send, peer: part.peer, is_small, is_pushed }
        };
        let links: Vec<_> = parts.iter().map(link).collect();
        let (chains, is_joint) = chains_of(&links);
        let batch = Batch { transfers: batch, parts, links, options, capture };
        if is_joint { self.queue_joint(batch, stream) } else { self.queue_chains(&batch, &chains, stream) }
    }

    /// Queues all transfers of a batch at once.
    fn queue_joint(&self, mut batch: Batch<'_>, stream: &Stream) -> Result<CallEnd, Error> {
        let (arena, kernels) = (self.arena()?, self.transfer_kernels()?);
        // Locked until the call is queued: other threads queue after it.
        let mut queues = self.transfers.chains.lock();
        for link in &batch.links {
            queues[link.chain()].join(stream, batch.capture)?;
        }
        // Sends first: receives wait for other ranks.
        batch.parts.sort_by_key(|part| !part.is_send);
        arena.transfer(kernels, &batch.parts, &batch.options, stream)?;
        let mut end = CallEnd::default();
        for (link, transfer) in batch.links.iter().zip(batch.transfers) {
            let operands = vec![transfer.memory.clone()];
            end = queues[link.chain()].end(arena.gpu(), stream, batch.capture, operands)?;
        }
        Ok(end)
    }

    /// Queues each chain of a batch on a stream of its own.
    fn queue_chains(
        &self,
        batch: &Batch<'_>,
        chains: &[Vec<usize>],
        stream: &Stream,
    ) -> Result<CallEnd, Error> {
        let (arena, kernels, capture) = (self.arena()?, self.transfer_kernels()?, batch.capture);
        let mut queues = self.transfers.chains.lock();
        let mut streams = self.transfers.streams.lock();
        // Streams of captures are others: a stream is captured until the whole capture ends.
        let first = if capture.is_some() { 2 * self.world() } else { 0 };
        let number = |chain: &[usize]| batch.links[chain[0]].chain();
        for chain in chains {
            let place = match &mut streams[first + number(chain)] {
                Some(place) => place,
                none => none.insert(arena.gpu().create_stream()?),
            };
            // All start before any is waited for.
            self.fork(stream, place)?;
        }
        let placed =
            chains.iter().filter_map(|chain| Some((chain, streams[first + number(chain)].as_ref()?)));
        let placed: Vec<_> = placed.collect();
        for (chain, place) in &placed {
            let queue = &mut queues[number(chain)];
            queue.join(place, capture)?;
            for index in *chain {
                arena.transfer(kernels, &batch.parts[*index..=*index], &batch.options, place)?;
            }
            let operands = chain.iter().map(|index| batch.transfers[*index].memory.clone()).collect();
            queue.end(arena.gpu(), place, capture, operands)?;
        }
        for (_, place) in &placed {
            self.fork(place, stream)?;
        }
        if capture.is_some() { Ok(CallEnd::default()) } else { CallEnd::record(arena.gpu(), stream) }
    }

    fn transfer_kernels(&self) -> Result<&FoldKernels, Error> {
        self.transfer_kernels.as_deref().ok_or_else(|| invalid!("a single rank has no transfers"))
    }

    /// The fingerprint of a valid transfer: the same on both ranks.
    fn checked(&self, transfer: &DeviceTransfer) -> Result<u64, Error> {
        let DeviceTransfer { is_send, peer, memory, dtype } = transfer;
        if memory.is_empty() {
            return Err(invalid!("unsupported transfer of no elements between CUDA devices"));
        }
        let tag = crate::TransferTag::default();
        let (op, input, output) = if *is_send {
            (GroupOp::Send { to: *peer, tag }, memory.len(), 0)
        } else {
            (GroupOp::Recv { from: *peer, tag }, 0, memory.len())
        };
        let context = RankContext { me: self.group.rank(), world: self.world() };
        let request = context.request(&op, *dtype, BufferLengths::OutOfPlace { input, output })?;
        Ok(request.descriptor.fingerprint(Algorithm::OneShot, 0))
    }
}

/// The kernels of transfers between so many ranks. They are loaded when a group is opened: loading may wait for kernels.
pub(super) fn specialisation(world: usize) -> Specialisation {
    Specialisation { element: "U8", element_bytes: 1, op: "Sum", world, kind: KernelKind::Transfer }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(is_send: bool, peer: usize, is_small: bool) -> Link {
        Link { is_send, peer, is_small, is_pushed: false }
    }

    #[test]
    fn one_stream_is_enough_if_nothing_can_wait_for_what_comes_later() {
        let is_one = |batch: &[(bool, usize)], is_small: bool| {
            let links: Vec<_> = batch.iter().map(|(is_send, peer)| link(*is_send, *peer, is_small)).collect();
            chains_of(&links).1
        };
        let (send, receive) = (true, false);
        assert!(is_one(&[(send, 1)], false) && is_one(&[(receive, 1)], false));
        assert!(is_one(&[(send, 1), (receive, 2), (send, 0)], false));
        assert!(!is_one(&[(receive, 1), (receive, 2)], false));
        assert!(is_one(&[(receive, 1), (receive, 2), (send, 1)], true));
        assert!(!is_one(&[(send, 1), (send, 1), (receive, 2)], true));
        let pushed = Link { is_pushed: true, ..link(true, 1, false) };
        assert!(!chains_of(&[pushed, link(false, 1, false)]).1);
        assert!(!is_one(&[(send, 1), (send, 1)], true) && !is_one(&[(receive, 1), (receive, 1)], false));
    }

    #[test]
    fn transfers_with_one_rank_in_one_direction_are_a_chain() {
        let batch = [(true, 1), (false, 1), (true, 1), (true, 2), (false, 2)];
        let links: Vec<_> = batch.iter().map(|(is_send, peer)| link(*is_send, *peer, false)).collect();
        assert_eq!(chains_of(&links), (vec![vec![0, 2], vec![1], vec![3], vec![4]], false));
        let mixed = [link(true, 1, true), link(false, 1, false)];
        assert_eq!(chains_of(&mixed), (vec![vec![0], vec![1]], false), "small and large ones");
    }
}
