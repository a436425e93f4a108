//! Direct exchange of pieces: gather, scatter, all-to-all, their forms with sizes per pair, and transfers. One hop, no
//! scratch, minimal traffic.

use super::{Draft, Method, Task, in_turns};
use crate::cost::{Amount, Cost, Sizes};
use crate::layout::Pieces;
use crate::parts::Span;
use crate::step::{OpBuffer, Region, Step};
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// One hop. Only a gather and a scatter may be in place: at the root the smaller buffer is its part of the larger one.
pub const EXCHANGE: Method = Method {
    algorithm: Algorithm::Direct,
    needs_mesh: true,
    one_owner: true,
    traffic,
    cost,
    draft: exchange,
};

/// If sizes are per pair, the cost of this rank.
fn cost(task: &Task) -> Cost {
    let sizes = Sizes::of(task);
    let (others, own) = (sizes.parts.without(sizes.shortest), sizes.longest.times(sizes.others));
    let (sent, received) = match task.descriptor.collective {
        _ if task.layout.is_pairwise() => {
            let pieces = Pieces::of(task.descriptor, task.layout, task.world(), task.me);
            let all = |pieces: &[Option<Span>]| {
                let amounts = pieces.iter().flatten().map(|piece| task.amount(piece.count));
                amounts.fold(Amount::default(), Amount::and)
            };
            (all(&pieces.send), all(&pieces.receive))
        }
        Collective::Gather { .. } => (sizes.longest, others),
        Collective::Scatter { .. } => (others, sizes.longest),
        Collective::AllToAll => (others, own),
        _ => (sizes.whole, sizes.whole),
    };
    sent.sent(1, received, Amount::default())
}

fn traffic(task: &Task) -> u64 {
    let (count, parts) = (task.descriptor.count, task.parts());
    match task.descriptor.collective {
        _ if task.layout.is_pairwise() => {
            let pieces = Pieces::of(task.descriptor, task.layout, task.world(), task.me);
            pieces.sent() - pieces.send[task.me.index()].map_or(0, |own| own.count)
        }
        Collective::Gather { root } | Collective::Scatter { root } => count - parts.of(root).count,
        Collective::AllToAll => task.once_to_all(),
        _ => count,
    }
}

fn exchange(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let pieces = Pieces::of(task.descriptor, task.layout, task.world(), task.me);
    let of = |pieces: &[Option<Span>], peers: &mut dyn Iterator<Item = Rank>| {
        let piece = |peer: Rank| pieces[peer.index()].map(|piece| (peer, frames(task, piece)));
        peers.filter_map(piece).collect::<Vec<_>>()
    };
    let outgoing = of(&pieces.send, &mut task.others());
    in_turns(outgoing, |peer, chunk| {
        draft.push(Step::send(peer, region(chunk, OpBuffer::Source)));
    });
    let me = task.me.index();
    if let (Some(own), Some(into)) = (pieces.send[me], pieces.receive[me]) {
        for (own, into) in task.cut(own).zip(task.cut(into)) {
            draft.push(Step::copy(own.at(OpBuffer::Source), into.at(OpBuffer::Target)));
        }
    }
    // Each rank sends to the next one first, so the first frames come from the previous one.
    let before = |d: usize| Rank::from_index((me + task.world() - d) % task.world());
    let incoming = of(&pieces.receive, &mut (1..task.world()).map(before));
    in_turns(incoming, |peer, chunk| {
        draft.push(Step::receive(peer, region(chunk, OpBuffer::Target)));
    });
    draft
}

/// The chunks of a piece. An empty piece is a frame too if the other end may expect another size, and in a transfer.
fn frames(task: &Task, piece: Span) -> impl Iterator<Item = Span> + use<> {
    let sends_empty =
        task.layout.is_pairwise() || matches!(task.descriptor.collective, Collective::Transfer { .. });
    task.cut(piece).chain((sends_empty && piece.count == 0).then_some(piece))
}

fn region(chunk: Span, buffer: OpBuffer) -> Region {
    if chunk.count == 0 { Region::EMPTY } else { chunk.at(buffer) }
}
