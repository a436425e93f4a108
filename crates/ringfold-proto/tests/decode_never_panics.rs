//! Decoding of arbitrary bytes neither panics nor exceeds its memory limit. Inputs are random bytes, valid messages with
//! changed bytes, the golden bytes, and the recorded cases in `tests/corpus` (`# why`, then hex). Failed random cases are
//! recorded in `tests/corpus/proptest-regressions.txt`.

use crate::message_generator::MessageGenerator;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ringfold_fuzz::proto::{decode_control, decode_link, pass_to_handshakes};
use ringfold_fuzz::{held_bytes, peak_bytes};
use ringfold_proto::bounded::Bounded;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::dtype::DType;
use ringfold_proto::frame::{
    ControlDecoder, FrameError, LinkItem, encode_control_into, encode_data_head, encode_link,
};
use ringfold_proto::hello::{Hello, Verdict, Welcome};
use ringfold_proto::id::{CallId, PeerId, Revision};
use ringfold_proto::limits;
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::{Numbered, Request, ToMaster, ToPeer};
use ringfold_proto::shared_state::{StateEntry, SyncOffer, SyncStrategy};
use std::path::Path;

/// The memory that decoding a stream of `len` bytes may use. Lists start with a capacity of 1 MiB at most, nested ones
/// three times.
fn allowed_bytes<T: Bounded>(len: usize) -> usize {
    let room = 3 << 20;
    (1024 * len + 4096).min(3 * T::DECODED_BYTES_MAX + 2 * T::BYTES_MAX + room)
}

/// Passes the bytes to every decoder.
fn try_everything(bytes: &[u8]) {
    for piece in [1, 5, bytes.len().max(1)] {
        let peak = peak_bytes(|| _ = decode_control::<Numbered<ToMaster>>(bytes, piece));
        assert!(peak <= allowed_bytes::<Numbered<ToMaster>>(bytes.len()), "{peak} bytes to the master");
        let peak = peak_bytes(|| _ = decode_control::<Numbered<ToPeer>>(bytes, piece));
        assert!(peak <= allowed_bytes::<Numbered<ToPeer>>(bytes.len()), "{peak} bytes to a peer");
        let peak = peak_bytes(|| _ = decode_link(bytes, piece));
        assert!(peak <= allowed_bytes::<LinkMessage>(bytes.len()), "{peak} bytes on a link");
        let peak = peak_bytes(|| _ = pass_to_handshakes(bytes, piece));
        assert!(peak <= 4096, "{peak} bytes in a handshake");
    }
    let _ = (Hello::decode(bytes), Welcome::decode(bytes), Verdict::decode(bytes), DataHeader::decode(bytes));
}

/// Generates a stream of valid frames from arbitrary bytes.
fn valid_stream(bytes: &[u8]) -> Vec<u8> {
    let mut generator = MessageGenerator(bytes);
    let mut stream = Vec::new();
    match generator.below(4) {
        0 => encode_control_into(&generator.for_master(), &mut stream).expect("it is within bounds"),
        1 => encode_control_into(&generator.for_peer(), &mut stream).expect("it is within bounds"),
        2 => stream = encode_link(&generator.link()).expect("it is within bounds"),
        _ => stream = encode_data_head(&generator.header()).expect("it is within bounds").to_vec(),
    }
    stream
}

