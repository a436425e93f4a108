//! The buffers of a group's operation, as addresses that Python passes.
//!
//! An input may overlap an output, and outputs may overlap each other: the input of an all-gather often is a slice of
//! its output. Only buffers that overlap are copied.

use crate::exception::invalid_group_argument;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ringfold::{Error, GroupBuffers, GroupSlices, Memory, View};
use std::sync::Arc;

/// The bytes of a tensor in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BufferSpan {
    start: usize,
    bytes: usize,
}

/// The inputs or outputs of an operation: one buffer mostly, or one for each rank.
#[derive(Debug)]
enum SpanList {
    One(BufferSpan),
    Many(Vec<BufferSpan>),
}

/// The inputs and outputs of an operation.
#[derive(Debug)]
pub(crate) struct Operands {
    input: SpanList,
    output: SpanList,
    /// Whether one buffer may be both input and output.
    may_be_in_place: bool,
}

/// Copies results to outputs that overlap. Runs when the operation has succeeded, before it counts as done.
pub(crate) type CopyBack = Box<dyn FnOnce(&GroupBuffers) + Send>;

impl Operands {
    /// The operands of two lists of (address, bytes).
    pub(crate) fn of(
        input: &Bound<'_, PyList>,
        output: &Bound<'_, PyList>,
        may_be_in_place: bool,
    ) -> PyResult<Self> {
        Ok(Self { input: SpanList::of(input)?, output: SpanList::of(output)?, may_be_in_place })
    }

    /// Lends the memory to a call that uses it only until it returns.
    pub(crate) fn lend(&self, call: impl FnOnce(GroupSlices<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let (SpanList::One(input), SpanList::One(output)) = (&self.input, &self.output) else {
            return self.lend_many(call);
        };
        if input == output && self.may_be_in_place {
            return call(GroupSlices::InPlace(output.lend_mut()));
        }
        if input.overlaps(output) {
            let input = input.lend().to_vec();
            return call(GroupSlices::OutOfPlace { input: &input, output: output.lend_mut() });
        }
        call(GroupSlices::OutOfPlace { input: input.lend(), output: output.lend_mut() })
    }

    fn lend_many(&self, call: impl FnOnce(GroupSlices<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let overlaps = Overlaps::of(self.input.spans(), self.output.spans());
        let inputs: Vec<_> = copied(self.input.spans(), &overlaps.inputs);
        let mut outputs: Vec<_> = copied(self.output.spans(), &overlaps.outputs);
        let bytes = |(span, copy)| Option::as_deref(copy).unwrap_or_else(|| BufferSpan::lend(span));
        let input: Vec<&[u8]> = self.input.spans().iter().zip(&inputs).map(bytes).collect();
        let bytes = |(span, copy)| Option::as_deref_mut(copy).unwrap_or_else(|| BufferSpan::lend_mut(span));
        let mut output: Vec<&mut [u8]> = self.output.spans().iter().zip(&mut outputs).map(bytes).collect();
        call(GroupSlices::Pieces { input: &input, output: &mut output })?;
        for (span, copy) in self.output.spans().iter().zip(outputs) {
            if let Some(copy) = copy {
                span.lend_mut().copy_from_slice(&copy);
            }
        }
        Ok(())
    }

    /// The buffers of an operation that goes on, and what to do when it succeeds. `keep` keeps the bytes alive.
    pub(crate) fn keep(&self, keep: Py<PyAny>) -> (GroupBuffers, Option<CopyBack>) {
        let keep = Arc::new(keep);
        let (inputs, outputs) = (self.input.spans(), self.output.spans());
        if let (SpanList::One(input), SpanList::One(output)) = (&self.input, &self.output)
            && input == output
            && self.may_be_in_place
        {
            return (GroupBuffers::InPlace(output.memory(&keep)), None);
        }
        let overlaps = Overlaps::of(inputs, outputs);
        let input =
            |(span, copy): (&BufferSpan, Option<Vec<u8>>)| copy.map_or_else(|| span.view(&keep), View::from);
        let input = inputs.iter().zip(copied(inputs, &overlaps.inputs)).map(input).collect();
        let mut back = Vec::new();
        let mut output = Vec::with_capacity(outputs.len());
        for (index, copy) in copied(outputs, &overlaps.outputs).into_iter().enumerate() {
            let memory = outputs[index].memory(&keep);
            output.push(match copy {
                None => memory,
                Some(copy) => {
                    back.push((index, memory));
                    Memory::from(copy)
                }
            });
        }
        let buffers = GroupBuffers::OutOfPlace { input, output };
        if back.is_empty() {
            return (buffers, None);
        }
        let copy_back = move |buffers: &GroupBuffers| {
            let GroupBuffers::OutOfPlace { output, .. } = buffers else { return };
            // One at a time: they overlap.
            for (index, mut memory) in back {
                memory.as_mut_slice().copy_from_slice(output[index].as_slice());
            }
        };
        (buffers, Some(Box::new(copy_back)))
    }
}

impl SpanList {
    fn of(list: &Bound<'_, PyList>) -> PyResult<Self> {
        match list.len() {
            0 => Ok(Self::One(BufferSpan { start: 0, bytes: 0 })),
            1 => Ok(Self::One(BufferSpan::of(&list.get_item(0)?)?)),
            _ => list.iter().map(|item| BufferSpan::of(&item)).collect::<PyResult<_>>().map(Self::Many),
        }
    }

    fn spans(&self) -> &[BufferSpan] {
        match self {
            Self::One(span) => core::slice::from_ref(span),
            Self::Many(spans) => spans,
        }
    }
}

impl BufferSpan {
    /// The span of an (address, bytes).
    pub(crate) fn of(item: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (start, bytes) = item.extract::<(usize, usize)>()?;
        if (start == 0 && bytes > 0) || isize::try_from(bytes).is_err() || start.checked_add(bytes).is_none()
        {
            let text = format!("invalid memory: {bytes} bytes at address {start:#x}");
            return Err(invalid_group_argument(item.py(), &text));
        }
        Ok(Self { start, bytes })
    }

    fn end(&self) -> usize {
        self.start + self.bytes
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.start < other.end() && other.start < self.end()
    }

    /// The bytes, for the length of a call.
    fn lend<'a>(&self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the Python caller holds the tensor during the call, and the slice is used for no longer. Nothing of ours
        // writes it meanwhile: inputs that overlap an output are copied first. The documentation forbids other Python
        // threads to write it; one that does mixes old and new values, as with any library that runs beside the
        // interpreter.
        unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(self.start), self.bytes) }
    }

    /// The bytes, to be written, for the length of a call.
    fn lend_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as for `lend`. Outputs that overlap are replaced by copies, and written back one at a time.
        unsafe {
            core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(self.start), self.bytes)
        }
    }

    /// Memory that the engine reads.
    pub(crate) fn view(&self, keep: &Arc<Py<PyAny>>) -> View {
        let start = core::ptr::with_exposed_provenance(self.start);
        // SAFETY: the keeper keeps the bytes valid and in place; the rest is as for `lend`.
        unsafe { View::kept(start, self.bytes, Box::new(keep.clone())) }
    }

    /// Memory that the engine reads and writes.
    pub(crate) fn memory(&self, keep: &Arc<Py<PyAny>>) -> Memory {
        let start = core::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: as for `view`. Memories that overlap are written one at a time.
        unsafe { Memory::kept(start, self.bytes, Box::new(keep.clone())) }
    }
}

