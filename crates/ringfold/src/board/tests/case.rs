//! Random collectives, and a reference implementation.

use super::super::{Operands, Pieces, PiecesMut};
use core::ops::{Deref, DerefMut};
use ringfold_fabric::shared_buffer::SharedBuffer;
use ringfold_plan::layout::Layout;
use ringfold_plan::parts::Parts;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;

/// A pseudorandom generator.
pub(super) struct TestRng(pub(super) u64);

impl TestRng {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) descriptor: Descriptor,
    pub(super) layouts: Vec<Layout>,
    pub(super) in_place: bool,
    /// Elements per pair of ranks; for other collectives, the size of each part.
    pairs: Vec<Vec<usize>>,
    lists: bool,
    /// Whether most operands lie in shared buffers.
    shares: bool,
}

const COLLECTIVES: usize = 9;

impl Case {
    /// A random collective with random sizes.
    pub(super) fn draw(world: usize, slot_bytes: usize, turn: usize, rng: &mut TestRng) -> Self {
        let bytes = match rng.below(5) {
            0 => rng.below(3),
            1 => rng.below(64),
            2 => slot_bytes * world + rng.below(9) - 4,
            3 => rng.below(slot_bytes * 4),
            // More than a one-shot reduction.
            _ => 16_000 + rng.below(40 * slot_bytes),
        };
        Self::new(world, bytes, turn + rng.below(COLLECTIVES), rng.below(3), rng)
    }

    /// All collectives in all their forms.
    pub(super) fn all(world: usize, bytes: usize, rng: &mut TestRng) -> Vec<Self> {
        let forms = (0..COLLECTIVES).flat_map(|which| (0..3).map(move |form| (which, form)));
        forms.map(|(which, form)| Self::new(world, bytes, which, form, rng)).collect()
    }

