//! Compares the decisions of a simulated run with the recorded ones.

use super::{Decision, REPEATS_MAX, RecordedScenario, Step, What};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A decision of either run, or of both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// When it was recorded, in microseconds since the first item.
    pub recorded: Option<u64>,
    /// When it was simulated.
    pub simulated: Option<Time>,
    /// The decision.
    pub decision: Decision,
}

impl Line {
    /// Whether both runs have it.
    pub fn is_equal(&self) -> bool {
        self.recorded.is_some() && self.simulated.is_some()
    }
}

/// Both runs side by side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// In the order of the recording; what only the simulation has is where it belongs in its group.
    pub lines: Vec<Line>,
}

impl Comparison {
    /// Compares, group by group. Decisions between two epochs have no order, and operations that are committed are counted.
    pub fn new(scenario: &RecordedScenario, simulated: &[(Time, Decision)]) -> Self {
        let groups = groups(scenario);
        let recorded = scenario.timeline.iter().filter_map(|item| match &item.what {
            What::Decision(decision) => Some((item.at_us, capped(decision))),
            What::Step(_) => None,
        });
        let simulated = simulated.iter().map(|(at, decision)| (*at, decision.clone()));
        let (recorded, simulated) = (by_group(recorded, &groups), by_group(simulated, &groups));
        let mut lines = Vec::new();
        let all: BTreeSet<_> = recorded.keys().chain(simulated.keys()).copied().collect();
        for group in all {
            let of = |runs: &BTreeMap<u32, _>| runs.get(&group).cloned().unwrap_or_default();
            let (one, other) = (of(&recorded), simulated.get(&group).cloned().unwrap_or_default());
            // Groups are merged by the recorded times; the order within a group stays.
            let mut last = 0;
            lines.extend(align(&one, &other).into_iter().map(|line| {
                last = last.max(line.recorded.unwrap_or(0));
                (last, line)
            }));
        }
        lines.sort_by_key(|(at, _)| *at);
        Self { lines: lines.into_iter().map(|(_, line)| line).collect() }
    }

    /// The first line that only one run has.
    pub fn first_difference(&self) -> Option<&Line> {
        self.lines.iter().find(|line| !line.is_equal())
    }
}

/// The group of each peer.
fn groups(scenario: &RecordedScenario) -> BTreeMap<String, u32> {
    let join = |what: &What| match what {
        What::Step(Step::Join { peer, group }) => Some((peer.clone(), *group)),
        _ => None,
    };
    scenario.timeline.iter().filter_map(|item| join(&item.what)).collect()
}

fn capped(decision: &Decision) -> Decision {
    match decision {
        Decision::Committed { group, count } => {
            Decision::Committed { group: *group, count: (*count).min(REPEATS_MAX) }
        }
        decision => decision.clone(),
    }
}

/// The decisions of each group. Those between two epochs are sorted, and commits are added up.
fn by_group<T: Copy>(
    all: impl Iterator<Item = (T, Decision)>,
    groups: &BTreeMap<String, u32>,
) -> BTreeMap<u32, Vec<(T, Decision)>> {
    let mut sorted: BTreeMap<u32, Vec<(T, Decision)>> = BTreeMap::new();
    let mut open: BTreeMap<u32, Vec<(T, Decision)>> = BTreeMap::new();
    for (at, decision) in all {
        let group = match &decision {
            Decision::Registered { .. } | Decision::Reconnected { .. } => continue,
            Decision::Departed { peer, .. } => groups.get(peer).copied().unwrap_or(0),
            Decision::Accepted { group, .. }
            | Decision::EpochOpened { group, .. }
            | Decision::EpochKept { group, .. }
            | Decision::Committed { group, .. }
            | Decision::Aborted { group, .. }
            | Decision::StateElected { group, .. } => *group,
        };
        let between = open.entry(group).or_default();
        match &decision {
            Decision::EpochOpened { .. } | Decision::EpochKept { .. } => {
                close(sorted.entry(group).or_default(), between);
                sorted.entry(group).or_default().push((at, decision));
            }
            Decision::Committed { count, .. } => {
                let counted = between.iter_mut().find_map(|(_, known)| match known {
                    Decision::Committed { count, .. } => Some(count),
                    _ => None,
                });
                match counted {
                    Some(sum) => *sum = sum.saturating_add(*count),
                    None => between.push((at, decision)),
                }
            }
            _ => between.push((at, decision)),
        }
    }
    for (group, mut between) in open {
        close(sorted.entry(group).or_default(), &mut between);
    }
    sorted
}

fn close<T: Copy>(sorted: &mut Vec<(T, Decision)>, between: &mut Vec<(T, Decision)>) {
    between.sort_by(|(_, one), (_, other)| one.cmp(other));
    sorted.append(between);
}

/// Aligns two lists: what is equal at the beginning and the end, and between these what follows in both.
fn align(recorded: &[(u64, Decision)], simulated: &[(Time, Decision)]) -> Vec<Line> {
    /// How far ahead an equal decision is searched.
    const AHEAD: usize = 32;
    let (mut lines, mut i, mut j) = (Vec::new(), 0, 0);
    let only_recorded = |(at, decision): &(u64, Decision)| Line {
        recorded: Some(*at),
        simulated: None,
        decision: decision.clone(),
    };
    let only_simulated = |(at, decision): &(Time, Decision)| Line {
        recorded: None,
        simulated: Some(*at),
        decision: decision.clone(),
    };
    while i < recorded.len() && j < simulated.len() {
        if recorded[i].1 == simulated[j].1 {
            let (recorded, simulated) = (&recorded[i], &simulated[j]);
            let decision = recorded.1.clone();
            lines.push(Line { recorded: Some(recorded.0), simulated: Some(simulated.0), decision });
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let in_simulated = simulated[j..].iter().take(AHEAD).position(|(_, d)| *d == recorded[i].1);
        let in_recorded = recorded[i..].iter().take(AHEAD).position(|(_, d)| *d == simulated[j].1);
        match (in_simulated, in_recorded) {
            (Some(ahead), other) if other.is_none_or(|other| ahead <= other) => {
                lines.push(only_simulated(&simulated[j]));
                j += 1;
            }
            (None, None) => {
                lines.push(only_recorded(&recorded[i]));
                lines.push(only_simulated(&simulated[j]));
                (i, j) = (i + 1, j + 1);
            }
            _ => {
                lines.push(only_recorded(&recorded[i]));
                i += 1;
            }
        }
    }
    lines.extend(recorded[i..].iter().map(only_recorded));
    lines.extend(simulated[j..].iter().map(only_simulated));
    lines
}
