//! Somebody on the path between two ends learns nothing, and is noticed if it does anything.

use crate::node::{KEY, LONG, Node, drive, epoch, two_encrypted, two_with_keys};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::mesh::VisitDialer;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::relay::Relays;
use ringfold_fabric::tls::issue::{Issued, issue, new_ca};
use ringfold_fabric::tls::{PeerIdentity, Role, Security, TlsFiles};
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::hello::{Hello, Proof, Purpose, Verdict, Welcome};
use ringfold_proto::id::{PeerId, RunId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme,
    Stream,
};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const PATTERN: &[u8; 16] = b"known tensor 42!";

/// Dials a node for its state at an address, as another node, on another thread.
fn visit(
    from: &Node,
    to: PeerId,
    at: SocketAddr,
    timeout: Duration,
) -> Receiver<io::Result<BlockingConnection>> {
    let (sender, outcome) = channel();
    let (identity, security): (_, Arc<Security>) =
        (Identity::new(from.peer, RunId(0)), from.poller.security().unwrap());
    std::thread::spawn(move || {
        let target = DialTarget::member(Purpose::State, epoch(1), to);
        let credentials = Credentials { identity, target, secret: Secret::epoch_key(&KEY) };
        let dialer = VisitDialer::new(Arc::new(Poller::new().unwrap().with_security(security)));
        let _ = sender.send(dialer.dial(&[at], timeout, &credentials, (&Relays::default(), Duration::ZERO)));
    });
    outcome
}

/// Two nodes that know each other.
fn pair() -> (Node, Node) {
    acquainted(two_encrypted(1))
}

fn acquainted((mut a, mut b): (Node, Node)) -> (Node, Node) {
    let ids = vec![a.peer, b.peer];
    for node in [&mut a, &mut b] {
        node.mesh.admit(epoch(1), &KEY, ids.clone());
    }
    (a, b)
}

/// Drives a node until an attempt has ended.
fn outcome(
    node: &mut Node,
    attempt: &Receiver<io::Result<BlockingConnection>>,
) -> io::Result<BlockingConnection> {
    let found = RefCell::new(None);
    drive(&mut [node], |_| {
        let mut found = found.borrow_mut();
        *found = found.take().or_else(|| attempt.try_recv().ok());
        found.is_some()
    });
    found.into_inner().unwrap()
}

/// Passes the bytes of one connection on, and changes or records them.
struct Path {
    address: SocketAddr,
    recording: Arc<Mutex<Vec<u8>>>,
}

impl Path {
    fn to(end: SocketAddr, change: impl Fn(usize, &mut Vec<u8>) -> bool + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, recording) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let records = recording.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(end).unwrap();
                pass(near.try_clone().unwrap(), far.try_clone().unwrap(), records.clone(), change.clone());
                pass(far, near, records.clone(), |_, _| true);
            }
        });
        Self { address, recording }
    }
}

/// Passes bytes on until `change` returns false or the connection ends.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    recording: Arc<Mutex<Vec<u8>>>,
    change: impl Fn(usize, &mut Vec<u8>) -> bool + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut buffer, mut passed) = (vec![0; 1 << 16], 0);
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            let mut piece = buffer[..bytes].to_vec();
            recording.lock().unwrap().extend(&piece);
            let goes_on = change(passed, &mut piece);
            passed += bytes;
            if to.write_all(&piece).is_err() || !goes_on {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    })
}

