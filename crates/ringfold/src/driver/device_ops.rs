//! Operations in device memory: what their members have told each other.
//!
//! A member whose tensors are on a CUDA device offers memory to all other members, and waits for their offers. When it has
//! opened them and its input is in place, it is ready. If one member says that it runs the operation in host memory,
//! all do. A member that has said "ready" keeps to it, so all members decide alike.

use ringfold_proto::id::{EpochId, OpId, PeerId};
use ringfold_proto::link_message::DeviceStage;
use std::collections::HashMap;

/// Operations that messages of a peer are kept for. Each has far fewer in flight.
const OPS_PER_PEER_MAX: usize = 1024;

/// How a stage of an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DeviceAnswer<T> {
    /// All members have reached the stage.
    All(T),
    /// The operation runs in host memory.
    OnHost,
    /// The call has ended; its outcome says why.
    Ended,
}

/// The messages of all operations that are not decided.
#[derive(Default)]
pub(super) struct DeviceOps {
    ops: HashMap<OpId, DeviceOp>,
}

#[derive(Default)]
struct DeviceOp {
    /// The other members, in rank order; none before this peer has begun it in device memory.
    others: Option<Vec<PeerId>>,
    /// Whether this peer runs it in host memory.
    is_on_host: bool,
    heard: HashMap<PeerId, HeardStages>,
}

#[derive(Default)]
struct HeardStages {
    memory: Option<Vec<u8>>,
    is_ready: bool,
    is_on_host: bool,
    is_folded: bool,
}

impl DeviceOps {
    /// This peer begins an operation in device memory. Idempotent.
    pub(super) fn begin(&mut self, op: OpId, others: impl FnOnce() -> Vec<PeerId>) {
        let op = self.ops.entry(op).or_default();
        if op.others.is_none() {
            op.others = Some(others());
        }
    }

    /// The members to be told about a stage of this peer.
    pub(super) fn others(&self, op: OpId) -> Vec<PeerId> {
        self.ops.get(&op).and_then(|op| op.others.clone()).unwrap_or_default()
    }

    /// A member has reached a stage of an operation that is not decided. Returns false if the message is ignored, because
    /// the member is in too many operations that this peer has not begun.
    pub(super) fn hear(&mut self, op: OpId, from: PeerId, stage: DeviceStage) -> bool {
        let is_known = |op: &DeviceOp| op.others.is_some() || op.heard.contains_key(&from);
        if !self.ops.get(&op).is_some_and(is_known)
            && self.ops.values().filter(|op| op.heard.contains_key(&from)).count() >= OPS_PER_PEER_MAX
        {
            tracing::warn!(%op, peer = from.short(), "ignoring a message: too many operations in device memory");
            return false;
        }
        let heard = self.ops.entry(op).or_default().heard.entry(from).or_default();
        match stage {
            DeviceStage::Offered { memory } => heard.memory = Some(memory),
            DeviceStage::Ready => heard.is_ready = true,
            DeviceStage::OnHost => heard.is_on_host = true,
            DeviceStage::Folded => heard.is_folded = true,
        }
        true
    }

    /// This peer runs the operation in host memory. Returns the members that have to be told: those that it has begun the
    /// operation with, or that have begun it in device memory.
    pub(super) fn run_on_host(&mut self, op: OpId) -> Vec<PeerId> {
        let Some(op) = self.ops.get_mut(&op).filter(|op| !op.is_on_host) else { return Vec::new() };
        op.is_on_host = true;
        let offered = op.heard.iter().filter(|(_, heard)| heard.memory.is_some()).map(|(peer, _)| *peer);
        op.others.clone().unwrap_or_else(|| offered.collect())
    }

    /// The offers of the other members, in rank order; none while some are missing.
    pub(super) fn offers(&self, op: OpId) -> Option<DeviceAnswer<Vec<Vec<u8>>>> {
        self.answer(op, |heard| heard.memory.clone())
    }

    /// Whether all members are ready; none while some are not.
    pub(super) fn ready(&self, op: OpId) -> Option<DeviceAnswer<()>> {
        self.answer(op, |heard| heard.is_ready.then_some(())).map(without_value)
    }

    /// Whether all parts of the result are there; none while some are not.
    pub(super) fn folded(&self, op: OpId) -> Option<DeviceAnswer<()>> {
        self.answer(op, |heard| heard.is_folded.then_some(())).map(without_value)
    }

    fn answer<T>(&self, op: OpId, of: impl Fn(&HeardStages) -> Option<T>) -> Option<DeviceAnswer<Vec<T>>> {
        let Some(op) = self.ops.get(&op) else { return Some(DeviceAnswer::Ended) };
        let others = op.others.as_deref().unwrap_or_default();
        let is_on_host = |peer: &PeerId| op.heard.get(peer).is_some_and(|heard| heard.is_on_host);
        if op.is_on_host || others.iter().any(is_on_host) {
            return Some(DeviceAnswer::OnHost);
        }
        let others = op.others.as_ref()?;
        let all: Option<Vec<T>> = others.iter().map(|peer| op.heard.get(peer).and_then(&of)).collect();
        all.map(DeviceAnswer::All)
    }

