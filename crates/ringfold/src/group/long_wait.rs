//! Waits outside of a group's driver, which reports those that take long.

use super::Group;
use super::core::Core;
use super::driver::{Awaited, GroupDriver, WaitId};
use super::operation::OperationRequest;
use crate::Error;
use crate::board::Board;
use core::cell::Cell;
use core::time::Duration;
use ringfold_fabric::arena::LongWait;
use ringfold_fabric::waiter::Deadline;
use ringfold_proto::cause::Wait;
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::id::Rank;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// A collective on the board, which reports its waits.
pub(super) struct BoardWatch<'a> {
    core: &'a Core,
    pub(super) request: &'a OperationRequest,
    /// The collectives before it.
    pub(super) before: u64,
    first_round: u64,
    id: Cell<Option<WaitId>>,
}

impl<'a> BoardWatch<'a> {
    /// Watches the collective that begins now.
    #[inline]
    pub(super) fn new(core: &'a Core, board: &Board, request: &'a OperationRequest) -> Self {
        let (before, first_round) = (board.collectives(), board.next_round());
        Self { core, request, before, first_round, id: Cell::new(None) }
    }

    /// The call, as texts name it.
    pub(super) fn call(&self) -> GroupCall {
        // In groups that restore, each is followed by a barrier.
        let before = if self.core.restores { self.before / 2 } else { self.before };
        self.request.named(self.core.rank(), before + 1)
    }

    /// The wait that takes long, if there is one.
    pub(super) fn id(&self) -> Option<WaitId> {
        self.id.get()
    }
}

impl LongWait for BoardWatch<'_> {
    fn begin(&self, waited: Duration, deadline: Deadline) {
        let awaited = Awaited::OnBoard { first_round: self.first_round };
        let begun = self.core.engine.with(|driver| driver.begin_wait(self.call(), awaited, waited, deadline));
        self.id.set(begun.ok());
    }

    fn end(&self) {
        if let Some(id) = self.id.take() {
            let _ = self.core.engine.with(|driver| driver.end_wait(id));
        }
    }
}

impl Drop for BoardWatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.id.get().is_some() {
            self.end();
        }
    }
}

/// A wait in a call beside the group's operations. The group reports it until it is dropped.
pub(crate) struct WatchedWait {
    core: Arc<Core>,
    id: WaitId,
    call: GroupCall,
}

impl WatchedWait {
    /// What is known of the wait for this rank.
    pub(crate) fn describe(&self, rank: usize) -> Option<Wait> {
        let (rank, Self { core, id, call }) = (Rank::from_index(rank), self);
        core.engine.with(|driver| driver.describe_wait(Some(*id), *call, vec![rank])).ok()
    }
}

impl Drop for WatchedWait {
    fn drop(&mut self) {
        let _ = self.core.engine.with(|driver| driver.end_wait(self.id));
    }
}

impl Group {
    /// A wait for a rank that has begun at some time, and takes long; none if the group has ended.
    pub(crate) fn watch(
        &self,
        call: GroupCall,
        rank: usize,
        began: Instant,
        until: Instant,
    ) -> Option<WatchedWait> {
        self.begin_watch(call, Awaited::Ranks(vec![Rank::from_index(rank)]), began, until)
    }

    /// A wait for the ranks that have not launched a collective on their CUDA devices, of which this is the number.
    pub(crate) fn watch_launch(&self, number: u64, began: Instant, until: Instant) -> Option<WatchedWait> {
        let call = GroupCall { number, ..GroupCall::plain(GroupCallKind::OnDevice) };
        self.begin_watch(call, Awaited::OnDevice { number }, began, until)
    }

    /// The number of collectives that this rank has launched on its CUDA device, which other ranks may ask for.
    pub(crate) fn launches(&self) -> Result<Arc<AtomicU64>, Error> {
        self.core().engine.with(|driver| driver.launches())
    }

    fn begin_watch(
        &self,
        call: GroupCall,
        awaited: Awaited,
        began: Instant,
        until: Instant,
    ) -> Option<WatchedWait> {
        let core = self.core().clone();
        let begin =
            |driver: &mut GroupDriver| driver.begin_wait(call, awaited, began.elapsed(), until.into());
        let id = core.engine.with(begin).ok()?;
        Some(WatchedWait { core, id, call })
    }
}
