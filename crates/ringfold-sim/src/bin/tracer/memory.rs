//! Real memory under an operation: bytes, and the kernels that work on them.

use ringfold_kernels::{divide, reduce};
use ringfold_plan::step::{Left, Place, Region};
use ringfold_plan::workspace::Workspace;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::reduce_op::ReduceOp;
use std::ops::Range;

/// A user's buffers.
#[derive(Debug)]
pub struct Buffers {
    source: Vec<u8>,
    target: Option<Vec<u8>>,
}

impl Buffers {
    /// The result replaces the input.
    pub fn in_place(source: Vec<u8>) -> Self {
        Self { source, target: None }
    }

    /// The result has a place of its own.
    pub fn out_of_place(source: Vec<u8>) -> Self {
        let target = Some(vec![0; source.len()]);
        Self { source, target }
    }

    /// The input; in place, and after a commit, the result.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// The result, after a commit.
    pub fn result(&self) -> &[u8] {
        self.target.as_deref().unwrap_or(&self.source)
    }
}

/// The executor's view of buffers. It owns them until it is through with them.
#[derive(Debug)]
pub struct Memory {
    buffers: Buffers,
    scratch: Vec<u8>,
    descriptor: Descriptor,
    world: u64,
    /// What was overwritten in place, oldest first: regions may overlap, so it is put back backwards.
    overwritten: Vec<(usize, Vec<u8>)>,
}

impl Memory {
    /// Buffers with so many elements of scratch, for an operation of so many members.
    pub fn new(buffers: Buffers, descriptor: Descriptor, scratch: u64, world: usize) -> Self {
        let scratch = vec![0; scratch as usize * descriptor.dtype.bytes()];
        Self { buffers, scratch, descriptor, world: world as u64, overwritten: Vec::new() }
    }

    /// The buffers, given back.
    pub fn into_buffers(self) -> Buffers {
        self.buffers
    }

    fn range(&self, region: Region) -> Range<usize> {
        let size = self.descriptor.dtype.bytes();
        let start = region.offset as usize * size;
        start..start + region.count as usize * size
    }

    fn read(&self, region: Region) -> &[u8] {
        let range = self.range(region);
        match region.place {
            Place::Source => &self.buffers.source[range],
            Place::Target => &self.buffers.result()[range],
            Place::Scratch => &self.scratch[range],
        }
    }

    /// Memory that is about to change; what it holds is kept if it is the user's input.
    fn write(&mut self, region: Region) -> &mut [u8] {
        let range = self.range(region);
        match (region.place, &mut self.buffers.target) {
            (Place::Scratch, _) => &mut self.scratch[range],
            (Place::Target, Some(target)) => &mut target[range],
            (Place::Source | Place::Target, _) => {
                self.overwritten.push((range.start, self.buffers.source[range.clone()].to_vec()));
                &mut self.buffers.source[range]
            }
        }
    }
}

impl Workspace for Memory {
    type Payload = Vec<u8>;
    type Frame = [u8];

    fn load(&mut self, region: Region) -> Vec<u8> {
        self.read(region).to_vec()
    }

    fn copy(&mut self, own: Region, into: Region) {
        let bytes = self.read(own).to_vec();
        self.write(into).copy_from_slice(&bytes);
    }

    fn store(&mut self, frame: &[u8], into: Region) {
        self.write(into).copy_from_slice(frame);
    }

    fn reduce(&mut self, frame: &[u8], own: Region, into: Region, left: Left) {
        let Descriptor { dtype, op, .. } = self.descriptor;
        let own = self.read(own).to_vec();
        let (left, right) = match left {
            Left::Own => (&own[..], frame),
            Left::Frame => (frame, &own[..]),
        };
        reduce(dtype, op, left, right, self.write(into));
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        let Descriptor { dtype, op, .. } = self.descriptor;
        let (left, right) = (self.read(left).to_vec(), self.read(right).to_vec());
        reduce(dtype, op, &left, &right, self.write(into));
    }

    fn settle(&mut self, region: Region) {
        if self.descriptor.op == ReduceOp::Avg {
            let (dtype, world) = (self.descriptor.dtype, self.world);
            divide(dtype, self.write(region), world);
        }
    }

    fn restore(&mut self) {
        for (start, bytes) in self.overwritten.drain(..).rev() {
            self.buffers.source[start..start + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn keep(&mut self) {
        self.overwritten.clear();
    }
}
