//! The symbolic source, target and scratch of a rank.

use super::symbol::{ElementFault, Symbol};
use crate::layout::{Layout, Pieces};
use crate::ownership::Resumption;
use crate::parts::Span;
use crate::step::{Left, OpBuffer, Region};
use crate::structure::extent;
use crate::workspace::Workspace;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use std::cell::RefCell;
use std::rc::Rc;

/// An error of a step: the region it wrote, the element, and the error.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepFault {
    pub(super) region: Region,
    pub(super) stores: bool,
    pub(super) element: u64,
    pub(super) fault_kind: ElementFault,
}

/// The memory of one operation on one rank.
#[derive(Debug)]
pub(super) struct Memory {
    /// All buffers, one after the other; in place, source and target overlap.
    cells: Vec<Option<Symbol>>,
    source: usize,
    target: usize,
    scratch: usize,
    everyone: u64,
    pub(super) fault: Option<StepFault>,
}

impl Memory {
    pub(super) fn new(
        descriptor: &Descriptor,
        layout: &Layout,
        world: usize,
        rank: Rank,
        in_place: bool,
        scratch: u64,
    ) -> Self {
        let length = |buffer| extent(descriptor, layout, world, rank, buffer) as usize;
        let (sources, targets) = (length(OpBuffer::Source), length(OpBuffer::Target));
        let part = layout.parts(descriptor, world).of(rank).start as usize;
        let start_of = |pieces: &[Option<Span>]| pieces[rank.index()].map_or(0, |own| own.start as usize);
        let pieces = || Pieces::of(descriptor, layout, world, rank);
        // In place, the smaller buffer is a part of the larger one.
        let (source, target) = match (in_place, descriptor.collective) {
            (false, _) => (0, sources),
            (true, Collective::ReduceScatter) => (0, part),
            (true, Collective::AllGather) => (part, 0),
            (true, Collective::Gather { root }) if rank == root => (start_of(&pieces().receive), 0),
            (true, Collective::Scatter { root }) if rank == root => (0, start_of(&pieces().send)),
            (true, Collective::Gather { .. } | Collective::Scatter { .. }) => (0, sources),
            (true, _) => (0, 0),
        };
        let end = (source + sources).max(target + targets);
        let mut cells = vec![None; end + scratch as usize];
        let first = if descriptor.collective == Collective::AllGather { part } else { 0 };
        for i in 0..sources {
            cells[source + i] = Some(Symbol::own(rank.index(), (first + i) as u64));
        }
        if let Layout::Resumed(resumption) = layout {
            hold(&mut cells[end..], resumption, world, rank);
        }
        let everyone = (1 << world) - 1;
        Self { cells, source, target, scratch: end, everyone, fault: None }
    }

    /// The element of a buffer.
    pub(super) fn cell(&self, buffer: OpBuffer, offset: u64) -> Option<Symbol> {
        self.cells.get(self.index(buffer, offset)).copied().flatten()
    }

    fn index(&self, buffer: OpBuffer, offset: u64) -> usize {
        let base = match buffer {
            OpBuffer::Source => self.source,
            OpBuffer::Target => self.target,
            OpBuffer::Scratch => self.scratch,
        };
        base + offset as usize
    }

    /// Reads an operand. Own data must be read from the source, and nothing else.
    fn operand(&self, region: Region, i: u64) -> Result<Symbol, ElementFault> {
        let symbol = self.cell(region.buffer, region.offset + i).ok_or(ElementFault::Unwritten)?;
        match (region.buffer == OpBuffer::Source, symbol.raw) {
            (true, false) => Err(ElementFault::NotOwn),
            (false, true) => Err(ElementFault::Own),
            _ => Ok(Symbol { raw: false, ..symbol }),
        }
    }

    /// Writes a region, or records the first error.
    fn fill(
        &mut self,
        into: Region,
        stores: bool,
        make: impl Fn(&Self, u64) -> Result<Symbol, ElementFault>,
    ) {
        for i in 0..u64::from(into.count) {
            match make(self, i) {
                Ok(symbol) => {
                    let index = self.index(into.buffer, into.offset + i);
                    self.cells[index] = Some(symbol);
                }
                Err(fault_kind) => {
                    let element = into.offset + i;
                    self.fault.get_or_insert(StepFault { region: into, stores, element, fault_kind });
                    return;
                }
            }
        }
    }

