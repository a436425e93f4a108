//! A better ring: measured, sought, adopted.

use super::stage::{ProbeAsked, Stage, Who, secs};
use ringfold_proto::id::CallId;
use ringfold_proto::peer::{Completion, Failure};
use std::collections::BTreeSet;

fn optimise_everywhere(stage: &mut Stage) -> Vec<(Who, CallId)> {
    let calls = stage.members().into_iter().map(|w| (w, stage.optimise(w))).collect();
    stage.settle();
    calls
}

/// The probes under way: who measures, and what it was asked.
fn take_probes(stage: &mut Stage) -> Vec<(Who, ProbeAsked)> {
    let actors = stage.actors.iter_mut().enumerate();
    actors.flat_map(|(i, a)| a.probes.drain(..).map(move |p| (Who(i), p))).collect()
}

/// Answers every probe that is asked for, until none is; says which pairs were measured.
fn measure(stage: &mut Stage) -> Vec<BTreeSet<Who>> {
    let mut pairs = Vec::new();
    loop {
        let probes = take_probes(stage);
        if probes.is_empty() {
            return pairs;
        }
        for (prober, asked) in probes {
            pairs.push(BTreeSet::from([prober, stage.who(asked.target)]));
            stage.peer(prober).handle_probed(asked.probe, Some(1_000), Some(2_000));
        }
        stage.settle();
    }
}

#[test]
fn alone_there_is_nothing_to_optimise() {
    let (mut stage, [ann]) = Stage::with_members();
    let now = stage.now;
    assert!(matches!(stage.peer(ann).optimize_topology(now, None), Err(Failure::Misuse(_))));
}

#[test]
fn only_pairs_that_were_not_measured_are_probed() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    assert_eq!(measure(&mut stage), [BTreeSet::from([ann, bob])]);
    stage.all_got(&calls, &Ok(Completion::Topology));
    let calls = optimise_everywhere(&mut stage);
    assert!(measure(&mut stage).is_empty());
    stage.all_got(&calls, &Ok(Completion::Topology));
    let cid = stage.come("cid", 0);
    stage.admit_all();
    optimise_everywhere(&mut stage);
    let mut pairs = measure(&mut stage);
    pairs.sort();
    assert_eq!(pairs, [BTreeSet::from([ann, cid]), BTreeSet::from([bob, cid])]);
}

#[test]
fn nobody_is_in_two_probes_at_once() {
    let (mut stage, who) = Stage::with_members::<5>();
    optimise_everywhere(&mut stage);
    let mut measured = BTreeSet::new();
    loop {
        let probes = take_probes(&mut stage);
        if probes.is_empty() {
            break;
        }
        let ends: Vec<_> = probes.iter().flat_map(|(w, p)| [*w, stage.who(p.target)]).collect();
        assert_eq!(ends.iter().collect::<BTreeSet<_>>().len(), ends.len(), "{ends:?}");
        for (prober, asked) in probes {
            measured.insert(BTreeSet::from([prober, stage.who(asked.target)]));
            stage.peer(prober).handle_probed(asked.probe, Some(7), Some(7));
        }
        stage.settle();
    }
    assert_eq!(measured.len(), who.len() * (who.len() - 1) / 2);
}

#[test]
fn a_host_is_in_one_probe_at_a_time() {
    let mut stage = Stage::new();
    let hosts = [1, 1, 2, 2];
    for (i, host) in hosts.into_iter().enumerate() {
        stage.come_from(["ann", "bob", "cid", "dan"][i], 0, host);
    }
    stage.admit_all();
    optimise_everywhere(&mut stage);
    let mut count = 0;
    loop {
        let probes = take_probes(&mut stage);
        if probes.is_empty() {
            break;
        }
        let busy: Vec<BTreeSet<_>> =
            probes.iter().map(|(w, p)| [*w, stage.who(p.target)].map(|w| hosts[w.0]).into()).collect();
        assert_eq!(
            busy.iter().map(BTreeSet::len).sum::<usize>(),
            busy.iter().flatten().collect::<BTreeSet<_>>().len()
        );
        for (prober, asked) in probes {
            count += 1;
            stage.peer(prober).handle_probed(asked.probe, Some(7), Some(7));
        }
        stage.settle();
    }
    assert_eq!(count, 6);
}

