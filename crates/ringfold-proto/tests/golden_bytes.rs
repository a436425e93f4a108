//! The bytes of all messages, compared with files of each version of the protocol. A change of bytes changes the protocol:
//! raise the newest version, and record its bytes with `RINGFOLD_BLESS=1 cargo test -p ringfold-proto golden_bytes`. The files
//! of the versions before it stay, and are tested for as long as this build speaks them.

use crate::examples;
use ringfold_proto::bounded::Bounded;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::frame::{
    ControlDecoder, LinkDecoder, LinkItem, encode_control, encode_data_head, encode_link,
};
use ringfold_proto::hello::VersionRange;
use ringfold_proto::message::Numbered;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[test]
fn messages_to_the_master_keep_their_bytes() {
    keep("to_master.hex", frames(examples::to_master()));
}

#[test]
fn messages_to_a_peer_keep_their_bytes() {
    keep("to_peer.hex", frames(examples::to_peer()));
}

#[test]
fn messages_between_masters_keep_their_bytes() {
    let frames = examples::between_masters().into_iter().map(|(name, message)| {
        let frame = encode_control(&message).expect("examples are within bounds");
        assert_eq!(ControlDecoder::default().next_message(&mut &frame[..]), Ok(Some(message)));
        (name.to_owned(), frame)
    });
    keep("masters.hex", frames.collect());
}

#[test]
fn messages_of_observers_and_doctors_keep_their_bytes() {
    fn frame<M: Bounded + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
        (name, message): (&str, M),
    ) -> (String, Vec<u8>) {
        let frame = encode_control(&message).expect("examples are within bounds");
        assert_eq!(ControlDecoder::default().next_message(&mut &frame[..]), Ok(Some(message)));
        (name.to_owned(), frame)
    }
    keep("observer_requests.hex", examples::observer_requests().into_iter().map(frame).collect());
    keep("observer_answers.hex", examples::observer_answers().into_iter().map(frame).collect());
    keep("doctor_requests.hex", examples::doctor_requests().into_iter().map(frame).collect());
    keep("doctor_answers.hex", examples::doctor_answers().into_iter().map(frame).collect());
}

#[test]
fn messages_between_peers_keep_their_bytes() {
    let frames = examples::link().into_iter().map(|(name, message)| {
        let frame = encode_link(&message).expect("examples are within bounds");
        let item = LinkDecoder::default().next_item(&mut &frame[..]);
        assert_eq!(item, Ok(Some(LinkItem::Message(message))));
        (name.to_owned(), frame)
    });
    keep("link.hex", frames.collect());
}

#[test]
fn data_headers_keep_their_bytes() {
    let heads = examples::data_headers().into_iter().map(|(name, header)| {
        assert_eq!(DataHeader::decode(&header.encode()), Ok(header));
        (name.to_owned(), encode_data_head(&header).expect("examples are within bounds").to_vec())
    });
    keep("data_head.hex", heads.collect());
}

#[test]
fn the_blocks_of_the_handshake_keep_their_bytes_for_ever() {
    keep("handshake.hex", examples::blocks());
}

#[test]
fn enum_variants_keep_their_numbers() {
    keep("vocabulary.hex", examples::vocabulary());
}

/// The messages as frames; checks that each decodes to its message.
fn frames<M>(messages: Vec<(&'static str, Numbered<M>)>) -> Vec<(String, Vec<u8>)>
where
    Numbered<M>: Bounded + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let frame = |(name, message): (&str, Numbered<M>)| {
        let frame = encode_control(&message).expect("examples are within bounds");
        let decoded = ControlDecoder::default().next_message(&mut &frame[..]);
        assert_eq!(decoded, Ok(Some(message)));
        (name.to_owned(), frame)
    };
    messages.into_iter().map(frame).collect()
}

#[test]
fn every_version_that_is_spoken_has_its_bytes() {
    assert_eq!(
        VersionRange::SUPPORTED,
        VersionRange { min: 1, max: 1 },
        "compare the bytes of the older version too"
    );
    for version in VersionRange::SUPPORTED.min..=VersionRange::SUPPORTED.max {
        let files = folder(version).read_dir().unwrap_or_else(|error| panic!("version {version}: {error}"));
        assert_eq!(files.count(), 11, "files of version {version}");
    }
}

fn folder(version: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version.to_string())
}

/// Compares with the file of the newest version, or writes it with `RINGFOLD_BLESS`.
fn keep(file: &str, examples: Vec<(String, Vec<u8>)>) {
    let path = folder(VersionRange::SUPPORTED.max).join(file);
    let now = examples.iter().fold(String::new(), |mut text, (name, bytes)| {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(text, "{name} {hex}").expect("strings take all that is written");
        text
    });
    if std::env::var_os("RINGFOLD_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, now).expect("the golden file can be written");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    for line in kept.lines().filter(|line| !now.lines().any(|l| l == *line)) {
        eprintln!("no longer: {line}");
    }
    for line in now.lines().filter(|line| !kept.lines().any(|l| l == *line)) {
        eprintln!("but now:   {line}");
    }
    assert!(
        kept == now,
        "the bytes differ from {}, so peers of that version would not understand them. \
         If that is meant, raise the version and run \
         `RINGFOLD_BLESS=1 cargo test -p ringfold-proto --test golden_bytes`",
        path.display()
    );
}
