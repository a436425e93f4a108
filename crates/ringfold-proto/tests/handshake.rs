//! Handshakes, also with attackers on the path.

use ringfold_proto::handshake::{
    AcceptorHandshake, Binding, CertificateProblem, DialTarget, DialerHandshake, Established, HandshakeError,
    Identity, Role, Secret,
};
use ringfold_proto::hello::{
    ConnectionRejection, Features, Hello, Nonce, Proof, Purpose, Status, Verdict, VersionRange, Welcome,
};
use ringfold_proto::id::{EpochId, GroupId, Incarnation, PeerId, RunId};

const ALICE: PeerId = PeerId(0xa11ce);
const BOB: PeerId = PeerId(0xb0b);
const RUN: RunId = RunId(42);
const EPOCH: EpochId = EpochId { group: GroupId(1), incarnation: Incarnation(7), counter: 3 };
const KEY: [u8; 32] = [9; 32];

type EndResult = Result<Option<Established>, HandshakeError>;

/// The results of both ends.
#[derive(Debug, PartialEq)]
struct Ends {
    dialler: EndResult,
    acceptor: EndResult,
}

/// Carries bytes between the ends, `piece` at a time, until neither has output.
fn carry(
    mut dialler: DialerHandshake,
    mut acceptor: AcceptorHandshake,
    secret: Result<Secret, ConnectionRejection>,
    piece: usize,
) -> Ends {
    let secrets = |_: &Hello| secret.clone();
    let (mut reached, mut accepted) = (Ok(None), Ok(None));
    loop {
        let (there, back) = (dialler.poll_output(), acceptor.poll_output());
        if there.is_empty() && back.is_empty() {
            return Ends { dialler: reached, acceptor: accepted };
        }
        for mut bytes in there.chunks(piece) {
            accepted = acceptor.handle_bytes(&mut bytes, &secrets);
        }
        for mut bytes in back.chunks(piece) {
            reached = dialler.handle_bytes(&mut bytes);
        }
    }
}

fn master() -> AcceptorHandshake {
    AcceptorHandshake::new(Identity::new(PeerId(0), RUN), Nonce([2; 32]))
}

fn peer_dialer(token: &str) -> DialerHandshake {
    DialerHandshake::new(
        Identity::new(ALICE, RunId(0)),
        DialTarget::master(),
        Secret::token(token),
        Nonce([1; 32]),
    )
}

fn member_dials(key: &[u8; 32]) -> DialerHandshake {
    let target = DialTarget::member(Purpose::Data, EPOCH, BOB);
    DialerHandshake::new(Identity::new(ALICE, RUN), target, Secret::epoch_key(key), Nonce([3; 32]))
}

fn member_accepts() -> AcceptorHandshake {
    AcceptorHandshake::new(Identity::new(BOB, RUN), Nonce([4; 32]))
}

fn both(error: HandshakeError) -> Ends {
    Ends { dialler: Err(error), acceptor: Err(error) }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a block has its size")
}

#[test]
fn the_right_token_opens_a_control_connection() {
    let ends = carry(peer_dialer("sesame"), master(), Ok(Secret::token("sesame")), usize::MAX);
    let here = Established {
        peer: PeerId(0),
        purpose: Purpose::Control,
        epoch: EpochId::default(),
        run: RUN,
        version: 1,
        features: Features::SUPPORTED,
    };
    assert_eq!(ends.dialler, Ok(Some(here)));
    assert_eq!(ends.acceptor, Ok(Some(Established { peer: ALICE, ..here })));
}

#[test]
fn without_a_token_the_same_exchange_takes_place() {
    let ends = carry(peer_dialer(""), master(), Ok(Secret::NONE), usize::MAX);
    assert!(matches!(ends, Ends { dialler: Ok(Some(_)), acceptor: Ok(Some(_)) }), "{ends:?}");
}

#[test]
fn one_byte_at_a_time_is_as_good_as_all_at_once() {
    let whole = carry(peer_dialer("sesame"), master(), Ok(Secret::token("sesame")), usize::MAX);
    let bytewise = carry(peer_dialer("sesame"), master(), Ok(Secret::token("sesame")), 1);
    assert_eq!(bytewise, whole);
}

#[test]
fn a_wrong_token_is_reported_to_both() {
    let ends = carry(peer_dialer("sesam"), master(), Ok(Secret::token("sesame")), usize::MAX);
    assert_eq!(ends, both(HandshakeError::BadToken));
}

