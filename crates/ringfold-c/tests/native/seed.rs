//! The unchanged C++ program of PCCL's documentation, which contains the master's port.

use crate::compiler::{Language, Source};
use crate::running::{Running, RunningMaster};
use ringfold_lab::skip::report;
use std::fs::File;
use std::net::TcpListener;
use std::time::Duration;

const PORT: u16 = 48148;

fn peers_finish(count: usize) {
    // The port is one for the whole machine, and tests run side by side.
    let lock = File::create(std::env::temp_dir().join("ringfold-port-48148.lock")).unwrap();
    lock.lock().unwrap();
    if let Err(error) = TcpListener::bind(("127.0.0.1", PORT)) {
        report("peers_of_the_documented_program_finish", &format!("port {PORT} of 127.0.0.1: {error}"));
        return;
    }
    // It leaves fields out, which is legal and which -Wextra mentions.
    let source = Source::program("hello_seed.cpp", Language::Cpp20).flag("-Wno-missing-field-initializers");
    let program = source.compile();
    let master = RunningMaster::start(PORT);
    let peers: Vec<_> = (0..count).map(|_| Running::start(&program, &[])).collect();
    for peer in peers {
        peer.succeed(Duration::from_secs(120));
    }
    master.stop();
}

#[test]
fn two_peers_of_the_documented_program_finish() {
    peers_finish(2);
}

#[test]
fn three_peers_of_the_documented_program_finish() {
    peers_finish(3);
}

#[test]
fn five_peers_of_the_documented_program_finish() {
    peers_finish(5);
}
