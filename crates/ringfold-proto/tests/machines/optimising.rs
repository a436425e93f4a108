//! Optimisation of the topology.

use super::test_run::{PeerIndex, ProbeRequest, TestRun, secs};
use ringfold_proto::id::CallId;
use ringfold_proto::peer::{Completion, Failure};
use std::collections::BTreeSet;

pub fn optimise_everywhere(run: &mut TestRun) -> Vec<(PeerIndex, CallId)> {
    let calls = run.members().into_iter().map(|w| (w, run.optimise(w))).collect();
    run.settle();
    calls
}

/// The running probes, by prober.
fn take_probes(run: &mut TestRun) -> Vec<(PeerIndex, ProbeRequest)> {
    let peers = run.peers.iter_mut().enumerate();
    peers.flat_map(|(i, a)| a.probes.drain(..).map(move |p| (PeerIndex(i), p))).collect()
}

/// Answers all probes. Returns the measured pairs.
pub fn measure(run: &mut TestRun) -> Vec<BTreeSet<PeerIndex>> {
    let mut pairs = Vec::new();
    loop {
        let probes = take_probes(run);
        if probes.is_empty() {
            return pairs;
        }
        for (prober, asked) in probes {
            pairs.push(BTreeSet::from([prober, run.who(asked.target)]));
            run.peer(prober).handle_probed(asked.probe, Some(1_000), Some(2_000));
        }
        run.settle();
    }
}

#[test]
fn alone_there_is_nothing_to_optimise() {
    let (mut run, [ann]) = TestRun::with_members();
    let now = run.now;
    assert!(matches!(run.peer(ann).optimize_topology(now, None), Err(Failure::Misuse(_))));
}

#[test]
fn only_pairs_that_were_not_measured_are_probed() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    assert_eq!(measure(&mut run), [BTreeSet::from([ann, bob])]);
    run.assert_results(&calls, &Ok(Completion::Topology));
    let calls = optimise_everywhere(&mut run);
    assert!(measure(&mut run).is_empty());
    run.assert_results(&calls, &Ok(Completion::Topology));
    let cid = run.connect_peer("cid", 0);
    run.admit_all();
    optimise_everywhere(&mut run);
    let mut pairs = measure(&mut run);
    pairs.sort();
    assert_eq!(pairs, [BTreeSet::from([ann, cid]), BTreeSet::from([bob, cid])]);
}

#[test]
fn no_peer_is_in_two_probes_at_once() {
    let (mut run, who) = TestRun::with_members::<5>();
    optimise_everywhere(&mut run);
    let mut measured = BTreeSet::new();
    loop {
        let probes = take_probes(&mut run);
        if probes.is_empty() {
            break;
        }
        let ends: Vec<_> = probes.iter().flat_map(|(w, p)| [*w, run.who(p.target)]).collect();
        assert_eq!(ends.iter().collect::<BTreeSet<_>>().len(), ends.len(), "{ends:?}");
        for (prober, asked) in probes {
            measured.insert(BTreeSet::from([prober, run.who(asked.target)]));
            run.peer(prober).handle_probed(asked.probe, Some(7), Some(7));
        }
        run.settle();
    }
    assert_eq!(measured.len(), who.len() * (who.len() - 1) / 2);
}

#[test]
fn a_host_is_in_one_probe_at_a_time() {
    let mut run = TestRun::new();
    let hosts = [1, 1, 2, 2];
    for (i, host) in hosts.into_iter().enumerate() {
        run.connect_peer_on(["ann", "bob", "cid", "dan"][i], 0, host);
    }
    run.admit_all();
    optimise_everywhere(&mut run);
    let mut count = 0;
    loop {
        let probes = take_probes(&mut run);
        if probes.is_empty() {
            break;
        }
        let busy: Vec<BTreeSet<_>> =
            probes.iter().map(|(w, p)| [*w, run.who(p.target)].map(|w| hosts[w.0]).into()).collect();
        assert_eq!(
            busy.iter().map(BTreeSet::len).sum::<usize>(),
            busy.iter().flatten().collect::<BTreeSet<_>>().len()
        );
        for (prober, asked) in probes {
            count += 1;
            run.peer(prober).handle_probed(asked.probe, Some(7), Some(7));
        }
        run.settle();
    }
    assert_eq!(count, 6);
}

