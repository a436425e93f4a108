//! Tests of `ringfold status`, `evict` and `drain`.

use crate::process::{Process, RINGFOLD, command, eventually, output};
use ringfold::Communicator;
use ringfold_lab::skip;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const LISTENING: &str = "master listening on ";

fn master(arguments: &[&str]) -> (Process, String) {
    let master = Process::start(RINGFOLD, &[&["master", "--listen", "127.0.0.1:0"], arguments].concat());
    let address = master.line_with(LISTENING).strip_prefix(LISTENING).unwrap().to_owned();
    (master, address)
}

fn peer(master: &str, name: &str) -> Communicator {
    let peer = Communicator::builder(master).name(name).build().unwrap();
    peer.connect().unwrap();
    peer
}

#[test]
fn the_status_is_a_table_or_json_and_the_exit_code_says_how_the_run_is() {
    let (mut master, address) = master(&[]);
    let _peer = peer(&address, "replica-3");
    let shown = output(RINGFOLD, &["status", &address]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.status.code(), Some(0), "{text}");
    assert!(text.starts_with("healthy\n"), "{text}");
    assert!(text.contains("replica-3") && text.contains("computing") && text.contains("epoch 1"), "{text}");
    let json: Value =
        serde_json::from_slice(&output(RINGFOLD, &["status", &address, "--json"]).stdout).unwrap();
    for name in
        ["verdict", "health", "epoch", "peers", "ring", "waits", "groups", "events", "master", "throughput"]
    {
        assert!(json.get(name).is_some(), "{name}: {json}");
    }
    assert_eq!((&json["verdict"], &json["peers"][0]["name"]), (&"healthy".into(), &"replica-3".into()));
    master.signal(Signal::TERM);
    master.end();
    for arguments in [&["status", &address][..], &["status", &address, "--json"]] {
        let shown = output(RINGFOLD, arguments);
        let text = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown.status.code(), Some(2), "{text}");
        assert!(text.contains("unreachable: ") && text.contains(&address), "{text}");
    }
}

#[test]
fn watching_prints_again_until_it_is_interrupted() {
    let (_master, address) = master(&[]);
    let mut watching = Process::start(RINGFOLD, &["status", &address, "--watch", "--interval", "0.1"]);
    for _ in 0..3 {
        watching.line_with("healthy: no peer has joined yet");
    }
    watching.signal(Signal::INT);
    let (status, stderr) = watching.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
}

#[test]
fn a_reader_that_goes_away_ends_the_watch() {
    for more in [&[][..], &["--json"]] {
        let watch = [&["status", "127.0.0.1:1", "--watch", "--interval", "0.1"][..], more].concat();
        let mut watching = command(RINGFOLD, &watch)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command");
        let mut line = String::new();
        BufReader::new(watching.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("unreachable: "), "{line}");
        let ended = watching.wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("cannot write to standard output"), "{stderr}");
    }
}

#[test]
fn an_invalid_setting_is_not_an_unreachable_master() {
    for (variable, value) in [("RINGFOLD_HEARTBEAT", "abc"), ("RINGFOLD_CONFIG", "/nonexistent.toml")] {
        let shown = command(RINGFOLD, &["status", "127.0.0.1:1"]).env(variable, value).output().unwrap();
        let stderr = String::from_utf8(shown.stderr).unwrap();
        assert_eq!((shown.status.code(), &shown.stdout[..]), (Some(2), &b""[..]), "{stderr}");
        assert!(stderr.contains(value) && !stderr.contains("unreachable"), "{stderr}");
    }
}

/// A session of tmux, which is a terminal for a command.
struct Terminal(String);

impl Terminal {
    fn start(command: &str) -> Self {
        let session = format!("ringfold-{}", std::process::id());
        let started =
            output("tmux", &["new-session", "-d", "-s", &session, "-x", "110", "-y", "36", command]);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        Self(session)
    }

    fn screen(&self) -> String {
        String::from_utf8(output("tmux", &["capture-pane", "-p", "-t", &self.0]).stdout).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        output("tmux", &["kill-session", "-t", &self.0]);
    }
}

#[test]
fn top_shows_the_run_in_a_terminal_and_ends_with_q() {
    if !skip::check("top_shows_the_run_in_a_terminal_and_ends_with_q", tmux()) {
        return;
    }
    let refused = output(RINGFOLD, &["top", "127.0.0.1:1"]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("standard output is not a terminal"), "{stderr}");
    let (mut master, address) = master(&[]);
    let peer = peer(&address, "replica-3");
    let terminal = Terminal::start(&format!("{RINGFOLD} top {address} --interval 0.1; sleep 60"));
    let shows = |text: &str| terminal.screen().contains(text).then_some(());
    eventually("the peer", || shows("healthy").and(shows("1 peers")).and(shows("replica-3")));
    drop(peer);
    eventually("the end of the peer", || shows("0 peers").and(shows("replica-3 left")));
    master.signal(Signal::TERM);
    master.end();
    eventually("the end of the master", || shows("unreachable: "));
    output("tmux", &["send-keys", "-t", &terminal.0, "q"]);
    eventually("the end of top", || (!terminal.screen().contains("unreachable")).then_some(()));
}

/// Whether tmux can be used.
fn tmux() -> Result<(), String> {
    let found = std::process::Command::new("tmux").arg("-V").output();
    found.map(|_| ()).map_err(|error| format!("needs tmux: {error}"))
}

#[test]
fn operators_need_their_token() {
    let file = std::env::temp_dir().join(format!("ringfold-admin-{}", std::process::id()));
    std::fs::write(&file, "the token of the operators\n").unwrap();
    let path = file.to_str().unwrap();
    let (_master, address) = master(&["--admin-token-file", path]);
    let bob = peer(&address, "bob");
    let refused = output(RINGFOLD, &["evict", "bob", "--master", &address]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the token of operators is missing. Give it by --admin-token-file"), "{stderr}");
    assert!(!stderr.contains("could not reach"), "{stderr}");
    // The master is an argument or a flag.
    let with_token = ["--admin-token-file", path];
    let drained = output(RINGFOLD, &[&["drain", &address][..], &with_token].concat());
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    let status = output(RINGFOLD, &["status", "--master", &address]);
    let shown = String::from_utf8(status.stdout).unwrap();
    assert!(shown.starts_with("draining: no peer may join, 1 are left\n"), "{shown}");
    assert_eq!(status.status.code(), Some(0), "{shown}");
    let evicted = output(
        RINGFOLD,
        &[&["evict", "bob", "--master", &address, "--reason", "test"][..], &with_token].concat(),
    );
    let done = String::from_utf8(evicted.stdout).unwrap();
    assert!(done.starts_with("bob (") && done.ends_with(") is evicted\n"), "{done}");
    let error = eventually("the eviction", || bob.update_topology().err());
    assert!(error.to_string().contains("was evicted: test"), "{error}");
    std::fs::remove_file(file).unwrap();
}
