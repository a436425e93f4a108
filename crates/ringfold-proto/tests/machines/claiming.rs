//! Claims of returning peers, in a run whose masters sign what they decide.

use super::signing::{retain_signed, signer};
use super::test_run::{TestRun, secs};
use ringfold_proto::cause::{Cause, Wait};
use ringfold_proto::charter::{Charter, Electorate};
use ringfold_proto::claim::{Claim, DroppedClaims};
use ringfold_proto::id::{OpId, PeerId, Seq, Tag, Term};
use ringfold_proto::master::{Master, MasterConfig};
use ringfold_proto::message::{EpochRecord, OpProgress, OpRecord, Outcome, Resume};
use ringfold_proto::peer::Completion;

/// What a member reports after two operations of different tags.
fn resume() -> Resume {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.reduce_successfully(&[ann, bob], 1);
    run.reduce_successfully(&[ann, bob], 2);
    run.restart_master();
    run.resumes[&ann].clone()
}

fn dropped(epochs: usize, outcomes: usize, charters: usize) -> DroppedClaims {
    DroppedClaims { epochs, outcomes, charters }
}

#[test]
fn signed_bytes_differ_by_kind_and_content() {
    let record = &resume().epochs[0];
    let description = &record.description;
    let op = OpId { epoch: description.id, tag: Tag(1), seq: Seq(0) };
    let aborted = Outcome::Aborted(Cause::EpochEnded);
    let charter = Charter::initial();
    let next = OpId { seq: Seq(1), ..op };
    let claims = [
        Claim::Proposed(description),
        Claim::Opened(description),
        Claim::Decided(op, &Outcome::COMMITTED),
        Claim::Decided(op, &aborted),
        Claim::Decided(next, &aborted),
        Claim::Charter(&charter),
    ];
    let bytes: std::collections::BTreeSet<_> = claims.iter().map(Claim::signed_bytes).collect();
    assert_eq!(bytes.len(), claims.len());
    // Long causes are left out of a resume with many operations.
    let other = Outcome::Aborted(Cause::Timeout(Wait::for_master()));
    assert_eq!(Claim::Decided(op, &aborted).signed_bytes(), Claim::Decided(op, &other).signed_bytes());
    let opened = Claim::Opened(description).signed_bytes();
    assert!(opened.starts_with(b"ringfold epoch opened 1\0"));
    assert!(opened.ends_with(&postcard::to_allocvec(description).unwrap()));
}

#[test]
fn a_changed_epoch_is_dropped() {
    let honest = resume();
    for change in 0..5 {
        let mut forged = honest.clone();
        let record = &mut forged.epochs[0];
        match change {
            0 => record.description.key = [7; 32],
            1 => record.description.id.counter += 1,
            2 => record.description.members = record.description.members[..1].into(),
            3 => record.opened = false,
            _ => record.signature = None,
        }
        assert_eq!(retain_signed(&mut forged), [dropped(0, 0, 0), dropped(1, 0, 0)], "{change}");
        assert!(forged.epochs.is_empty());
    }
}

#[test]
fn a_changed_outcome_is_dropped_or_counts_as_done() {
    let honest = resume();
    let mut forged = honest.clone();
    let EpochRecord { ops, description, .. } = &mut forged.epochs[0];
    let descriptor = super::test_run::sum_of(100);
    ops[0].progress = OpProgress::Decided(Outcome::Aborted(Cause::EpochEnded));
    ops[1].seq = Seq(ops[1].seq.0 + 1);
    ops[1].descriptor = Some(descriptor);
    // A signature of another operation.
    let stolen = OpRecord { tag: Tag(9), ..honest.epochs[0].ops[0].clone() };
    ops.push(stolen);
    let (tag, seq, epoch) = (ops[1].tag, ops[1].seq, description.id);
    assert_eq!(retain_signed(&mut forged), [dropped(0, 0, 0), dropped(0, 3, 0)]);
    let done =
        OpRecord { tag, seq, descriptor: Some(descriptor), progress: OpProgress::Done, signature: None };
    assert_eq!((forged.epochs[0].description.id, &forged.epochs[0].ops), (epoch, &vec![done]));
}

#[test]
fn a_charter_that_nobody_signed_is_replaced_and_the_promise_stays() {
    let mut forged = resume();
    forged.voter.promised = Term(9);
    forged.voter.charter = Charter::initial().with(Term(9), Electorate::new([PeerId(1)], 0));
    assert_eq!(retain_signed(&mut forged), [dropped(0, 0, 1), dropped(0, 0, 0)]);
    assert_eq!((forged.voter.promised, forged.voter.charter), (Term(9), Charter::initial()));
}