#[test]
fn a_better_ring_is_adopted_and_the_epoch_is_opened_anew() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let before = stage.epoch(ann).id;
    let calls = optimise_everywhere(&mut stage);
    measure(&mut stage);
    assert!(stage.is_waiting(ann, calls[0].1), "the solver is at it");
    let question = stage.questions.front().unwrap();
    assert_eq!(question.bandwidth.len(), 12, "both ways of six pairs");
    stage.answer_tour(&[ann, cid, bob, dan], &[]);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.ring(ann), [ann, cid, bob, dan]);
    assert_ne!(stage.epoch(ann).id, before);
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn the_same_ring_written_otherwise_is_no_better() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let before = stage.epoch(ann).id;
    let calls = optimise_everywhere(&mut stage);
    measure(&mut stage);
    stage.answer_tour(&[cid, dan, ann, bob], &[]);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.epoch(ann).id, before);
}

#[test]
fn a_later_improvement_is_adopted_by_the_next_call() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    measure(&mut stage);
    let ticket = stage.answer_tour(&[ann, cid, bob, dan], &[]);
    stage.all_got(&calls, &Ok(Completion::Topology));
    stage.bring_tour(ticket, &[ann, bob, dan, cid], &[]);
    assert_eq!(stage.ring(ann), [ann, cid, bob, dan], "nobody has asked for it yet");
    let calls = optimise_everywhere(&mut stage);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.ring(ann), [ann, bob, dan, cid]);
}

#[test]
fn an_improvement_for_members_that_are_no_more_is_forgotten() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    optimise_everywhere(&mut stage);
    measure(&mut stage);
    let ticket = stage.answer_tour(&[ann, cid, bob, dan], &[]);
    stage.kill(dan);
    stage.bring_tour(ticket, &[ann, bob, dan, cid], &[]);
    let calls = optimise_everywhere(&mut stage);
    stage.answer_tour(&[ann, cid, bob], &[]);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.epoch(ann).members.len(), 3);
}

#[test]
fn a_ring_that_names_somebody_twice_is_not_taken() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    measure(&mut stage);
    stage.answer_tour(&[ann, cid, bob, bob], &[]);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.ring(ann), [ann, bob, cid, dan]);
}

#[test]
fn a_solver_that_takes_too_long_is_not_waited_for() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    measure(&mut stage);
    stage.pass(secs(4));
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.ring(ann), [ann, bob, cid, dan]);
    let ticket = stage.questions.front().unwrap().id;
    stage.bring_tour(ticket, &[ann, cid, bob, dan], &[]);
    let calls = optimise_everywhere(&mut stage);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert_eq!(stage.ring(ann), [ann, cid, bob, dan], "what it found is not lost");
}

#[test]
fn a_probe_that_takes_too_long_does_not_hold_up_the_rest() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    let (prober, asked) = take_probes(&mut stage)[0];
    assert_eq!((prober, stage.who(asked.target)), (ann, bob));
    stage.pass(secs(4));
    stage.all_got(&calls, &Ok(Completion::Topology));
    // Its late result is nobody's.
    stage.peer(prober).handle_probed(asked.probe, Some(1), Some(1));
    stage.settle();
    assert!(stage.departures().is_empty());
}

#[test]
fn a_prober_that_dies_does_not_hold_up_the_rest() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    let probes = take_probes(&mut stage);
    let (dying, _) = probes[0];
    assert_eq!(dying, ann);
    stage.kill(ann);
    for (prober, asked) in probes.into_iter().skip(1) {
        stage.peer(prober).handle_probed(asked.probe, Some(5), Some(5));
    }
    stage.settle();
    // Whoever measures now proves that it is a member of the new epoch.
    let key = stage.epoch(bob).key;
    let more = take_probes(&mut stage);
    assert!(!more.is_empty() && more.iter().all(|(_, p)| p.key == key));
    for (prober, asked) in more {
        stage.peer(prober).handle_probed(asked.probe, Some(5), Some(5));
    }
    stage.settle();
    measure(&mut stage);
    stage.answer_tour(&[bob, dan, cid], &[]);
    stage.all_got(&calls[1..], &Ok(Completion::Topology));
    stage.reduce_successfully(&[bob, cid, dan], 1);
}

#[test]
fn a_peer_that_dies_while_the_ring_is_sought_does_not_hold_up_the_rest() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let calls = optimise_everywhere(&mut stage);
    measure(&mut stage);
    stage.kill(dan);
    stage.answer_tour(&[ann, cid, bob, dan], &[]);
    stage.all_got(&calls[..3], &Ok(Completion::Topology));
    stage.reduce_successfully(&[ann, bob, cid], 1);
}
