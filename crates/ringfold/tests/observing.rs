//! Observers and operators of a run, over real sockets.

use crate::certificates;
use ringfold::{
    AllReduce, Communicator, Error, Health, JoinToken, Master, ObserverOptions, Timing, TlsFiles,
};
use ringfold_fabric::connection::Connection;
use ringfold_fabric::dialer::{Credentials, DialTiming, dial_while};
use ringfold_fabric::poller::Poller;
use ringfold_fabric::tls::Security;
use ringfold_lab::socket::free_port;
use ringfold_proto::handshake::{DialTarget, Identity, Role};
use ringfold_proto::id::RunId;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Much longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);

fn peer(master: &str, name: &str, token: &str) -> Communicator {
    let peer = Communicator::builder(master).name(name).token(token).build().expect("valid settings");
    peer.connect().expect("it joins");
    peer
}

/// Asks until the answer is right.
fn eventually<T: std::fmt::Debug>(mut ask: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        let found = ask();
        if is_right(&found) {
            return found;
        }
        assert!(Instant::now() < end, "not in time: {found:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_status_shows_who_waits_for_whom_and_errors_say_the_same() {
    let timing = Timing { warn_after: Duration::from_millis(300), ..Timing::default() };
    let (master, address) = certificates::started(Master::builder().timing(timing));
    let mut observer = ObserverOptions::default().connect(&address).unwrap();
    assert_eq!(observer.status().unwrap().run.verdict, "healthy: no peer has joined yet");
    let ann = peer(&address, "ann", "");
    let bob = thread::scope(|scope| {
        let bob = scope.spawn(|| peer(&address, "bob", ""));
        eventually(|| master.status().unwrap(), |status| status.run.peers.len() == 2);
        ann.update_topology().unwrap();
        bob.join().unwrap()
    });
    let status = observer.status().unwrap();
    assert_eq!((status.run.health, status.run.verdict.as_str()), (Health::Healthy, "healthy"));
    assert_eq!(status.run.ring.len(), 2);
    assert!(status.events.iter().any(|event| event.text == "bob is registered"), "{:?}", status.events);
    let mut values = [1.0f32; 4];
    let failed = thread::scope(|scope| {
        let reducing = scope
            .spawn(|| ann.all_reduce(&mut values, AllReduce::sum().tag(7).deadline(Duration::from_secs(2))));
        let status = eventually(|| observer.status().unwrap(), |s| s.run.health == Health::Degraded);
        let verdict = &status.run.verdict;
        assert!(verdict.starts_with("waiting for bob for "), "{verdict}");
        assert!(verdict.contains("it has not called all_reduce tag 7 (last heard "), "{verdict}");
        assert_eq!(status.run.peers[0].state, "in all-reduce tag 7");
        reducing.join().unwrap()
    });
    let text = failed.unwrap_err().to_string();
    // The master has heard of the call a moment after it began.
    assert!(
        ["1.9", "2"].iter().any(|seconds| text.contains(&format!(
            "timed out waiting for bob for {seconds} s: it has not called all_reduce tag 7 (last heard "
        ))),
        "{text}"
    );
    let status = eventually(|| observer.status().unwrap(), |s| s.run.health == Health::Healthy);
    assert_eq!(status.throughput.aborted_total, 1);
    drop(bob);
}

#[test]
fn with_tokens_only_those_who_know_them_observe_and_command() {
    let (token, admin) = ("a token of this run", "a token of operators");
    let (_master, address) = certificates::started(Master::builder().token(token).admin_token(admin));
    let bob = peer(&address, "bob", token);
    let refused = |options: &ObserverOptions| options.connect(&address).unwrap_err().to_string();
    assert!(refused(&ObserverOptions::default()).contains("a join token is required"));
    assert!(
        refused(&ObserverOptions::default().token("another token, not right")).contains("token is wrong")
    );
    let observing = ObserverOptions::default().token(token);
    let mut observer = observing.connect(&address).unwrap();
    assert_eq!(observer.status().unwrap().run.peers[0].name, "bob");
    let error = observer.evict("bob", "why not").unwrap_err();
    assert!(
        matches!(&error, Error::BadArgument(why) if why.starts_with("an observer may not change the run")),
        "{error}"
    );
    assert!(
        refused(&observing.clone().commands(true)).contains("the join token is not enough"),
        "operators have another token"
    );
    let mut operator = observing.commands(true).admin_token(admin).connect(&address).unwrap();
    let error = operator.evict("eve", "").unwrap_err().to_string();
    assert!(error.starts_with("no peer is called \"eve\": there are bob ("), "{error}");
    assert_eq!(operator.drain(true).unwrap(), "new peers are refused");
    let error = Communicator::builder(&address).token(token).build().unwrap().connect().unwrap_err();
    assert!(error.to_string().contains("the run is being drained"), "{error}");
    assert_eq!(operator.drain(false).unwrap(), "new peers may join");
    let id = operator.status().unwrap().run.peers[0].id[..8].to_owned();
    assert_eq!(operator.evict(&id, "its disk is full").unwrap(), format!("bob ({id}) is evicted"));
    let error = eventually(|| bob.update_topology(), Result::is_err).unwrap_err();
    assert!(error.to_string().contains("was evicted: its disk is full"), "{error}");
}

#[test]
fn busy_observers_keep_neither_operators_nor_other_observers_out() {
    let admin = "a token of operators";
    let (_master, address) = certificates::started(Master::builder().admin_token(admin));
    let _bob = peer(&address, "bob", "");
    let options = ObserverOptions::default();
    // Each has asked for the status.
    let mut observers: Vec<_> = (0..64).map(|_| options.connect(&address).unwrap()).collect();
    let mut operator = options.clone().commands(true).admin_token(admin).connect(&address).unwrap();
    let evicted = operator.evict("bob", "its disk is full").unwrap();
    assert!(evicted.starts_with("bob (") && evicted.ends_with(") is evicted"), "{evicted}");
    let mut late = options.connect(&address).unwrap();
    assert!(late.status().unwrap().run.peers.is_empty());
    let served = observers.iter_mut().filter_map(|observer| observer.status().ok()).count();
    assert_eq!(served, 63, "the oldest gives way");
}

#[test]
fn a_master_without_operators_takes_no_commands() {
    let (_master, address) = certificates::started(Master::builder());
    let error = ObserverOptions::default().commands(true).connect(&address).unwrap_err();
    assert!(
        error.to_string().contains("this master takes no commands: start it with --admin-token-file"),
        "{error}"
    );
}

#[test]
fn with_certificates_roles_decide() {
    let (files, ca) = certificates::run("observers");
    let tls = |name: &str, role| files.identity(&ca, "ca", name, role);
    let (_master, address) = certificates::started(Master::builder().tls(tls("head", Role::Master)));
    for role in Role::ALL {
        let options = ObserverOptions::default().tls(tls(role.as_str(), role));
        let observing = options.connect(&address).map(|mut observer| observer.status().is_ok());
        assert_eq!(observing.unwrap_or(false), role != Role::Relay, "{role:?}");
        let commanding = options.commands(true).connect(&address);
        match role {
            Role::Admin => assert!(commanding.unwrap().drain(true).is_ok()),
            _ => assert!(commanding.unwrap_err().to_string().contains("a role that does not allow this")),
        }
    }
}

/// A connection of any purpose with the master.
fn dialled(address: &str, tls: TlsFiles, target: DialTarget) -> (Connection, Arc<Poller>) {
    let security = Arc::new(Security::with_certificates(tls).unwrap());
    let identity = Identity::new(security.peer(), RunId(0));
    let poller = Arc::new(Poller::new().unwrap().with_security(security));
    let credentials = Credentials { identity, target, secret: JoinToken::default().secret() };
    let end = Instant::now() + TIMEOUT;
    let may_wait = |_: &_| match Instant::now() < end {
        true => Ok(Duration::from_millis(20)),
        false => Err(std::io::Error::from(std::io::ErrorKind::TimedOut)),
    };
    let timing = DialTiming::of(&poller);
    let dialed = dial_while(&[address.parse().unwrap()], &credentials, timing, &poller, may_wait);
    (dialed.unwrap().connection, poller)
}

#[test]
fn whoever_is_revoked_is_disconnected_and_may_not_command() {
    let (files, ca) = certificates::run("revoked-operators");
    files.write("revoked", "# nobody\n");
    let tls = |name: &str, role| files.identity(&ca, "ca", name, role);
    let ports = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let head = tls("head", Role::Master).revoked(files.path("revoked"));
    let master = Master::builder().tls(head).listen(&ports[0]).masters(&ports).build();
    master.run().unwrap();
    let dial = |name: &str, role, target| dialled(&ports[0], tls(name, role), target);
    let mut revoked = [
        dial("eve", Role::Observer, DialTarget::observed()),
        dial("boss", Role::Admin, DialTarget::commanded()),
        dial("second", Role::Master, DialTarget::other_master()),
    ];
    let mut trusted = dial("ann", Role::Admin, DialTarget::commanded());
    files.write("revoked", "eve\nboss\nsecond\n");
    for (connection, _) in &mut revoked {
        // The deadline is shorter than that of an observer which asks nothing.
        eventually(|| connection.fill(), Result::is_err).unwrap_err();
    }
    assert!(trusted.0.fill().is_ok(), "others stay");
}

#[test]
fn a_master_that_is_not_there_is_named() {
    let error = ObserverOptions::default().connect("127.0.0.1:1").unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("refused"), "{error}");
}