#[test]
fn a_better_ring_is_adopted_and_the_epoch_is_opened_anew() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let before = run.epoch(ann).id;
    let calls = optimise_everywhere(&mut run);
    measure(&mut run);
    assert!(run.is_waiting(ann, calls[0].1), "the solver is at it");
    let request = run.tour_requests.front().unwrap();
    assert_eq!(request.bandwidth.len(), 12, "both ways of six pairs");
    run.answer_tour(&[ann, cid, bob, dan], &[]);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.ring(ann), [ann, cid, bob, dan]);
    assert_ne!(run.epoch(ann).id, before);
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_rotated_ring_is_not_adopted() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let before = run.epoch(ann).id;
    let calls = optimise_everywhere(&mut run);
    measure(&mut run);
    run.answer_tour(&[cid, dan, ann, bob], &[]);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.epoch(ann).id, before);
}

#[test]
fn a_later_improvement_is_adopted_by_the_next_call() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    measure(&mut run);
    let ticket = run.answer_tour(&[ann, cid, bob, dan], &[]);
    run.assert_results(&calls, &Ok(Completion::Topology));
    run.pass_tour(ticket, &[ann, bob, dan, cid], &[]);
    assert_eq!(run.ring(ann), [ann, cid, bob, dan], "nobody has asked for it yet");
    let calls = optimise_everywhere(&mut run);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.ring(ann), [ann, bob, dan, cid]);
}

#[test]
fn a_ring_of_departed_members_is_dropped() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    optimise_everywhere(&mut run);
    measure(&mut run);
    let ticket = run.answer_tour(&[ann, cid, bob, dan], &[]);
    run.kill(dan);
    run.pass_tour(ticket, &[ann, bob, dan, cid], &[]);
    let calls = optimise_everywhere(&mut run);
    run.answer_tour(&[ann, cid, bob], &[]);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.epoch(ann).members.len(), 3);
}

#[test]
fn a_ring_with_a_duplicate_is_rejected() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    measure(&mut run);
    run.answer_tour(&[ann, cid, bob, bob], &[]);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.ring(ann), [ann, bob, cid, dan]);
}

#[test]
fn a_solver_that_takes_too_long_is_not_waited_for() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    measure(&mut run);
    run.advance_time(secs(4));
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.ring(ann), [ann, bob, cid, dan]);
    let ticket = run.tour_requests.front().unwrap().id;
    run.pass_tour(ticket, &[ann, cid, bob, dan], &[]);
    let calls = optimise_everywhere(&mut run);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_eq!(run.ring(ann), [ann, cid, bob, dan], "what it found is not lost");
}

#[test]
fn a_probe_that_takes_too_long_does_not_hold_up_the_rest() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    let (prober, asked) = take_probes(&mut run)[0];
    assert_eq!((prober, run.who(asked.target)), (ann, bob));
    run.advance_time(secs(8));
    run.assert_results(&calls, &Ok(Completion::Topology));
    // Its late result is ignored.
    run.peer(prober).handle_probed(asked.probe, Some(1), Some(1));
    run.settle();
    assert!(run.departures().is_empty());
}

#[test]
fn a_prober_that_dies_does_not_hold_up_the_rest() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    let probes = take_probes(&mut run);
    let (dying, _) = probes[0];
    assert_eq!(dying, ann);
    run.kill(ann);
    for (prober, asked) in probes.into_iter().skip(1) {
        run.peer(prober).handle_probed(asked.probe, Some(5), Some(5));
    }
    run.settle();
    // Probes now use the key of the new epoch.
    let key = run.epoch(bob).key;
    let more = take_probes(&mut run);
    assert!(!more.is_empty() && more.iter().all(|(_, p)| p.key == key));
    for (prober, asked) in more {
        run.peer(prober).handle_probed(asked.probe, Some(5), Some(5));
    }
    run.settle();
    measure(&mut run);
    run.answer_tour(&[bob, dan, cid], &[]);
    run.assert_results(&calls[1..], &Ok(Completion::Topology));
    run.reduce_successfully(&[bob, cid, dan], 1);
}

#[test]
fn a_peer_that_dies_while_the_ring_is_sought_does_not_hold_up_the_rest() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = optimise_everywhere(&mut run);
    measure(&mut run);
    run.kill(dan);
    run.answer_tour(&[ann, cid, bob, dan], &[]);
    run.assert_results(&calls[..3], &Ok(Completion::Topology));
    run.reduce_successfully(&[ann, bob, cid], 1);
}
