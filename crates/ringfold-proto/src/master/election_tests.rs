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

/// Peers 0.. in order of age; `synced` per peer.
fn run(next: Option<u64>, held: bool, offers: &[(SyncOffer, Option<u64>)]) -> Election {
    let candidate = |(i, (offer, synced)): (usize, &'static (SyncOffer, Option<u64>))| Candidate {
        name: PeerName { peer: PeerId(i as u128), name: format!("p{i}") },
        seniority: i as u64,
        synced: synced.map(Revision),
        offer,
    };
    let leaked: &'static [(SyncOffer, Option<u64>)] = Box::leak(offers.to_vec().into_boxed_slice());
    let candidates = leaked.iter().enumerate().map(candidate).collect();
    elect(&ElectionInput { candidates, next: next.map(Revision), held })
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
    let refused = run(Some(9), false, &popular);
    assert!(matches!(rejection(&refused, 0), StateRejection::NoHolder { orphaned: true, .. }));
    let sender = [(offer(5, SendOnly, &[1]), None), (offer(0, ReceiveOnly, &[2]), None)];
    let election = run(Some(9), false, &sender);
    assert!(election.reset);
    assert_eq!(election.revision, Some(Revision(5)));
    let held = run(Some(9), true, &sender);
    assert_eq!(held.revision, None);
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
