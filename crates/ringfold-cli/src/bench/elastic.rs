//! A measured rank that is a peer of an elastic run.

use super::bench_op::{BenchOp, Placement};
use super::measured_group::{MeasuredGroup, RankArguments};
use super::pattern::PatternElement;
use super::plan::{self, Route};
use super::point::Point;
use super::quantize::quantization_text;
use super::variant::Variant;
use anyhow::{Context, Result, bail};
use ringfold::{
    AllReduce, Buffers, Communicator, Error, Memory, Quantization, Reduction, Tuning, TuningFile,
};
use ringfold_fabric::memory::lend_mut;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long a rank waits at the start until all ranks have joined.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
const VOTE_PAUSE: Duration = Duration::from_millis(5);

/// A peer of an elastic run that all ranks have joined.
pub(crate) struct Elastic {
    communicator: Communicator,
    world: usize,
    /// The number of operations that share a payload.
    concurrent: usize,
    /// The tuning of the master.
    tuning: Tuning,
    quantization: Option<Quantization>,
    variant: Variant,
}

impl Elastic {
    pub(crate) fn join(arguments: &RankArguments) -> Result<Self> {
        let communicator = Communicator::builder(arguments.rendezvous.as_str())
            .name(format!("rank-{}", arguments.rank))
            .integrity(arguments.integrity)
            .reproducible(arguments.reproducible)
            .build()
            .context("cannot create the communicator")?;
        communicator.connect().context("cannot connect to the master")?;
        let begin = Instant::now();
        while (communicator.attributes().group_world as usize) < arguments.world {
            if begin.elapsed() > JOIN_TIMEOUT {
                bail!("timed out after {JOIN_TIMEOUT:?} waiting for {} peers", arguments.world);
            }
            match communicator.update_topology() {
                Err(error) if !error.is_retryable() => return Err(error).context("topology update failed"),
                _ => std::thread::sleep(VOTE_PAUSE),
            }
        }
        let tuning =
            arguments.tuning.as_deref().map(TuningFile::read).transpose()?.unwrap_or_default().tuning;
        let (world, concurrent) = (arguments.world, arguments.concurrent.max(1));
        let (quantization, variant) = (arguments.quantize, arguments.variant());
        Ok(Self { communicator, world, concurrent, tuning, quantization, variant })
    }
}

impl MeasuredGroup for Elastic {
    fn note(&self) -> Option<String> {
        let tags = (self.concurrent > 1).then(|| format!("{} tags at once", self.concurrent));
        let quantized = self.quantization.map(|q| format!("quantized to {}", quantization_text(q)));
        let variant = (self.variant != Variant::PLAIN).then(|| self.variant.to_string());
        let notes: Vec<_> = tags.into_iter().chain(quantized).chain(variant).collect();
        (!notes.is_empty()).then(|| notes.join(", "))
    }

    fn unsupported_reason(&self, point: &Point) -> Option<String> {
        match point.kind {
            BenchOp::AllReduce if self.concurrent > 1 && point.place == Placement::Out => {
                Some("concurrent operations are measured in place only".into())
            }
            BenchOp::AllReduce if self.quantization.is_some_and(|q| !q.supports(point.dtype, point.op)) => {
                Some(format!("{} of {} is not quantized", point.op, point.dtype))
            }
            BenchOp::AllReduce => None,
            other => Some(format!("elastic runs do not support {other}")),
        }
    }

    fn explain(&self, point: &Point) -> String {
        let route = Route::Links { shared: true };
        plan::explain(point, (0, self.world), self.variant, route, &self.tuning)
    }

    fn call<T: PatternElement>(
        &mut self,
        point: &Point,
        send: &mut [T],
        recv: &mut [T],
    ) -> Result<(), Error> {
        let plain = AllReduce::new(point.op);
        let options = self.quantization.map_or(plain, |quantization| plain.quantized(quantization));
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
        // Without an evicted rank the others are faster, and the figures wrong.
        if info.world as usize != self.world {
            return Err(Error::Internal(format!("only {} of {} ranks are left", info.world, self.world)));
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.communicator.all_reduce(&mut [0_u32], AllReduce::sum()).map(drop)
    }
}

/// Splits memory into parts of about the same size and of whole elements.
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
