//! Each pair's piece straight from its source to its target: gathers, scatters, all-to-alls, their forms with
//! sizes of pairs, and transfers. One hop, no scratch, and nothing travels that is not wanted.

use super::{Draft, Method, Task, in_turns};
use crate::cost::{Amount, Cost, Sizes};
use crate::layout::Pieces;
use crate::parts::Span;
use crate::step::{Place, Region, Step};
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// One hop. A gather and a scatter may be in place at the root, where the smaller memory is the own part of the
/// larger one; the others may not.
pub const EXCHANGE: Method = Method {
    algorithm: Algorithm::Direct,
    needs_mesh: true,
    one_owner: true,
    member_order: true,
    traffic,
    cost,
    draft: exchange,
};

/// Where the sizes of pairs are the ranks' own affair, it is what this rank costs.
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
        draft.push(Step::send(peer, region(chunk, Place::Source)));
    });
    let me = task.me.index();
    if let (Some(own), Some(into)) = (pieces.send[me], pieces.receive[me]) {
        for (own, into) in task.cut(own).zip(task.cut(into)) {
            draft.push(Step::copy(own.at(Place::Source), into.at(Place::Target)));
        }
    }
    // Everyone begins with the rank after it, so the first frames come from the one before.
    let before = |d: usize| Rank::from_index((me + task.world() - d) % task.world());
    let incoming = of(&pieces.receive, &mut (1..task.world()).map(before));
    in_turns(incoming, |peer, chunk| {
        draft.push(Step::receive(peer, region(chunk, Place::Target)));
    });
    draft
}

/// The chunks of a piece. Where the other end may think of another size, even an empty piece is a frame, so that
/// both ends notice; and an empty message is a message.
fn frames(task: &Task, piece: Span) -> impl Iterator<Item = Span> + use<> {
    let is_told =
        task.layout.is_pairwise() || matches!(task.descriptor.collective, Collective::Transfer { .. });
    task.cut(piece).chain((is_told && piece.count == 0).then_some(piece))
}

fn region(chunk: Span, place: Place) -> Region {
    if chunk.count == 0 { Region::EMPTY } else { chunk.at(place) }
}