#[test]
fn a_recording_contains_no_data_and_no_keys() {
    let (a, mut b) = pair();
    let path = Path::to(b.address(), |_, _| true);
    let attempt = visit(&a, b.peer, path.address, LONG);
    let connection = outcome(&mut b, &attempt).unwrap();
    drive(&mut [&mut b], |nodes| !nodes[0].visitors.is_empty());
    let (_, _, visitor) = b.visitors.pop().unwrap();
    let data = PATTERN.repeat(20_000);
    let sent = data.clone();
    let sends = std::thread::spawn(move || (&visitor).write_all(&sent).map(|()| visitor));
    let mut arrived = vec![0; data.len()];
    (&connection).read_exact(&mut arrived).unwrap();
    assert!(arrived == data && sends.join().unwrap().is_ok());
    let recording = path.recording.lock().unwrap();
    assert!(recording.len() > data.len());
    for secret in [&PATTERN[..8], &KEY[..8], b"RINGFOLD", b"RFWELCOM", &a.peer.0.to_le_bytes()] {
        assert!(!recording.windows(secret.len()).any(|bytes| bytes == secret), "{secret:?}");
    }
}

#[test]
fn changed_and_cut_bytes_are_noticed() {
    let flip = |passed: usize, piece: &mut Vec<u8>| {
        if let Some(byte) = piece.last_mut().filter(|_| passed > 3000) {
            *byte ^= 1;
        }
        true
    };
    let cut = |passed: usize, _: &mut Vec<u8>| passed < 3000;
    for is_cut in [false, true] {
        let (a, mut b) = pair();
        let path = if is_cut { Path::to(b.address(), cut) } else { Path::to(b.address(), flip) };
        let attempt = visit(&a, b.peer, path.address, LONG);
        let connection = outcome(&mut b, &attempt).unwrap();
        drive(&mut [&mut b], |nodes| !nodes[0].visitors.is_empty());
        let (_, _, visitor) = b.visitors.pop().unwrap();
        visitor.set_read_timeout(Some(LONG)).unwrap();
        let sends = std::thread::spawn(move || {
            let _ = (&connection).write_all(&PATTERN.repeat(20_000));
            connection
        });
        let mut arrived = Vec::new();
        let end = (&visitor).take(1 << 20).read_to_end(&mut arrived);
        assert!(arrived.len() < 320_000, "not all of it can have come through");
        assert!(PATTERN.repeat(20_000).starts_with(&arrived), "nothing wrong comes through");
        // A cut looks like the end of the connection; what is missing shows the protocol above.
        assert_eq!(end.is_err(), !is_cut, "{end:?}");
        drop(visitor);
        sends.join().unwrap();
    }
}

/// Accepts everything.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// Sits between two ends with a session of its own with each, and passes their handshake on. If it has an id, it replaces that of
/// the dialler.
fn sit_between(end: SocketAddr, id: Option<PeerId>) -> SocketAddr {
    let key = rcgen::generate_simple_self_signed(vec!["ringfold".into()]).unwrap();
    sit_between_with(end, id, &key.signing_key, &[key.cert.der().clone()])
}

/// The same, with a key and its certificates.
fn sit_between_with(
    end: SocketAddr,
    id: Option<PeerId>,
    key: &rcgen::KeyPair,
    chain: &[CertificateDer<'static>],
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let private = || PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.to_vec(), private())
        .unwrap();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_client_auth_cert(chain.to_vec(), private())
        .unwrap();
    server.alpn_protocols = vec![b"ringfold/1".to_vec()];
    client.alpn_protocols = vec![b"ringfold/1".to_vec()];
    let (server, client) = (Arc::new(server), Arc::new(client));
    std::thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            let mut far = TcpStream::connect(end).unwrap();
            let mut with_dialler = ServerConnection::new(server.clone()).unwrap();
            let name = ServerName::try_from("ringfold").unwrap();
            let mut with_acceptor = ClientConnection::new(client.clone(), name).unwrap();
            let mut near = Stream::new(&mut with_dialler, &mut near);
            let mut far = Stream::new(&mut with_acceptor, &mut far);
            // The end of the connection is what is waited for.
            let _ = (|| -> io::Result<()> {
                let mut hello = [0; Hello::BYTES];
                near.read_exact(&mut hello)?;
                if let (Some(id), Ok(mut decoded)) = (id, Hello::decode(&hello)) {
                    decoded.session = id;
                    hello = decoded.encode();
                }
                far.write_all(&hello)?;
                for bytes in [Welcome::BYTES, Proof::BYTES, Verdict::BYTES] {
                    let (from, to): (&mut dyn Read, &mut dyn Write) = match bytes {
                        Proof::BYTES => (&mut near, &mut far),
                        _ => (&mut far, &mut near),
                    };
                    let mut block = vec![0; bytes];
                    from.read_exact(&mut block)?;
                    to.write_all(&block)?;
                }
                Ok(())
            })();
        }
    });
    address
}

