//! The specification's rules of shared state, one test each.

use super::*;
use crate::dtype::DType;
use SyncStrategy::{EnforcePopular, ReceiveOnly, SendOnly};

fn entry(key: &str, hash: u128) -> StateEntry {
    StateEntry { key: key.into(), dtype: DType::F32, count: 4, allow_content_inequality: false, hash }
}

fn offer(revision: u64, strategy: SyncStrategy, hashes: &[u128]) -> SyncOffer {
    let entries = hashes.iter().enumerate().map(|(i, h)| entry(&format!("w{i}"), *h)).collect();
    SyncOffer { revision: Revision(revision), strategy, entries }
}

/// The default rule.
const NEWEST: RecoveryRule =
    RecoveryRule { policy: Recover::Newest, holders_min: 1, lost: None, newest_wins: false };
const MANUAL: RecoveryRule = RecoveryRule { policy: Recover::Manual, ..NEWEST };

/// Peers 0.. in order of age; `synced` per peer.
fn run(next: Option<u64>, held: bool, offers: &[(SyncOffer, Option<u64>)]) -> Election {
    run_with(NEWEST, next, held, offers)
}

fn run_with(
    recovery: RecoveryRule,
    next: Option<u64>,
    held: bool,
    offers: &[(SyncOffer, Option<u64>)],
) -> Election {
    let candidate = |(i, (offer, synced)): (usize, &'static (SyncOffer, Option<u64>))| Candidate {
        name: PeerName { peer: PeerId(i as u128), name: format!("p{i}") },
        seniority: i as u64,
        synced: synced.map(Revision),
        offer,
    };
    let leaked: &'static [(SyncOffer, Option<u64>)] = Box::leak(offers.to_vec().into_boxed_slice());
    let candidates = leaked.iter().enumerate().map(candidate).collect();
    elect(&ElectionInput { candidates, next: next.map(Revision), held, recovery })
}

fn fetched(election: &Election, peer: u128) -> Vec<u32> {
    match &election.verdicts[&PeerId(peer)] {
        SyncVerdict::Elected(a) => a.fetch.iter().map(|f| f.entry).collect(),
        SyncVerdict::Rejected(why) => panic!("peer {peer} is rejected: {why}"),
    }
}

fn rejection(election: &Election, peer: u128) -> &StateRejection {
    match &election.verdicts[&PeerId(peer)] {
        SyncVerdict::Rejected(why) => why,
        SyncVerdict::Elected(_) => panic!("peer {peer} is not rejected"),
    }
}

#[test]
fn the_most_popular_content_wins_and_only_dirty_keys_are_fetched() {
    let election = run(
        Some(3),
        true,
        &[
            (offer(3, EnforcePopular, &[1, 9]), Some(2)),
            (offer(3, EnforcePopular, &[1, 2]), Some(2)),
            (offer(3, EnforcePopular, &[1, 2]), Some(2)),
        ],
    );
    assert_eq!(election.revision, Some(Revision(3)));
    assert_eq!(fetched(&election, 0), [1]);
    assert!(fetched(&election, 1).is_empty() && fetched(&election, 2).is_empty());
}

#[test]
fn a_tie_goes_to_the_oldest() {
    let offers = [(offer(0, EnforcePopular, &[5]), None), (offer(0, EnforcePopular, &[6]), None)];
    let election = run(None, false, &offers);
    assert!(fetched(&election, 0).is_empty());
    assert_eq!(fetched(&election, 1), [0]);
}

#[test]
fn the_first_callers_revision_is_adopted_while_nobody_has_synced() {
    let offers = [(offer(70, EnforcePopular, &[5]), None), (offer(3, EnforcePopular, &[6]), None)];
    let election = run(None, false, &offers);
    assert_eq!(election.revision, Some(Revision(70)));
    assert_eq!(fetched(&election, 1), [0]);
}

#[test]
fn a_revision_beyond_the_next_is_rejected_and_the_rest_go_on() {
    let offers = [(offer(4, EnforcePopular, &[5]), Some(2)), (offer(3, EnforcePopular, &[6]), Some(2))];
    let election = run(Some(3), true, &offers);
    assert_eq!(election.revision, Some(Revision(3)));
    assert!(matches!(rejection(&election, 0), StateRejection::RevisionIncrementViolation { .. }));
}

