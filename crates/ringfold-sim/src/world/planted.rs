//! What the planted bugs need to know of the world.

use super::World;
use super::peer::Pending;
use crate::network::Wire;
use crate::sabotage::Sabotage;
use ringfold_proto::id::OpId;
use ringfold_proto::link_message::LinkMessage;

impl World {
    pub(crate) fn sabotage(&self) -> Option<Sabotage> {
        self.sabotage
    }

    /// Whose votes are forged when a vote arrives: those who have not voted, as the bug has it.
    pub(crate) fn forgeries(&mut self, bug: Sabotage, wire: Wire, op: OpId) -> Vec<Wire> {
        let votes = self.votes.entry(op).or_default();
        votes.insert(wire);
        let voted = votes.clone();
        let epoch = self.peers.iter().find_map(|p| p.machine.epoch().filter(|e| e.id == op.epoch));
        let members = epoch.map(|e| e.members.iter().map(|m| m.peer).collect::<Vec<_>>()).unwrap_or_default();
        let wire_of = |id| self.by_id.get(id).and_then(|p| self.peers[*p].control);
        let missing: Vec<_> = members.iter().filter_map(wire_of).filter(|w| !voted.contains(w)).collect();
        match bug {
            Sabotage::CommitWithoutLastVote if missing.len() == 1 => missing,
            Sabotage::CountVoteTwice => missing.into_iter().take(1).collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn knows_epoch(&self, peer: usize, op: OpId) -> bool {
        let newest = self.peers[peer].machine.epoch().map(|e| e.id);
        newest.is_some_and(|e| e.counter >= op.epoch.counter)
    }

    /// The operation that runs under the same tag now, if it is a later one.
    pub(crate) fn current_op(&self, peer: usize, op: OpId) -> Option<OpId> {
        self.running(peer).find(|o| o.tag == op.tag && (o.epoch.counter, o.seq) > (op.epoch.counter, op.seq))
    }

    pub(crate) fn any_op_of_epoch(&self, peer: usize, op: OpId) -> Option<OpId> {
        self.running(peer).find(|o| o.epoch == op.epoch && *o != op)
    }

    /// A planted bug: the receiver believes its writers to have stopped.
    pub(super) fn sabotage_abort(&mut self, peer: usize, op: OpId) {
        if self.sabotage == Some(Sabotage::ReuseUnfencedSlot) {
            let linked: Vec<_> = self.peers[peer].links.keys().copied().collect();
            for from in linked {
                let message = LinkMessage::Fenced { op };
                self.peers[peer].executor.handle_link_message(self.now, from, message);
            }
        }
    }

    fn running(&self, peer: usize) -> impl Iterator<Item = OpId> + '_ {
        self.peers[peer].pending.values().filter_map(|p| match p {
            Pending::Reduce { op, .. } => *op,
            Pending::Plain(_) => None,
        })
    }
}
