//! A toy model: gradients pull its weights towards a target.

/// The weights and momentum, which are the shared state of the run.
pub(crate) struct Model {
    pub(crate) weights: Vec<f32>,
    pub(crate) momentum: Vec<f32>,
}

/// Elements at the end of the gradients whose sum is the number of peers in the reduction.
pub(crate) const COUNTERS: usize = 1;

const MOMENTUM: f32 = 0.8;
const RATE: f32 = 0.011;
const NOISE: f32 = 0.2;
/// The loss is computed over every 61st element.
const LOSS_STRIDE: usize = 61;
const LANES: usize = 16;

impl Model {
    /// The initial model, the same on all peers.
    pub(crate) fn new(elements: usize) -> Self {
        Self { weights: vec![0.0; elements], momentum: vec![0.0; elements] }
    }

    /// The model of a peer that joins later: NaN until it has synced.
    pub(crate) fn untrained(elements: usize) -> Self {
        Self { weights: vec![f32::NAN; elements], momentum: vec![f32::NAN; elements] }
    }

    /// Computes a peer's gradients: noisy differences from the target, then counters of 1.
    pub(crate) fn gradients(&self, seed: u64, into: &mut [f32]) {
        let (values, counters) = into.split_at_mut(self.weights.len());
        let seed = scramble(seed);
        for (i, (gradient, weight)) in values.iter_mut().zip(&self.weights).enumerate() {
            *gradient = weight - target(i) + NOISE * unit(scramble(seed ^ i as u64));
        }
        counters.fill(1.0);
    }

    /// Whether the sum contains the gradients of `world` peers, each once.
    pub(crate) fn counts(sum: &[f32], world: u32) -> bool {
        sum[sum.len() - COUNTERS..].iter().all(|counter| *counter == world as f32)
    }

    /// Applies the sum of the gradients of `world` peers.
    pub(crate) fn apply(&mut self, sum: &[f32], world: u32) {
        let share = 1.0 / world as f32;
        for ((weight, momentum), gradient) in self.weights.iter_mut().zip(&mut self.momentum).zip(sum) {
            *momentum = *momentum * MOMENTUM + gradient * share;
            *weight -= RATE * *momentum;
        }
    }

    /// The mean squared distance of the weights from the target.
    pub(crate) fn loss(&self) -> f32 {
        let squares =
            self.weights.iter().enumerate().step_by(LOSS_STRIDE).map(|(i, w)| (w - target(i)).powi(2));
        squares.sum::<f32>() / self.weights.len().div_ceil(LOSS_STRIDE) as f32
    }

    /// A hash of all bits of weights and momentum; not cryptographic.
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

/// The target of an element, between -1 and 1.
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
    fn training_reduces_the_loss() {
        let mut model = Model::new(10_000);
        let before = model.loss();
        let mut gradients = vec![0.0; 10_000 + COUNTERS];
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
