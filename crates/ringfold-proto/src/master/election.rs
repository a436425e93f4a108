//! The election of a shared state: a pure function of the offers. Complete lists compete, entry by entry is fetched.

use crate::cause::{PeerName, StateRejection};
use crate::event::RecoveredState;
use crate::id::{PeerId, Revision};
use crate::recovery::Recover;
use crate::shared_state::{Assignment, FetchItem, StateEntry, SyncOffer, SyncStrategy, SyncVerdict};
use std::collections::BTreeMap;

/// One peer's offer.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub name: PeerName,
    pub seniority: u64,
    /// The revision of its last completed sync.
    pub synced: Option<Revision>,
    pub offer: &'a SyncOffer,
}

/// The offers, in the order of arrival, and the state of the group.
#[derive(Clone, Debug)]
pub(super) struct ElectionInput<'a> {
    pub candidates: Vec<Candidate<'a>>,
    /// The next revision; `None` before the first sync.
    pub next: Option<Revision>,
    /// Whether a living member of the group has completed the last sync.
    pub held: bool,
    pub recovery: RecoveryRule,
}

/// The rule for states that were lost, and for those of a new master.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecoveryRule {
    pub policy: Recover,
    /// How many peers must hold a revision for it to win. If none is held by that many, the newest wins.
    pub holders_min: usize,
    /// How many peers held the lost state; `None` if unknown.
    pub lost: Option<usize>,
    /// Whether a new peer with a newer state than the run's may set the run to it: others have just recovered.
    pub newest_wins: bool,
}

/// The result of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Election {
    pub verdicts: BTreeMap<PeerId, SyncVerdict>,
    /// The elected revision; `None` if no peer holds it.
    pub revision: Option<Revision>,
    /// Whether a send-only peer reset the revision.
    pub reset: bool,
    /// The state that was elected because the one before was lost, or because the master is new.
    pub recovered: Option<RecoveredState>,
}

pub(super) fn elect(input: &ElectionInput<'_>) -> Election {
    let mut verdicts = BTreeMap::new();
    let mut running: Vec<&Candidate<'_>> = Vec::new();
    let popular = input.candidates.iter().find(|c| c.offer.strategy == SyncStrategy::EnforcePopular);
    for candidate in &input.candidates {
        match popular {
            Some(other) if candidate.offer.strategy != SyncStrategy::EnforcePopular => {
                let other = other.name.clone();
                reject(&mut verdicts, candidate, StateRejection::StrategyConflict { other });
            }
            _ => running.push(candidate),
        }
    }
    let orphaned = input.next.is_some() && !input.held;
    let recovered = match recovered_revision(input, &running) {
        Recovery::None => None,
        Recovery::At(revision) => Some(revision),
        Recovery::NoMajority => {
            let next = input.next.unwrap_or(Revision(newest(&running).0.saturating_add(1)));
            for candidate in running {
                reject(&mut verdicts, candidate, StateRejection::NoHolder { next, orphaned: true });
            }
            return Election { verdicts, revision: None, reset: false, recovered: None };
        }
    };
    let (next, reset) =
        recovered.map_or_else(|| expected_revision(input.next, orphaned, &running), |r| (r, false));
    running.retain(|c| {
        let ahead = c.offer.revision > next && recovered.is_none();
        if ahead {
            let why = StateRejection::RevisionIncrementViolation { offered: c.offer.revision, next };
            reject(&mut verdicts, c, why);
        }
        !ahead
    });
    let Some((revision, electable)) = electable(next, &running) else {
        for candidate in running {
            reject(&mut verdicts, candidate, StateRejection::NoHolder { next, orphaned });
        }
        return Election { verdicts, revision: None, reset: false, recovered: None };
    };
    let winners = most_popular(&electable);
    for candidate in &running {
        verdicts.insert(candidate.name.peer, verdict(candidate, revision, &winners, &running));
    }
    assign_fetchers(&mut verdicts);
    let recovered = recovered.map(|revision| recovered_state(revision, &winners, &running));
    let is_ordinary = |r: &RecoveredState| input.next.is_none() && r.others.is_empty();
    let recovered = recovered.filter(|r| !is_ordinary(r));
    Election { verdicts, revision: Some(revision), reset, recovered }
}

/// What the rule for lost states yields.
enum Recovery {
    /// It does not apply.
    None,
    /// This revision is elected.
    At(Revision),
    /// No revision may be elected.
    NoMajority,
}