#[test]
fn a_missing_and_an_unexpected_token_differ_from_a_wrong_one() {
    let ends = carry(peer_dialer(""), master(), Ok(Secret::token("sesame")), usize::MAX);
    assert_eq!(ends, both(HandshakeError::TokenMissing));
    let ends = carry(peer_dialer("sesame"), master(), Ok(Secret::NONE), usize::MAX);
    assert_eq!(ends, both(HandshakeError::TokenUnexpected));
}

#[test]
fn a_member_of_the_epoch_gets_a_data_connection() {
    let ends = carry(member_dials(&KEY), member_accepts(), Ok(Secret::epoch_key(&KEY)), 7);
    let accepted = ends.acceptor.unwrap().unwrap();
    assert_eq!((accepted.peer, accepted.purpose, accepted.epoch), (ALICE, Purpose::Data, EPOCH));
    assert_eq!(ends.dialler.unwrap().unwrap().peer, BOB);
}

#[test]
fn a_dialler_without_the_epochs_key_is_rejected() {
    let ends = carry(member_dials(&[8; 32]), member_accepts(), Ok(Secret::epoch_key(&KEY)), usize::MAX);
    assert_eq!(ends, both(HandshakeError::NotAMember));
}

#[test]
fn proofs_hold_only_within_one_encrypted_session() {
    let bound = |one: Option<[u8; 32]>, other: Option<[u8; 32]>| {
        let (mut dialler, mut acceptor) = (member_dials(&KEY), member_accepts());
        one.inspect(|exported| dialler.bind(Binding { exported: *exported, peer: BOB, role: None }));
        other.inspect(|exported| acceptor.bind(Binding { exported: *exported, peer: ALICE, role: None }));
        carry(dialler, acceptor, Ok(Secret::epoch_key(&KEY)), usize::MAX)
    };
    let (here, there) = (Some([5; 32]), Some([6; 32]));
    assert_eq!(bound(here, here).dialler.unwrap().unwrap().peer, BOB);
    // Somebody who sits in between has two sessions.
    for (one, other) in [(here, there), (here, None), (None, there)] {
        assert_eq!(bound(one, other), both(HandshakeError::NotAMember));
    }
}

#[test]
fn an_end_can_only_use_the_id_of_its_keys() {
    let bound = |server: PeerId, client: PeerId| {
        let (mut dialler, mut acceptor) = (member_dials(&KEY), member_accepts());
        dialler.bind(Binding { exported: [5; 32], peer: server, role: None });
        acceptor.bind(Binding { exported: [5; 32], peer: client, role: None });
        carry(dialler, acceptor, Ok(Secret::epoch_key(&KEY)), usize::MAX)
    };
    let mallory = PeerId(0x3a1);
    let as_alice = bound(BOB, mallory);
    assert_eq!(as_alice.acceptor, Err(HandshakeError::WrongKeys { claimed: ALICE, owner: mallory }));
    assert_eq!(as_alice.dialler, Err(HandshakeError::Rejected(ConnectionRejection::WrongKeys)));
    let as_bob = bound(mallory, ALICE);
    assert_eq!(as_bob.dialler, Err(HandshakeError::WrongKeys { claimed: BOB, owner: mallory }));
}

#[test]
fn certificates_must_have_the_role_for_the_connection() {
    let bound = |target: DialTarget, server: Role, client: Role| {
        let identity = Identity::new(ALICE, RUN);
        let mut dialler = DialerHandshake::new(identity, target, Secret::NONE, Nonce([1; 32]));
        let mut acceptor = master();
        dialler.bind(Binding { exported: [5; 32], peer: BOB, role: Some(Ok(server)) });
        acceptor.bind(Binding { exported: [5; 32], peer: ALICE, role: Some(Ok(client)) });
        carry(dialler, acceptor, Ok(Secret::NONE), usize::MAX)
    };
    let (to_master, to_rank_0) = (DialTarget::master(), DialTarget::rank_0());
    for (target, server, client) in [
        (to_master, Role::Master, Role::Peer),
        (to_master, Role::Master, Role::Master),
        (to_rank_0, Role::Peer, Role::Peer),
        (to_rank_0, Role::Master, Role::Peer),
    ] {
        assert!(matches!(bound(target, server, client).acceptor, Ok(Some(_))), "{server} {client}");
    }
    for server in [Role::Peer, Role::Observer, Role::Admin] {
        let ends = bound(to_master, server, Role::Peer);
        assert_eq!(ends.dialler, Err(HandshakeError::Certificate(CertificateProblem::WrongRole)));
    }
    for client in [Role::Observer, Role::Admin] {
        let why = ConnectionRejection::Certificate(CertificateProblem::WrongRole);
        assert_eq!(bound(to_master, Role::Master, client), both(HandshakeError::Rejected(why)));
    }
}

