//! Runs plans on memory, and compares with a reference.

mod simulated_group;

use super::{Outgoing, Pool, TensorWorkspace};
use crate::all_reduce::HostBuffers;
use ringfold_fabric::memory::{Arrivals, Memory, View};
use ringfold_plan::step::{Left, OpBuffer, Region};
use ringfold_plan::workspace::Workspace;
use ringfold_proto::descriptor::{Descriptor, Weight};
use ringfold_proto::dtype::{DType, NumberKind};
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};
use simulated_group::{Ending, LatePieces, run, run_late};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::Ring, Algorithm::Direct, Algorithm::Halving, Algorithm::OneShot, Algorithm::Doubling];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];

fn tuning(algorithm: Algorithm, chunk_bytes: u32) -> Tuning {
    Tuning { forced: Some(algorithm), chunk_bytes, window_slots: 3, eager_slots: 2, ..Tuning::default() }
}

/// A quotient as an element, rounded like a division of that type.
fn element(dtype: DType, numerator: i64, denominator: i64) -> Vec<u8> {
    let whole = numerator / denominator;
    let (single, double) = (numerator as f32 / denominator as f32, numerator as f64 / denominator as f64);
    match dtype.kind() {
        NumberKind::Unsigned | NumberKind::Signed => whole.to_le_bytes()[..dtype.bytes()].to_vec(),
        _ => match dtype {
            DType::F16 => half::f16::from_f32(single).to_ne_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f32(single).to_ne_bytes().to_vec(),
            DType::F32 => single.to_ne_bytes().to_vec(),
            _ => double.to_ne_bytes().to_vec(),
        },
    }
}

/// Small numbers: sums and products are exact.
fn number(rank: usize, index: usize) -> i64 {
    1 + ((rank * 7 + index * 3 + index / 5) % 2) as i64
}

fn folded(op: ReduceOp, world: usize, index: usize) -> (i64, i64) {
    let numbers = (0..world).map(|rank| number(rank, index));
    match op {
        ReduceOp::Prod => (numbers.product(), 1),
        ReduceOp::Max => (numbers.max().unwrap_or(0), 1),
        ReduceOp::Min => (numbers.min().unwrap_or(0), 1),
        ReduceOp::Avg => (numbers.sum(), world as i64),
        _ => (numbers.sum(), 1),
    }
}

fn input(dtype: DType, rank: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|index| element(dtype, number(rank, index), 1)).collect()
}

fn buffers(source: &[u8], in_place: bool) -> HostBuffers {
    if in_place {
        return HostBuffers::InPlace(Memory::from(source.to_vec()));
    }
    // The initial content of the target must not matter.
    HostBuffers::OutOfPlace {
        source: View::from(source.to_vec()),
        target: Memory::from(vec![0xa5; source.len()]),
    }
}

/// Runs a case on all ranks and compares with the reference.
fn check(dtype: DType, op: ReduceOp, world: usize, count: usize, in_place: bool, tuning: Tuning) {
    let descriptor = Descriptor::all_reduce(count as u64, dtype, op);
    let all = (0..world).map(|rank| buffers(&input(dtype, rank, count), in_place)).collect();
    let results = run(&vec![descriptor; world], all, tuning, &mut Pool::default(), Ending::Committed);
    let expected: Vec<u8> = (0..count)
        .flat_map(|index| {
            let (numerator, denominator) = folded(op, world, index);
            element(dtype, numerator, denominator)
        })
        .collect();
    for (rank, result) in results.iter().enumerate() {
        let what = format!("{descriptor} by {:?} on {rank} of {world}, in place: {in_place}", tuning.forced);
        assert!(*result == expected, "{what}");
    }
}

#[test]
fn all_types_and_operations_match_the_reference() {
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.kind() != NumberKind::Complex) {
        for op in OPS {
            for in_place in [false, true] {
                check(dtype, op, 3, 77, in_place, tuning(Algorithm::Ring, 64));
                check(dtype, op, 5, 33, in_place, tuning(Algorithm::Halving, 48));
            }
        }
    }
}

#[test]
fn all_plans_worlds_and_counts_match_the_reference() {
    for algorithm in ALGORITHMS {
        for world in [1, 2, 3, 5] {
            for in_place in [false, true] {
                for count in [0, 1, 7, 1000] {
                    for op in [ReduceOp::Sum, ReduceOp::Avg] {
                        check(DType::F32, op, world, count, in_place, tuning(algorithm, 128));
                    }
                }
                check(DType::BF16, ReduceOp::Avg, world, 100_000, in_place, tuning(algorithm, 4096));
            }
        }
    }
}