    /// The operation is decided.
    pub(super) fn end(&mut self, op: OpId) {
        self.ops.remove(&op);
    }

    /// An epoch is open: all operations of others are decided, or never were.
    pub(super) fn open_epoch(&mut self, epoch: EpochId) {
        self.ops.retain(|op, _| op.epoch == epoch);
    }

    /// All operations of the epoch are decided.
    pub(super) fn close_epoch(&mut self, epoch: EpochId) {
        self.ops.retain(|op, _| op.epoch != epoch);
    }
}

fn without_value<T>(answer: DeviceAnswer<Vec<T>>) -> DeviceAnswer<()> {
    match answer {
        DeviceAnswer::All(_) => DeviceAnswer::All(()),
        DeviceAnswer::OnHost => DeviceAnswer::OnHost,
        DeviceAnswer::Ended => DeviceAnswer::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::id::{Seq, Tag};

    const OP: OpId = OpId { epoch: epoch(1), tag: Tag(3), seq: Seq(0) };
    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    const fn epoch(counter: u64) -> EpochId {
        use ringfold_proto::id::{GroupId, Incarnation};
        EpochId { group: GroupId(0), incarnation: Incarnation(1), counter }
    }

    fn offered(byte: u8) -> DeviceStage {
        DeviceStage::Offered { memory: vec![byte] }
    }

    #[test]
    fn all_stages_are_reached_when_all_members_have_told() {
        let mut ops = DeviceOps::default();
        // A message may come before this peer has begun.
        ops.hear(OP, B, offered(2));
        assert_eq!(ops.offers(OP), None);
        ops.begin(OP, || vec![A, B]);
        assert_eq!(ops.offers(OP), None);
        ops.hear(OP, A, offered(1));
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::All(vec![vec![1], vec![2]])), "in rank order");
        for (peer, ready) in [(A, None), (B, Some(DeviceAnswer::All(())))] {
            ops.hear(OP, peer, DeviceStage::Ready);
            assert_eq!(ops.ready(OP), ready);
        }
        assert_eq!(ops.folded(OP), None);
        ops.hear(OP, A, DeviceStage::Folded);
        ops.hear(OP, B, DeviceStage::Folded);
        assert_eq!(ops.folded(OP), Some(DeviceAnswer::All(())));
        ops.end(OP);
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::Ended));
    }

    #[test]
    fn one_member_on_the_host_brings_all_there() {
        let mut ops = DeviceOps::default();
        ops.begin(OP, || vec![A, B]);
        ops.hear(OP, A, offered(1));
        ops.hear(OP, PeerId(3), DeviceStage::OnHost);
        assert_eq!(ops.offers(OP), None, "it is no member");
        ops.hear(OP, B, DeviceStage::OnHost);
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::OnHost));
        assert_eq!(ops.ready(OP), Some(DeviceAnswer::OnHost));
        assert_eq!(ops.run_on_host(OP), [A, B], "all are told");
        assert_eq!(ops.run_on_host(OP), [], "once");
    }

    #[test]
    fn one_peer_cannot_use_up_the_room_of_others() {
        let mut ops = DeviceOps::default();
        let op = |seq| OpId { seq: Seq(seq), ..OP };
        let last = OPS_PER_PEER_MAX as u64;
        assert!((0..last).all(|seq| ops.hear(op(seq), A, offered(1))));
        assert!(!ops.hear(op(last), A, offered(1)), "it has too many");
        assert!(ops.hear(op(0), A, DeviceStage::Ready) && ops.hear(op(last), B, offered(2)));
        ops.begin(op(last), || vec![A, B]);
        assert!(ops.hear(op(last), A, offered(1)), "this peer has begun it");
        assert!(matches!(ops.offers(op(last)), Some(DeviceAnswer::All(_))));
        ops.end(op(0));
        ops.end(op(1));
        assert!(ops.hear(op(last + 1), A, offered(1)));
    }

    #[test]
    fn a_peer_on_the_host_answers_those_that_have_offered() {
        let mut ops = DeviceOps::default();
        assert_eq!(ops.run_on_host(OP), [], "nobody has begun it in device memory");
        ops.hear(OP, B, offered(2));
        assert_eq!(ops.run_on_host(OP), [B]);
        ops.close_epoch(epoch(2));
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::OnHost));
        ops.open_epoch(epoch(1));
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::OnHost));
        ops.close_epoch(epoch(1));
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::Ended));
        ops.hear(OP, B, offered(2));
        ops.open_epoch(epoch(3));
        assert_eq!(ops.offers(OP), Some(DeviceAnswer::Ended), "its epoch was never opened");
    }
}
