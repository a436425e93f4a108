use super::*;
use ringfold_proto::cause::{Cause, Departure, PeerName};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{EpochId, OpId, PeerId, Seq, Tag};
use ringfold_proto::peer::Failure;
use ringfold_proto::reduce_op::ReduceOp;
use std::sync::mpsc::channel;

fn source(name: &str) -> Arc<Source> {
    let (kind, recorder, tally) = (SourceKind::Peer, None, Mutex::default());
    Arc::new(Source { kind, name: name.into(), recorder, tally })
}

fn ended(seq: u64, result: Result<usize, Failure>, duration: Duration) -> PeerEvent {
    let op = OpId { epoch: EpochId::default(), tag: Tag(7), seq: Seq(seq) };
    let call = Descriptor::all_reduce(1, DType::F32, ReduceOp::Sum);
    let (sent_bytes, received_bytes) = (4, 8);
    PeerEvent::OpEnded { op: Some(op), tag: op.tag, call, result, sent_bytes, received_bytes, duration }
}

fn lost(name: &str) -> Failure {
    let who = PeerName { peer: PeerId(1), name: name.into() };
    Failure::Aborted(Box::new(Cause::PeerLost { who, how: Departure::Died }))
}

#[test]
fn control_characters_are_replaced_in_texts_and_lines() {
    assert_eq!(Printable("a\x1b[31m\nb").to_string(), "a\u{fffd}[31m\u{fffd}b");
    let event = ended(3, Err(lost("a\"\\\x1b\n\u{85}ü")), Duration::from_micros(5));
    let record = Record::new(source("x\ny"), event.level(), event.into());
    let mut line = Vec::new();
    record.write_line(&mut line, Some(9));
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    let read = FlightRecord::parse(&line).expect("a line");
    assert_eq!((read.number, &*read.name, &*read.event), (9, "x\u{fffd}y", "op_ended"));
    assert!(read.message.contains("a\"\\\u{fffd}\u{fffd}\u{fffd}ü died"), "{}", read.message);
    assert_eq!(read.text_of("failure"), Some("peer-lost"));
    assert_eq!(read.number_of("tag"), Some(7));
    assert_eq!(read.number_of("duration_us"), Some(5));
    assert_eq!(read.level, Level::Info);
    let again = serde_json::to_vec(&read.to_fields()).unwrap();
    assert_eq!(FlightRecord::parse(&again), Some(read));
}

#[test]
fn a_long_event_has_a_short_line() {
    let event = PeerEvent::NoActiveMaster { waited: Duration::ZERO, known: "x".repeat(100_000) };
    let record = Record::new(source("a"), Level::Warn, event.into());
    let mut line = Vec::new();
    record.write_line(&mut line, Some(0));
    assert!(line.len() < 8192, "{}", line.len());
    let read = FlightRecord::parse(&line).expect("a line");
    assert_eq!(read.fields.get("truncated"), Some(&true.into()));
    assert!(read.message.len() >= 4000);
}

#[test]
fn observers_see_every_operation_until_they_end() {
    let (own, (sender, seen)) = (source("observed"), channel());
    let filter = own.clone();
    let observation = observe(move |record| {
        if Arc::ptr_eq(&record.source, &filter) {
            sender.send(record.clone()).expect("a receiver");
        }
    });
    let bounded = subscribe(0);
    own.post(ended(1, Ok(2), Duration::from_micros(3)));
    own.post(ended(2, Err(lost("b")), Duration::from_secs(1)));
    let names: Vec<_> = seen.try_iter().map(|record| record.event.name()).collect();
    assert_eq!(names, ["op_ended", "op_ended"]);
    assert!(bounded.records.try_recv().is_err());
    assert!(bounded.dropped() >= 2);
    drop(observation);
    own.post(PeerEvent::Left);
    assert_eq!(seen.try_iter().count(), 0);
}

#[test]
fn the_recorder_counts_short_operations_and_keeps_their_place() {
    let directory = std::env::temp_dir().join(format!("ringfold-journal-{}", std::process::id()));
    let recorder = recorder::create(SourceKind::Peer, &directory, 1 << 20).expect("a recorder");
    let own = Arc::new(Source {
        kind: SourceKind::Peer,
        name: "p".into(),
        recorder: Some(recorder),
        tally: Mutex::default(),
    });
    own.post(PeerEvent::Registered);
    for seq in 0..1000 {
        own.post(ended(seq, Ok(2), Duration::from_micros(3)));
    }
    own.post(ended(1000, Ok(2), Duration::from_millis(3)));
    own.post(ended(1001, Err(lost("b")), Duration::from_micros(3)));
    let path = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let log = FlightLog::read(&path).expect("a recorder");
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(log.header.as_ref().map(|header| header.pid), Some(u64::from(std::process::id())));
    assert_eq!(log.damaged, 0);
    let names: Vec<_> = log.records.iter().map(|record| record.event.as_str()).collect();
    assert_eq!(names.first(), Some(&"registered"));
    assert_eq!(names[names.len() - 2..], ["op_ended", "op_ended"]);
    let tallies = &log.records[1..log.records.len() - 2];
    assert!(tallies.iter().all(|record| record.event == OpTally::NAME), "{names:?}");
    let counts = tallies.iter().filter_map(|record| record.number_of("count"));
    assert_eq!(counts.sum::<u64>(), 1000);
    assert_eq!(tallies.last().and_then(|record| record.number_of("seq")), Some(999));
    assert!(tallies.iter().all(|record| record.number_of("longest_us") == Some(3)));
}

#[test]
fn damaged_files_are_read_as_far_as_possible() {
    let line = |number: u64| {
        let mut line = Vec::new();
        let event = PeerEvent::NoActiveMaster { waited: Duration::ZERO, known: "{\"}".into() };
        Record::new(source("a"), Level::Warn, event.into()).write_line(&mut line, Some(number));
        line
    };
    let mut bytes = line(5);
    bytes.extend(line(2));
    let torn = line(1);
    for cut in 1..torn.len() - 1 {
        let mut bytes = bytes.clone();
        bytes.extend(&torn[cut..]);
        bytes.extend([0; 5000]);
        let log = FlightLog::parse(&bytes);
        let numbers: Vec<_> = log.records.iter().map(|record| record.number).collect();
        assert_eq!((&*numbers, log.damaged), (&[2, 5][..], 1), "cut at {cut}");
    }
    assert_eq!(FlightLog::parse(&[b'x'; 100_000]).damaged, 1);
}

/// `cargo test --release -p ringfold --lib -- --ignored cost_of_a_record --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_record() {
    const COUNT: u64 = 200_000;
    let directory = std::env::temp_dir().join(format!("ringfold-journal-cost-{}", std::process::id()));
    let recorder = recorder::create(SourceKind::Peer, &directory, 4 << 20).expect("a recorder");
    let (name, tally) = (String::from("host:12345"), Mutex::default());
    let recorded =
        Arc::new(Source { kind: SourceKind::Peer, name, recorder: Some(recorder), tally: Mutex::default() });
    let silent =
        Arc::new(Source { kind: SourceKind::Peer, name: "host:12345".into(), recorder: None, tally });
    for (what, own, duration) in [
        ("a record", &recorded, SHORT_OP_MAX),
        ("a short operation", &recorded, Duration::ZERO),
        ("no reader", &silent, SHORT_OP_MAX),
    ] {
        let began = std::time::Instant::now();
        (0..COUNT).for_each(|seq| own.post(ended(seq, Ok(2), duration)));
        println!("{what}: {} ns", began.elapsed().as_nanos() as u64 / COUNT);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