#[test]
fn a_master_that_restored_a_run_has_signed_everything_again() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.reduce_successfully(&[ann, bob], 1);
    let mut signers = Vec::new();
    // Tag 1 and the epoch are older than all but the first master.
    for restart in 0..8 {
        run.reduce_successfully(&[ann, bob], 2 + restart);
        run.restart_master();
        assert_eq!(run.resumes[&ann].epochs[0].ops.len() as u64, 2 + restart);
        signers.push(run.resumes[&ann].signers());
        assert_eq!(run.resumes[&bob].signers(), signers[restart as usize]);
    }
    let expected: Vec<_> = (1..=8).map(|master| vec![PeerId(master)]).collect();
    assert_eq!(signers, expected);
}

#[test]
fn a_member_whose_claims_do_not_count_waits_again_and_its_calls_end() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob, cid], 1);
    run.crash_master();
    run.distrusted.insert(cid);
    run.start_master();
    // The others wait for it no longer than for one that does not return.
    run.advance_time(secs(10));
    for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
        run.abort_cause(who, call);
    }
    assert!(run.is_accepted(ann) && run.is_accepted(bob) && !run.is_accepted(cid));
    let waiting = run.reduce(cid, 2);
    run.admit_all();
    assert!(run.is_accepted(cid) && run.is_waiting(cid, waiting));
    run.reduce_all(&[ann, bob], 2);
    [ann, bob, cid].into_iter().for_each(|who| run.done(who, 2));
    assert_eq!(run.result(cid, waiting), Some(&Ok(Completion::Reduced { world: 3 })));
}

#[test]
fn a_run_continues_if_no_claim_counts() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    // Only one of them has called, so the votes are not complete.
    let vote = run.update_topology(ann);
    run.settle();
    assert!(run.is_waiting(ann, vote));
    run.crash_master();
    run.distrusted.extend([ann, bob]);
    run.start_master();
    run.advance_time(secs(10));
    // They are as new peers: one is accepted, and then the other one. That is an update of the topology.
    run.admit_all();
    assert!(run.is_accepted(ann) && run.is_accepted(bob) && !run.is_waiting(ann, vote));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn the_largest_resume_fits() {
    let mut largest = resume();
    let EpochRecord { ops, .. } = &mut largest.epochs[0];
    let mut signature = ops[0].signature.clone().unwrap();
    (signature.signer, signature.bytes) = (PeerId(u128::MAX), vec![0xff; 72]);
    *ops = (0..ringfold_proto::limits::OPS_IN_RESUME_MAX as u64)
        .map(|n| OpRecord { tag: Tag(u64::MAX - n), signature: Some(signature.clone()), ..ops[0].clone() })
        .collect();
    use ringfold_proto::frame::{ControlDecoder, encode_control};
    use ringfold_proto::message::{Numbered, ToMaster};
    let message = Numbered { number: 0, acknowledged: 0, message: ToMaster::Resume(Box::new(largest)) };
    let frame = encode_control(&message).unwrap();
    assert_eq!(ControlDecoder::default().next_message(&mut &frame[..]), Ok(Some(message)));
}

#[test]
fn a_master_without_a_signer_signs_nothing() {
    let config = |signer| MasterConfig {
        peers_max: ringfold_proto::limits::WORLD_MAX,
        timing: Default::default(),
        recovery: Default::default(),
        tuning: Default::default(),
        appraise: |_, _, _, _| 0,
        relays: Vec::new(),
        signer,
        seed: [1; 32],
    };
    let signatures = |mut master: Master| {
        use ringfold_proto::id::ConnId;
        use ringfold_proto::master::MasterAction;
        use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
        let now = ringfold_proto::time::Time(1);
        master.handle_connected(now, ConnId(1), PeerId(7));
        let join = ToMaster::Join(resume().join);
        master.handle_message(now, ConnId(1), Numbered { number: 0, acknowledged: 0, message: join });
        let signature = |action| match action {
            MasterAction::Send { message, .. } => match message.message {
                ToPeer::EpochProposed { signature, .. } | ToPeer::EpochOpened { signature, .. } => signature,
                _ => None,
            },
            _ => None,
        };
        std::iter::from_fn(|| master.poll_action()).filter_map(signature).count()
    };
    assert_eq!(signatures(Master::new(config(Default::default()))), 0);
    assert_eq!(signatures(Master::new(config(signer(PeerId(3))))), 2);
}
