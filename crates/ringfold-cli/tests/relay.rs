//! Tests of `ringfold relay`.

use crate::process::{Process, RINGFOLD, output};
use rustix::process::Signal;
use std::net::{SocketAddr, TcpListener, TcpStream};

const LISTENING: &str = "relay listening on ";

#[test]
fn a_relay_says_where_it_listens_and_ends_with_0_on_sigint() {
    let mut relay = Process::start(RINGFOLD, &["relay", "--bind", "127.0.0.1:0"]);
    let address: SocketAddr = relay.line_with(LISTENING).strip_prefix(LISTENING).unwrap().parse().unwrap();
    let _client = TcpStream::connect(address).unwrap();
    relay.signal(Signal::INT);
    relay.line_with("relayed 0 bytes between 0 pairs");
    let (status, stderr) = relay.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(TcpListener::bind(address).is_ok());
}

#[test]
fn a_master_rejects_a_relay_that_peers_cannot_dial() {
    let rejected = output(RINGFOLD, &["master", "--listen", "127.0.0.1:0", "--relay", "0.0.0.0"]);
    assert_eq!(rejected.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&rejected.stderr);
    assert!(stderr.contains("invalid relay address \"0.0.0.0:48149\""), "{stderr}");
}