    fn new(world: usize, bytes: usize, which: usize, form: usize, rng: &mut TestRng) -> Self {
        let root = Rank::from_index(rng.below(world));
        let (dtype, op) = [
            (DType::F32, ReduceOp::Sum),
            (DType::F32, ReduceOp::Avg),
            (DType::U8, ReduceOp::Sum),
            (DType::F32, ReduceOp::Max),
            (DType::C128, ReduceOp::Sum),
        ][rng.below(5)];
        let collective = [
            Collective::AllReduce,
            Collective::Reduce { root },
            Collective::Broadcast { root },
            Collective::Barrier,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Gather { root },
            Collective::Scatter { root },
            Collective::AllToAll,
        ][which % COLLECTIVES];
        let count = bytes / dtype.bytes();
        let is_pairwise = matches!(
            collective,
            Collective::Gather { .. } | Collective::Scatter { .. } | Collective::AllToAll
        );
        let has_parts =
            is_pairwise || matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        let even = Parts::even(count as u64, world as u16);
        let mut sizes: Vec<usize> = (0..world).map(|rank| even.part(rank).count as usize).collect();
        if form > 0 {
            sizes.iter_mut().for_each(|size| *size = rng.below(2 * *size + 2));
        }
        let total: usize = sizes.iter().sum();
        let mut descriptor = Descriptor::all_reduce(count as u64, dtype, op).with_collective(collective);
        let goes = |from: usize, to: usize| match collective {
            Collective::Gather { root } => to == root.index(),
            Collective::Scatter { root } => from == root.index(),
            _ => true,
        };
        let mut pairs: Vec<Vec<usize>> = (0..world)
            .map(|from| {
                let size = |to: usize| match collective {
                    Collective::Gather { .. } => sizes[from],
                    _ => sizes[to],
                };
                (0..world).map(|to| if goes(from, to) { size(to) } else { 0 }).collect()
            })
            .collect();
        let layouts = match form {
            1 if has_parts => {
                descriptor.count = total as u64;
                vec![Layout::Parts(sizes.iter().map(|size| *size as u64).collect()); world]
            }
            2 if is_pairwise => {
                descriptor.count = 0;
                if collective == Collective::AllToAll {
                    let mut wild = |size: &mut usize| *size = rng.below(2 * *size + 2);
                    pairs.iter_mut().flatten().for_each(&mut wild);
                }
                let send = |me: usize| pairs[me].iter().map(|size| *size as u64).collect();
                let receive = |me: usize| pairs.iter().map(|row| row[me] as u64).collect();
                (0..world).map(|me| Layout::Pairs { send: send(me), receive: receive(me) }).collect()
            }
            _ => {
                if form > 0 {
                    return Self::new(world, bytes, which, 0, rng);
                }
                vec![Layout::Even; world]
            }
        };
        let in_place = match collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => {
                rng.below(3) > 0
            }
            Collective::AllGather | Collective::ReduceScatter => rng.below(3) == 0,
            _ => false,
        };
        let shares =
            matches!(collective, Collective::AllReduce | Collective::ReduceScatter) && rng.below(2) == 0;
        Self { descriptor, layouts, in_place, pairs, lists: rng.below(2) == 0, shares }
    }

    fn element(&self) -> usize {
        self.descriptor.dtype.bytes()
    }

    fn part(&self, rank: usize) -> usize {
        let parts = self.layouts[rank].parts(&self.descriptor, self.layouts.len());
        parts.part(rank).count as usize * self.element()
    }

    /// The buffers of a rank.
    pub(super) fn buffers(&self, me: usize, rng: &mut TestRng) -> RankBuffers {
        let whole = self.descriptor.count as usize * self.element();
        let sum = |sizes: &mut dyn Iterator<Item = usize>| sizes.sum::<usize>() * self.element();
        let sent: Vec<usize> = self.pairs[me].iter().map(|size| size * self.element()).collect();
        let got: Vec<usize> = self.pairs.iter().map(|row| row[me] * self.element()).collect();
        let parts: Vec<usize> = (0..self.layouts.len()).map(|rank| self.part(rank)).collect();
        let (input, output) = match self.descriptor.collective {
            Collective::AllReduce => (vec![whole], vec![whole]),
            Collective::Reduce { root } => (vec![whole], vec![if root.index() == me { whole } else { 0 }]),
            Collective::Broadcast { root } if root.index() == me => {
                (vec![whole], vec![if rng.below(2) == 0 { whole } else { 0 }])
            }
            Collective::Broadcast { .. } => (vec![0], vec![whole]),
            Collective::AllGather => (vec![self.part(me)], parts),
            Collective::ReduceScatter => (parts, vec![self.part(me)]),
            Collective::Gather { .. } => (vec![sum(&mut self.pairs[me].iter().copied())], got),
            Collective::Scatter { .. } => (sent, vec![sum(&mut self.pairs.iter().map(|row| row[me]))]),
            Collective::AllToAll => (sent, got),
            _ => (vec![0], vec![0]),
        };
        let random = |bytes: usize, rng: &mut TestRng| -> Vec<u8> {
            match self.descriptor.dtype {
                DType::U8 => (0..bytes).map(|_| rng.below(256) as u8).collect(),
                DType::F32 => (0..bytes / 4)
                    .flat_map(|_| (rng.below(2_000_000) as f32 / 777.0 - 999.0).to_le_bytes())
                    .collect(),
                _ => (0..bytes / 8)
                    .flat_map(|_| (rng.below(2_000_000) as f64 / 777.0 - 999.0).to_le_bytes())
                    .collect(),
            }
        };
        let mut input_bytes = random(input.iter().sum(), rng);
        let mut output_bytes = vec![0xaa; output.iter().sum()];
        if self.in_place {
            // The buffer is `output`; `input` is a copy of its initial content.
            output_bytes = match self.descriptor.collective {
                Collective::AllGather => {
                    let start: usize = output[..me].iter().sum();
                    output_bytes[start..start + input_bytes.len()].copy_from_slice(&input_bytes);
                    output_bytes
                }
                Collective::Broadcast { root } if root.index() != me => vec![0xaa; whole],
                _ => input_bytes.clone(),
            };
            if let Collective::Broadcast { root } = self.descriptor.collective
                && root.index() != me
            {
                input_bytes = Vec::new();
            }
        }
        // Often, but not always, all operands of all ranks are shared.
        let mut place = |bytes| {
            let at = 16 * rng.below(5);
            RankMemory::new(bytes, (!cfg!(miri) && self.shares && rng.below(60) > 0).then_some(at))
        };
        RankBuffers {
            input: place(input_bytes),
            output: place(output_bytes),
            in_place: self.in_place,
            cuts: (input, output),
            lists: self.lists,
            own: match self.descriptor.collective {
                Collective::ReduceScatter if self.in_place => {
                    let start = (0..me).map(|rank| self.part(rank)).sum();
                    Some(start..start + self.part(me))
                }
                _ => None,
            },
        }
    }

    /// The expected result of a rank.
    pub(super) fn expected(&self, me: usize, inputs: &[Vec<u8>]) -> Vec<u8> {
        let world = inputs.len();
        let element = self.element();
        let parts: Vec<usize> = (0..world).map(|rank| self.part(rank)).collect();
        let fold = |range: core::ops::Range<usize>| self.fold(inputs, range);
        let piece = |from: usize, to: usize| {
            let start = self.pairs[from][..to].iter().sum::<usize>() * element;
            &inputs[from][start..start + self.pairs[from][to] * element]
        };
        match self.descriptor.collective {
            Collective::AllReduce => fold(0..inputs[0].len()),
            Collective::Reduce { root } if root.index() == me => fold(0..inputs[0].len()),
            Collective::Reduce { .. } if self.in_place => inputs[me].clone(),
            Collective::Broadcast { root } => inputs[root.index()].clone(),
            Collective::AllGather => inputs.concat(),
            Collective::ReduceScatter => {
                let start = parts[..me].iter().sum();
                fold(start..start + parts[me])
            }
            Collective::Gather { .. } | Collective::Scatter { .. } | Collective::AllToAll => {
                (0..world).flat_map(|from| piece(from, me)).copied().collect()
            }
            _ => Vec::new(),
        }
    }

    fn fold(&self, inputs: &[Vec<u8>], range: core::ops::Range<usize>) -> Vec<u8> {
        let world = inputs.len();
        let op = self.descriptor.op;
        let mut operands = inputs.iter().map(|input| &input[range.clone()]);
        let mut sum = operands.next().unwrap().to_vec();
        for operand in operands {
            match self.descriptor.dtype {
                DType::U8 => sum.iter_mut().zip(operand).for_each(|(a, b)| *a = a.wrapping_add(*b)),
                DType::F32 => each(&mut sum, operand, |a, b| {
                    let (a, b) = (f32::from_le_bytes(a), f32::from_le_bytes(b));
                    if op == ReduceOp::Max { a.max(b) } else { a + b }.to_le_bytes()
                }),
                _ => each(&mut sum, operand, |a, b| {
                    (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes()
                }),
            }
        }
        if op == ReduceOp::Avg && world > 1 {
            let copy = sum.clone();
            each(&mut sum, &copy, |a, _| (f32::from_le_bytes(a) / world as f32).to_le_bytes());
        }
        sum
    }
}

