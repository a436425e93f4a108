//! Runs all ranks of a case through their executors, by one schedule.

use super::checker_medium::{CheckerMedium, LinkItem};
use super::memory::{Memory, StepFault, Symbols};
use super::schedule::{Chooser, NextEvent, Schedule};
use super::{Case, CaseResult, Problem, Wait};
use crate::event::ExecutorEvent;
use crate::executor::{Executor, FrameDecision, Membership};
use crate::medium::SlotId;
use crate::plan::Plan;
use crate::step::{Action, OpBuffer};
use core::time::Duration;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::{EpochId, OpId, Rank};
use ringfold_proto::time::Time;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const OP: OpId = OpId {
    epoch: EpochId {
        group: ringfold_proto::id::GroupId(0),
        incarnation: ringfold_proto::id::Incarnation(7),
        counter: 1,
    },
    tag: ringfold_proto::id::Tag(3),
    seq: ringfold_proto::id::Seq(0),
};

/// One rank.
struct RankNode {
    executor: Executor<Symbols>,
    port: CheckerMedium,
    memory: Rc<RefCell<Memory>>,
    plan: Arc<Plan>,
    started: bool,
    done: bool,
}

/// A run of a case.
pub(super) struct CaseRun<'a> {
    case: &'a Case,
    nodes: Vec<RankNode>,
    chooser: Chooser,
    clock: u64,
}

impl<'a> CaseRun<'a> {
    pub(super) fn new(case: &'a Case, schedule: Schedule) -> Result<Self, Problem> {
        let world = case.shape.world();
        let mut nodes = Vec::with_capacity(world);
        for (index, plan) in case.plans.iter().enumerate() {
            let rank = Rank::from_index(index);
            let memory =
                Memory::new(&case.descriptor, &case.layouts[index], world, rank, case.in_place, plan.scratch);
            let mut executor = Executor::new(Duration::from_secs(3600));
            for other in (0..world).filter(|other| *other != index) {
                executor.handle_link_up(Time::ZERO, CheckerMedium::peer(other));
            }
            let membership = Membership {
                members: (0..world).map(CheckerMedium::peer).collect(),
                me: rank,
                shape: case.shape.clone(),
                tuning: case.tuning,
            };
            let opened = executor.open_epoch(OP.epoch, membership);
            opened.map_err(|error| Problem::Executor { rank, what: error.to_string() })?;
            let plan = Arc::new(plan.clone());
            let memory = Rc::new(RefCell::new(memory));
            nodes.push(RankNode {
                executor,
                port: CheckerMedium::new(world),
                memory,
                plan,
                started: false,
                done: false,
            });
        }
        Ok(Self { case, nodes, chooser: Chooser::new(schedule, world), clock: 0 })
    }

    /// Runs until no event is possible, and checks the results.
    pub(super) fn finish(mut self) -> Result<CaseResult, Problem> {
        let mut choices = Vec::new();
        loop {
            choices.clear();
            self.collect(&mut choices);
            if choices.is_empty() {
                break;
            }
            let choice = self.chooser.pick(&choices);
            self.clock += 1;
            self.execute(choice)?;
        }
        if self.nodes.iter().any(|node| !node.done) {
            return Err(Problem::Stuck { waits: self.waits() });
        }
        self.check_results()
    }

    /// Runs in lock step: each link carries one frame per tick, everything else takes no time. Returns the number of
    /// ticks.
    pub(super) fn in_step(mut self) -> Result<u64, Problem> {
        let mut ticks = 0;
        let mut choices = Vec::new();
        loop {
            // All events that take no time happen first.
            loop {
                choices.clear();
                self.collect(&mut choices);
                choices.retain(|choice| !self.takes_time(choice));
                let Some(choice) = choices.first() else { break };
                self.execute(*choice)?;
            }
            if self.nodes.iter().all(|node| node.done) {
                return self.check_results().map(|_| ticks);
            }
            choices.clear();
            self.collect(&mut choices);
            choices.retain(|choice| matches!(choice, NextEvent::Deliver { .. }));
            if choices.is_empty() {
                return Err(Problem::Stuck { waits: self.waits() });
            }
            ticks += 1;
            for choice in &choices {
                self.execute(*choice)?;
            }
        }
    }

