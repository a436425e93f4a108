//! Runs with several masters, all of whose processes are C programs.

use crate::compiler::{Language, Source};
use crate::running::{Running, RunningMaster};
use ringfold_lab::socket::free_port;
use std::time::Duration;

/// Ten times what any step takes on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn all_reduces_succeed_when_the_active_master_is_killed() {
    let program = Source::program("steady_peer.c", Language::C99).compile();
    let ports = [free_port(), free_port(), free_port()];
    let list = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let environment = [("RINGFOLD_MASTERS", list.as_str())];
    let mut masters = ports.map(|port| RunningMaster::start_with(port, &environment));
    masters[0].process.wait_for_error("this master is active", TIMEOUT);
    let mut peers = [(); 3].map(|()| Running::start_with(&program, &["3"], &environment));
    for peer in &mut peers {
        peer.wait_for("step 20\n", TIMEOUT);
    }
    let [killed, mut next, last] = masters;
    drop(killed);
    next.process.wait_for_error("this master is active", TIMEOUT);
    let last_step = |peer: &Running| peer.printed().lines().count();
    let seen = peers.iter().map(last_step).max().unwrap();
    for peer in &mut peers {
        peer.wait_for(&format!("step {}\n", seen + 20), TIMEOUT);
    }
    // They end when the inputs of all have ended.
    peers.iter_mut().for_each(Running::end_input);
    for peer in peers {
        peer.succeed(TIMEOUT);
    }
    next.stop();
    last.stop();
}
