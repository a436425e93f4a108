//! A world of one: what comes out is what went in.

use super::{Draft, Task};
use crate::parts::Span;
use crate::step::{Place, Step};
use ringfold_proto::descriptor::Collective;

/// Copies the source to the target. In place that copies memory onto itself, which changes nothing; a
/// reduction still settles it, since an average of one is an average.
pub fn draft(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let settle = match task.descriptor.collective {
        Collective::Barrier => return draft,
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => true,
        _ => false,
    };
    // Where sizes are of pairs, this is the only one.
    let count = task.layout.sends(task.me).unwrap_or(task.descriptor.count);
    for chunk in task.cut(Span { start: 0, count }) {
        let step = Step::copy(chunk.at(Place::Source), chunk.at(Place::Target));
        draft.push(if settle { step.settled() } else { step });
    }
    draft
}