/// The revision that a new or lost run continues from. A peer at revision 0 has no checkpoint: 0 wins only if no peer
/// offers more.
fn recovered_revision(input: &ElectionInput<'_>, running: &[&Candidate<'_>]) -> Recovery {
    let RecoveryRule { policy, holders_min, lost, newest_wins } = input.recovery;
    let offers = |c: &&&Candidate<'_>| match (input.next, input.held) {
        (Some(next), true) => {
            let is_new = c.synced.is_none() && c.offer.strategy == SyncStrategy::EnforcePopular;
            newest_wins && is_new && c.offer.revision > next
        }
        _ => true,
    };
    let offered: Vec<_> =
        running.iter().filter(|c| can_win(c)).filter(offers).map(|c| c.offer.revision).collect();
    let Some(newest) = offered.iter().copied().max().filter(|_| policy != Recover::Manual) else {
        return Recovery::None;
    };
    let mut holders = BTreeMap::<Revision, usize>::new();
    for revision in offered.into_iter().filter(|r| *r > Revision(0) || newest == Revision(0)) {
        *holders.entry(revision).or_default() += 1;
    }
    let is_chosen = running.iter().any(|c| c.offer.strategy == SyncStrategy::SendOnly);
    if policy == Recover::Majority && !is_chosen {
        let all = lost.unwrap_or(0).max(holders.values().sum());
        let majority = holders.iter().find(|(_, count)| **count * 2 > all);
        return majority.map_or(Recovery::NoMajority, |(revision, _)| Recovery::At(*revision));
    }
    let held = holders.iter().rev().find(|(_, count)| **count >= holders_min);
    Recovery::At(held.map_or(newest, |(revision, _)| *revision))
}

