//! Runs the C and C++ examples, with their own master.

use crate::compiler::{Language, Source};
use crate::running::{Running, RunningMaster};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);

fn three_peers_finish(example: &Source) {
    let program = example.compile();
    let master = RunningMaster::start(0);
    // A step needs all three: two could be done, and gone, before the third has started.
    let peers: Vec<_> = (0..3).map(|_| Running::start(&program, &[&master.address, "3"])).collect();
    for peer in peers {
        peer.succeed(TIMEOUT);
    }
    master.stop();
}

#[test]
fn hello_world_in_c_finishes() {
    three_peers_finish(&Source::example("c/hello_world.c", Language::C99));
}

#[test]
fn hello_world_in_cpp_finishes() {
    three_peers_finish(&Source::example("cpp/hello_world.cpp", Language::Cpp17));
}

#[test]
fn concurrent_reduces_in_c_finish() {
    three_peers_finish(&Source::example("c/concurrent_reduces.c", Language::C99));
}

#[test]
fn concurrent_reduces_in_cpp_finish() {
    three_peers_finish(&Source::example("cpp/concurrent_reduces.cpp", Language::Cpp17));
}

#[test]
fn a_late_peer_in_c_ends_with_the_same_weights() {
    late_peers_finish(&Source::example("c/joining_late.c", Language::C99));
}

#[test]
fn a_late_peer_in_cpp_ends_with_the_same_weights() {
    late_peers_finish(&Source::example("cpp/joining_late.cpp", Language::Cpp17));
}

fn late_peers_finish(example: &Source) {
    let program = example.compile();
    let master = RunningMaster::start(0);
    let arguments = [master.address.as_str(), "60"];
    let mut first = Running::start(&program, &arguments);
    first.wait_for("step 5 ", TIMEOUT);
    let mut second = Running::start(&program, &arguments);
    second.wait_for("joined at step", TIMEOUT);
    let mut third = Running::start(&program, &arguments);
    third.wait_for("joined at step", TIMEOUT);
    for peer in [first, second, third] {
        peer.succeed(TIMEOUT);
    }
    master.stop();
}
