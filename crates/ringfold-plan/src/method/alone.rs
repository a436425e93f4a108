//! A world of one.

use super::{Draft, Task};
use crate::parts::Span;
use crate::step::{OpBuffer, Step};
use ringfold_proto::descriptor::Collective;

/// Copies the source to the target, which changes nothing in place. A reduction still settles the result.
pub fn draft(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let settle = match task.descriptor.collective {
        Collective::Barrier => return draft,
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => true,
        _ => false,
    };
    // If sizes are per pair, this is the only one.
    let count = task.layout.sends(task.me).unwrap_or(task.descriptor.count);
    for chunk in task.cut(Span { start: 0, count }) {
        let step = Step::copy(chunk.at(OpBuffer::Source), chunk.at(OpBuffer::Target));
        draft.push(if settle { step.settled() } else { step });
    }
    draft
}