fn config() -> ProptestConfig {
    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/proptest-regressions.txt");
    ProptestConfig {
        cases: 256,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(SEEDS))),
        ..ProptestConfig::default()
    }
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..max)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes_are_survived(bytes in bytes(600)) {
        try_everything(&bytes);
    }

    #[test]
    fn arbitrary_bodies_in_sound_frames_are_survived(body in bytes(400), variant in 0u8..14) {
        let control = [&(body.len() as u32 + 3).to_le_bytes(), &[1, 0, variant][..], &body].concat();
        try_everything(&control);
        let length = (body.len() as u32 + 1).to_le_bytes();
        try_everything(&[&[2, 0, 0, 0], &length[..], &[variant], &body].concat());
    }

    #[test]
    fn valid_frames_with_bytes_changed_are_survived(
        seed in bytes(300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut stream = valid_stream(&seed);
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        try_everything(&stream);
    }

    #[test]
    fn valid_frames_cut_short_are_survived(seed in bytes(300), end in any::<prop::sample::Index>()) {
        let stream = valid_stream(&seed);
        let cut = &stream[..end.index(stream.len())];
        try_everything(cut);
        // The same with a correct length: the message itself is truncated.
        if let Some(body) = cut.get(4..) {
            try_everything(&[&(body.len() as u32).to_le_bytes(), body].concat());
        }
    }

    #[test]
    fn control_messages_survive_the_way_in_any_pieces(seed in bytes(900), piece in 1usize..40) {
        let mut generator = MessageGenerator(&seed);
        let sent = [generator.for_master(), generator.for_master()];
        let mut stream = Vec::new();
        for message in &sent {
            encode_control_into(message, &mut stream).expect("it is within bounds");
        }
        let (mut decoder, mut got) = (ControlDecoder::<Numbered<ToMaster>>::default(), Vec::new());
        for mut chunk in stream.chunks(piece) {
            while let Some(message) = decoder.next_message(&mut chunk).unwrap() {
                got.push(message);
            }
        }
        prop_assert_eq!(&got[..], &sent[..]);

        let sent = generator.for_peer();
        let mut stream = Vec::new();
        encode_control_into(&sent, &mut stream).expect("it is within bounds");
        let got = ControlDecoder::default().next_message(&mut &stream[..]);
        prop_assert_eq!(got, Ok(Some(sent)));
    }

    #[test]
    fn data_and_messages_keep_their_order_on_a_link(seed in bytes(500), piece in 1usize..200) {
        let mut generator = MessageGenerator(&seed);
        let (before, header, after) = (generator.link(), generator.header(), generator.link());
        let length = header.length as usize;
        let stream = [
            encode_link(&before).unwrap(),
            encode_data_head(&header).unwrap().to_vec(),
            vec![2; length],
            encode_link(&after).unwrap(),
        ].concat();
        let sent = vec![LinkItem::Message(before), LinkItem::Data(header), LinkItem::Message(after)];
        prop_assert_eq!(decode_link(&stream, piece), (sent, length, None));
    }
}

/// The cases of a folder or file: lines of hex after lines of comment, or golden lines `name hex`.
fn kept(path: &str) -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path);
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(&path).expect("the folder of kept cases exists") {
        let path = entry.expect("its entries can be read").path();
        let text = std::fs::read_to_string(&path).expect("kept cases are text");
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let hex = line.rsplit(' ').next().expect("a line has a last word");
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("kept cases are hex");
            cases.push((
                format!("{}: {line:.60}", path.display()),
                (0..hex.len()).step_by(2).map(byte).collect(),
            ));
        }
    }
    cases
}

#[test]
fn recorded_cases_do_not_panic() {
    for folder in ["golden/1", "corpus/control", "corpus/link", "corpus/hello"] {
        let cases = kept(folder);
        assert!(!cases.is_empty(), "there are no cases in {folder}");
        for (name, bytes) in cases {
            println!("{name}");
            try_everything(&bytes);
        }
    }
}

/// Golden bytes as inputs for the fuzz targets.
fn seeds() -> Vec<ringfold_fuzz::Seed> {
    let golden =
        |file: &'static str| kept("golden/1").into_iter().filter(move |(name, _)| name.contains(file));
    let file = |target, file| golden(file).map(move |(_, bytes)| (target, bytes));
    let is_block = |(_, bytes): &ringfold_fuzz::Seed| bytes.len() > 32;
    let headers = golden("/data_head.hex").map(|(_, bytes)| ("data_header", bytes[8..].to_vec()));
    file("hello", "/handshake.hex")
        .filter(is_block)
        .chain(ringfold_fuzz::proto::handshake_seeds().map(|bytes| ("handshake", bytes)))
        .chain(file("control_to_master", "/to_master.hex"))
        .chain(file("control_to_peer", "/to_peer.hex"))
        .chain(file("control_between_masters", "/masters.hex"))
        .chain(file("observer_request", "/observer_requests.hex"))
        .chain(file("observer_answer", "/observer_answers.hex"))
        .chain(file("doctor_request", "/doctor_requests.hex"))
        .chain(file("doctor_answer", "/doctor_answers.hex"))
        .chain(file("link", "/link.hex"))
        .chain(file("link", "/data_head.hex"))
        .chain(headers)
        .collect()
}

#[test]
fn changed_inputs_of_the_corpus_are_survived() {
    ringfold_fuzz::test_decoders(ringfold_fuzz::proto::DECODERS, &seeds());
}

#[test]
fn recorded_hostile_frames_are_rejected() {
    for (name, bytes) in kept("corpus/control") {
        let errors = [
            decode_control::<Numbered<ToMaster>>(&bytes, usize::MAX).1,
            decode_control::<Numbered<ToPeer>>(&bytes, usize::MAX).1,
        ];
        // A frame that is invalid for one end may be valid for the other.
        assert!(errors.iter().any(Option::is_some), "{name}: {errors:?}");
    }
    for (name, bytes) in kept("corpus/link") {
        assert!(decode_link(&bytes, usize::MAX).2.is_some(), "{name}");
    }
}

/// A control frame whose body is `front`, then a list of `element`, then `back`.
fn stuffed(front: &[u8], element: &[u8], count: usize, back: &[u8]) -> Vec<u8> {
    let count_bytes = postcard::to_allocvec(&count).expect("numbers can be encoded");
    let body = [front, &count_bytes, &element.repeat(count), back].concat();
    [&(body.len() as u32).to_le_bytes(), &body[..]].concat()
}