/// Out-of-place buffers whose input arrives piece by piece, in an odd order; all but the last `lost` pieces.
fn late_buffers(source: &[u8], piece_bytes: usize, lost: usize) -> (HostBuffers, LatePieces) {
    let arrivals = Arc::new(Arrivals::new(source.len(), piece_bytes));
    let source_view = Memory::from(source.to_vec()).into_arriving_view(arrivals.clone());
    let target = Memory::from(vec![0xa5; source.len()]);
    let mut missing: Vec<usize> = (0..arrivals.pieces()).collect();
    missing.sort_by_key(|piece| (piece * 7 + 3) % 11);
    missing.drain(..lost.min(missing.len()));
    (HostBuffers::OutOfPlace { source: source_view, target }, LatePieces { arrivals, missing })
}

#[test]
fn an_input_that_arrives_late_gives_the_same_bits() {
    let quantization = Some(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 });
    for algorithm in ALGORITHMS {
        for world in [2, 3, 5] {
            for (count, piece_bytes) in [(1, 64), (777, 40), (1000, 512), (1000, 100)] {
                let base = Descriptor::all_reduce(count as u64, DType::F32, ReduceOp::Avg);
                let weighted = |rank: usize| Descriptor {
                    count: base.count + 1,
                    weight: Weight::new(rank as f64 + 0.3),
                    ..base
                };
                let plain: Vec<_> = vec![base; world];
                let quantized = vec![Descriptor { quantization, ..base }; world];
                for descriptors in [plain, quantized, (0..world).map(weighted).collect()] {
                    let inputs: Vec<_> = (0..world).map(|rank| input(DType::F32, rank, count)).collect();
                    let all = inputs.iter().map(|input| buffers(input, false)).collect();
                    let (tuning, mut pool) = (tuning(algorithm, 128), Pool::default());
                    let expected = run(&descriptors, all, tuning, &mut pool, Ending::Committed);
                    let late = inputs.iter().map(|input| late_buffers(input, piece_bytes, 0));
                    let (all, late) = late.unzip();
                    let results = run_late(&descriptors, all, late, tuning, &mut pool, Ending::Committed);
                    assert!(results == expected, "{} by {algorithm:?} of {world}", descriptors[0]);
                }
            }
        }
    }
}

#[test]
fn an_operation_whose_input_never_arrives_can_be_aborted_at_any_moment() {
    for algorithm in ALGORITHMS {
        let descriptor = Descriptor::all_reduce(500, DType::F32, ReduceOp::Sum);
        for lost in [1, 3, 100] {
            for moment in [0, 1, 5, 20, 80, 100_000] {
                let late = (0..3).map(|rank| late_buffers(&input(DType::F32, rank, 500), 100, lost));
                let (all, late) = late.unzip();
                let (tuning, end) = (tuning(algorithm, 64), Ending::Aborted(moment));
                run_late(&[descriptor; 3], all, late, tuning, &mut Pool::default(), end);
            }
        }
    }
}

#[test]
fn an_abort_at_any_moment_restores_every_bit() {
    let count = 501;
    let quantization = Some(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 });
    let plain = Descriptor::all_reduce(count, DType::F32, ReduceOp::Avg);
    let weighted = Descriptor { count: count + 1, weight: Weight::new(3.0), ..plain };
    for descriptor in [plain, Descriptor { quantization, ..plain }, weighted] {
        for algorithm in ALGORITHMS {
            for world in [2, 3, 5] {
                for after in [0, 1, 5, 20, 50, 100, 200, 300, 500, 1_000_000] {
                    let inputs: Vec<_> =
                        (0..world).map(|rank| input(DType::F32, rank, count as usize)).collect();
                    let all = inputs.iter().map(|input| buffers(input, true)).collect();
                    let descriptors = vec![descriptor; world];
                    let tuning = tuning(algorithm, 256);
                    let results =
                        run(&descriptors, all, tuning, &mut Pool::default(), Ending::Aborted(after));
                    assert!(results == inputs, "{descriptor} by {algorithm:?} of {world} after {after}");
                }
            }
        }
    }
}

