//! The decoders of `ringfold-proto`.

use crate::Decoder;
use core::fmt::Debug;
use ringfold_proto::bounded::Bounded;
use ringfold_proto::coordinator::MasterMessage;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::doctor::{DoctorAnswer, DoctorRequest};
use ringfold_proto::frame::{
    ControlDecoder, FrameError, LinkDecoder, LinkItem, encode_control, encode_data_head, encode_link,
};
use ringfold_proto::handshake::{AcceptorHandshake, DialTarget, DialerHandshake, Identity, Role, Secret};
use ringfold_proto::hello::{Hello, Nonce, Purpose, Status, Verdict, Welcome};
use ringfold_proto::id::{EpochId, PeerId, RunId};
use ringfold_proto::limits;
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::observe::{ObserverAnswer, ObserverRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The targets of `ringfold-proto`.
pub const DECODERS: &[Decoder] = &[
    ("hello", check_blocks),
    ("handshake", check_handshake),
    ("control_to_master", check_control::<Numbered<ToMaster>>),
    ("control_to_peer", check_control::<Numbered<ToPeer>>),
    ("control_between_masters", check_control::<MasterMessage>),
    ("observer_request", check_control::<ObserverRequest>),
    ("observer_answer", check_control::<ObserverAnswer>),
    ("doctor_request", check_control::<DoctorRequest>),
    ("doctor_answer", check_control::<DoctorAnswer>),
    ("link", check_link),
    ("data_header", check_data_header),
];

/// Decodes a control stream, `piece` bytes at a time.
///
/// # Panics
/// If the decoder does not keep its contract.
pub fn decode_control<T: DeserializeOwned + Bounded>(
    bytes: &[u8],
    piece: usize,
) -> (Vec<T>, Option<FrameError>) {
    let mut decoder = ControlDecoder::<T>::default();
    let mut messages = Vec::new();
    for mut chunk in bytes.chunks(piece) {
        loop {
            match decoder.next_message(&mut chunk) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next_message(&mut chunk).err(), Some(error), "errors are for ever");
                    return (messages, Some(error));
                }
            }
        }
        assert!(chunk.is_empty() && decoder.buffered_bytes() <= 4 + T::BYTES_MAX);
    }
    (messages, None)
}

/// Decodes the stream of a data connection, `piece` bytes at a time. The items, and the payload bytes.
///
/// # Panics
/// If the decoder does not keep its contract.
pub fn decode_link(bytes: &[u8], piece: usize) -> (Vec<LinkItem>, usize, Option<FrameError>) {
    let mut decoder = LinkDecoder::default();
    let (mut items, mut payload) = (Vec::new(), 0);
    for mut chunk in bytes.chunks(piece) {
        loop {
            payload += decoder.take_payload(&mut chunk).len();
            if decoder.payload_bytes() > 0 {
                break;
            }
            match decoder.next_item(&mut chunk) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(error) => return (items, payload, Some(error)),
            }
        }
        assert!(chunk.is_empty() && decoder.buffered_bytes() <= 8 + limits::LINK_MESSAGE_BYTES_MAX);
        assert!(decoder.payload_bytes() > 0 || decoder.wanted_bytes() > 0);
    }
    (items, payload, None)
}

/// Passes the bytes to both ends of a handshake, `piece` bytes at a time. Returns whether an end took its first block.
///
/// # Panics
/// If an end is established: the bytes prove no secret.
pub fn pass_to_handshakes(bytes: &[u8], piece: usize) -> bool {
    let (mut dialler, mut acceptor) = handshakes();
    let _ = dialler.poll_output();
    let mut has_answered = false;
    for chunk in bytes.chunks(piece) {
        let reached = dialler.handle_bytes(&mut &chunk[..]);
        let accepted = acceptor.handle_bytes(&mut &chunk[..], &|_: &Hello| Ok(secret()));
        assert!(!matches!(reached, Ok(Some(_))) && !matches!(accepted, Ok(Some(_))));
        has_answered |= !dialler.poll_output().is_empty() | !acceptor.poll_output().is_empty();
        if reached.is_err() && accepted.is_err() {
            break;
        }
    }
    let _ = (dialler.handle_end(), acceptor.handle_end());
    has_answered
}

fn secret() -> Secret {
    Secret::epoch_key(&[0x6b; 32])
}

/// Two ends of the same epoch.
fn handshakes() -> (DialerHandshake, AcceptorHandshake) {
    let target =
        DialTarget { purpose: Purpose::Data, epoch: EpochId::default(), peer: None, role: Role::Peer };
    let dialler = Identity::new(PeerId(1), RunId(0));
    let acceptor = AcceptorHandshake::new(Identity::new(PeerId(2), RunId(0)), Nonce([2; 32]));
    (DialerHandshake::new(dialler, target, secret(), Nonce([1; 32])), acceptor)
}

/// What a dialler and an acceptor send, with wrong proofs.
pub fn handshake_seeds() -> [Vec<u8>; 2] {
    let (mut dialler, mut acceptor) = handshakes();
    let hello = dialler.poll_output();
    let _ = acceptor.handle_bytes(&mut &hello[..], &|_: &Hello| Ok(secret()));
    let verdict = Verdict { status: Status::Ok, proof: [0x5a; 32] };
    [[&hello[..], &[0xa5; 32]].concat(), [acceptor.poll_output(), verdict.encode().to_vec()].concat()]
}

/// A length of pieces that depends on the input.
fn piece(bytes: &[u8]) -> usize {
    1 + bytes.len() % 13
}

fn check_blocks(bytes: &[u8]) -> bool {
    let blocks = (Hello::decode(bytes), Welcome::decode(bytes), Verdict::decode(bytes));
    if let Ok(hello) = blocks.0 {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
    if let Ok(welcome) = blocks.1 {
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
    }
    if let Ok(verdict) = blocks.2 {
        assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict));
    }
    blocks.0.is_ok() || blocks.1.is_ok() || blocks.2.is_ok()
}

fn check_handshake(bytes: &[u8]) -> bool {
    pass_to_handshakes(bytes, piece(bytes));
    pass_to_handshakes(bytes, bytes.len().max(1))
}

fn check_control<T: Serialize + DeserializeOwned + Bounded + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let (messages, error) = decode_control::<T>(bytes, bytes.len().max(1));
    for message in &messages {
        let frame = encode_control(message).expect("a decoded message is within its limits");
        let again = ControlDecoder::<T>::default().next_message(&mut &frame[..]);
        assert_eq!(again.as_ref().map(Option::as_ref), Ok(Some(message)));
    }
    let is_any = !messages.is_empty();
    assert_eq!(decode_control::<T>(bytes, piece(bytes)), (messages, error));
    is_any
}

fn check_link(bytes: &[u8]) -> bool {
    let (items, payload, error) = decode_link(bytes, bytes.len().max(1));
    for item in &items {
        let frame = match item {
            LinkItem::Data(header) => encode_data_head(header).map(Vec::from),
            LinkItem::Message(message) => encode_link(message),
        };
        let frame = frame.expect("a decoded item is within its limits");
        let again = LinkDecoder::default().next_item(&mut &frame[..]);
        assert_eq!(again.as_ref().map(Option::as_ref), Ok(Some(item)));
    }
    let is_any = !items.is_empty();
    assert_eq!(decode_link(bytes, piece(bytes)), (items, payload, error));
    is_any
}

fn check_data_header(bytes: &[u8]) -> bool {
    let header = DataHeader::decode(bytes);
    if let Ok(header) = header {
        assert_eq!(DataHeader::decode(&header.encode()), Ok(header));
    }
    header.is_ok()
}
