//! Ranks that have made different calls. They tell each other theirs, so that the cause names both.

use super::{GroupDriver, Running};
use ringfold_proto::cause::{Cause, WaitingPeer};
use ringfold_proto::id::{OpId, PeerId, Rank, Seq, Tag};
use ringfold_proto::time::Time;

/// The topic of notes about calls that differ: the tag and number of the operation, and the sender's call.
const TOPIC: u64 = u64::MAX - 1;

/// How many calls are kept after their end. A rank that only sends has often gone on.
const ENDED_MAX: usize = 64;

/// The most characters of another rank's call.
const TEXT_MAX: usize = 200;

impl GroupDriver {
    /// Keeps the call of an operation that has ended.
    pub(super) fn keep_call(&mut self, op: OpId, running: &Running) {
        if self.ended_calls.len() == ENDED_MAX {
            self.ended_calls.pop_front();
        }
        self.ended_calls.push_back((op, running.descriptor, running.named.tag));
    }

    /// Another rank runs another operation under this id. It is told this rank's call, and fails the group with both.
    pub(super) fn tell_call(&mut self, op: OpId, peer: PeerId) {
        let text = format!("{} {} {}", op.tag.0, op.seq.0, self.call_of(op));
        self.plane.send_note(peer, self.description.id, TOPIC, text);
    }

    /// Another rank has told its call. Returns whether the note was that.
    pub(super) fn hear_mismatch(&mut self, now: Time, from: Rank, topic: u64, text: &str) -> bool {
        if topic != TOPIC {
            return false;
        }
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        if let (Some(tag), Some(seq)) = (number(), number()) {
            let op = OpId { epoch: self.description.id, tag: Tag(tag), seq: Seq(seq) };
            let theirs = parts.next().unwrap_or_default().chars().filter(|c| !c.is_control()).take(TEXT_MAX);
            let cause = self.mismatch(self.call_of(op), from, Some(theirs.collect()));
            self.fail(now, cause);
        }
        true
    }

    /// This rank's call, and that of another rank. The lower rank comes first, so that all ranks say the same.
    pub(in crate::group) fn mismatch(&self, mine: String, other: Rank, theirs: Option<String>) -> Cause {
        let theirs = match theirs {
            None => "another call".into(),
            Some(same) if same == mine => format!("{same}, with other counts of ranks or after other calls"),
            Some(theirs) => theirs,
        };
        let waiting = |rank, call| WaitingPeer { who: self.name(rank), call };
        let (mine, theirs) = (waiting(self.me, mine), waiting(other, theirs));
        let (one, other) = if other < self.me { (theirs, mine) } else { (mine, theirs) };
        Cause::Mismatch { one, other }
    }

    /// The call of this rank that has this id.
    fn call_of(&self, op: OpId) -> String {
        let running = self.running.get(&op).map(|running| (running.descriptor, running.named.tag));
        let ended = || self.ended_calls.iter().rev().find(|(ended, ..)| *ended == op);
        match running.or_else(|| ended().map(|(_, descriptor, tag)| (*descriptor, *tag))) {
            None => "another call".into(),
            Some((descriptor, 0)) => descriptor.to_string(),
            Some((descriptor, tag)) => format!("{descriptor} with tag {tag}"),
        }
    }
}
