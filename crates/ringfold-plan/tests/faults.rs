//! The checker detects broken plans: each of these is broken in one way.

use ringfold_plan::checker::{Case, ElementFault, Problem, Schedule, SchedulePolicy, Shares, Wait};
use ringfold_plan::plan::Plan;
use ringfold_plan::shape::GroupShape;
use ringfold_plan::step::{Action, Left, OpBuffer, Region, Step};
use ringfold_plan::structure::Flaw;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};

fn case(collective: Collective, algorithm: Algorithm, world: usize, count: u64) -> Case {
    let descriptor = Descriptor::all_reduce(count, DType::F64, ReduceOp::Avg).with_collective(collective);
    let tuning = Tuning {
        chunk_bytes: 16,
        window_slots: 1,
        eager_slots: 1,
        forced: Some(algorithm),
        ..Tuning::default()
    };
    Case::new(&descriptor, &Shares::Even, &GroupShape::uniform(world), &tuning)
}

fn all_reduce(algorithm: Algorithm, world: usize, count: u64) -> Case {
    case(Collective::AllReduce, algorithm, world, count)
}

/// Changes the steps of one rank.
fn edit(case: &mut Case, rank: usize, change: impl FnOnce(&mut Vec<Step>)) {
    let plan = &case.plans[rank];
    let mut steps = plan.steps.clone();
    change(&mut steps);
    case.plans[rank] = Plan::new(plan.algorithm, plan.fingerprint, plan.scratch, steps);
}

fn flaw(case: &Case) -> Flaw {
    match case.check_structure().map_err(|failure| failure.problem) {
        Err(Problem::Structure(flaw)) => flaw,
        other => panic!("no flaw was seen: {other:?}"),
    }
}

/// The first problem that any of the first schedules finds.
fn problem(case: &Case) -> Problem {
    let failures = (0..60).filter_map(|n| case.run(Schedule::numbered(n)).err());
    let failure = failures.into_iter().next().expect("a broken plan was found right");
    assert!(!failure.to_string().is_empty());
    failure.problem
}

#[test]
fn a_missing_step_is_a_frame_on_one_end_only() {
    let mut case = all_reduce(Algorithm::Ring, 3, 7);
    edit(&mut case, 1, |steps| steps.truncate(steps.len() - 1));
    assert!(matches!(flaw(&case), Flaw::Frames { to: Rank(1), expected: None, .. }));
    // Without a look at the structure, the sender is left with a frame that nobody lends a slot for, or
    // its frame is refused.
    let stuck = Wait::Send { rank: Rank(0), step: 4, to: Rank(1) };
    match problem(&case) {
        Problem::Stuck { waits } => assert_eq!(waits, [stuck]),
        other => assert!(matches!(other, Problem::Executor { rank: Rank(1), .. }), "{other}"),
    }
}

#[test]
fn a_missing_send_is_a_deadlock_that_names_its_receiver() {
    let mut case = all_reduce(Algorithm::Ring, 2, 2);
    edit(&mut case, 0, |steps| steps[1].send = None);
    assert!(matches!(flaw(&case), Flaw::Frames { from: Rank(0), to: Rank(1), ordinal: 1, sent: None, .. }));
    let Problem::Stuck { waits } = problem(&case) else { panic!("it should be stuck") };
    let waits_for_0 =
        |wait: &Wait| matches!(wait, Wait::Receive { rank: Rank(1), from: Rank(0), arrived: false, .. });
    assert!(waits.iter().any(waits_for_0), "{waits:?}");
}

#[test]
fn swapped_frames_are_detected() {
    let mut case = all_reduce(Algorithm::Ring, 2, 8);
    edit(&mut case, 0, |steps| steps.swap(0, 1));
    assert_eq!(case.check_structure(), Ok(()));
    let Problem::Step { rank: Rank(1), step: Some(_), element: 4, fault_kind, .. } = problem(&case) else {
        panic!("rank 1 gets something else")
    };
    assert!(matches!(fault_kind, ElementFault::Misplaced { left: 6, right: 4 }));
}

#[test]
fn duplicate_data_is_detected() {
    let mut case = all_reduce(Algorithm::Direct, 3, 3);
    edit(&mut case, 1, |steps| {
        let last = steps.iter().position(|step| step.settle).unwrap();
        steps[last].settle = false;
        let region = steps[last].region;
        let again = Step::combine(region, region.at(OpBuffer::Source), region).settled().after(last as u32);
        steps.push(again);
    });
    let problem = problem(&case);
    let twice = |fault_kind: &ElementFault| *fault_kind == ElementFault::Twice(1);
    assert!(
        matches!(&problem, Problem::Step { rank: Rank(1), fault_kind, .. } if twice(fault_kind)),
        "{problem}"
    );
}