fn quantizations() -> impl Iterator<Item = Quantization> {
    use QuantizationAlgorithm::{MinMax, ZeroPointScale};
    let all = [
        (MinMax, DType::U8),
        (MinMax, DType::U16),
        (ZeroPointScale, DType::I8),
        (ZeroPointScale, DType::U32),
    ];
    all.into_iter().map(|(algorithm, dtype)| Quantization { algorithm, dtype })
}

/// Runs a quantized case with these inputs; all ranks must get the same bits.
fn quantised(q: Quantization, op: ReduceOp, inputs: &[Vec<f32>], in_place: bool, tuning: Tuning) -> Vec<f32> {
    let base = Descriptor::all_reduce(inputs[0].len() as u64, DType::F32, op);
    let descriptor = Descriptor { quantization: Some(q), ..base };
    let all = inputs.iter().map(|input| buffers(input.as_bytes(), in_place)).collect();
    let descriptors = vec![descriptor; inputs.len()];
    let results = run(&descriptors, all, tuning, &mut Pool::default(), Ending::Committed);
    assert!(results.iter().all(|result| *result == results[0]), "{descriptor}: ranks differ");
    <[f32]>::ref_from_bytes(&results[0]).map_or_else(|_| unaligned(&results[0]), <[f32]>::to_vec)
}

fn unaligned(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect()
}

#[test]
fn quantised_sums_of_equal_elements_are_exact() {
    for q in quantizations() {
        for algorithm in [Algorithm::Ring, Algorithm::Direct] {
            for count in [0, 1, 7, 1000] {
                for in_place in [false, true] {
                    let inputs = [vec![42.0; count], vec![43.0; count]];
                    let sum = quantised(q, ReduceOp::Sum, &inputs, in_place, tuning(algorithm, 128));
                    assert_eq!(sum, vec![85.0; count], "{q:?}");
                }
            }
        }
    }
}