    /// The contents of a region as they would be sent.
    pub(super) fn snapshot(&self, region: Region) -> Vec<Result<Symbol, ElementFault>> {
        (0..u64::from(region.count)).map(|i| self.operand(region, i)).collect()
    }
}

/// Fills scratch with the contributions that an owner holds when the operation is resumed.
fn hold(scratch: &mut [Option<Symbol>], resumption: &Resumption, world: usize, owner: Rank) {
    let ownership = &resumption.ownership;
    for from in (0..world).map(Rank::from_index).filter(|from| *from != owner) {
        for owned in ownership.chunks(owner).take(resumption.held(owner, from) as usize) {
            let first = ownership.kept(owner, owned, from).offset as usize;
            for element in 0..owned.chunk.count {
                let symbol = Symbol::own(from.index(), owned.chunk.start + element);
                scratch[first + element as usize] = Some(Symbol { raw: false, ..symbol });
            }
        }
    }
}

/// A payload that is read as late as possible, to detect early overwrites.
#[derive(Debug)]
pub(super) struct Lazy {
    memory: Rc<RefCell<Memory>>,
    region: Region,
    promised: Vec<Symbol>,
}

impl Lazy {
    pub(super) fn elements(&self) -> u64 {
        u64::from(self.region.count)
    }

    /// Reads the memory. `Err` is the first element that was overwritten.
    pub(super) fn read(self) -> Result<Vec<Symbol>, (Region, u64)> {
        let now = self.memory.borrow().snapshot(self.region);
        let differs = now.iter().zip(&self.promised).position(|(now, promised)| *now != Ok(*promised));
        match differs {
            Some(i) => Err((self.region, self.region.offset + i as u64)),
            None => Ok(self.promised),
        }
    }
}

/// A workspace of symbols.
#[derive(Debug)]
pub(super) struct Symbols {
    pub(super) memory: Rc<RefCell<Memory>>,
}

impl Workspace for Symbols {
    type Payload = Lazy;
    type Frame = [Symbol];

    fn load(&mut self, region: Region) -> Lazy {
        let mut promised = Vec::with_capacity(region.count as usize);
        let mut memory = self.memory.borrow_mut();
        for (symbol, element) in memory.snapshot(region).into_iter().zip(region.offset..) {
            match symbol {
                Ok(symbol) => promised.push(symbol),
                Err(fault_kind) => {
                    memory.fault.get_or_insert(StepFault { region, stores: false, element, fault_kind });
                    break;
                }
            }
        }
        Lazy { memory: Rc::clone(&self.memory), region, promised }
    }

    fn copy(&mut self, own: Region, into: Region) {
        self.memory.borrow_mut().fill(into, false, |memory, i| memory.operand(own, i));
    }

    fn store(&mut self, frame: &[Symbol], into: Region) {
        let at = |i: u64| frame.get(i as usize).copied().ok_or(ElementFault::Unwritten);
        self.memory.borrow_mut().fill(into, true, |_, i| at(i));
    }

    fn reduce(&mut self, frame: &[Symbol], own: Region, into: Region, left: Left) {
        self.memory.borrow_mut().fill(into, false, |memory, i| {
            let arrived = frame.get(i as usize).copied().ok_or(ElementFault::Unwritten)?;
            let here = memory.operand(own, i)?;
            match left {
                Left::Own => Symbol::combine(here, arrived),
                Left::Frame => Symbol::combine(arrived, here),
            }
        });
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        self.memory.borrow_mut().fill(into, false, |memory, i| {
            Symbol::combine(memory.operand(left, i)?, memory.operand(right, i)?)
        });
    }

    fn settle(&mut self, region: Region) {
        let mut memory = self.memory.borrow_mut();
        let everyone = memory.everyone;
        memory.fill(region, false, |memory, i| memory.operand(region, i)?.settle(everyone));
    }

    fn restore(&mut self) {}

    fn keep(&mut self) {}
}
