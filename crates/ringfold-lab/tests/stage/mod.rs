//! Where masters and peers play: this machine's loopback, or the hosts of a network.

use ringfold_lab::cast::{Master, Peer};
use ringfold_lab::{Answer, Host, Parts};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

const MASTER: &str = env!("CARGO_BIN_EXE_lab-master");
const PEER: &str = env!("CARGO_BIN_EXE_lab-peer");

/// Ten times what anything here takes on a loaded machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A master on the loopback.
pub fn master() -> Master {
    master_with(&["--listen", "127.0.0.1:0"])
}

/// A master with these arguments.
pub fn master_with(arguments: &[&str]) -> Master {
    let mut command = Command::new(MASTER);
    command.args(arguments);
    Master::start(command).expect("a master")
}

/// A master on a host.
pub fn master_on(host: &Host, listen: SocketAddr) -> Master {
    let mut command = host.command(MASTER);
    command.args(["--listen", &listen.to_string()]);
    Master::start(command).expect("a master")
}

/// A peer that is not connected yet.
pub fn peer(number: u32, master: SocketAddr) -> Peer {
    peer_with(number, master, &[])
}

/// A peer with these arguments.
pub fn peer_with(number: u32, master: SocketAddr, arguments: &[&str]) -> Peer {
    let mut command = Command::new(PEER);
    command.args(arguments);
    Peer::start(command, number, master).expect("a peer")
}

/// A peer on a host.
pub fn peer_on(host: &Host, number: u32, master: SocketAddr) -> Peer {
    Peer::start(host.command(PEER), number, master).expect("a peer")
}

/// So many accepted peers on the loopback, with the numbers from 0.
pub fn accepted(count: u32, master: SocketAddr) -> Vec<Peer> {
    let mut peers: Vec<Peer> = (0..count).map(|number| peer(number, master)).collect();
    admit(&mut peers);
    peers
}

/// Connects peers that are not, one after the other.
pub fn admit(peers: &mut [Peer]) {
    peers[0].expect("connect", SOON).expect("the first is accepted at once");
    for count in 1..peers.len() {
        let (accepted, waiting) = peers.split_at_mut(count);
        let_in(accepted, &mut waiting[0]);
    }
}

/// Connects one peer more; the others, which are all that are accepted, vote for it.
pub fn let_in(accepted: &mut [Peer], newcomer: &mut Peer) {
    newcomer.tell("connect").expect("told");
    let deadline = Instant::now() + SOON;
    while do_all(accepted, "pending")[0].text("pending") != "true" {
        assert!(Instant::now() < deadline, "peer {} did not arrive", newcomer.number());
    }
    do_all(accepted, "topology");
    let answer = newcomer.answer("connect", SOON).expect("an answer");
    assert!(answer.is_ok() && answer.number("global") == accepted.len() as u64 + 1, "{answer}");
}

/// Gives all peers the same command.
pub fn tell_all(peers: &mut [Peer], command: &str) {
    peers.iter_mut().for_each(|peer| peer.tell(command).expect("told"));
}

/// The answers of all peers to a command that they were given.
pub fn answers(peers: &mut [Peer], command: &str) -> Vec<Answer> {
    peers.iter_mut().map(|peer| peer.answer(command, SOON).expect("an answer")).collect()
}

/// Gives all the same command, and all must do it.
pub fn do_all(peers: &mut [Peer], command: &str) -> Vec<Answer> {
    tell_all(peers, command);
    let answers = answers(peers, command);
    answers.iter().for_each(|answer| assert!(answer.is_ok(), "{answer}"));
    answers
}

/// All answers say that exactly these peers took part, and hold the same result.
pub fn assert_same(answers: &[Answer], parts: impl IntoIterator<Item = u32>) {
    let parts = Parts::of(parts);
    for answer in answers {
        assert_eq!(answer.number("parts"), parts.0, "{answer}");
        assert_eq!(answer.text("parity"), answers[0].text("parity"), "{answer}\n{}", answers[0]);
    }
}

/// The steps that peers told of agree: what was reached at one revision is the same on all.
pub fn assert_steps_agree(peers: &[Peer]) {
    let mut known = std::collections::BTreeMap::new();
    for peer in peers {
        for line in peer.lines().iter().filter(|line| line.starts_with("step ")) {
            let step: Answer = line.parse().expect("a step");
            let seen = ["parts", "parity", "state"].map(|name| step.text(name).to_owned());
            let first = known.entry(step.number("revision")).or_insert_with(|| (seen.clone(), peer.number()));
            assert_eq!(first.0, seen, "peer {} differs from peer {}: {step}", peer.number(), first.1);
        }
    }
}