#[test]
fn quantised_results_have_the_same_bits_everywhere_and_small_errors() {
    for q in quantizations() {
        for algorithm in [Algorithm::Ring, Algorithm::Direct] {
            for (world, count) in [(1, 100), (2, 1000), (3, 1000), (5, 10_000)] {
                for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
                    for in_place in [false, true] {
                        let value = |rank: usize, i: usize| ((i * 37 + rank * 11) % 101) as f32 / 50.0 - 1.0;
                        let inputs: Vec<Vec<f32>> =
                            (0..world).map(|rank| (0..count).map(|i| value(rank, i)).collect()).collect();
                        let result = quantised(q, op, &inputs, in_place, tuning(algorithm, 512));
                        // There are `world` roundings of at most half a step of a growing range.
                        let error_max = (world * (world + 1)) as f32 / 255.0;
                        for (i, got) in result.iter().enumerate() {
                            let column = inputs.iter().map(|input| input[i]);
                            let exact = match op {
                                ReduceOp::Max => column.fold(f32::MIN, f32::max),
                                ReduceOp::Avg => column.sum::<f32>() / world as f32,
                                _ => column.sum(),
                            };
                            assert!((got - exact).abs() <= error_max, "{q:?} {op} of {world}: {got} {exact}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn settled_or_stored_regions_are_sent_unchanged() {
    let q = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
    let base = Descriptor::all_reduce(8, DType::F32, ReduceOp::Sum);
    let descriptor = Descriptor { quantization: Some(q), ..base };
    let values: Vec<f32> = vec![0.1, 0.7, 3.3, -2.2, 9.9, 0.0, 1.5, 1.25];
    let mut pool = Pool::default();
    let mut workspace =
        TensorWorkspace::new(buffers(values.as_bytes(), true), descriptor, 0, 2, true, None, &mut pool);
    let sent_bytes = |workspace: &mut TensorWorkspace, region| match workspace.prepare(region) {
        Outgoing::Encoded(region) => workspace.quantized.as_ref().unwrap().encoded(region).to_vec(),
        _ => panic!("not quantized"),
    };
    let region = Region { buffer: OpBuffer::Target, offset: 2, count: 4 };
    let mut frame = sent_bytes(&mut workspace, region.at(OpBuffer::Source));
    // Bytes that no encoder produces: it uses the lowest and the highest value.
    frame[16..].fill(100);
    workspace.store(&frame, region);
    assert_eq!(sent_bytes(&mut workspace, region), frame);
    workspace.reduce(&frame, region, region, Left::Own);
    assert_ne!(sent_bytes(&mut workspace, region), frame);
    workspace.settle(region);
    let settled = sent_bytes(&mut workspace, region);
    let mut value = vec![0; 16];
    ringfold_kernels::dequantize(q, DType::F32, &settled, &mut value);
    assert_eq!(workspace.memory.output()[8..24], value);
    workspace.restore();
    assert_eq!(workspace.memory.output(), values.as_bytes());
}

#[test]
fn a_weighted_average_is_the_weighted_sum_over_the_sum_of_weights() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for algorithm in ALGORITHMS {
            for (world, count) in [(1, 7), (2, 0), (2, 1), (3, 6), (3, 1000), (5, 999)] {
                for in_place in [false, true] {
                    let weight = |rank: usize| (rank * rank) as i64 + i64::from(world == 1);
                    let base = Descriptor::all_reduce(count as u64 + 1, dtype, ReduceOp::Avg);
                    let weights = (0..world).map(|rank| Weight::new(weight(rank) as f64));
                    let descriptors: Vec<_> = weights.map(|weight| Descriptor { weight, ..base }).collect();
                    let inputs: Vec<_> = (0..world).map(|rank| input(dtype, rank, count)).collect();
                    let views: Vec<_> = inputs.iter().map(|input| View::from(input.clone())).collect();
                    let make = |view: &View| match in_place {
                        true => buffers(view.as_slice(), true),
                        false => HostBuffers::OutOfPlace {
                            source: view.clone(),
                            target: Memory::from(vec![0xa5; view.len()]),
                        },
                    };
                    let all = views.iter().map(make).collect();
                    let tuning = tuning(algorithm, 64);
                    let results = run(&descriptors, all, tuning, &mut Pool::default(), Ending::Committed);
                    let total: i64 = (0..world).map(weight).sum();
                    let sum = |i| (0..world).map(|rank| weight(rank) * number(rank, i)).sum();
                    let expected: Vec<u8> = (0..count).flat_map(|i| element(dtype, sum(i), total)).collect();
                    for result in results {
                        assert!(
                            result == expected,
                            "{base} by {algorithm:?} of {world}, in place: {in_place}"
                        );
                    }
                    assert!(views.iter().zip(&inputs).all(|(view, input)| view.as_slice() == input));
                }
            }
        }
    }
}

#[test]
fn zero_weights_give_nan() {
    let base = Descriptor::all_reduce(4, DType::F32, ReduceOp::Avg);
    let descriptor = Descriptor { weight: Weight::new(0.0), ..base };
    let all = (0..2).map(|rank| buffers(&input(DType::F32, rank, 3), true)).collect();
    let tuning = tuning(Algorithm::Ring, 64);
    let results = run(&[descriptor; 2], all, tuning, &mut Pool::default(), Ending::Committed);
    assert_eq!(results[0], results[1]);
    assert!(unaligned(&results[0]).iter().all(|value| value.is_nan()));
}

#[test]
fn only_in_place_operations_need_a_backup() {
    let count = 100_000;
    for algorithm in [Algorithm::Ring, Algorithm::Direct, Algorithm::Halving] {
        for (in_place, expected) in [(false, vec![]), (true, vec![4 * count; 3])] {
            let descriptor = Descriptor::all_reduce(count as u64, DType::F32, ReduceOp::Sum);
            let mut pool = Pool::default();
            for _ in 0..3 {
                let all = (0..3).map(|rank| buffers(&input(DType::F32, rank, count), in_place)).collect();
                run(&[descriptor; 3], all, tuning(algorithm, 65_536), &mut pool, Ending::Committed);
                assert_eq!(pool.blocks_bytes(), expected, "{algorithm:?}");
            }
        }
    }
}

#[test]
fn unquantized_data_is_sent_from_its_own_memory() {
    let descriptor = Descriptor::all_reduce(100, DType::F32, ReduceOp::Sum);
    for in_place in [false, true] {
        let source = buffers(&input(DType::F32, 0, 100), in_place);
        let mut workspace = TensorWorkspace::new(source, descriptor, 10, 2, true, None, &mut Pool::default());
        for buffer in [OpBuffer::Source, OpBuffer::Target, OpBuffer::Scratch] {
            let region = Region { buffer, offset: 2, count: 8 };
            assert!(matches!(workspace.prepare(region), Outgoing::Verbatim(_)));
            assert_eq!(workspace.load(region).len(), 32);
        }
    }
}