#[test]
fn an_invalid_certificate_is_rejected_with_its_reason() {
    for problem in CertificateProblem::ALL {
        let mut acceptor = master();
        acceptor.bind(Binding { exported: [5; 32], peer: ALICE, role: Some(Err(problem)) });
        let ends = carry(peer_dialer("sesame"), acceptor, Ok(Secret::token("sesame")), usize::MAX);
        assert_eq!(ends, both(HandshakeError::Rejected(ConnectionRejection::Certificate(problem))));
    }
}

#[test]
fn while_tokens_are_replaced_all_are_accepted_and_the_first_is_proven() {
    let both_tokens = || Secret::tokens(["", "new", "old"]);
    for token in ["new", "old"] {
        let ends = carry(peer_dialer(token), master(), Ok(both_tokens()), usize::MAX);
        assert!(matches!(ends, Ends { dialler: Ok(Some(_)), acceptor: Ok(Some(_)) }), "{ends:?}");
    }
    let me = Identity::new(ALICE, RunId(0));
    let dialler = || DialerHandshake::new(me, DialTarget::master(), both_tokens(), Nonce([1; 32]));
    assert!(matches!(carry(dialler(), master(), Ok(Secret::token("new")), 9).dialler, Ok(Some(_))));
    assert_eq!(carry(dialler(), master(), Ok(Secret::token("old")), 9), both(HandshakeError::BadToken));
    assert_eq!(carry(peer_dialer("older"), master(), Ok(both_tokens()), 9), both(HandshakeError::BadToken));
}

#[test]
fn plaintext_is_rejected_where_it_is_not_allowed() {
    let mut acceptor = member_accepts();
    acceptor.require_encryption();
    let ends = carry(member_dials(&KEY), acceptor.clone(), Ok(Secret::epoch_key(&KEY)), usize::MAX);
    assert_eq!(ends, both(HandshakeError::Rejected(ConnectionRejection::Plaintext)));
    // Legs to relays are no exception.
    let alice = Identity::new(ALICE, RUN);
    let leg = DialerHandshake::new(alice, DialTarget::relay(), Secret::token("sesame"), Nonce([9; 32]));
    let ends = carry(leg, acceptor, Ok(Secret::token("sesame")), usize::MAX);
    assert_eq!(ends, both(HandshakeError::Rejected(ConnectionRejection::Plaintext)));
}

#[test]
fn an_unknown_epoch_is_retryable() {
    let ends =
        carry(member_dials(&KEY), member_accepts(), Err(ConnectionRejection::UnknownEpoch), usize::MAX);
    let error = HandshakeError::Rejected(ConnectionRejection::UnknownEpoch);
    assert_eq!(ends, both(error));
    assert!(error.is_retryable() && !HandshakeError::BadToken.is_retryable());
}

#[test]
fn a_recorded_proof_opens_no_second_connection() {
    let secrets = |_: &Hello| Ok(Secret::token("sesame"));
    let (mut dialler, mut first) = (peer_dialer("sesame"), master());
    let hello = dialler.poll_output();
    first.handle_bytes(&mut &hello[..], &secrets).unwrap();
    dialler.handle_bytes(&mut &first.poll_output()[..]).unwrap();
    let proof = dialler.poll_output();
    assert!(first.handle_bytes(&mut &proof[..], &secrets).unwrap().is_some());

    let mut second = AcceptorHandshake::new(Identity::new(PeerId(0), RUN), Nonce([77; 32]));
    second.handle_bytes(&mut &hello[..], &secrets).unwrap();
    let replayed = second.handle_bytes(&mut &proof[..], &secrets);
    assert_eq!(replayed, Err(HandshakeError::BadToken));
}

