//! Runs with certificates, and the replacement of certificates and tokens while they go on.

use crate::rank_threads::run_ranks;
use ringfold::{AllReduce, Communicator, Error, JoinToken, Master, MasterBuilder, Media, ReduceOp, TlsFiles};
use ringfold_fabric::tls::PeerIdentity;
use ringfold_fabric::tls::issue::{Issued, issue, new_ca};
use ringfold_proto::handshake::Role;
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// For peers that are to be refused: until then they may wait to be admitted.
const BRIEFLY: Duration = Duration::from_secs(3);

/// The files of a run, in a directory of their own.
pub struct Files(PathBuf);

impl Files {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringfold-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces a file at once.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path("next"), text).unwrap();
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    /// Makes an identity, for ends that trust the CAs in another file.
    pub fn identity(&self, ca: &Issued, trusted: &str, name: &str, role: Role) -> TlsFiles {
        let Issued { certificate, key } = issue(ca, &PeerIdentity { name: name.into(), role }, 1).unwrap();
        let (pem, secret) = (format!("{name}.pem"), format!("{name}.key"));
        self.write(&secret, &key);
        self.write(&pem, &certificate);
        TlsFiles::new(self.path(trusted), self.path(&pem), self.path(&secret))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A run with one CA, whose certificate is in the file `ca`.
pub fn run(name: &str) -> (Files, Issued) {
    let (files, ca) = (Files::new(name), new_ca("run").unwrap());
    files.write("ca", &ca.certificate);
    (files, ca)
}

pub fn started(builder: MasterBuilder) -> (Master, String) {
    let master = builder.listen("127.0.0.1:0").build();
    master.run().unwrap();
    let address = master.addresses()[0].to_string();
    (master, address)
}

pub fn with_tls(address: &str, tls: TlsFiles) -> Result<Communicator, Error> {
    let peer = Communicator::builder(address).tls(tls).shared_memory(false).build()?;
    peer.connect().map(|()| peer)
}

fn refusal(address: &str, tls: TlsFiles) -> String {
    with_tls(address, tls).map(|_| ()).expect_err("it must be refused").to_string()
}

/// Repeats what succeeds only when files were read again.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Updates the topology until there are so many peers.
fn await_world(peer: &Communicator, world: usize) {
    let end = Instant::now() + SOON;
    while peer.attributes().group_world as usize != world {
        assert!(Instant::now() < end, "timed out waiting for {world} peers");
        peer.update_topology().unwrap();
    }
}

/// Lets a peer join the members of a run.
pub fn admit(members: &[&Communicator], join: impl FnOnce() -> Communicator) -> Communicator {
    thread::scope(|scope| {
        for member in members {
            scope.spawn(|| await_world(member, members.len() + 1));
        }
        join()
    })
}

/// All members add one, on a thread each.
fn reduce(members: &[&Communicator]) {
    thread::scope(|scope| {
        for member in members {
            scope.spawn(|| {
                await_world(member, members.len());
                let mut data = vec![1.0_f32; 100_000];
                member.all_reduce(&mut data, AllReduce::sum()).unwrap();
                assert!(data.iter().all(|x| *x == members.len() as f32));
            });
        }
    });
}

#[test]
fn peers_with_certificates_need_no_token() {
    let (files, ca) = run("plain");
    let (_master, address) = started(Master::builder().tls(files.identity(&ca, "ca", "m", Role::Master)));
    let alice = files.identity(&ca, "ca", "alice", Role::Peer);
    let first = with_tls(&address, alice.clone()).unwrap();
    // Processes with one identity have ids of their own.
    let second = admit(&[&first], || with_tls(&address, alice).unwrap());
    let bob = files.identity(&ca, "ca", "bob", Role::Peer);
    let third = admit(&[&first, &second], || with_tls(&address, bob).unwrap());
    reduce(&[&first, &second, &third]);
}

#[test]
fn who_has_no_valid_certificate_is_refused_with_the_reason() {
    let (files, ca) = run("refused");
    files.write("revoked", "mallory\n");
    let master = files.identity(&ca, "ca", "m", Role::Master).revoked(files.path("revoked"));
    let (_master, address) = started(Master::builder().tls(master));
    let other = new_ca("run").unwrap();
    files.write("other", &other.certificate);
    files.write("both", &format!("{}{}", ca.certificate, other.certificate));
    for (ca, trusted, name, role, expected) in [
        (
            &other,
            "other",
            "stranger",
            Role::Peer,
            "the certificate of the acceptor was not signed by a CA of this run",
        ),
        (
            &other,
            "both",
            "foreigner",
            Role::Peer,
            "the certificate of the dialler was not signed by a CA of this run",
        ),
        (&ca, "ca", "mallory", Role::Peer, "the certificate of the dialler was revoked"),
        (
            &ca,
            "ca",
            "watcher",
            Role::Observer,
            "the certificate of the dialler has a role that does not allow this",
        ),
        (
            &ca,
            "ca",
            "boss",
            Role::Admin,
            "the certificate of the dialler has a role that does not allow this",
        ),
    ] {
        let error = refusal(&address, files.identity(ca, trusted, name, role));
        assert!(error.contains(expected), "{name}: {error}");
    }
    // Without certificates, by TLS and in plain text.
    for (token, expected) in [("sesame", "is missing"), ("", "must be encrypted")] {
        let peer = Communicator::builder(&address).token(token).build().unwrap();
        let error = peer.connect().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_peer_cannot_pose_as_a_master() {
    let (files, ca) = run("posing");
    let (_master, address) = started(Master::builder().tls(files.identity(&ca, "ca", "mallory", Role::Peer)));
    let error = refusal(&address, files.identity(&ca, "ca", "alice", Role::Peer));
    assert!(error.contains("the certificate of the acceptor has a role that does not allow this"), "{error}");
    // Nor one without certificates, whether it has a token or not.
    for token in ["", "sesame"] {
        let (_master, address) = started(Master::builder().token(token));
        let error = refusal(&address, files.identity(&ca, "ca", "bob", Role::Peer));
        assert!(error.contains("the certificate of the acceptor is missing"), "{error}");
    }
}

#[test]
fn with_a_token_and_certificates_both_are_needed() {
    let (files, ca) = run("both");
    let master = files.identity(&ca, "ca", "m", Role::Master);
    let (_master, address) = started(Master::builder().tls(master).token("sesame"));
    let alice = files.identity(&ca, "ca", "alice", Role::Peer);
    assert!(refusal(&address, alice.clone()).contains("a join token is required"));
    let peer = Communicator::builder(&address).tls(alice).token("sesame").build().unwrap();
    peer.connect().unwrap();
}

#[test]
fn certificates_and_their_ca_are_replaced_while_a_run_goes_on() {
    let (files, old) = run("rotation");
    let (_master, address) = started(Master::builder().tls(files.identity(&old, "ca", "m", Role::Master)));
    let alice = with_tls(&address, files.identity(&old, "ca", "alice", Role::Peer)).unwrap();
    let new = new_ca("run").unwrap();
    files.write("new", &new.certificate);
    files.write("both", &format!("{}{}", old.certificate, new.certificate));
    let bob = files.identity(&new, "both", "bob", Role::Peer);
    assert!(refusal(&address, bob.clone()).contains("was not signed by a CA of this run"));
    // First all trust both CAs.
    files.write("ca", &format!("{}{}", old.certificate, new.certificate));
    let joined = || eventually("the master trusts the new CA", || with_tls(&address, bob.clone()).ok());
    let bob = admit(&[&alice], joined);
    reduce(&[&alice, &bob]);
    // Then the certificates are replaced, at last the CA.
    files.identity(&new, "ca", "m", Role::Master);
    files.identity(&new, "ca", "alice", Role::Peer);
    let carol = files.identity(&new, "new", "carol", Role::Peer);
    let joined = || eventually("the master has a new certificate", || with_tls(&address, carol.clone()).ok());
    let carol = admit(&[&alice, &bob], joined);
    files.write("ca", &new.certificate);
    reduce(&[&alice, &bob, &carol]);
    let dave = files.identity(&old, "both", "dave", Role::Peer);
    eventually("the old CA is not trusted any more", || {
        let peer =
            Communicator::builder(&address).tls(dave.clone()).connect_timeout(BRIEFLY).build().unwrap();
        peer.connect().err().filter(|error| error.to_string().contains("was not signed by a CA of this run"))
    });
    reduce(&[&alice, &bob, &carol]);
}

#[test]
fn a_revoked_peer_is_removed_and_the_others_go_on() {
    let (files, ca) = run("revoking");
    files.write("revoked", "# nobody\n");
    let master = files.identity(&ca, "ca", "m", Role::Master).revoked(files.path("revoked"));
    let (_master, address) = started(Master::builder().tls(master));
    let alice = with_tls(&address, files.identity(&ca, "ca", "alice", Role::Peer)).unwrap();
    let bob = files.identity(&ca, "ca", "bob", Role::Peer);
    let bob = admit(&[&alice], || with_tls(&address, bob).unwrap());
    reduce(&[&alice, &bob]);
    files.write("revoked", "bob\n");
    let error = eventually("bob is removed", || {
        bob.are_peers_pending().err().or_else(|| bob.update_topology().err())
    });
    assert!(error.to_string().contains("its certificate was revoked"), "{error}");
    drop(bob);
    await_world(&alice, 1);
}

#[test]
fn a_file_system_that_stalls_does_not_delay_the_master() {
    let files = Files::new("stalled");
    files.write("token", "old\n");
    let token = JoinToken::from_file(files.path("token")).unwrap();
    let (master, address) = started(Master::builder().token(token));
    let join = |token: &str| Communicator::builder(&address).token(token).build().unwrap().connect();
    let made = std::process::Command::new("mkfifo").arg(files.path("fifo")).status().unwrap();
    assert!(made.success());
    std::fs::rename(files.path("fifo"), files.path("token")).unwrap();
    // It can be opened once a reader waits, which then waits for what is never written.
    let stalled = eventually("the file is read again", || {
        OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(files.path("token"))
            .ok()
    });
    assert!(master.responds_within(SOON));
    join("old").unwrap();
    files.write("token", "new\n");
    drop(stalled);
    eventually("the new token is accepted", || join("new").ok());
}

#[test]
fn a_token_is_replaced_while_a_run_goes_on() {
    let files = Files::new("tokens");
    files.write("token", "old\n");
    let token = JoinToken::from_file(files.path("token")).unwrap();
    let (_master, address) = started(Master::builder().token(token));
    let join = |token: &str| {
        let peer = Communicator::builder(&address).token(token).shared_memory(false).build().unwrap();
        peer.connect().map(|()| peer)
    };
    let first = join("old").unwrap();
    assert!(join("new").is_err());
    files.write("token", "new\nold\n");
    let second = admit(&[&first], || eventually("the new token is accepted", || join("new").ok()));
    let third = admit(&[&first, &second], || join("old").unwrap());
    files.write("token", "new\n");
    eventually("the old token is refused", || {
        let peer = Communicator::builder(&address).token("old").connect_timeout(BRIEFLY).build().unwrap();
        peer.connect().err().filter(|error| error.to_string().contains("the token is wrong"))
    });
    reduce(&[&first, &second, &third]);
}

#[test]
fn ranks_of_a_group_use_certificates() {
    let (files, ca) = run("group");
    let tls = files.identity(&ca, "ca", "worker", Role::Peer);
    run_ranks(
        3,
        |builder| builder.tls(tls.clone()).media(Media::Tcp).timeout(SOON).connect_timeout(SOON),
        |group| {
            let mut data = vec![1.0_f32; 10_000];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|x| *x == 3.0));
        },
    );
}

#[test]
fn certificates_that_cannot_be_used_are_reported_before_anything_is_dialled() {
    let (files, ca) = run("unusable");
    let tls = files.identity(&ca, "ca", "alice", Role::Peer);
    files.write("other.key", &new_ca("other").unwrap().key);
    let wrong = TlsFiles { key: files.path("other.key"), ..tls.clone() };
    let error = Communicator::builder("127.0.0.1:1").tls(wrong).build().map(|_| ()).unwrap_err();
    assert!(matches!(&error, Error::BadArgument(why) if why.contains("does not belong")), "{error}");
    let insecure = Communicator::builder("127.0.0.1:1").tls(tls).insecure(true).build().map(|_| ());
    assert!(insecure.unwrap_err().to_string().contains("choose one"));
}
