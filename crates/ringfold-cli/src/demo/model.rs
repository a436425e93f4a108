//! Something that looks like training: weights that follow gradients to a target.

/// The shared state of the run, and what a step does with it.
pub(crate) struct Model {
    pub(crate) weights: Vec<f32>,
    pub(crate) momentum: Vec<f32>,
}

/// Elements at the end of the gradients that show that every peer's part was counted once.
pub(crate) const WITNESSES: usize = 1;

const MOMENTUM: f32 = 0.8;
const RATE: f32 = 0.011;
const NOISE: f32 = 0.2;
/// The loss is looked at on every so many elements.
const LOSS_STRIDE: usize = 61;
const LANES: usize = 16;

impl Model {
    /// All who begin a run begin alike.
    pub(crate) fn new(elements: usize) -> Self {
        Self { weights: vec![0.0; elements], momentum: vec![0.0; elements] }
    }

    /// One who comes late has nothing of use yet.
    pub(crate) fn untrained(elements: usize) -> Self {
        Self { weights: vec![f32::NAN; elements], momentum: vec![f32::NAN; elements] }
    }

    /// A peer's gradients: its own view of the way to the target, and one for itself at the end.
    pub(crate) fn gradients(&self, seed: u64, into: &mut [f32]) {
        let (values, witnesses) = into.split_at_mut(self.weights.len());
        let seed = scramble(seed);
        for (i, (gradient, weight)) in values.iter_mut().zip(&self.weights).enumerate() {
            *gradient = weight - target(i) + NOISE * unit(scramble(seed ^ i as u64));
        }
        witnesses.fill(1.0);
    }

    /// Whether the sum holds the gradients of `world` peers, each once.
    pub(crate) fn counts(sum: &[f32], world: u32) -> bool {
        sum[sum.len() - WITNESSES..].iter().all(|witness| *witness == world as f32)
    }

    /// Follows the sum of the gradients of `world` peers.
    pub(crate) fn apply(&mut self, sum: &[f32], world: u32) {
        let share = 1.0 / world as f32;
        for ((weight, momentum), gradient) in self.weights.iter_mut().zip(&mut self.momentum).zip(sum) {
            *momentum = *momentum * MOMENTUM + gradient * share;
            *weight -= RATE * *momentum;
        }
    }

    /// How far the weights are from the target.
    pub(crate) fn loss(&self) -> f32 {
        let squares =
            self.weights.iter().enumerate().step_by(LOSS_STRIDE).map(|(i, w)| (w - target(i)).powi(2));
        squares.sum::<f32>() / self.weights.len().div_ceil(LOSS_STRIDE) as f32
    }

    /// A fingerprint of every bit of weights and momentum. It guards against accidents, not against malice.
    pub(crate) fn hash(&self) -> u64 {
        let mut lanes = [0_u64; LANES];
        for tensor in [&self.weights, &self.momentum] {
            for chunk in tensor.chunks(LANES) {
                for (lane, value) in lanes.iter_mut().zip(chunk) {
                    *lane = (lane.rotate_left(5) ^ u64::from(value.to_bits()))
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                }
            }
        }
        lanes.iter().fold(self.weights.len() as u64, |hash, lane| scramble(hash ^ lane))
    }
}

/// The weights that would be best, between -1 and 1.
fn target(element: usize) -> f32 {
    unit(scramble(element as u64))
}

fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}

/// SplitMix64's finaliser.
fn scramble(x: u64) -> u64 {
    let x = (x.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_gets_nearer_to_the_target() {
        let mut model = Model::new(10_000);
        let before = model.loss();
        let mut gradients = vec![0.0; 10_000 + WITNESSES];
        for step in 0..60 {
            model.gradients(step, &mut gradients);
            assert!(Model::counts(&gradients, 1));
            model.apply(&gradients, 1);
        }
        assert!(model.loss() < before / 4.0, "{} of {before}", model.loss());
    }

    #[test]
    fn a_single_bit_changes_the_hash() {
        let mut model = Model::new(1000);
        let before = model.hash();
        for element in [0, 500, 999] {
            model.momentum[element] = f32::from_bits(1);
            assert_ne!(model.hash(), before);
            model.momentum[element] = 0.0;
        }
        assert_eq!(model.hash(), before);
    }
}