    fn takes_time(&self, choice: &NextEvent) -> bool {
        match *choice {
            NextEvent::Deliver { from, to, .. } => {
                matches!(self.nodes[from].port.out[to].front(), Some((_, LinkItem::Frame { .. })))
            }
            NextEvent::ReadAhead { .. } => true,
            NextEvent::Start(_) | NextEvent::Poll(_) | NextEvent::Report(_) => false,
        }
    }

    /// All events that are possible now.
    fn collect(&self, choices: &mut Vec<NextEvent>) {
        for (from, node) in self.nodes.iter().enumerate() {
            if !node.started {
                choices.push(NextEvent::Start(from));
            }
            if node.executor.wants_poll() {
                choices.push(NextEvent::Poll(from));
            }
            if !node.port.unreported.is_empty() {
                choices.push(NextEvent::Report(from));
            }
            for (to, queue) in node.port.out.iter().enumerate() {
                if let Some((at, _)) = queue.front() {
                    choices.push(NextEvent::Deliver { from, to, at: *at });
                    if node.port.has_unread(to) {
                        choices.push(NextEvent::ReadAhead { from, to });
                    }
                }
            }
        }
    }

    fn execute(&mut self, choice: NextEvent) -> Result<(), Problem> {
        let now = Time(self.clock);
        match choice {
            NextEvent::Start(rank) => {
                let node = &mut self.nodes[rank];
                node.started = true;
                let (plan, memory) = (Arc::clone(&node.plan), Rc::clone(&node.memory));
                let started = node.executor.start(now, OP, self.case.descriptor, plan, Symbols { memory });
                if let Err(refused) = started {
                    let what = refused.why.to_string();
                    return Err(Problem::Executor { rank: Rank::from_index(rank), what });
                }
            }
            NextEvent::Poll(rank) => {
                let node = &mut self.nodes[rank];
                node.port.tick(self.clock);
                node.executor.poll(now, &mut node.port);
                return self.inspect(rank);
            }
            NextEvent::Deliver { from, to, .. } => return self.deliver(now, from, to),
            NextEvent::ReadAhead { from, to } => {
                let read = self.nodes[from].port.read_ahead(to);
                read.map_err(|(region, element)| self.overwritten(from, to, region.buffer, element))?;
            }
            NextEvent::Report(rank) => {
                let node = &mut self.nodes[rank];
                let any = self.chooser.below(node.port.unreported.len());
                let ticket = node.port.unreported.swap_remove(any);
                node.executor.handle_flushed(now, ticket);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, now: Time, from: usize, to: usize) -> Result<(), Problem> {
        let sender = &mut self.nodes[from].port;
        match sender.out[to].pop_front() {
            None => {}
            Some((_, LinkItem::Message(message))) => {
                self.nodes[to].executor.handle_link_message(now, CheckerMedium::peer(from), message);
            }
            Some((_, LinkItem::Frame { header, body })) => {
                let read = body.read(&mut sender.unreported);
                let frame = read.map_err(|(region, at)| self.overwritten(from, to, region.buffer, at))?;
                return self.receive(now, from, to, header, frame);
            }
        }
        self.inspect(to)
    }

    fn receive(
        &mut self,
        now: Time,
        from: usize,
        to: usize,
        header: DataHeader,
        frame: Vec<super::symbol::Symbol>,
    ) -> Result<(), Problem> {
        let node = &mut self.nodes[to];
        let decision = node.executor.offer(CheckerMedium::peer(from), &header);
        if decision != FrameDecision::Place {
            let what = format!("frame {} of {}: {decision:?}", header.chunk, Rank::from_index(from));
            return Err(Problem::Executor { rank: Rank::from_index(to), what });
        }
        let slot = SlotId { from: CheckerMedium::peer(from), epoch: header.op.epoch, index: header.slot };
        node.port.fill(slot, frame);
        node.executor.handle_frame(now, CheckerMedium::peer(from), header);
        self.inspect(to)
    }

    /// Checks a rank for errors, and whether it is done.
    fn inspect(&mut self, index: usize) -> Result<(), Problem> {
        let rank = Rank::from_index(index);
        let node = &mut self.nodes[index];
        if let Some(fault) = node.memory.borrow().fault {
            return Err(find_step(rank, &node.plan, fault));
        }
        if let Some(what) = node.port.misuse.take() {
            return Err(Problem::Executor { rank, what });
        }
        while let Some(event) = node.executor.poll_event() {
            match event {
                ExecutorEvent::Done { op, .. } => {
                    node.done = true;
                    let committed = node.executor.commit(op);
                    committed.map_err(|error| Problem::Executor { rank, what: error.to_string() })?;
                }
                ExecutorEvent::Committed { .. } => {}
                other => return Err(Problem::Executor { rank, what: other.to_string() }),
            }
        }
        let is_barrier = self.case.descriptor.collective == Collective::Barrier;
        let missing = self.nodes.iter().position(|node| !node.started);
        match missing.filter(|_| is_barrier && self.nodes[index].done) {
            Some(missing) => Err(Problem::LeftEarly { rank, missing: Rank::from_index(missing) }),
            None => Ok(()),
        }
    }

    fn overwritten(&self, from: usize, to: usize, buffer: OpBuffer, element: u64) -> Problem {
        Problem::Overwritten { rank: Rank::from_index(from), to: Rank::from_index(to), buffer, element }
    }

    /// Who waits for what.
    fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.done) {
            let rank = Rank::from_index(index);
            for (from, steps) in &node.plan.receives {
                if let Some(step) = steps.get(node.port.taken[from.index()]) {
                    let arrived = node.port.arrived[from.index()] > node.port.taken[from.index()];
                    waits.push(Wait::Receive { rank, step: *step, from: *from, arrived });
                }
            }
            for (to, steps) in &node.plan.sends {
                if let Some(step) = steps.get(node.port.put[to.index()]) {
                    waits.push(Wait::Send { rank, step: *step, to: *to });
                }
            }
        }
        waits
    }

