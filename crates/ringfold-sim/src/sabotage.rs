//! Planted bugs, to show that the checkers can fail. They are planted on the wire or in the drivers, so
//! that the machines and the executor carry no hooks.

use crate::network::Wire;
use crate::world::World;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{EpochId, OpId, PeerId, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::{Ballot, Numbered, ToMaster};
use ringfold_proto::reduce_op::ReduceOp;
use std::fmt;
use std::str::FromStr;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Sabotage {
    /// Aborted buffers are not put back.
    SkipRestore,
    /// The master takes the last vote for given.
    CommitWithoutLastVote,
    /// A vote counts for its neighbour too.
    CountVoteTwice,
    /// What a returning member brings of its operations is lost.
    LoseResume,
    /// A frame of an epoch that is not open yet is dropped.
    DropNewerFrame,
    /// A frame of an earlier operation is taken for one of the current.
    AcceptStaleFrame,
    /// An aborted operation's slots are lent again before its writer has stopped.
    ReuseUnfencedSlot,
    /// A restarted master numbers epochs as its earlier life did.
    ReuseEpochNumber,
    /// Slots that were lent to one operation are used for another.
    ShareCreditPool,
    /// World sizes do not change by collectives that succeed.
    StaleWorld,
    /// A heartbeat counts as a call of its sender.
    HeartbeatIsCall,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::SkipRestore,
        Self::CommitWithoutLastVote,
        Self::CountVoteTwice,
        Self::LoseResume,
        Self::DropNewerFrame,
        Self::AcceptStaleFrame,
        Self::ReuseUnfencedSlot,
        Self::ReuseEpochNumber,
        Self::ShareCreditPool,
        Self::StaleWorld,
        Self::HeartbeatIsCall,
    ];
}

impl fmt::Display for Sabotage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Sabotage {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|s| s.to_string().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("there is no bug {name:?}; known are {:?}", Self::ALL))
    }
}

impl World {
    /// What reaches the master in place of a message.
    pub(crate) fn sabotage_control(
        &mut self,
        wire: Wire,
        message: Numbered<ToMaster>,
    ) -> Vec<(Wire, Numbered<ToMaster>)> {
        let mut reached = vec![(wire, message.clone())];
        match (self.sabotage(), message.message) {
            (Some(Sabotage::LoseResume), ToMaster::Resume(mut resume)) => {
                resume.epochs.iter_mut().for_each(|e| e.ops.clear());
                reached[0].1.message = ToMaster::Resume(resume);
            }
            (Some(Sabotage::HeartbeatIsCall), ToMaster::Heartbeat { .. }) => {
                // An operation of no epoch: it has no other effect.
                let op = OpId { epoch: EpochId::default(), tag: Tag(0), seq: Seq(0) };
                let descriptor = Descriptor::all_reduce(1, DType::F32, ReduceOp::Sum);
                let message = ToMaster::Started { op, descriptor };
                reached.push((wire, Numbered { number: 0, acknowledged: 0, message }));
            }
            (Some(bug), ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest } }) => {
                let vote = ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest } };
                let forged = Numbered { number: 0, acknowledged: 0, message: vote };
                reached.extend(self.forgeries(bug, wire, op).into_iter().map(|w| (w, forged.clone())));
            }
            _ => {}
        }
        reached
    }

    /// What reaches an executor in place of a frame.
    pub(crate) fn sabotage_frame(&mut self, peer: usize, mut header: DataHeader) -> Option<DataHeader> {
        match self.sabotage() {
            Some(Sabotage::DropNewerFrame) if !self.knows_epoch(peer, header.op) => return None,
            Some(Sabotage::AcceptStaleFrame) => {
                if let Some(current) = self.current_op(peer, header.op)
                    && current != header.op
                {
                    header.op = current;
                }
            }
            _ => {}
        }
        Some(header)
    }

    /// What reaches an executor in place of a message on a link.
    pub(crate) fn sabotage_message(
        &mut self,
        peer: usize,
        _from: PeerId,
        message: LinkMessage,
    ) -> Vec<LinkMessage> {
        match (self.sabotage(), message) {
            (Some(Sabotage::ShareCreditPool), LinkMessage::Grant { op, slots }) => {
                let op = self.any_op_of_epoch(peer, op).unwrap_or(op);
                vec![LinkMessage::Grant { op, slots }]
            }
            (_, message) => vec![message],
        }
    }
}
