//! Which bytes of a result are final while the operation still runs.

use super::byte_range;
use super::intervals::Intervals;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use parking_lot::Mutex;
use ringfold_plan::plan::Plan;
use ringfold_plan::step::OpBuffer;
use std::sync::Arc;

/// Ranges of a result that the operation will not write again, for a thread that copies them before the operation ends.
pub(crate) struct FinalRanges {
    added: Mutex<Intervals>,
    bytes: AtomicUsize,
    /// So many bytes are worth a wake-up.
    enough: usize,
    has_news: AtomicBool,
}

impl FinalRanges {
    /// The thread is woken for `enough` bytes.
    pub(crate) fn new(enough: usize) -> Self {
        let (bytes, has_news) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { added: Mutex::default(), bytes, enough, has_news }
    }

    /// Whether there is enough to be taken.
    pub(crate) fn is_enough(&self) -> bool {
        self.bytes.load(Ordering::Acquire) >= self.enough
    }

    /// Whether there is enough since the last call.
    pub(crate) fn take_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed) && self.has_news.swap(false, Ordering::Acquire)
    }

    /// Takes the ranges that were added since the last call.
    pub(crate) fn take(&self) -> Vec<Range<usize>> {
        let mut added = self.added.lock();
        self.bytes.store(0, Ordering::Release);
        let taken = added.iter().collect();
        added.clear();
        taken
    }

    fn add(&self, range: Range<usize>) {
        let mut added = self.added.lock();
        added.insert(range, |new| {
            let before = self.bytes.fetch_add(new.len(), Ordering::Release);
            if before < self.enough && before + new.len() >= self.enough {
                self.has_news.store(true, Ordering::Release);
            }
        });
    }
}

/// Which step of a plan writes which bytes of the target last.
pub(super) struct LastWrites {
    /// Sorted by step.
    by_step: Vec<(u32, Range<usize>)>,
    finals: Arc<FinalRanges>,
}

impl LastWrites {
    /// Steps that write the same bytes are done in the order of the plan.
    pub(super) fn new(plan: &Plan, element_bytes: usize, finals: Arc<FinalRanges>) -> Self {
        let (mut written, mut by_step) = (Intervals::default(), Vec::new());
        for (step, index) in plan.steps.iter().zip(0..plan.steps.len() as u32).rev() {
            if step.writes() && step.region.buffer == OpBuffer::Target {
                let range = byte_range(step.region.offset, step.region.count, element_bytes);
                written.insert(range, |last| by_step.push((index, last)));
            }
        }
        by_step.sort_unstable_by_key(|(step, _)| *step);
        Self { by_step, finals }
    }

    /// Reports what a step that is done has written last.
    pub(super) fn note_done(&self, step: u32) {
        let first = self.by_step.partition_point(|(of, _)| *of < step);
        for (_, range) in self.by_step[first..].iter().take_while(|(of, _)| *of == step) {
            self.finals.add(range.clone());
        }
    }
}
