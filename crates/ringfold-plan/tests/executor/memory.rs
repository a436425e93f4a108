//! A workspace of integers, whose payloads are read as late as possible.

use ringfold_plan::step::{Left, OpBuffer, Region};
use ringfold_plan::workspace::Workspace;
use std::cell::RefCell;
use std::rc::Rc;

/// Source, target and scratch of one operation. In place, source and target are one.
#[derive(Clone, Debug)]
pub struct Memory {
    cells: Rc<RefCell<Cells>>,
}

#[derive(Debug)]
struct Cells {
    source: Vec<i64>,
    target: Option<Vec<i64>>,
    scratch: Vec<i64>,
    before: Vec<(usize, i64)>,
    decided: bool,
}

/// A payload in memory, which must not change before it is flushed.
#[derive(Clone, Debug)]
pub struct Payload {
    memory: Memory,
    region: Region,
    promised: Vec<i64>,
}

impl Payload {
    /// Reads the memory, which must be unchanged since the put.
    pub fn leave(&self) -> Vec<i64> {
        let now = self.memory.read(self.region);
        assert_eq!(now, self.promised, "memory changed under a frame that had not left");
        now
    }

    /// Reads the memory of a cancelled frame, which may have changed.
    pub fn leave_cancelled(&self) -> Vec<i64> {
        assert!(!self.memory.cells.borrow().decided, "memory was handed back while a put could read it");
        self.memory.read(self.region)
    }
}

impl Memory {
    pub fn in_place(values: Vec<i64>, scratch: usize) -> Self {
        Self::new(values, None, scratch)
    }

    pub fn out_of_place(values: Vec<i64>, target: usize) -> Self {
        Self::new(values, Some(vec![0; target]), 0)
    }

    fn new(source: Vec<i64>, target: Option<Vec<i64>>, scratch: usize) -> Self {
        let scratch = vec![0; scratch];
        let cells = Cells { source, target, scratch, before: Vec::new(), decided: false };
        Self { cells: Rc::new(RefCell::new(cells)) }
    }

    pub fn source(&self) -> Vec<i64> {
        self.cells.borrow().source.clone()
    }

    pub fn target(&self) -> Vec<i64> {
        let cells = self.cells.borrow();
        cells.target.as_ref().unwrap_or(&cells.source).clone()
    }

    fn read(&self, region: Region) -> Vec<i64> {
        let cells = self.cells.borrow();
        let memory = match region.buffer {
            OpBuffer::Source => &cells.source,
            OpBuffer::Target => cells.target.as_ref().unwrap_or(&cells.source),
            OpBuffer::Scratch => &cells.scratch,
        };
        memory[region.offset as usize..][..region.count as usize].to_vec()
    }

    fn write(&self, region: Region, values: &[i64]) {
        assert_eq!(values.len(), region.count as usize);
        let mut cells = self.cells.borrow_mut();
        assert!(!cells.decided, "written after it was handed back");
        let cells = &mut *cells;
        for (i, value) in (region.offset as usize..).zip(values) {
            match (region.buffer, &mut cells.target) {
                (OpBuffer::Scratch, _) => cells.scratch[i] = *value,
                (_, Some(target)) => target[i] = *value,
                (_, None) => {
                    cells.before.push((i, cells.source[i]));
                    cells.source[i] = *value;
                }
            }
        }
    }
}

impl Workspace for Memory {
    type Payload = Payload;
    type Frame = [i64];

    fn load(&mut self, region: Region) -> Payload {
        Payload { memory: self.clone(), region, promised: self.read(region) }
    }

    fn copy(&mut self, own: Region, into: Region) {
        self.write(into, &self.read(own));
    }

    fn store(&mut self, frame: &[i64], into: Region) {
        self.write(into, frame);
    }

    fn reduce(&mut self, frame: &[i64], own: Region, into: Region, _: Left) {
        let sum: Vec<i64> = self.read(own).iter().zip(frame).map(|(a, b)| a + b).collect();
        self.write(into, &sum);
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        let sum: Vec<i64> = self.read(left).iter().zip(self.read(right)).map(|(a, b)| a + b).collect();
        self.write(into, &sum);
    }

    fn settle(&mut self, _: Region) {}

    fn restore(&mut self) {
        let mut cells = self.cells.borrow_mut();
        let cells = &mut *cells;
        while let Some((i, value)) = cells.before.pop() {
            cells.source[i] = value;
        }
        cells.decided = true;
    }

    fn keep(&mut self) {
        let mut cells = self.cells.borrow_mut();
        cells.before.clear();
        cells.decided = true;
    }
}