fn each<const N: usize>(sum: &mut [u8], operand: &[u8], f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (a, b) in sum.as_chunks_mut().0.iter_mut().zip(operand.as_chunks().0) {
        *a = f(*a, *b);
    }
}

/// Memory of a rank.
pub(super) enum RankMemory {
    Own(Vec<u8>),
    /// The bytes behind the first few of a shared buffer.
    Shared(SharedBuffer, usize),
}

impl RankMemory {
    pub(super) fn new(bytes: Vec<u8>, shared_at: Option<usize>) -> Self {
        let Some(at) = shared_at else { return Self::Own(bytes) };
        let mut buffer = SharedBuffer::zeroed(at + bytes.len()).unwrap();
        buffer.as_mut_slice()[at..].copy_from_slice(&bytes);
        Self::Shared(buffer, at)
    }
}

impl Deref for RankMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(buffer, at) => &buffer.as_slice()[*at..],
        }
    }
}

impl DerefMut for RankMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(buffer, at) => &mut buffer.as_mut_slice()[*at..],
        }
    }
}

/// The buffers of one rank.
pub(super) struct RankBuffers {
    pub(super) input: RankMemory,
    output: RankMemory,
    pub(super) in_place: bool,
    cuts: (Vec<usize>, Vec<usize>),
    lists: bool,
    /// The part of the buffer with the result.
    own: Option<core::ops::Range<usize>>,
}

/// The buffers as slices, for the board.
pub(super) struct BufferLists<'a> {
    input: Vec<&'a [u8]>,
    output: Vec<&'a mut [u8]>,
    in_place: bool,
    lists: bool,
}

impl RankBuffers {
    /// Whether the result is right.
    pub(super) fn is_right(&self, expected: &[u8]) -> bool {
        // The root of a broadcast may have no output.
        let has_no_room = self.output.is_empty() && *self.input == *expected;
        has_no_room || expected == self.own.clone().map_or(&self.output[..], |own| &self.output[own])
    }

    pub(super) fn lists(&mut self) -> BufferLists<'_> {
        let cut = self.lists && !self.in_place;
        let (mut input, mut rest) = (Vec::new(), &self.input[..]);
        for bytes in self.cuts.0.iter().filter(|_| cut) {
            input.push(rest.split_off(..*bytes).unwrap());
        }
        if !cut {
            input.push(rest);
        }
        let (mut output, mut rest) = (Vec::new(), &mut self.output[..]);
        for bytes in self.cuts.1.iter().filter(|_| cut) {
            output.push(rest.split_off_mut(..*bytes).unwrap());
        }
        if !cut {
            output.push(rest);
        }
        BufferLists { input, output, in_place: self.in_place, lists: self.lists }
    }
}

impl<'a> BufferLists<'a> {
    pub(super) fn operands(&'a mut self) -> Operands<'a> {
        if self.in_place {
            return Operands::InPlace(self.output[0]);
        }
        if self.lists {
            return Operands::OutOfPlace {
                input: Pieces::Many(&self.input),
                output: PiecesMut::Many(&mut self.output),
            };
        }
        Operands::OutOfPlace { input: Pieces::One(self.input[0]), output: PiecesMut::One(self.output[0]) }
    }
}