fn newest(running: &[&Candidate<'_>]) -> Revision {
    running.iter().map(|c| c.offer.revision).max().unwrap_or_default()
}

fn recovered_state(
    revision: Revision,
    winners: &[&Candidate<'_>],
    running: &[&Candidate<'_>],
) -> RecoveredState {
    let won = |c: &Candidate<'_>| winners.iter().any(|w| w.name.peer == c.name.peer);
    let offering = || running.iter().filter(|c| can_win(c));
    let (same, others): (Vec<&Candidate<'_>>, Vec<_>) =
        offering().partition(|c| c.offer.revision == revision);
    let (holders, differing): (Vec<_>, Vec<_>) = same.into_iter().partition(|c| won(c));
    RecoveredState {
        revision,
        holders: holders.into_iter().map(|c| c.name.clone()).collect(),
        differing: differing.into_iter().map(|c| c.name.clone()).collect(),
        others: others.into_iter().map(|c| (c.name.clone(), c.offer.revision)).collect(),
    }
}

/// The next revision, and whether a send-only peer resets it: before the first sync that of the first caller, and that of
/// a send-only peer when all holders of the state have departed.
fn expected_revision(next: Option<Revision>, orphaned: bool, running: &[&Candidate<'_>]) -> (Revision, bool) {
    let Some(next) = next else {
        let first = running.iter().find(|c| can_win(c)).or(running.first());
        return (first.map_or(Revision(0), |c| c.offer.revision), false);
    };
    let sender = running.iter().find(|c| c.offer.strategy == SyncStrategy::SendOnly);
    match sender {
        Some(sender) if orphaned && sender.offer.revision != next => (sender.offer.revision, true),
        _ => (next, false),
    }
}

/// The candidates that can be elected, and their revision: those that offer the next revision. If there are none, and at
/// least two offers, those that completed the last revision may offer it again.
fn electable<'a>(
    next: Revision,
    running: &[&'a Candidate<'a>],
) -> Option<(Revision, Vec<&'a Candidate<'a>>)> {
    let current: Vec<_> =
        running.iter().copied().filter(|c| can_win(c) && c.offer.revision == next).collect();
    if !current.is_empty() {
        return Some((next, current));
    }
    let last = Revision(next.0.checked_sub(1)?);
    let again = |c: &&Candidate<'_>| can_win(c) && c.offer.revision == last && c.synced == Some(last);
    let holders: Vec<_> = running.iter().copied().filter(again).collect();
    (running.len() >= 2 && !holders.is_empty()).then_some((last, holders))
}

fn can_win(candidate: &Candidate<'_>) -> bool {
    candidate.offer.strategy != SyncStrategy::ReceiveOnly
}

/// The candidates with the most common content. The content of the oldest member wins a tie.
fn most_popular<'a>(electable: &[&'a Candidate<'a>]) -> Vec<&'a Candidate<'a>> {
    let mut parties: Vec<Vec<&Candidate<'_>>> = Vec::new();
    let mut by_age = electable.to_vec();
    by_age.sort_by_key(|c| (c.synced.is_none(), c.seniority));
    for candidate in by_age {
        match parties.iter_mut().find(|p| same_content(&p[0].offer.entries, &candidate.offer.entries)) {
            Some(party) => party.push(candidate),
            None => parties.push(vec![candidate]),
        }
    }
    // `max_by_key` takes the last of equals; reversed, that is the party of the oldest.
    parties.into_iter().rev().max_by_key(Vec::len).unwrap_or_default()
}

fn same_content(a: &[StateEntry], b: &[StateEntry]) -> bool {
    let same = |(x, y): (&StateEntry, &StateEntry)| {
        x.same_layout(y) && (x.allow_content_inequality || x.hash == y.hash)
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

fn verdict(
    candidate: &Candidate<'_>,
    revision: Revision,
    winners: &[&Candidate<'_>],
    running: &[&Candidate<'_>],
) -> SyncVerdict {
    let elected = &winners[0];
    let won = winners.iter().any(|w| w.name.peer == candidate.name.peer);
    if let Some(key) = differing_key(&elected.offer.entries, &candidate.offer.entries) {
        return SyncVerdict::Rejected(StateRejection::Layout { key });
    }
    if candidate.offer.strategy == SyncStrategy::SendOnly && !won {
        return SyncVerdict::Rejected(StateRejection::LostElection { winner: elected.name.clone() });
    }
    let newcomer = candidate.synced.is_none() && candidate.offer.strategy != SyncStrategy::SendOnly;
    let pairs = elected.offer.entries.iter().zip(&candidate.offer.entries).enumerate();
    let dirty = pairs
        .filter(|(_, (want, have))| want.hash != have.hash && (newcomer || !want.allow_content_inequality));
    let fetch: Vec<_> = dirty.map(|(i, (want, _))| FetchItem { entry: i as u32, hash: want.hash }).collect();
    let sources = sources(candidate, &fetch, winners, running);
    SyncVerdict::Elected(Assignment { revision, fetch, sources, fetchers: Vec::new() })
}

/// The winners that hold all missing entries, rotated so that fetchers start at different sources.
fn sources(
    candidate: &Candidate<'_>,
    fetch: &[FetchItem],
    winners: &[&Candidate<'_>],
    running: &[&Candidate<'_>],
) -> Vec<PeerId> {
    if fetch.is_empty() {
        return Vec::new();
    }
    let holds = |w: &&&Candidate<'_>| fetch.iter().all(|f| w.offer.entries[f.entry as usize].hash == f.hash);
    let mut sources: Vec<_> = winners.iter().filter(holds).map(|w| w.name.peer).collect();
    let position = running.iter().position(|c| c.name.peer == candidate.name.peer).unwrap_or(0);
    let shift = position % sources.len().max(1);
    sources.rotate_left(shift);
    sources
}

fn differing_key(elected: &[StateEntry], offered: &[StateEntry]) -> Option<String> {
    for (i, want) in elected.iter().enumerate() {
        if offered.get(i).is_none_or(|have| !have.same_layout(want)) {
            return Some(want.key.clone());
        }
    }
    offered.get(elected.len()).map(|extra| extra.key.clone())
}

fn reject(verdicts: &mut BTreeMap<PeerId, SyncVerdict>, candidate: &Candidate<'_>, why: StateRejection) {
    verdicts.insert(candidate.name.peer, SyncVerdict::Rejected(why));
}

/// Sets the fetchers of every source.
fn assign_fetchers(verdicts: &mut BTreeMap<PeerId, SyncVerdict>) {
    let mut fetchers_of: BTreeMap<PeerId, Vec<PeerId>> = BTreeMap::new();
    for (peer, verdict) in verdicts.iter() {
        if let SyncVerdict::Elected(assignment) = verdict {
            for source in &assignment.sources {
                fetchers_of.entry(*source).or_default().push(*peer);
            }
        }
    }
    for (source, fetchers) in fetchers_of {
        if let Some(SyncVerdict::Elected(assignment)) = verdicts.get_mut(&source) {
            assignment.fetchers = fetchers;
        }
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
