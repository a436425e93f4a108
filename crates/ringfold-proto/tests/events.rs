//! The names, levels and fields of all events are as `docs/events.md` lists them.

use core::time::Duration;
use ringfold_proto::cause::{
    Cause, Departure, JoinRejection, JointCall, MissingPeer, PeerName, Removal, StateRejection, Wait,
};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::event::{Event, Level, LinkTransport, OpTally, PeerEvent, RecoveredState, StepDown};
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::id::{EpochId, GroupId, Incarnation, OpId, PeerId, Rank, Revision, Seq, Tag, Term};
use ringfold_proto::message::{Direction, Outcome, Phase};
use ringfold_proto::peer::Failure;
use ringfold_proto::reduce_op::ReduceOp;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const SECOND: Duration = Duration::from_secs(1);

fn peer(name: &str) -> PeerName {
    PeerName { peer: PeerId(7 << 96), name: name.into() }
}

fn op() -> OpId {
    OpId { epoch: EpochId::default(), tag: Tag(1), seq: Seq(2) }
}

fn cause() -> Cause {
    Cause::PeerLost { who: peer("b"), how: Departure::Died }
}

fn waits(is_mutual: bool) -> Wait {
    let call = JointCall::Vote(Phase::Sync);
    let missing = MissingPeer { waits_in: is_mutual.then_some(call), ..MissingPeer::unknown(peer("b")) };
    Wait { call: Some(call), waited_ms: 5000, missing: vec![missing], begun: false }
}

fn master_events() -> Vec<Event> {
    let (a, b, epoch, group, revision) = (peer("a"), peer("b"), EpochId::default(), GroupId(0), Revision(3));
    let recovered = RecoveredState {
        revision,
        holders: vec![a.clone()],
        differing: vec![b.clone()],
        others: vec![(b.clone(), Revision(1))],
    };
    vec![
        Event::Listening(vec!["127.0.0.1:1".parse().unwrap()]),
        Event::Registered(a.clone()),
        Event::JoinRejected(a.clone(), JoinRejection::RunFull),
        Event::Accepted(a.clone(), group),
        Event::ReplicaIncomplete { joined: vec![a.clone()], missing: 1 },
        Event::Departed(a.clone(), Departure::Died),
        Event::Departed(a.clone(), Departure::Left),
        Event::Suspected(a.clone()),
        Event::Reconnected(a.clone()),
        Event::EpochProposed(epoch, vec![a.clone(); 1000]),
        Event::EpochOpened(epoch, 0),
        Event::EdgeDistrusted(a.clone(), b.clone(), Direction::Both),
        Event::TourRequested(group, 2),
        Event::TourFound(group, true),
        Event::Replanned(epoch, 10),
        Event::OpDecided { op: op(), outcome: Outcome::COMMITTED, bytes: 8 },
        Event::OpDecided { op: op(), outcome: Outcome::Aborted(cause()), bytes: 8 },
        Event::OpResumed { op: op(), epoch: op().epoch },
        Event::OutOfStep(op()),
        Event::RoundDecided(Phase::Topology, 1),
        Event::RoundFailed(Phase::Topology, cause()),
        Event::StillWaiting(None, waits(false)),
        Event::StillWaiting(Some(group), waits(true)),
        Event::ProbeAssigned(a.clone(), b.clone()),
        Event::Probed(a.clone(), b.clone(), Some(1), None),
        Event::StateElected(group, revision, 1, 2),
        Event::StateRejected(a.clone(), StateRejection::HoldersLost),
        Event::RunEnded(group, revision),
        Event::AwaitsReturn { group, returned: vec![a.clone()], needed: 2, left: SECOND },
        Event::Recovered(group, recovered),
        Event::RevisionReset(group, revision),
        Event::RestoreBegan(Incarnation(1)),
        Event::Returned(a.clone()),
        Event::RestoreEnded(2),
        Event::EpochKept(epoch),
        Event::Demoted(a),
        Event::Stands(Term(1)),
        Event::Leads(Term(1)),
        Event::SteppedDown(Term(1), StepDown::Deposed),
        Event::Follows(0, Term(1)),
        Event::Leaderless,
        Event::MasterHere(0, (1, 2)),
        Event::MasterGone(0, (1, 2)),
        Event::ListsDiffer { master: 0, here: (0, 1), there: None },
        Event::NoMajority { votes: 1, voters: 3, blank: 0, missing: vec![2] },
        Event::Draining(true),
        Event::Ended,
    ]
}

