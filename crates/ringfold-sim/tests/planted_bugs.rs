//! The checkers can fail: each planted bug is found, within a few hundred runs, by a promise that it breaks.

use ringfold_sim::oracle::Promise;
use ringfold_sim::sabotage::Sabotage;

const SEEDS: u64 = 400;

fn first_broken(bug: Sabotage) -> Option<(u64, Promise)> {
    (0..SEEDS).find_map(|seed| {
        let report = ringfold_sim::run_with(seed, bug);
        report.violations.first().map(|v| (seed, v.promise))
    })
}

macro_rules! found {
    ($($test:ident: $bug:ident by $($promise:ident)|+;)*) => {$(
        #[test]
        fn $test() {
            let (seed, promise) = first_broken(Sabotage::$bug).expect("the bug stays hidden");
            let allowed = [$(Promise::$promise),+];
            assert!(allowed.contains(&promise), "seed {seed} breaks {promise:?}");
            assert!(ringfold_sim::run(seed).violations.is_empty(), "seed {seed} fails without the bug, too");
        }
    )*};
}

found! {
    a_skipped_restore_is_found: SkipRestore by BuffersArePutBack;
    a_commit_without_the_last_vote_is_found: CommitWithoutLastVote by OutcomesAreUnanimous | NobodyIsAccused;
    a_vote_that_counts_twice_is_found: CountVoteTwice by OutcomesAreUnanimous | NobodyIsAccused;
    a_lost_resume_is_found: LoseResume by OutcomesAreUnanimous | NobodyIsAccused;
    a_dropped_frame_of_a_newer_epoch_is_found: DropNewerFrame by TheRunRecovers | NobodyIsAccused;
    a_stale_frame_that_is_accepted_is_found: AcceptStaleFrame by ResultsAreRight | NobodyIsAccused;
    an_unfenced_slot_that_is_reused_is_found: ReuseUnfencedSlot by ResultsAreRight | NobodyIsAccused;
    an_epoch_number_that_is_reused_is_found: ReuseEpochNumber by MembershipAgrees | NobodyIsAccused;
    a_credit_pool_that_operations_share_is_found: ShareCreditPool by TheRunRecovers | NobodyIsAccused;
    world_sizes_that_go_stale_are_found: StaleWorld by WorldsAgree;
    a_rejected_peer_that_others_wait_for_is_found: HeartbeatIsCall by NobodyWaitsForRejected;
}
