//! Settings of masters and peers have an effect.

use crate::fixture::{SOON, admit, expect_all, master_with, peer_with};
use std::time::{Duration, Instant};

const DEFAULTS: [&str; 4] = ["--timing", "default", "--listen", "127.0.0.1:0"];

#[test]
fn a_shorter_silence_max_evicts_a_stopped_peer_earlier() {
    // With the default of 2.5 s it takes at least 2 s: the last heartbeat may have been half a second old.
    let quick = Duration::from_millis(400)..Duration::from_millis(1900);
    let deadline = Instant::now() + 2 * SOON;
    loop {
        let master = master_with(&[&DEFAULTS[..], &["--set", "silence_max=1s"]].concat());
        let mut peers: Vec<_> =
            (0..2).map(|number| peer_with(number, master.address(), &["--timing", "default"])).collect();
        admit(&mut peers);
        expect_all(&mut peers, "reduce 1 10");
        peers[1].stop().expect("stopped");
        let begun = Instant::now();
        let reply = peers[0].request("reduce 2 10", SOON).expect("a reply");
        let took = begun.elapsed();
        assert!(!reply.is_ok(), "{reply}");
        assert!(took >= quick.start, "evicted too early, after {took:?}");
        peers[1].cont().expect("continued");
        // On a busy machine it may take several attempts.
        if took < quick.end {
            return;
        }
        assert!(Instant::now() < deadline, "evicted late, after {took:?}");
    }
}

#[test]
fn a_master_accepts_no_more_peers_than_peers_max() {
    let master = master_with(&[&DEFAULTS[..], &["--set", "peers_max=1"]].concat());
    let mut first = peer_with(0, master.address(), &[]);
    first.expect("connect", SOON).expect("accepted");
    let mut second = peer_with(1, master.address(), &[]);
    let reply = second.request("connect", SOON).expect("a reply");
    assert!(reply.to_string().contains("the run is full"), "{reply}");
}

#[test]
fn an_invalid_setting_of_a_peer_is_an_error_of_its_builder() {
    let error = ringfold::Communicator::builder("127.0.0.1:1").setting("silence_max", "600ms").build();
    let error = error.err().expect("it is refused").to_string();
    assert!(
        error.contains(
            "invalid silence_max 600ms (setting silence_max): must be at least 2 x heartbeat 500ms"
        ),
        "{error}"
    );
}