#[test]
fn nobody_can_sit_in_between() {
    for id in [None, Some(PeerId(7))] {
        let (a, mut b) = pair();
        let attempt = visit(&a, b.peer, sit_between(b.address(), id), LONG);
        let error = outcome(&mut b, &attempt).unwrap_err().to_string();
        assert!(b.visitors.is_empty() && error.contains("does not belong to its keys"), "{error}");
    }
}

/// Keys with a certificate of a run.
fn certified(ca: &Issued, name: &str) -> Security {
    certified_as(ca, name, Role::Peer)
}

/// The same, of any role.
pub fn certified_as(ca: &Issued, name: &str, role: Role) -> Security {
    let dir = std::env::temp_dir().join(format!("ringfold-encryption-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let issued = issue(ca, &PeerIdentity { name: name.into(), role }, 1).unwrap();
    let write = |file: &str, text: &str| {
        std::fs::write(dir.join(file), text).unwrap();
        dir.join(file)
    };
    let files = TlsFiles::new(
        write("ca", &ca.certificate),
        write("certificate", &issued.certificate),
        write("key", &issued.key),
    );
    let security = Security::with_certificates(files).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    security
}

/// A key, and what a process with an identity of a run shows for it.
fn shown(ca: &Issued, name: &str) -> (rcgen::KeyPair, Vec<CertificateDer<'static>>) {
    let identity = issue(ca, &PeerIdentity { name: name.into(), role: Role::Peer }, 1).unwrap();
    let named = || {
        let name = format!("{name}.peer.ringfold");
        let mut params = rcgen::CertificateParams::new(vec![name.clone()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
    };
    let secret = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let issuer = rcgen::Issuer::new(named(), rcgen::KeyPair::try_from(&secret).unwrap());
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = named().signed_by(&key, &issuer).unwrap().into();
    (key, vec![leaf, CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()])
}

#[test]
fn nobody_can_sit_between_two_ends_with_certificates() {
    let (ca, other) = (new_ca("run").unwrap(), new_ca("run").unwrap());
    for (stranger, expected) in [
        (&other, "the certificate of the acceptor was not signed by a CA of this run"),
        // A member can be dialled, but not as another one.
        (&ca, "does not belong to its keys"),
    ] {
        let (a, mut b) = acquainted(two_with_keys([certified(&ca, "alice"), certified(&ca, "bob")], 1));
        let (key, chain) = shown(stranger, "mallory");
        let between = sit_between_with(b.address(), None, &key, &chain);
        let attempt = visit(&a, b.peer, between, LONG);
        let error = outcome(&mut b, &attempt).unwrap_err().to_string();
        assert!(b.visitors.is_empty() && error.contains(expected), "{error}");
        let attempt = visit(&a, b.peer, b.address(), LONG);
        assert!(outcome(&mut b, &attempt).is_ok(), "without anybody in between");
    }
}

#[test]
fn members_of_different_runs_do_not_connect() {
    let (ca, other) = (new_ca("run").unwrap(), new_ca("run").unwrap());
    let (a, mut b) = acquainted(two_with_keys([certified(&ca, "carol"), certified(&other, "dave")], 1));
    let attempt = visit(&a, b.peer, b.address(), LONG);
    let error = outcome(&mut b, &attempt).unwrap_err().to_string();
    assert!(b.visitors.is_empty() && error.contains("was not signed by a CA of this run"), "{error}");
}
