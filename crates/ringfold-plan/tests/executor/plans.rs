//! Small plans, written by hand.

use ringfold_plan::plan::Plan;
use ringfold_plan::step::{Left, OpBuffer, Region, Step};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::Algorithm;
use std::sync::Arc;

pub const FINGERPRINT: u64 = 0xf01d;

pub fn descriptor(count: usize) -> Descriptor {
    Descriptor::all_reduce(count as u64, DType::I64, ReduceOp::Sum)
}

fn region(buffer: OpBuffer, offset: usize, count: usize) -> Region {
    Region { buffer, offset: offset as u64, count: count as u32 }
}

fn plan(fingerprint: u64, steps: Vec<Step>) -> Arc<Plan> {
    Arc::new(Plan::new(Algorithm::Ring, fingerprint, 0, steps))
}

/// Two ranks send each other everything, `frames` frames of `width` elements, and add.
pub fn exchange(me: usize, frames: usize, width: usize) -> Arc<Plan> {
    exchange_as(FINGERPRINT, me, frames, width)
}

/// The same under another fingerprint.
pub fn exchange_as(fingerprint: u64, me: usize, frames: usize, width: usize) -> Arc<Plan> {
    let other = Rank::from_index(1 - me);
    let steps = (0..frames).flat_map(|i| {
        let own = region(OpBuffer::Source, i * width, width);
        let sum = own.at(OpBuffer::Target);
        // In place the sum overwrites what is sent, so it waits until that has left.
        [Step::send(other, own), Step::receive_reduce(other, own, sum, Left::Own).fenced()]
    });
    plan(fingerprint, steps.collect())
}

/// Rank 0 sends to rank 1.
pub fn one_way(me: usize, frames: usize, width: usize) -> Arc<Plan> {
    let steps = (0..frames).map(|i| match me {
        0 => Step::send(Rank(1), region(OpBuffer::Source, i * width, width)),
        _ => Step::receive(Rank(0), region(OpBuffer::Target, i * width, width)),
    });
    plan(FINGERPRINT, steps.collect())
}

/// All-reduce around the ring of all ranks: `world` parts, each of `frames` frames of `width` elements.
pub fn ring(me: usize, world: usize, frames: usize, width: usize) -> Arc<Plan> {
    let (next, last) = (Rank::from_index((me + 1) % world), Rank::from_index((me + world - 1) % world));
    let mut steps = Vec::new();
    for hop in 0..2 * world - 1 {
        let part = (me + 2 * world - hop) % world;
        for frame in 0..frames {
            let own = region(OpBuffer::Source, (part * frames + frame) * width, width);
            let into = own.at(OpBuffer::Target);
            let step = match hop {
                0 => Step::send(next, own),
                hop if hop < world => Step::receive_reduce(last, own, into, Left::Frame),
                _ => Step::receive(last, into),
            };
            let settled = if hop == world - 1 { step.settled() } else { step };
            steps.push(if hop < 2 * world - 2 { settled.then_send(next) } else { settled });
        }
    }
    plan(FINGERPRINT, if world == 1 { Vec::new() } else { steps })
}