#[test]
fn the_current_revision_beats_any_number_of_outdated_ones() {
    let stale = offer(2, EnforcePopular, &[9]);
    let offers = [(stale.clone(), Some(2)), (stale, Some(2)), (offer(3, EnforcePopular, &[5]), Some(2))];
    let election = run(Some(3), true, &offers);
    assert_eq!(election.revision, Some(Revision(3)));
    assert_eq!(fetched(&election, 0), [0]);
}

#[test]
fn outdated_but_equal_fetches_nothing() {
    let offers = [(offer(3, EnforcePopular, &[5]), Some(2)), (offer(1, EnforcePopular, &[5]), None)];
    assert!(fetched(&run(Some(3), true, &offers), 1).is_empty());
}

#[test]
fn the_last_revision_may_be_offered_again_by_two_and_admits_a_newcomer() {
    let offers = [(offer(2, EnforcePopular, &[5]), Some(2)), (offer(0, EnforcePopular, &[7]), None)];
    let election = run(Some(3), true, &offers);
    assert_eq!(election.revision, Some(Revision(2)));
    assert_eq!(fetched(&election, 1), [0]);
    let alone = run(Some(3), true, &offers[..1]);
    assert_eq!(alone.revision, None);
    assert!(matches!(rejection(&alone, 0), StateRejection::NoHolder { orphaned: false, .. }));
}

#[test]
fn a_newcomer_at_the_last_revision_with_other_content_does_not_win() {
    let offers = [
        (offer(2, EnforcePopular, &[7]), None),
        (offer(2, EnforcePopular, &[7]), None),
        (offer(2, EnforcePopular, &[5]), Some(2)),
    ];
    let election = run(Some(3), true, &offers);
    assert!(fetched(&election, 2).is_empty());
    assert_eq!(fetched(&election, 0), [0]);
}

#[test]
fn a_differing_layout_is_rejected_by_key() {
    let mut odd = offer(0, EnforcePopular, &[5, 6]);
    odd.entries[1].count = 5;
    let good = offer(0, EnforcePopular, &[5, 6]);
    let election = run(None, false, &[(good.clone(), None), (good, None), (odd, None)]);
    assert_eq!(rejection(&election, 2), &StateRejection::Layout { key: "w1".into() });
    assert!(fetched(&election, 1).is_empty());
}

#[test]
fn content_that_may_differ_is_fetched_by_newcomers_only() {
    let flagged = |revision, hash| {
        let mut o = offer(revision, EnforcePopular, &[1, hash]);
        o.entries[1].allow_content_inequality = true;
        o
    };
    let offers = [(flagged(3, 10), Some(2)), (flagged(3, 11), Some(2)), (flagged(0, 12), None)];
    let election = run(Some(3), true, &offers);
    assert!(fetched(&election, 0).is_empty() && fetched(&election, 1).is_empty());
    assert_eq!(fetched(&election, 2), [1]);
}

#[test]
fn receivers_alone_get_an_error_and_with_a_sender_they_fetch() {
    let receiver = (offer(0, ReceiveOnly, &[1]), None);
    let alone = run(None, false, &[receiver.clone(), receiver.clone()]);
    assert!(matches!(rejection(&alone, 0), StateRejection::NoHolder { .. }));
    let election = run(None, false, &[receiver, (offer(0, SendOnly, &[2]), None)]);
    assert_eq!(fetched(&election, 0), [0]);
    assert!(fetched(&election, 1).is_empty());
}

#[test]
fn of_two_senders_with_different_content_one_is_rejected() {
    let offers = [(offer(0, SendOnly, &[1]), None), (offer(0, SendOnly, &[2]), None)];
    assert!(matches!(rejection(&run(None, false, &offers), 1), StateRejection::LostElection { .. }));
}