    /// Checks the results of all ranks.
    fn check_results(&self) -> Result<CaseResult, Problem> {
        let sent: u64 = self.nodes.iter().map(|node| node.port.elements).sum();
        if sent != self.case.traffic {
            return Err(Problem::Traffic { sent, expected: self.case.traffic });
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.executor.kept() > 0 || node.executor.in_flight() > 0 {
                let what = "the executor keeps state after the operation".to_owned();
                return Err(Problem::Executor { rank: Rank::from_index(index), what });
            }
        }
        let mut bits = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            bits.push(self.case.check_result(Rank::from_index(index), &node.memory.borrow())?);
        }
        let whole_everywhere = matches!(
            self.case.descriptor.collective,
            Collective::AllReduce | Collective::AllGather | Collective::Broadcast { .. }
        );
        let differs = bits.iter().position(|other| whole_everywhere && *other != bits[0]);
        if let Some(rank) = differs.map(Rank::from_index) {
            return Err(Problem::Bits { rank, other: "rank 0" });
        }
        Ok(CaseResult { bits, events: self.clock })
    }
}

/// The error with the step that caused it.
fn find_step(rank: Rank, plan: &Plan, fault: StepFault) -> Problem {
    let stores = |action| matches!(action, Action::Store { .. });
    let is_it = |step: &&(usize, &crate::step::Step)| {
        step.1.region == fault.region && stores(step.1.action) == fault.stores
    };
    let found = plan.steps.iter().enumerate().collect::<Vec<_>>();
    let step = found.iter().find(is_it).map(|(index, _)| *index as u32);
    let StepFault { region, element, fault_kind, .. } = fault;
    Problem::Step { rank, step, buffer: region.buffer, element, fault_kind }
}