#[test]
fn an_unfenced_overwrite_in_place_is_detected_with_late_flushes() {
    for (collective, algorithm, world, count, buffer) in [
        (Collective::AllReduce, Algorithm::OneShot, 3, 5, OpBuffer::Source),
        (Collective::ReduceScatter, Algorithm::Ring, 6, 12, OpBuffer::Scratch),
    ] {
        let mut case = case(collective, algorithm, world, count);
        case.in_place = true;
        assert!((0..60).all(|n| case.run(Schedule::numbered(n)).is_ok()));
        for rank in 0..world {
            assert!(case.plans[rank].steps.iter().any(|step| step.fence));
            edit(&mut case, rank, |steps| steps.iter_mut().for_each(|step| step.fence = false));
        }
        let problem = problem(&case);
        let overwritten = matches!(&problem, Problem::Overwritten { buffer: b, .. } if *b == buffer);
        // What was overwritten before it was even put arrives as data of another element.
        let misplaced = matches!(&problem, Problem::Step { fault_kind: ElementFault::Misplaced { .. }, .. });
        assert!(overwritten || misplaced && buffer == OpBuffer::Scratch, "{problem}");
    }
}

#[test]
fn a_fence_that_waits_for_too_much_is_a_deadlock() {
    // All sends listed first: each rank's fence then waits for frames that the other takes only behind
    // its own fence.
    let mut case = all_reduce(Algorithm::OneShot, 2, 8);
    for rank in 0..2 {
        edit(&mut case, rank, |steps| steps.sort_by_key(|step| step.send.is_none()));
    }
    assert!(matches!(problem(&case), Problem::Stuck { .. }));
}

#[test]
fn an_operand_on_the_wrong_side_is_detected() {
    let mut case = all_reduce(Algorithm::Ring, 3, 3);
    edit(&mut case, 2, |steps| {
        for step in steps {
            if let Action::Reduce { left, .. } = &mut step.action {
                *left = if *left == Left::Own { Left::Frame } else { Left::Own };
            }
        }
    });
    let problem = problem(&case);
    let is_side = |fault_kind: &ElementFault| matches!(fault_kind, ElementFault::WrongSide(0 | 1));
    assert!(
        matches!(&problem, Problem::Step { rank: Rank(2), fault_kind, .. } if is_side(fault_kind)),
        "{problem}"
    );
}

#[test]
fn a_circular_wait_is_reported_with_its_ranks() {
    let mut case = case(Collective::Barrier, Algorithm::Halving, 3, 0);
    for rank in 0..3 {
        edit(&mut case, rank, |steps| {
            steps.swap(0, 1);
            steps[0].after = None;
            steps[1].after = Some(0);
        });
    }
    let Problem::Stuck { waits } = problem(&case) else { panic!("it should be stuck") };
    for rank in [Rank(0), Rank(1), Rank(2)] {
        assert!(waits.iter().any(|wait| matches!(wait, Wait::Receive { rank: r, .. } if *r == rank)));
        assert!(waits.iter().any(|wait| matches!(wait, Wait::Send { rank: r, .. } if *r == rank)));
    }
}

#[test]
fn averages_settled_twice_never_or_too_early_are_detected() {
    let of = |rank: usize, change: fn(&mut Step)| {
        let mut case = all_reduce(Algorithm::Ring, 3, 3);
        edit(&mut case, rank, |steps| steps.iter_mut().for_each(change));
        problem(&case)
    };
    let twice = of(0, |step| step.settle |= matches!(step.action, Action::Store { .. }));
    assert!(matches!(twice, Problem::Step { rank: Rank(0), fault_kind: ElementFault::Settled, .. }));
    let never = of(0, |step| step.settle = false);
    assert!(matches!(never, Problem::Result { .. }));
    let early = of(0, |step| step.settle |= matches!(step.action, Action::Reduce { .. }));
    assert!(matches!(early, Problem::Step { rank: Rank(0), fault_kind: ElementFault::Incomplete(_), .. }));
}

#[test]
fn a_barrier_that_ends_too_early_is_detected() {
    let mut case = case(Collective::Barrier, Algorithm::Halving, 4, 0);
    for rank in 0..4 {
        edit(&mut case, rank, |steps| steps.truncate(2));
    }
    assert_eq!(case.check_structure(), Ok(()));
    let late = Schedule { policy: SchedulePolicy::SlowRank, seed: 5 };
    let failure = case.run(late).expect_err("somebody leaves early");
    assert!(matches!(failure.problem, Problem::LeftEarly { .. }), "{failure}");
}

