//! The buffers of a collective, and the executor's access to them. Accesses after the call has returned are recorded.

use crate::symbol::{Contribution, Symbol};
use ringfold_plan::step::{Left, OpBuffer, Region};
use ringfold_plan::workspace::Workspace;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The buffers of one call.
#[derive(Debug)]
pub struct Buffer {
    pub contribution: Contribution,
    pub in_place: bool,
    source: Vec<Symbol>,
    target: Vec<Symbol>,
    scratch: Vec<Symbol>,
    overwritten: BTreeMap<usize, Symbol>,
    /// Whether the call has returned: nothing may touch the buffers any more.
    pub returned: bool,
    pub violations: Vec<String>,
    /// A planted bug: overwritten values are not restored.
    pub skips_restore: bool,
    /// Faulty memory: a value of the result changes when it is complete.
    pub flips_result: bool,
    /// A planted bug: all payloads have the same checksum.
    pub skips_checksums: bool,
}

/// A buffer shared by the user, the executor and puts that were not sent.
pub type SharedBuffer = Rc<RefCell<Buffer>>;

impl Buffer {
    pub fn new(contribution: Contribution, count: u64, in_place: bool) -> SharedBuffer {
        let source: Vec<_> = (0..count).map(|i| Symbol::own(contribution, i)).collect();
        let target = if in_place { Vec::new() } else { (0..count).map(Symbol::blank).collect() };
        Rc::new(RefCell::new(Self {
            contribution,
            in_place,
            source,
            target,
            scratch: Vec::new(),
            overwritten: BTreeMap::new(),
            returned: false,
            violations: Vec::new(),
            skips_restore: false,
            flips_result: false,
            skips_checksums: false,
        }))
    }

    pub fn result(&self) -> &[Symbol] {
        if self.in_place { &self.source } else { &self.target }
    }

    fn flip_result(&mut self) {
        let bits = self.contribution.0;
        let result = if self.in_place { &mut self.source } else { &mut self.target };
        if let Some(symbol) = result.first_mut() {
            symbol.flip(bits);
        }
    }

    /// Whether the source holds the values of the user.
    pub fn source_is_intact(&self) -> bool {
        self.source.iter().enumerate().all(|(i, s)| *s == Symbol::own(self.contribution, i as u64))
    }

    fn touch(&mut self, what: &str) {
        if self.returned {
            self.violations.push(format!("{what} after the call had returned"));
        }
    }

    fn read(&self, region: Region) -> Vec<Symbol> {
        let range = region.offset as usize..region.offset as usize + region.count as usize;
        match region.buffer {
            OpBuffer::Target if !self.in_place => self.target[range].to_vec(),
            OpBuffer::Source | OpBuffer::Target => self.source[range].to_vec(),
            OpBuffer::Scratch => self.scratch[range].to_vec(),
        }
    }

    fn write(&mut self, region: Region, values: Vec<Symbol>) {
        self.touch("memory was written");
        let start = region.offset as usize;
        if region.buffer != OpBuffer::Scratch && self.in_place {
            for i in start..start + values.len() {
                let old = self.source[i].clone();
                self.overwritten.entry(i).or_insert(old);
            }
        }
        let memory = match region.buffer {
            OpBuffer::Target if !self.in_place => &mut self.target,
            OpBuffer::Source | OpBuffer::Target => &mut self.source,
            OpBuffer::Scratch => &mut self.scratch,
        };
        memory[start..start + values.len()].clone_from_slice(&values);
    }
}

/// The executor's access to a buffer.
#[derive(Debug)]
pub struct SymbolWorkspace {
    buffer: SharedBuffer,
}

impl SymbolWorkspace {
    /// Access with `scratch` elements of scratch memory.
    pub fn new(buffer: SharedBuffer, scratch: u64) -> Self {
        buffer.borrow_mut().scratch = (0..scratch).map(Symbol::blank).collect();
        Self { buffer }
    }

    /// Access for an operation that is resumed, with what is in the scratch memory.
    pub fn resumed(buffer: SharedBuffer, scratch: u64) -> Self {
        let longest = buffer.borrow().scratch.len().max(scratch as usize);
        buffer.borrow_mut().scratch.resize(longest, Symbol::blank(0));
        Self { buffer }
    }
}

/// A put that was not sent. The memory is read when it is sent.
#[derive(Clone, Debug)]
pub struct SymbolPayload {
    snapshot: Vec<Symbol>,
    region: Region,
    buffer: SharedBuffer,
}

impl SymbolPayload {
    /// Reads the memory for the last time. Unless the operation was aborted, its values must not have changed.
    pub fn transmit(&self, aborted: bool) -> Vec<Symbol> {
        let mut buffer = self.buffer.borrow_mut();
        buffer.touch("memory was read for sending");
        let symbols = buffer.read(self.region);
        if !aborted && symbols != self.snapshot {
            buffer.violations.push(format!("{:?} changed before it was sent", self.region));
        }
        symbols
    }
}

impl Workspace for SymbolWorkspace {
    type Payload = SymbolPayload;
    type Frame = [Symbol];

    fn load(&mut self, region: Region) -> SymbolPayload {
        self.buffer.borrow_mut().touch("memory was read");
        let snapshot = self.buffer.borrow().read(region);
        SymbolPayload { snapshot, region, buffer: Rc::clone(&self.buffer) }
    }

    fn load_checked(&mut self, region: Region) -> (SymbolPayload, u32) {
        let payload = self.load(region);
        let sum = self.checksum(&payload.snapshot);
        (payload, sum)
    }

    fn checksum(&self, frame: &[Symbol]) -> u32 {
        if self.buffer.borrow().skips_checksums { 0 } else { Symbol::digest(frame) as u32 }
    }

    fn digest(&mut self) -> u64 {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.flips_result {
            buffer.flip_result();
        }
        Symbol::digest(buffer.result())
    }

    fn copy(&mut self, own: Region, into: Region) {
        let values = self.buffer.borrow().read(own);
        self.buffer.borrow_mut().write(into, values);
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        let (a, b) = (self.buffer.borrow().read(left), self.buffer.borrow().read(right));
        let values = a.iter().zip(&b).map(|(l, r)| Symbol::combine(l, r)).collect();
        self.buffer.borrow_mut().write(into, values);
    }

    fn store(&mut self, frame: &[Symbol], into: Region) {
        self.buffer.borrow_mut().write(into, frame.to_vec());
    }

    fn reduce(&mut self, frame: &[Symbol], own: Region, into: Region, left: Left) {
        let own = self.buffer.borrow().read(own);
        let pair = |(mine, theirs): (&Symbol, &Symbol)| match left {
            Left::Own => Symbol::combine(mine, theirs),
            Left::Frame => Symbol::combine(theirs, mine),
        };
        let values = own.iter().zip(frame).map(pair).collect();
        self.buffer.borrow_mut().write(into, values);
    }

    fn settle(&mut self, region: Region) {
        let mut values = self.buffer.borrow().read(region);
        values.iter_mut().for_each(|v| v.settled = v.settled.saturating_add(1));
        self.buffer.borrow_mut().write(region, values);
    }

    fn restore(&mut self) {
        let mut buffer = self.buffer.borrow_mut();
        buffer.touch("memory was restored");
        let overwritten = std::mem::take(&mut buffer.overwritten);
        if !buffer.skips_restore {
            for (i, symbol) in overwritten {
                buffer.source[i] = symbol;
            }
        }
    }

    fn keep(&mut self) {
        self.buffer.borrow_mut().overwritten.clear();
    }
}
