//! A rank's part of a collective, ready to be executed.

use crate::step::Step;
use ringfold_proto::descriptor::{Descriptor, mix};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// What one rank does, and how much scratch it needs for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How.
    pub algorithm: Algorithm,
    /// What every frame carries to show that both ends mean the same.
    pub fingerprint: u64,
    /// Whether only the two ends of a pair know how much goes between them: then the fingerprint of a frame
    /// covers that too.
    pub is_pairwise: bool,
    /// Elements of scratch.
    pub scratch: u64,
    /// The steps.
    pub steps: Vec<Step>,
    /// For each peer that frames go to: the steps that send them, in order. By rank.
    pub sends: Vec<(Rank, Vec<u32>)>,
    /// For each peer that frames come from: the steps that take them, in order. By rank.
    pub receives: Vec<(Rank, Vec<u32>)>,
    /// Pairs of a step and a step that comes after it, sorted: what a finished step may set free.
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
        let is_pairwise = false;
        Self { algorithm, fingerprint, is_pairwise, scratch, steps, sends, receives, dependents }
    }

    /// What the frames that these steps send or take carry.
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

/// The bytes that so many elements take on the wire.
pub fn wire_bytes(descriptor: &Descriptor, count: u32) -> u32 {
    let count = count as usize;
    let bytes = match descriptor.quantization {
        None => count * descriptor.dtype.bytes(),
        Some(q) => count * q.dtype.bytes() + ringfold_proto::quantization::Quantization::PARAMETER_BYTES,
    };
    bytes as u32
}