#[test]
fn ranks_that_associate_differently_end_with_different_bits() {
    // Rank 0 folds 0, 2, 1 where the others fold 0, 1, 2.
    let mut case = all_reduce(Algorithm::OneShot, 3, 1);
    edit(&mut case, 0, |steps| {
        for step in steps {
            if let Action::Reduce { from, .. } = &mut step.action {
                *from = if *from == Rank(1) { Rank(2) } else { Rank(1) };
            }
        }
    });
    assert!(matches!(problem(&case), Problem::Bits { .. }));
}

#[test]
fn traffic_beyond_the_stated_amount_is_detected() {
    let mut case = all_reduce(Algorithm::Direct, 2, 2);
    let region = Region { buffer: OpBuffer::Target, offset: 0, count: 1 };
    edit(&mut case, 0, |steps| {
        let settled = steps.iter().position(|step| step.settle).unwrap() as u32;
        steps.push(Step::send(Rank(1), region).after(settled));
    });
    edit(&mut case, 1, |steps| {
        steps.push(Step::receive(Rank(0), region));
    });
    assert_eq!(case.check_structure(), Ok(()));
    assert_eq!(problem(&case), Problem::Traffic { sent: 5, expected: 4 });
}

#[test]
fn own_data_and_partial_results_are_distinguished() {
    let mut case = all_reduce(Algorithm::Ring, 3, 3);
    case.in_place = true;
    edit(&mut case, 1, |steps| steps[0].region.buffer = OpBuffer::Target);
    assert!(matches!(problem(&case), Problem::Step { rank: Rank(1), fault_kind: ElementFault::Own, .. }));
    case.in_place = false;
    assert!(matches!(
        problem(&case),
        Problem::Step { rank: Rank(1), fault_kind: ElementFault::Unwritten, .. }
    ));
}

#[test]
fn static_flaws_are_detected() {
    let of = |change: fn(&mut Vec<Step>)| {
        let mut case = all_reduce(Algorithm::Halving, 4, 16);
        edit(&mut case, 1, change);
        flaw(&case)
    };
    assert!(matches!(of(|s| s[0].send = Some(Rank(1))), Flaw::NoLink { step: 0, peer: Rank(1), .. }));
    assert!(matches!(of(|s| s[2].after = Some(2)), Flaw::After { step: 2, after: 2, .. }));
    assert!(matches!(of(|s| s[0].region.offset = 15), Flaw::Outside { step: 0, extent: 16, .. }));
    assert!(matches!(of(|s| s[0].settle = true), Flaw::WritesSource { step: 0, .. }));
    let lengths = of(|s| {
        let copy = Region { buffer: OpBuffer::Source, offset: 0, count: 1 };
        s.push(Step::copy(copy, Region { buffer: OpBuffer::Target, count: 2, ..copy }));
    });
    assert!(matches!(lengths, Flaw::Lengths { .. }));
    let unordered = of(|s| s.iter_mut().for_each(|step| step.after = None));
    assert!(matches!(unordered, Flaw::Unordered { rank: Rank(1), .. }));

    let mut case = all_reduce(Algorithm::Ring, 3, 3);
    case.plans[2].scratch = 5;
    assert_eq!(flaw(&case), Flaw::Scratch { rank: Rank(2), asked: 5, used: 0 });
    case.plans[1].fingerprint ^= 1;
    assert_eq!(flaw(&case), Flaw::Disagreement { rank: Rank(1) });
    assert!(matches!(problem(&case), Problem::Executor { .. }));
    case.plans.pop();
    assert_eq!(flaw(&case), Flaw::World { plans: 2, world: 3 });

    let mut case = all_reduce(Algorithm::Direct, 4, 4);
    case.shape.mesh = false;
    assert!(matches!(flaw(&case), Flaw::NoLink { .. }));
}

#[test]
fn a_reduction_with_the_result_at_a_wrong_rank_is_detected() {
    let root = Rank(2);
    let mut case = case(Collective::Reduce { root }, Algorithm::Direct, 3, 6);
    edit(&mut case, 1, |steps| {
        for step in steps.iter_mut().filter(|step| step.region.buffer == OpBuffer::Scratch) {
            step.region.buffer = OpBuffer::Target;
        }
    });
    assert!(matches!(flaw(&case), Flaw::Outside { rank: Rank(1), extent: 0, .. }));
}

#[test]
fn a_piece_for_another_rank_is_a_wrong_result() {
    let mut case = case(Collective::AllToAll, Algorithm::Direct, 3, 9);
    edit(&mut case, 0, |steps| {
        let to = |rank| move |step: &Step| step.send == Some(Rank(rank));
        let [one, two] = [1, 2].map(|rank| steps.iter().position(to(rank)).unwrap());
        (steps[one].send, steps[two].send) = (steps[two].send, steps[one].send);
    });
    assert_eq!(case.check_structure(), Ok(()));
    assert!(matches!(problem(&case), Problem::Result { rank: Rank(1 | 2), element: 0 }));
}