fn peer_events() -> Vec<PeerEvent> {
    let (epoch, call) = (EpochId::default(), Descriptor::all_reduce(3, DType::F32, ReduceOp::Sum));
    let (duration, why, world, rank) = (SECOND, String::from("reset"), 2, Rank(1));
    let master = || String::from("a:48148");
    let failure = || Failure::Aborted(Box::new(cause()));
    let (sent_bytes, received_bytes, revision) = (1, 2, Revision(3));
    let ended = |op, result| PeerEvent::OpEnded {
        op,
        tag: Tag(1),
        call,
        result,
        sent_bytes,
        received_bytes,
        duration,
    };
    let stalled =
        |is_reported| PeerEvent::LinkStalled { peer: peer("b"), direction: Direction::Outgoing, is_reported };
    vec![
        PeerEvent::MasterConnected { master: master() },
        PeerEvent::MasterLost { master: master() },
        PeerEvent::MasterSilent { master: master() },
        PeerEvent::NoActiveMaster { waited: SECOND, known: "refused".into() },
        PeerEvent::Registered,
        PeerEvent::Restored,
        PeerEvent::Accepted { group: GroupId(0) },
        PeerEvent::Demoted,
        PeerEvent::EpochProposed { epoch, world },
        PeerEvent::EpochOpened { epoch, rank, world },
        PeerEvent::EpochRejected { epoch, why: why.clone() },
        PeerEvent::EpochClosed { epoch, cause: None },
        PeerEvent::EpochClosed { epoch, cause: Some(cause()) },
        PeerEvent::OpStarted { op: op(), call },
        PeerEvent::OpRunning { call: GroupCall::plain(GroupCallKind::CloseWindow), waited: SECOND },
        PeerEvent::OpRejected { op: op(), why: why.clone() },
        ended(Some(op()), Ok(2)),
        ended(None, Err(failure())),
        PeerEvent::VoteBegan { phase: Phase::Topology },
        PeerEvent::VoteEnded { phase: Phase::Topology, failure: Some(failure()), duration },
        PeerEvent::SyncBegan { revision, entries: 2 },
        PeerEvent::SyncAssigned { revision, fetches: 1, sources: 1, fetchers: 0 },
        PeerEvent::SyncProgress { sent_bytes, received_bytes },
        PeerEvent::SyncEnded { result: Ok(revision), sent_bytes, received_bytes, duration },
        PeerEvent::SyncEnded { result: Err(failure()), sent_bytes, received_bytes, duration },
        PeerEvent::LinkUp { peer: peer("b"), transport: LinkTransport::Quic },
        PeerEvent::LinkLost { peer: peer("b"), why: why.clone() },
        PeerEvent::LinkFailed { peer: peer("b"), why },
        stalled(false),
        stalled(true),
        PeerEvent::StillWaiting { group: String::new(), wait: waits(false) },
        PeerEvent::StillWaiting { group: "g".into(), wait: waits(true) },
        PeerEvent::GroupFormed { group: "g".into(), rank, world, shares_memory: true },
        PeerEvent::GroupFailed { cause: cause() },
        PeerEvent::RankLeft { who: peer("b") },
        PeerEvent::Left,
        PeerEvent::MembershipEnded { why: failure() },
        PeerEvent::MembershipEnded { why: Failure::Removed(Removal::Departed(Departure::Silent)) },
    ]
}

fn tally() -> OpTally {
    let (sent_bytes, received_bytes, span, longest) = (1, 2, SECOND, SECOND);
    OpTally { first: op(), last: op(), count: 3, sent_bytes, received_bytes, span, longest }
}

/// Levels and fields of the events of one table.
type Table = BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)>;

fn note(table: &mut Table, name: &str, level: Level, text: &str, event: &impl Serialize) {
    let fields = serde_json::to_value(event).unwrap();
    let fields = fields.as_object().unwrap_or_else(|| panic!("{name} is not an object"));
    let reserved =
        ["time", "number", "monotonic_us", "level", "target", "source", "name", "event", "message"];
    assert!(reserved.iter().all(|reserved| !fields.contains_key(*reserved)), "{name}: {fields:?}");
    assert!(!text.is_empty() && serde_json::to_string(event).unwrap().len() < 8192, "{name} is short");
    let row = table.entry(name.to_owned()).or_default();
    row.0.insert(level.name().to_owned());
    row.1.extend(fields.keys().cloned());
}

/// The rows `| name | level | fields | ... |` below a heading of the page.
fn documented(page: &str, heading: &str) -> Table {
    let section = page.split("\n## ").find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("no section {heading:?}"));
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let name = words(cells.get(1)?).pop_first()?;
        Some((name, (words(cells.get(2)?), words(cells.get(3)?))))
    };
    section.lines().filter(|line| line.starts_with("| `")).filter_map(row).collect()
}

#[test]
fn all_events_are_documented_with_their_levels_and_fields() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
    let page = std::fs::read_to_string(path).expect("docs/events.md");
    let (mut of_master, mut of_peers, mut of_recorder) = (Table::new(), Table::new(), Table::new());
    for event in master_events() {
        note(&mut of_master, event.name(), event.level(), &event.to_string(), &event);
    }
    for event in peer_events() {
        note(&mut of_peers, event.name(), event.level(), &event.to_string(), &event);
    }
    note(&mut of_recorder, OpTally::NAME, Level::Debug, &tally().to_string(), &tally());
    let is_complete = |table: &Table, names: &[&str]| names.iter().all(|name| table.contains_key(*name));
    assert!(
        is_complete(&of_master, Event::NAMES) && is_complete(&of_peers, PeerEvent::NAMES),
        "a sample of each"
    );
    for (heading, table) in [
        ("Events of masters", of_master),
        ("Events of peers and ranks", of_peers),
        ("Events of the recorder", of_recorder),
    ] {
        let found = documented(&page, heading);
        for (name, row) in &table {
            assert_eq!(found.get(name), Some(row), "{heading}: {name} in docs/events.md (levels, fields)");
        }
        assert_eq!(found.len(), table.len(), "{heading}: rows of unknown events in docs/events.md");
    }
}
