//! A rank's part of a collective, ready to execute.

use crate::ownership::Resumption;
use crate::step::Step;
use ringfold_proto::descriptor::{Descriptor, mix};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;
use std::sync::Arc;

/// The steps of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Carried by every frame, to check that both ends run the same operation.
    pub fingerprint: u64,
    /// Whether only the two ranks of a pair know the size of their transfer. Then the fingerprints of frames cover it.
    pub is_pairwise: bool,
    /// Elements of scratch memory.
    pub scratch: u64,
    /// What owners hold at the start, if the operation can be resumed.
    pub resumption: Option<Arc<Resumption>>,
    /// The steps.
    pub steps: Vec<Step>,
    /// For each receiver, sorted by rank: the steps that send frames to it, in order.
    pub sends: Vec<(Rank, Vec<u32>)>,
    /// For each sender, sorted by rank: the steps that receive frames from it, in order.
    pub receives: Vec<(Rank, Vec<u32>)>,
    /// Sorted pairs of a step and a step that waits for it.
    pub dependents: Vec<(u32, u32)>,
}

impl Plan {
    /// Indexes the steps by peer.
    pub fn new(algorithm: Algorithm, fingerprint: u64, scratch: u64, steps: Vec<Step>) -> Self {
        let by_peer = |peer_of: &dyn Fn(&Step) -> Option<Rank>| {
            let mut lists = std::collections::BTreeMap::<Rank, Vec<u32>>::new();
            for (i, step) in steps.iter().enumerate() {
                if let Some(peer) = peer_of(step) {
                    lists.entry(peer).or_default().push(i as u32);
                }
            }
            lists.into_iter().collect()
        };
        let sends = by_peer(&|s| s.send);
        let receives = by_peer(&Step::receives_from);
        let mut dependents: Vec<(u32, u32)> =
            steps.iter().zip(0..).filter_map(|(step, i)| step.after.map(|after| (after, i))).collect();
        dependents.sort_unstable();
        let (is_pairwise, resumption) = (false, None);
        Self { algorithm, fingerprint, is_pairwise, scratch, resumption, steps, sends, receives, dependents }
    }

    /// The fingerprint of the frames of these steps.
    pub fn fingerprint_of(&self, steps: &[u32]) -> u64 {
        if !self.is_pairwise {
            return self.fingerprint;
        }
        let elements = steps.iter().map(|step| u64::from(self.steps[*step as usize].region.count));
        mix(self.fingerprint, elements.sum())
    }

    /// The steps that wait for this one.
    pub fn dependents_of(&self, step: u32) -> impl Iterator<Item = u32> + use<'_> {
        let begin = self.dependents.partition_point(|(after, _)| *after < step);
        self.dependents[begin..].iter().take_while(move |(after, _)| *after == step).map(|(_, i)| *i)
    }
}

/// The bytes of `count` elements on the wire.
pub fn wire_bytes(descriptor: &Descriptor, count: u32) -> u32 {
    let count = count as usize;
    let bytes = match descriptor.quantization {
        None => count * descriptor.dtype.bytes(),
        Some(q) => count * q.dtype.bytes() + ringfold_proto::quantization::Quantization::PARAMETER_BYTES,
    };
    bytes as u32
}
