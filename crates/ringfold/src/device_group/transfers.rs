//! Sends and receives between devices.
//!
//! The transfers with one rank in one direction are a chain: each starts after the one before. Chains do not wait for each
//! other, so those of a batch are done by one kernel, unless nothing in the batch can wait for what comes later.

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
use std::collections::BTreeSet;
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

/// The chains of a rank.
pub(super) struct TransferQueues {
    chains: Mutex<Vec<LaunchQueue>>,
}

impl TransferQueues {
    pub(super) fn new(world: usize) -> Self {
        Self { chains: Mutex::new((0..2 * world).map(|_| LaunchQueue::default()).collect()) }
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
    /// Whether it is a large send of memory that is not registered.
    is_pushed: bool,
}

impl Link {
    fn chain(self) -> usize {
        2 * self.peer + usize::from(self.is_send)
    }
}

/// Whether no transfer of a batch can keep another one from starting, if they are started one after the other.
///
/// The small ones run at once in one kernel. Of large ones, sends are announced before anything waits, so that one receive may
/// wait for its sender; but a send through a staging area has to be worked on.
fn is_simple(batch: &[Link]) -> bool {
    let chains: BTreeSet<_> = batch.iter().map(|link| link.chain()).collect();
    let receives = batch.iter().filter(|link| !link.is_send).count();
    let all_small = batch.iter().all(|link| link.is_small);
    let all_large = !batch.iter().any(|link| link.is_small);
    let can_wait = receives > 1 || batch.iter().any(|link| link.is_pushed);
    chains.len() == batch.len() && (all_small || all_large && !can_wait)
}

impl DeviceGroup {
    /// Queues sends and receives, which may wait for each other's ranks. The call ends when all have.
    ///
    /// Small messages are sent at once; a larger one when its receiver takes it.
    pub fn transfer(
        &self,
        batch: &[DeviceTransfer],
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<CallEnd, Error> {
        self.require_one_host("a transfer")?;
        self.transfer_on_host(batch, stream, timeout)
    }

    /// Queues sends and receives between ranks of this host.
    pub(super) fn transfer_on_host<'a>(
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
        let mut parts: Vec<_> = batch.iter().zip(all).map(part).collect();
        let link = |part: &Transfer<'_>| {
            let is_small = part.is_small();
            let is_pushed = part.is_send && !is_small && part.code == 0;
            Link { is_send: part.is_send, peer: part.peer, is_small, is_pushed }
        };
        let links: Vec<_> = parts.iter().map(link).collect();
        let kernels = self.transfer_kernels()?;
        // Locked until the call is queued: other threads queue after it.
        let mut queues = self.transfers.chains.lock();
        for link in &links {
            queues[link.chain()].join(stream, capture)?;
        }
        if is_simple(&links) {
            // Sends first: receives wait for other ranks.
            parts.sort_by_key(|part| !part.is_send);
            arena.transfer(kernels, &parts, &options, stream)?;
        } else {
            arena.transfer_batch(kernels, &parts, &options, stream)?;
        }
        let mut end = CallEnd::default();
        for (link, transfer) in links.iter().zip(batch) {
            let operands = vec![transfer.memory.clone()];
            end = queues[link.chain()].end(arena.gpu(), stream, capture, operands)?;
        }
        Ok(end)
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
        let context = RankContext::plain(self.group.rank(), self.world());
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
    fn a_batch_is_simple_if_nothing_can_wait_for_what_comes_later() {
        let is_one = |batch: &[(bool, usize)], is_small: bool| {
            let links: Vec<_> = batch.iter().map(|(is_send, peer)| link(*is_send, *peer, is_small)).collect();
            is_simple(&links)
        };
        let (send, receive) = (true, false);
        assert!(is_one(&[(send, 1)], false) && is_one(&[(receive, 1)], false));
        assert!(is_one(&[(send, 1), (receive, 2), (send, 0)], false));
        assert!(!is_one(&[(receive, 1), (receive, 2)], false));
        assert!(is_one(&[(receive, 1), (receive, 2), (send, 1)], true));
        assert!(!is_one(&[(send, 1), (send, 1), (receive, 2)], true));
        let pushed = Link { is_pushed: true, ..link(true, 1, false) };
        assert!(!is_simple(&[pushed, link(false, 1, false)]) && !is_simple(&[pushed]));
        assert!(!is_one(&[(send, 1), (send, 1)], true) && !is_one(&[(receive, 1), (receive, 1)], false));
        assert!(!is_simple(&[link(true, 1, true), link(false, 1, false)]), "small and large ones");
    }
}