#[test]
fn the_largest_frames_decode_within_the_bound() {
    let room = limits::CONTROL_BYTES_MAX - 64;
    let cases = [
        // Heartbeats: one byte becomes a peer id of 16 bytes. The second is the most that the budget allows.
        stuffed(&[1, 0, 9], &[0], room, &[0]),
        stuffed(&[1, 0, 9], &[0], limits::CONTROL_DECODED_BYTES_MAX / 16, &[0]),
        // A sync: five bytes become an entry.
        stuffed(&[1, 0, 2, 0, 0, 0, 3, 0, 0], &[0; 5], room / 5, &[]),
        stuffed(&[1, 0, 2, 0, 0, 0, 3, 0, 0], &[0; 5], 400_000, &[]),
    ];
    for case in &cases {
        for piece in [usize::MAX, 65_536] {
            let mut error = None;
            let peak = peak_bytes(|| error = decode_control::<Numbered<ToMaster>>(case, piece).1);
            println!("{} bytes of frame, {peak} of memory", case.len());
            assert!(peak <= allowed_bytes::<Numbered<ToMaster>>(case.len()));
            assert!(matches!(error, Some(FrameError::TooLarge { .. } | FrameError::Limit(_))), "{error:?}");
        }
    }
}

#[test]
fn a_claimed_length_takes_no_memory_before_its_bytes_arrive() {
    let claim = (limits::CONTROL_BYTES_MAX as u32).to_le_bytes();
    let mut decoder = ControlDecoder::<Numbered<ToMaster>>::default();
    let peak = peak_bytes(|| {
        assert_eq!(decoder.next_message(&mut &[&claim[..], &[0; 100]].concat()[..]), Ok(None));
    });
    assert!(peak <= 1024, "{peak} bytes for 104 that arrived");
}

#[test]
fn a_buffer_of_a_large_frame_is_freed() {
    let vote = sync_vote(vec![entry(); limits::STATE_ENTRIES_MAX]);
    let mut stream = Vec::new();
    encode_control_into(&vote, &mut stream).expect("it is within bounds");
    assert!(stream.len() > 1 << 20);
    let (before, mut messages) = (held_bytes(), 0);
    let mut decoder = ControlDecoder::<Numbered<ToMaster>>::default();
    for mut chunk in stream.chunks(1000) {
        while let Some(message) = decoder.next_message(&mut chunk).unwrap() {
            assert_eq!(message, vote);
            messages += 1;
        }
    }
    assert_eq!(messages, 1);
    assert!(held_bytes() - before <= limits::FRAME_BUFFER_KEPT_BYTES_MAX as isize);
}

fn sync_vote(entries: Vec<StateEntry>) -> Numbered<ToMaster> {
    let offer = SyncOffer { revision: Revision(1), strategy: SyncStrategy::SendOnly, entries };
    let message = ToMaster::Vote { call: CallId(1), round: 0, deadline_ms: 0, request: Request::Sync(offer) };
    Numbered { number: 1, acknowledged: 0, message }
}

fn entry() -> StateEntry {
    StateEntry {
        key: "a key of some length, as models have them".into(),
        dtype: DType::F32,
        count: 1 << 20,
        allow_content_inequality: false,
        hash: u128::MAX,
    }
}

#[test]
fn a_message_beyond_its_limits_is_not_encoded() {
    let heard = vec![PeerId(0); limits::WORLD_MAX + 1];
    let message =
        Numbered { number: 0, acknowledged: 0, message: ToMaster::Heartbeat { heard, ended: Vec::new() } };
    let mut out = b"kept".to_vec();
    assert!(matches!(encode_control_into(&message, &mut out), Err(FrameError::Limit(_))));

    let vote = sync_vote(vec![entry(); limits::STATE_ENTRIES_MAX + 1]);
    assert!(matches!(encode_control_into(&vote, &mut out), Err(FrameError::Limit(_))));
    assert_eq!(out, b"kept");
}

#[test]
fn the_largest_legal_state_fits_into_a_frame() {
    let long = StateEntry { key: "k".repeat(limits::STATE_KEY_BYTES_MAX), ..entry() };
    let vote = sync_vote(vec![long; limits::STATE_ENTRIES_MAX]);
    assert!(encode_control_into(&vote, &mut Vec::new()).is_ok());
}

#[test]
fn bytes_behind_a_message_are_an_error() {
    let frame = [&4u32.to_le_bytes()[..], &[0, 0, 10, 0]].concat();
    assert_eq!(decode_control::<Numbered<ToMaster>>(&frame, 1).1, Some(FrameError::Trailing { bytes: 1 }));
}