/// Which buffers have to be replaced by copies.
struct Overlaps {
    /// Inputs that overlap an output.
    inputs: Vec<bool>,
    /// Outputs that overlap each other.
    outputs: Vec<bool>,
}

impl Overlaps {
    fn of(inputs: &[BufferSpan], outputs: &[BufferSpan]) -> Self {
        let mut order: Vec<usize> = (0..outputs.len()).filter(|index| outputs[*index].bytes > 0).collect();
        order.sort_by_key(|index| outputs[*index].start);
        let mut overlapping = vec![false; outputs.len()];
        // The memory that outputs cover, by ascending address.
        let mut covered: Vec<BufferSpan> = Vec::with_capacity(order.len());
        let mut widest = 0;
        for index in order {
            let span = outputs[index];
            match covered.last_mut() {
                Some(last) if last.overlaps(&span) => {
                    (overlapping[widest], overlapping[index]) = (true, true);
                    if span.end() > last.end() {
                        (last.bytes, widest) = (span.end() - last.start, index);
                    }
                }
                _ => {
                    covered.push(span);
                    widest = index;
                }
            }
        }
        let is_covered = |input: &BufferSpan| {
            let next = covered.partition_point(|range| range.end() <= input.start);
            covered.get(next).is_some_and(|range| range.overlaps(input))
        };
        Self { inputs: inputs.iter().map(is_covered).collect(), outputs: overlapping }
    }
}

/// Copies of the marked buffers, with their contents: an operation may leave a part as it was.
fn copied(spans: &[BufferSpan], which: &[bool]) -> Vec<Option<Vec<u8>>> {
    spans.iter().zip(which).map(|(span, is_copied)| is_copied.then(|| span.lend().to_vec())).collect()
}