#[test]
fn a_reflected_proof_is_invalid() {
    // The impostor does not know the token. It returns the dialler's own proof.
    let mut dialler = peer_dialer("sesame");
    let hello = Hello::decode(&dialler.poll_output()).unwrap();
    let welcome = Welcome {
        version: 1,
        status: Status::Ok,
        has_secret: true,
        versions: VersionRange::SUPPORTED,
        features: Features::default(),
        run: RUN,
        session: PeerId(0),
        nonce: hello.nonce,
    };
    dialler.handle_bytes(&mut &welcome.encode()[..]).unwrap();
    let proof: [u8; Proof::BYTES] = array(&dialler.poll_output());
    let verdict = Verdict { status: Status::Ok, proof }.encode();
    assert_eq!(dialler.handle_bytes(&mut &verdict[..]), Err(HandshakeError::Impostor));
}

#[test]
fn a_member_rejects_a_connection_to_itself() {
    // Alice's hello is sent to Alice's own listener.
    let own = AcceptorHandshake::new(Identity::new(ALICE, RUN), Nonce([4; 32]));
    let ends = carry(member_dials(&KEY), own, Ok(Secret::epoch_key(&KEY)), usize::MAX);
    assert_eq!(ends, both(HandshakeError::Rejected(ConnectionRejection::Itself)));
}

#[test]
fn another_member_at_the_dialled_address_is_rejected() {
    let carol = AcceptorHandshake::new(Identity::new(PeerId(0xca401), RUN), Nonce([4; 32]));
    let ends = carry(member_dials(&KEY), carol, Ok(Secret::epoch_key(&KEY)), usize::MAX);
    assert_eq!(ends.dialler, Err(HandshakeError::WrongPeer { expected: BOB, found: PeerId(0xca401) }));
    assert_eq!(ends.acceptor, Ok(None), "who has proven nothing is not established");
}

