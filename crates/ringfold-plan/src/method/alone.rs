//! A world of one: what comes out is what went in.

use super::{Draft, Task};
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
    for chunk in task.cut(task.whole()) {
        let step = Step::copy(chunk.at(Place::Source), chunk.at(Place::Target));
        draft.push(if settle { step.settled() } else { step });
    }
    draft
}
