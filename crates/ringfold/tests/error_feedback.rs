//! Quantized all-reduces that carry over their error.

use crate::communicator::with_peers;
use half::{bf16, f16};
use ringfold::{
    AllReduce, Communicator, DType, Element, Error, Quantization, QuantizationAlgorithm, ReduceOp,
};
use std::time::Duration;

const COUNT: usize = 20_000;
const STEPS: usize = 24;

fn u8_min_max() -> Quantization {
    Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 }
}

/// A peer's input, the same in every step.
fn input(number: u32) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32.wrapping_mul(number + 1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.3
    };
    (0..COUNT).map(|_| next()).collect()
}

fn bits<T: Element>(data: &[T]) -> Vec<u8> {
    zerocopy::IntoBytes::as_bytes(data).to_vec()
}

/// Averages the inputs again and again. Returns the mean error of the running mean; the bits must be the same on all peers.
fn run<T: Element>(
    quantization: Quantization,
    feedback: bool,
    narrow: fn(f32) -> T,
    wide: fn(T) -> f32,
) -> f32 {
    const WORLD: u32 = 3;
    let results = with_peers(WORLD, move |peer: Communicator, number| {
        let own: Vec<T> = input(number).into_iter().map(narrow).collect();
        let plain = AllReduce::avg().tag(5).quantized(quantization);
        let options = if feedback { plain.error_feedback() } else { plain };
        let (mut sums, mut all) = (vec![0.0_f64; COUNT], Vec::new());
        for step in 0..STEPS {
            // In place and out of place are the same.
            let mut result = own.clone();
            if step % 2 == 0 {
                peer.all_reduce(&mut result, options).expect("it succeeds");
            } else {
                peer.all_reduce_into(&own, &mut result, options).expect("it succeeds");
            }
            all.extend(bits(&result));
            sums.iter_mut().zip(&result).for_each(|(sum, x)| *sum += f64::from(wide(*x)));
        }
        let exact: Vec<f32> = own.into_iter().map(wide).collect();
        (exact, sums, all)
    });
    assert!(results.iter().all(|(_, _, all)| *all == results[0].2), "the bits differ");
    let error = |i: usize| {
        let exact: f64 = results.iter().map(|(own, ..)| f64::from(own[i])).sum::<f64>() / f64::from(WORLD);
        (results[0].1[i] / STEPS as f64 - exact).abs() as f32
    };
    (0..COUNT).map(error).sum::<f32>() / COUNT as f32
}

fn compare<T: Element>(name: &str, narrow: fn(f32) -> T, wide: fn(T) -> f32, gain: f32) {
    for quantization in
        [u8_min_max(), Quantization { algorithm: QuantizationAlgorithm::ZeroPointScale, dtype: DType::I8 }]
    {
        let without = run(quantization, false, narrow, wide);
        let with = run(quantization, true, narrow, wide);
        println!("{name} {quantization:?}: error {without} without, {with} with feedback");
        assert!(with * gain < without, "{name} {quantization:?}: {without} without, {with} with feedback");
    }
}

#[test]
fn the_mean_of_f32_converges_to_the_truth() {
    compare("f32", |x| x, |x| x, 5.0);
}

#[test]
fn the_mean_of_f16_converges_to_the_truth() {
    compare("f16", f16::from_f32, f16::to_f32, 5.0);
}

#[test]
fn the_mean_of_bf16_is_closer_to_the_truth() {
    compare("bf16", bf16::from_f32, bf16::to_f32, 1.3);
}

/// Sums in two steps, with an operation between them that is aborted if wanted. The bits of both results.
fn steps_with_abort(aborts: bool) -> Vec<Vec<u8>> {
    with_peers(3, move |peer: Communicator, number| {
        let own = input(number);
        let options = AllReduce::sum().tag(9).quantized(u8_min_max()).error_feedback();
        let mut all = Vec::new();
        for step in 0..3 {
            let mut data = own.clone();
            if step == 1 && aborts {
                // The last peer does not take part in time, so the others have sent their data without a result.
                if number < 2 {
                    let failed = peer.all_reduce(&mut data, options.deadline(Duration::from_millis(300)));
                    assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
                    assert_eq!(data, own, "it is restored");
                }
                let mut barrier = [0_u8];
                peer.all_reduce(&mut barrier, AllReduce::sum().tag(1)).expect("it succeeds");
            }
            peer.all_reduce(&mut data, options).expect("it succeeds");
            all.extend(bits(&data));
        }
        all
    })
}

#[test]
fn an_aborted_operation_leaves_the_error_as_it_was() {
    let plain = steps_with_abort(false);
    let aborted = steps_with_abort(true);
    // Ranks and so results may differ between runs, but not what the sums of the steps tell.
    assert!(plain.iter().all(|all| *all == plain[0]) && aborted.iter().all(|all| *all == aborted[0]));
    let total = |all: &[u8]| {
        let values: Vec<f32> = all.chunks(4).map(|c| f32::from_ne_bytes(c.try_into().unwrap())).collect();
        (0..COUNT).map(|i| (0..3).map(|step| values[step * COUNT + i]).sum::<f32>()).collect::<Vec<_>>()
    };
    let inputs = [input(0), input(1), input(2)];
    let exact: Vec<f32> = (0..COUNT).map(|i| inputs.iter().map(|own| 3.0 * own[i]).sum()).collect();
    // The sum of all steps lacks only the error of the last one: half a 255th of ranges of about 1, 2 and 3.
    for all in [&plain[0], &aborted[0]] {
        let worst = total(all).iter().zip(&exact).map(|(sum, exact)| (sum - exact).abs()).fold(0.0, f32::max);
        assert!(worst < 6.0 / 255.0 / 2.0 * 1.15, "{worst}");
    }
}

#[test]
fn the_error_is_forgotten_on_request_and_with_another_length() {
    let results = with_peers(2, |peer: Communicator, number| {
        let own = input(number);
        let options = AllReduce::sum().tag(3).quantized(u8_min_max()).error_feedback();
        let reduce = |length: usize| {
            let mut data = own[..length].to_vec();
            peer.all_reduce(&mut data, options).expect("it succeeds");
            data
        };
        let (first, second) = (reduce(COUNT), reduce(COUNT));
        peer.clear_error_feedback(Some(3));
        let third = reduce(COUNT);
        reduce(COUNT / 2);
        let fourth = reduce(COUNT);
        (first, second, third, fourth)
    });
    let (first, second, third, fourth) = &results[0];
    assert_ne!(first, second);
    assert_eq!(first, third);
    assert_eq!(first, fourth);
}

#[test]
fn error_feedback_needs_a_quantized_sum_or_average() {
    with_peers(2, |peer: Communicator, _| {
        let mut data = [1.0_f32; 4];
        let plain = peer.all_reduce(&mut data, AllReduce::sum().error_feedback()).unwrap_err();
        assert!(plain.to_string().contains("only a quantized sum or average has one"), "{plain}");
        let max = AllReduce::new(ReduceOp::Max).quantized(u8_min_max()).error_feedback();
        assert!(peer.all_reduce(&mut data, max).is_err());
    });
}
