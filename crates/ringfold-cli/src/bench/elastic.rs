//! A rank as a peer of an elastic run.

use super::kind::{Kind, Place};
use super::pattern::Whole;
use super::plan::{self, Route};
use super::point::Point;
use super::rank::{Member, RankArguments};
use crate::tuning_file;
use anyhow::{Context, Result, bail};
use ringfold::{AllReduce, Buffers, Communicator, Error, Memory, Reduction, Tuning};
use ringfold_fabric::memory::lend_mut;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long ranks wait for each other at the start.
const GATHER_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// A peer, with all others in its group.
pub(crate) struct Elastic {
    communicator: Communicator,
    world: usize,
    /// Operations that share a payload.
    concurrent: usize,
    /// What the master was given.
    tuning: Tuning,
}

impl Elastic {
    pub(crate) fn join(arguments: &RankArguments) -> Result<Self> {
        let communicator = Communicator::builder(arguments.meet.as_str())
            .name(format!("rank-{}", arguments.rank))
            .build()
            .context("can't make a communicator")?;
        communicator.connect().context("can't connect")?;
        let begin = Instant::now();
        while (communicator.attributes().group_world as usize) < arguments.world {
            if begin.elapsed() > GATHER_MAX {
                bail!("there are not {} peers after {} s", arguments.world, GATHER_MAX.as_secs());
            }
            match communicator.update_topology() {
                Err(error) if !error.is_retryable() => return Err(error).context("the vote failed"),
                _ => std::thread::sleep(PAUSE),
            }
        }
        let tuning = arguments.tuning.as_deref().map(tuning_file::read).transpose()?.unwrap_or_default();
        let (world, concurrent) = (arguments.world, arguments.concurrent.max(1));
        Ok(Self { communicator, world, concurrent, tuning })
    }
}

impl Member for Elastic {
    fn how(&self) -> Option<String> {
        (self.concurrent > 1).then(|| format!("{} tags at once", self.concurrent))
    }

    fn lacks(&self, point: &Point) -> Option<String> {
        match point.kind {
            Kind::AllReduce if self.concurrent > 1 && point.place == Place::Out => {
                Some("operations at once are in place".into())
            }
            Kind::AllReduce => None,
            other => Some(format!("elastic runs have no {other}")),
        }
    }

    fn explain(&self, point: &Point) -> String {
        plan::explain(point, 0, self.world, Route::Links { shared: true }, &self.tuning)
    }

    fn call<T: Whole>(&mut self, point: &Point, send: &mut [T], recv: &mut [T]) -> Result<(), Error> {
        let options = AllReduce::new(point.op);
        let info = if !recv.is_empty() {
            self.communicator.all_reduce_into(send, recv, options)?
        } else if self.concurrent > 1 {
            lend_mut(send.as_mut_bytes(), |memory| {
                let all = split(memory, size_of::<T>(), self.concurrent);
                let reduction = |(tag, memory)| Reduction {
                    dtype: T::DTYPE,
                    buffers: Buffers::InPlace(memory),
                    options: options.tag(tag),
                };
                self.communicator.all_reduce_many((0..).zip(all).map(reduction).collect(), self.concurrent)
            })?
        } else {
            self.communicator.all_reduce(send, options)?
        };
        // A rank that was put out would make the others faster, and the figures wrong.
        if info.world as usize != self.world {
            return Err(Error::Internal(format!("{} of {} ranks are left", info.world, self.world)));
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.communicator.all_reduce(&mut [0_u32], AllReduce::sum()).map(drop)
    }
}

/// Cuts memory into parts of about the same size, of whole elements.
fn split(memory: Memory, element_bytes: usize, parts: usize) -> Vec<Memory> {
    let mut rest = memory;
    let mut all = Vec::with_capacity(parts);
    for left in (2..=parts).rev() {
        let part = rest.len() / element_bytes / left * element_bytes;
        let (one, others) = rest.split_at(part);
        all.push(one);
        rest = others;
    }
    all.push(rest);
    all.retain(|part| !part.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_split_into_whole_elements_that_add_up() {
        for (elements, parts) in [(32, 8), (33, 8), (3, 8), (1, 1)] {
            let all = split(Memory::zeroed(elements * 4), 4, parts);
            assert_eq!(all.iter().map(Memory::len).sum::<usize>(), elements * 4);
            assert!(all.len() <= parts && all.iter().all(|part| part.len().is_multiple_of(4)));
        }
    }
}