#[test]
fn strategies_beside_enforce_popular_are_rejected() {
    let offers = [(offer(0, SendOnly, &[1]), None), (offer(0, EnforcePopular, &[2]), None)];
    let election = run(None, false, &offers);
    assert!(matches!(rejection(&election, 0), StateRejection::StrategyConflict { .. }));
    assert!(fetched(&election, 1).is_empty());
}

#[test]
fn an_older_checkpoint_is_taken_only_from_a_sender_and_only_when_no_holder_lives() {
    let popular = [(offer(5, EnforcePopular, &[1]), None), (offer(5, EnforcePopular, &[1]), None)];
    let refused = run_with(MANUAL, Some(9), false, &popular);
    assert!(matches!(rejection(&refused, 0), StateRejection::NoHolder { orphaned: true, .. }));
    let sender = [(offer(5, SendOnly, &[1]), None), (offer(0, ReceiveOnly, &[2]), None)];
    let election = run_with(MANUAL, Some(9), false, &sender);
    assert!(election.reset);
    assert_eq!(election.revision, Some(Revision(5)));
    for rule in [MANUAL, NEWEST] {
        let held = run_with(rule, Some(9), true, &sender);
        assert_eq!(held.revision, None);
    }
}

fn popular(revision: u64, hash: u128) -> (SyncOffer, Option<u64>) {
    (offer(revision, EnforcePopular, &[hash]), None)
}

/// The indices of the holders, of those with other contents, and of those with other revisions.
fn recovered(election: &Election) -> (Vec<u128>, Vec<u128>, Vec<(u128, u64)>) {
    let state = election.recovered.as_ref().expect("a state was recovered");
    let ids = |names: &[PeerName]| names.iter().map(|n| n.peer.0).collect();
    let others = state.others.iter().map(|(n, r)| (n.peer.0, r.0)).collect();
    (ids(&state.holders), ids(&state.differing), others)
}

#[test]
fn after_a_loss_the_newest_revision_wins_and_the_others_fetch_it() {
    // With a master that knows the run, and with one that knows nothing.
    for next in [Some(10), None] {
        let offers = [popular(5, 1), popular(9, 2), popular(7, 3), popular(9, 2)];
        let election = run(next, false, &offers);
        assert_eq!(election.revision, Some(Revision(9)));
        assert_eq!(recovered(&election), (vec![1, 3], vec![], vec![(0, 5), (2, 7)]));
        assert_eq!((fetched(&election, 0), fetched(&election, 2)), (vec![0], vec![0]));
        assert!(fetched(&election, 1).is_empty());
    }
}