#[test]
fn no_bit_of_hello_welcome_or_proof_can_be_changed_on_the_way() {
    let secrets = |_: &Hello| Ok(Secret::epoch_key(&KEY));
    let sizes = [Hello::BYTES, Welcome::BYTES, Proof::BYTES, Verdict::BYTES];
    for (block, size) in sizes.into_iter().enumerate() {
        for bit in (0..size * 8).step_by(3) {
            let (mut dialler, mut acceptor) = (member_dials(&KEY), member_accepts());
            let (mut reached, mut accepted) = (Ok(None), Ok(None));
            for step in 0..sizes.len() {
                let mut bytes = if step % 2 == 0 { dialler.poll_output() } else { acceptor.poll_output() };
                if step == block {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                if step % 2 == 0 {
                    accepted = acceptor.handle_bytes(&mut &bytes[..], &secrets);
                } else {
                    reached = dialler.handle_bytes(&mut &bytes[..]);
                }
                if reached.is_err() || accepted.is_err() {
                    break;
                }
            }
            // The acceptor has accepted before a changed verdict.
            let intact = matches!(reached, Ok(Some(_))) || (block < 3 && matches!(accepted, Ok(Some(_))));
            assert!(!intact, "bit {bit} of block {block}: {reached:?} {accepted:?}");
        }
    }
}

#[test]
fn peers_of_another_run_are_rejected() {
    let raw_connection = Identity::new(ALICE, RunId(41));
    let dialler = DialerHandshake::new(raw_connection, DialTarget::master(), Secret::NONE, Nonce([1; 32]));
    let ends = carry(dialler, master(), Ok(Secret::NONE), usize::MAX);
    assert_eq!(ends.dialler, Err(HandshakeError::WrongRun { ours: RunId(41), theirs: RUN }));
    assert_eq!(ends.acceptor, Err(HandshakeError::WrongRun { ours: RUN, theirs: RunId(41) }));
}

#[test]
fn incompatible_versions_are_reported_to_both_with_both_ranges() {
    let new = VersionRange { min: 5, max: 9 };
    let identity = Identity { versions: new, ..Identity::new(ALICE, RUN) };
    let dialler = DialerHandshake::new(identity, DialTarget::master(), Secret::NONE, Nonce([1; 32]));
    let ends = carry(dialler, master(), Ok(Secret::NONE), usize::MAX);
    assert_eq!(ends.dialler, Err(HandshakeError::Version { ours: new, theirs: VersionRange::SUPPORTED }));
    assert_eq!(ends.acceptor, Err(HandshakeError::Version { ours: VersionRange::SUPPORTED, theirs: new }));
}

#[test]
fn the_newest_common_version_and_the_common_features_are_chosen() {
    let end = |peer, max, features| Identity {
        versions: VersionRange { min: 1, max },
        features: Features(features),
        ..Identity::new(peer, RUN)
    };
    let dialler =
        DialerHandshake::new(end(ALICE, 6, 0b011), DialTarget::master(), Secret::NONE, Nonce([1; 32]));
    let acceptor = AcceptorHandshake::new(end(PeerId(0), 4, 0b110), Nonce([2; 32]));
    let ends = carry(dialler, acceptor, Ok(Secret::NONE), usize::MAX);
    for side in [ends.dialler, ends.acceptor] {
        let established = side.unwrap().unwrap();
        assert_eq!((established.version, established.features), (4, Features(0b010)));
    }
}

#[test]
fn an_acceptor_can_not_choose_what_was_not_offered() {
    let welcome = Welcome {
        version: 1,
        status: Status::Ok,
        has_secret: false,
        versions: VersionRange { min: 1, max: 9 },
        features: Features::default(),
        run: RUN,
        session: PeerId(0),
        nonce: Nonce([2; 32]),
    };
    let lies = [Welcome { version: 9, ..welcome }, Welcome { features: Features(1 << 40), ..welcome }];
    for lie in lies {
        let answer = peer_dialer("").handle_bytes(&mut &lie.encode()[..]);
        assert!(matches!(answer, Err(HandshakeError::Misbehaved(_))), "{answer:?}");
    }
}

#[test]
fn other_protocols_are_rejected_at_their_first_byte() {
    let secrets = |_: &Hello| Ok(Secret::NONE);
    assert_eq!(
        master().handle_bytes(&mut &b"GET / HTTP/1.1\r\n"[..], &secrets),
        Err(HandshakeError::NotRingfold)
    );
    assert_eq!(master().handle_bytes(&mut &b"RINGWORM"[..], &secrets), Err(HandshakeError::NotRingfold));
    assert_eq!(peer_dialer("").handle_bytes(&mut &b"SSH-2.0"[..]), Err(HandshakeError::NotRingfold));
    let mut silent = master();
    assert!(silent.handle_bytes(&mut &[0xff][..], &secrets).is_err());
    assert!(silent.poll_output().is_empty(), "a raw_connection is not answered");
}

#[test]
fn an_unknown_purpose_is_rejected() {
    let mut hello = peer_dialer("").poll_output();
    hello[12] = 99;
    let mut acceptor = master();
    let result = acceptor.handle_bytes(&mut &hello[..], &|_: &Hello| Ok(Secret::NONE));
    assert_eq!(result, Err(HandshakeError::Rejected(ConnectionRejection::WrongPurpose)));
    let welcome = Welcome::decode(&acceptor.poll_output()).unwrap();
    assert_eq!(welcome.status, Status::Rejected(ConnectionRejection::WrongPurpose));
}

#[test]
fn a_connection_that_ends_says_what_was_missing() {
    let mut acceptor = master();
    assert_eq!(acceptor.handle_end(), HandshakeError::Truncated { missing: "hello" });
    let hello = peer_dialer("").poll_output();
    acceptor.handle_bytes(&mut &hello[..], &|_: &Hello| Ok(Secret::NONE)).unwrap();
    assert_eq!(acceptor.handle_end(), HandshakeError::Truncated { missing: "proof" });
    assert_eq!(peer_dialer("").handle_end(), HandshakeError::Truncated { missing: "welcome" });
}

#[test]
fn bytes_after_the_handshake_are_left_to_the_caller() {
    let secrets = |_: &Hello| Ok(Secret::token("sesame"));
    let (mut dialler, mut acceptor) = (peer_dialer("sesame"), master());
    acceptor.handle_bytes(&mut &dialler.poll_output()[..], &secrets).unwrap();
    dialler.handle_bytes(&mut &acceptor.poll_output()[..]).unwrap();

    let pipelined = [dialler.poll_output(), b"first frame".to_vec()].concat();
    let mut rest = &pipelined[..];
    assert!(acceptor.handle_bytes(&mut rest, &secrets).unwrap().is_some());
    assert_eq!(rest, b"first frame");
    assert!(acceptor.handle_bytes(&mut rest, &secrets).unwrap().is_some(), "it stays established");
    assert_eq!(rest, b"first frame");

    let answer = [acceptor.poll_output(), b"and answer".to_vec()].concat();
    let mut rest = &answer[..];
    assert!(dialler.handle_bytes(&mut rest).unwrap().is_some());
    assert_eq!(rest, b"and answer");
}

#[test]
fn secrets_are_never_printed() {
    assert_eq!(format!("{:?} {:?}", Secret::token("sesame"), Secret::NONE), "Secret(..) Secret(none)");
}
