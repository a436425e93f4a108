//! The memory of a group's operation, as Python tells it: addresses, and what keeps the bytes there.
//!
//! An input may overlap an output, and outputs each other: the input of an all-gather often is a slice of its output.
//! What overlaps is copied; nothing else is.

use crate::group_error::refused;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ringfold::{Error, GroupBuffers, GroupSlices, Memory, View};
use std::sync::Arc;

/// Where the bytes of a tensor lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    start: usize,
    bytes: usize,
}

/// One side of an operation: one buffer mostly, or one for each rank.
#[derive(Debug)]
enum Side {
    One(Span),
    Many(Vec<Span>),
}

/// What an operation reads and writes.
#[derive(Debug)]
pub(crate) struct Operands {
    input: Side,
    output: Side,
    /// Whether one buffer may be both.
    may_be_in_place: bool,
}

/// What is done when an operation has succeeded, before anyone is told.
pub(crate) type Then = Box<dyn FnOnce(&GroupBuffers) + Send>;

impl Operands {
    /// Lists of (address, bytes).
    pub(crate) fn of(
        input: &Bound<'_, PyList>,
        output: &Bound<'_, PyList>,
        may_be_in_place: bool,
    ) -> PyResult<Self> {
        Ok(Self { input: Side::of(input)?, output: Side::of(output)?, may_be_in_place })
    }

    /// Lends the memory to a call that returns when nothing touches it any more.
    pub(crate) fn lend(&self, call: impl FnOnce(GroupSlices<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let (Side::One(input), Side::One(output)) = (&self.input, &self.output) else {
            return self.lend_many(call);
        };
        if input == output && self.may_be_in_place {
            return call(GroupSlices::InPlace(output.lend_mut()));
        }
        if input.overlaps(output) {
            let input = input.lend().to_vec();
            return call(GroupSlices::Apart { input: &input, output: output.lend_mut() });
        }
        call(GroupSlices::Apart { input: input.lend(), output: output.lend_mut() })
    }

    fn lend_many(&self, call: impl FnOnce(GroupSlices<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let overlaps = Overlaps::of(self.input.spans(), self.output.spans());
        let inputs: Vec<_> = copied(self.input.spans(), &overlaps.inputs);
        let mut outputs: Vec<_> = copied(self.output.spans(), &overlaps.outputs);
        let bytes = |(span, copy)| Option::as_deref(copy).unwrap_or_else(|| Span::lend(span));
        let input: Vec<&[u8]> = self.input.spans().iter().zip(&inputs).map(bytes).collect();
        let bytes = |(span, copy)| Option::as_deref_mut(copy).unwrap_or_else(|| Span::lend_mut(span));
        let mut output: Vec<&mut [u8]> = self.output.spans().iter().zip(&mut outputs).map(bytes).collect();
        call(GroupSlices::Pieces { input: &input, output: &mut output })?;
        for (span, copy) in self.output.spans().iter().zip(outputs) {
            if let Some(copy) = copy {
                span.lend_mut().copy_from_slice(&copy);
            }
        }
        Ok(())
    }

    /// The memory of an operation that goes on, and what is to be done when it has succeeded. `keep` keeps the bytes.
    pub(crate) fn keep(&self, keep: Py<PyAny>) -> (GroupBuffers, Option<Then>) {
        let keep = Arc::new(keep);
        let (inputs, outputs) = (self.input.spans(), self.output.spans());
        if let (Side::One(input), Side::One(output)) = (&self.input, &self.output)
            && input == output
            && self.may_be_in_place
        {
            return (GroupBuffers::InPlace(output.memory(&keep)), None);
        }
        let overlaps = Overlaps::of(inputs, outputs);
        let input =
            |(span, copy): (&Span, Option<Vec<u8>>)| copy.map_or_else(|| span.view(&keep), View::from);
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
        let buffers = GroupBuffers::Apart { input, output };
        if back.is_empty() {
            return (buffers, None);
        }
        let then = move |buffers: &GroupBuffers| {
            let GroupBuffers::Apart { output, .. } = buffers else { return };
            // One after the other: they overlap.
            for (index, mut memory) in back {
                memory.as_mut_slice().copy_from_slice(output[index].as_slice());
            }
        };
        (buffers, Some(Box::new(then)))
    }
}

impl Side {
    fn of(list: &Bound<'_, PyList>) -> PyResult<Self> {
        match list.len() {
            0 => Ok(Self::One(Span { start: 0, bytes: 0 })),
            1 => Ok(Self::One(Span::of(&list.get_item(0)?)?)),
            _ => list.iter().map(|item| Span::of(&item)).collect::<PyResult<_>>().map(Self::Many),
        }
    }

    fn spans(&self) -> &[Span] {
        match self {
            Self::One(span) => core::slice::from_ref(span),
            Self::Many(spans) => spans,
        }
    }
}

impl Span {
    /// An (address, bytes).
    pub(crate) fn of(item: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (start, bytes) = item.extract::<(usize, usize)>()?;
        if (start == 0 && bytes > 0) || isize::try_from(bytes).is_err() || start.checked_add(bytes).is_none()
        {
            let words = format!("{bytes} bytes at address {start:#x} can't be anyone's memory");
            return Err(refused(item.py(), &words));
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
        // SAFETY: Python's caller holds the tensor during the call, and the slice is used for no longer than that. What
        // is written meanwhile lies elsewhere: inputs that overlap an output are copied first. That no other Python
        // thread writes it is what the documentation asks of users; one that does so anyway makes values that are half
        // old and half new, as with any other library that works beside the interpreter.
        unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(self.start), self.bytes) }
    }

    /// The bytes, to be written, for the length of a call.
    fn lend_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as for `lend`. Outputs that overlap are made of copies, and written back one after the other.
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
        // SAFETY: as for `view`. Memories that overlap are written one after the other, each for a moment.
        unsafe { Memory::kept(start, self.bytes, Box::new(keep.clone())) }
    }
}

/// Which buffers can't be used where they are.
struct Overlaps {
    /// Inputs that overlap an output.
    inputs: Vec<bool>,
    /// Outputs that overlap each other.
    outputs: Vec<bool>,
}

impl Overlaps {
    fn of(inputs: &[Span], outputs: &[Span]) -> Self {
        let mut order: Vec<usize> = (0..outputs.len()).filter(|index| outputs[*index].bytes > 0).collect();
        order.sort_by_key(|index| outputs[*index].start);
        let mut overlapping = vec![false; outputs.len()];
        // Stretches of memory that outputs cover, from the lowest address on.
        let mut covered: Vec<Span> = Vec::with_capacity(order.len());
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
        let is_covered = |input: &Span| {
            let next = covered.partition_point(|stretch| stretch.end() <= input.start);
            covered.get(next).is_some_and(|stretch| stretch.overlaps(input))
        };
        Self { inputs: inputs.iter().map(is_covered).collect(), outputs: overlapping }
    }
}

/// Copies of those that can't be used where they are. What an operation leaves alone is as it was.
fn copied(spans: &[Span], which: &[bool]) -> Vec<Option<Vec<u8>>> {
    spans.iter().zip(which).map(|(span, is_copied)| is_copied.then(|| span.lend().to_vec())).collect()
}