#[test]
fn the_log_says_which_revision_won_and_who_was_behind() {
    let offers = [popular(9, 4), popular(5, 1), popular(9, 2), popular(9, 2)];
    let state = run(Some(12), false, &offers).recovered.expect("recovered");
    let text = crate::event::Event::Recovered(crate::id::GroupId(0), state).to_string();
    for part in ["from revision 9", "held by 2 of 4 peers: p2, p3", "behind: p1 (revision 5)", "holds: p0"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn of_two_contents_of_the_newest_revision_the_more_common_wins_and_a_tie_goes_to_the_oldest() {
    let election = run(Some(12), false, &[popular(9, 1), popular(9, 2), popular(9, 2)]);
    assert_eq!(recovered(&election), (vec![1, 2], vec![0], vec![]));
    let tie = run(Some(12), false, &[popular(9, 1), popular(9, 2), popular(3, 5)]);
    assert_eq!(recovered(&tie), (vec![0], vec![1], vec![(2, 3)]));
}

#[test]
fn a_revision_that_too_few_hold_loses_unless_no_other_is_held_by_more() {
    let rule = RecoveryRule { holders_min: 2, ..NEWEST };
    let offers = [popular(9, 1), popular(7, 2), popular(7, 2), popular(0, 3), popular(0, 3)];
    let election = run_with(rule, Some(10), false, &offers);
    assert_eq!(election.revision, Some(Revision(7)));
    assert_eq!(recovered(&election).2, [(0, 9), (3, 0), (4, 0)]);
    assert_eq!(fetched(&election, 0), [0], "it is set back, not rejected");
    let fallback = run_with(rule, Some(10), false, &offers[..2]);
    assert_eq!(fallback.revision, Some(Revision(9)));
}

#[test]
fn peers_without_a_checkpoint_do_not_outvote_one_that_has_it() {
    let offers = [popular(0, 3), popular(0, 3), popular(9, 1)];
    for rule in [RecoveryRule { holders_min: 2, ..NEWEST }, NEWEST] {
        assert_eq!(run_with(rule, None, false, &offers).revision, Some(Revision(9)));
    }
    let majority = RecoveryRule { policy: Recover::Majority, ..NEWEST };
    assert_eq!(run_with(majority, None, false, &offers).revision, Some(Revision(9)));
}

#[test]
fn a_majority_counts_the_lost_peers_and_without_one_nothing_is_elected() {
    let rule = |lost| RecoveryRule { policy: Recover::Majority, lost, ..NEWEST };
    let offers = [popular(9, 1), popular(7, 2), popular(7, 2)];
    assert_eq!(run_with(rule(Some(3)), Some(10), false, &offers).revision, Some(Revision(7)));
    assert_eq!(run_with(rule(None), None, false, &offers).revision, Some(Revision(7)));
    for (rule, next, offers) in [(rule(Some(4)), Some(10), &offers[..]), (rule(None), None, &offers[..2])] {
        let none = run_with(rule, next, false, offers);
        assert_eq!(none.revision, None);
        assert!(matches!(rejection(&none, 0), StateRejection::NoHolder { orphaned: true, .. }));
    }
    let sender = [(offer(5, SendOnly, &[1]), None), (offer(0, ReceiveOnly, &[2]), None)];
    assert_eq!(run_with(rule(Some(4)), Some(10), false, &sender).revision, Some(Revision(5)));
}

#[test]
fn a_state_newer_than_the_recovered_one_wins_only_for_a_while_and_only_from_a_new_peer() {
    let offers = [(offer(6, EnforcePopular, &[1]), Some(5)), popular(9, 2)];
    let late = run(Some(6), true, &offers);
    assert!(matches!(rejection(&late, 1), StateRejection::RevisionIncrementViolation { .. }));
    let rule = RecoveryRule { newest_wins: true, ..NEWEST };
    let in_time = run_with(rule, Some(6), true, &offers);
    assert_eq!(in_time.revision, Some(Revision(9)));
    assert_eq!(recovered(&in_time), (vec![1], vec![], vec![(0, 6)]));
    assert_eq!(fetched(&in_time, 0), [0]);
    let member = [(offer(6, EnforcePopular, &[1]), Some(5)), (offer(9, EnforcePopular, &[2]), Some(5))];
    let election = run_with(rule, Some(6), true, &member);
    assert!(matches!(rejection(&election, 1), StateRejection::RevisionIncrementViolation { .. }));
    assert_eq!(election.recovered, None);
}

#[test]
fn an_ordinary_start_and_an_ordinary_sync_recover_nothing() {
    assert_eq!(run(None, false, &[popular(0, 1), popular(0, 2)]).recovered, None);
    assert_eq!(run(None, false, &[popular(7, 1)]).recovered, None);
    let offers = [(offer(3, EnforcePopular, &[1]), Some(2)), popular(0, 4)];
    assert_eq!(run(Some(3), true, &offers).recovered, None);
}

#[test]
fn fetchers_begin_at_different_sources_and_sources_know_them() {
    let holder = || (offer(3, EnforcePopular, &[1]), Some(2));
    let late = || (offer(0, EnforcePopular, &[2]), None);
    let election = run(Some(3), true, &[holder(), holder(), late(), late()]);
    let assignment = |peer: u128| match &election.verdicts[&PeerId(peer)] {
        SyncVerdict::Elected(a) => a,
        SyncVerdict::Rejected(why) => panic!("{why}"),
    };
    assert_ne!(assignment(2).sources[0], assignment(3).sources[0]);
    assert_eq!(assignment(2).sources.len(), 2);
    assert_eq!(assignment(0).fetchers, [PeerId(2), PeerId(3)]);
}
