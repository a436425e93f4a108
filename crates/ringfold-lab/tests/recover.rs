//! All peers are killed and come back from checkpoints of different age, with and without the master.

use crate::fixture::{SOON, accepted, assert_same, expect_all, join, master_in, peer, replies, send_all};
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long peers wait for one that does not come back.
const BRIEFLY: Duration = Duration::from_secs(1);

/// A master whose peers wait this long for others to come back.
fn master_at(listen: &str, recover_after: Duration) -> MasterProcess {
    let seconds = recover_after.as_secs().to_string();
    master_in(&["--listen", listen], &[("RINGFOLD_RECOVER_AFTER", &seconds), ("RINGFOLD_LOG", "warn")])
}

/// A sync from a checkpoint of this revision.
fn sync(revision: u64) -> String {
    format!("sync {revision} 100000 2 fill={revision}")
}

/// Three peers sync revisions 0 to 9 and are killed.
fn train_and_kill(master: SocketAddr) {
    let mut peers = accepted(3, master);
    for revision in 0..10 {
        expect_all(&mut peers, &sync(revision));
    }
    peers.iter_mut().for_each(|peer| peer.kill9().expect("killed"));
}

/// Peers that have sent their connect.
fn come_back(count: u32, master: SocketAddr) -> Vec<PeerProcess> {
    let mut peers: Vec<_> = (4..4 + count).map(|number| peer(number, master)).collect();
    send_all(&mut peers, "connect");
    peers
}

/// Each peer syncs from its checkpoint; all end with the newest, and go on from there.
fn assert_newest_wins(peers: &mut [PeerProcess], checkpoints: &[u64]) {
    let newest = *checkpoints.iter().max().expect("peers");
    for (peer, revision) in peers.iter_mut().zip(checkpoints) {
        peer.send(&sync(*revision)).expect("told");
    }
    let synced = replies(peers, "sync");
    for reply in &synced {
        assert!(reply.is_ok() && reply.number("revision") == newest, "{reply}");
        assert_eq!(reply.text("state"), synced[0].text("state"), "{reply}");
    }
    expect_all(peers, &sync(newest + 1));
    let numbers: Vec<_> = peers.iter().map(PeerProcess::number).collect();
    assert_same(&expect_all(peers, "reduce 1 1000"), numbers);
}

/// Waits until the master has logged all of these texts in one line.
fn assert_logged(master: &MasterProcess, texts: &[&str]) {
    let deadline = Instant::now() + SOON;
    let has_all = |line: &String| texts.iter().all(|text| line.contains(text));
    while !master.error_lines().iter().any(has_all) {
        assert!(Instant::now() < deadline, "{texts:?} is not in {:?}", master.error_lines());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_peers_are_killed_and_continue_from_the_newest_checkpoint() {
    let master = master_at("127.0.0.1:0", SOON);
    train_and_kill(master.address());
    let mut peers = come_back(3, master.address());
    for reply in replies(&mut peers, "connect") {
        assert!(reply.is_ok() && reply.number("global") == 3, "{reply}");
    }
    assert_newest_wins(&mut peers, &[3, 8, 5]);
    let behind =
        ["continues from revision 8", "held by 1 of 3 peers", "behind: ", "(revision 3)", "(revision 5)"];
    assert_logged(&master, &behind);
}

#[test]
fn peers_do_not_wait_for_ever_for_one_that_does_not_come_back() {
    let master = master_at("127.0.0.1:0", BRIEFLY);
    train_and_kill(master.address());
    let begin = Instant::now();
    let mut peers = come_back(2, master.address());
    for reply in replies(&mut peers, "connect") {
        assert!(reply.is_ok() && reply.number("global") == 2, "{reply}");
    }
    assert!(begin.elapsed() >= BRIEFLY);
    assert_newest_wins(&mut peers, &[4, 2]);
    assert_logged(&master, &["waits for peers to come back", "of 3", "it continues in"]);
}

#[test]
fn all_peers_and_the_master_are_killed_and_continue_from_the_newest_checkpoint() {
    let mut master = master_at("127.0.0.1:0", BRIEFLY);
    let address = master.address();
    train_and_kill(address);
    master.kill9().expect("killed");
    let master = master_at(&address.to_string(), BRIEFLY);
    let mut peers = accepted(3, address);
    assert_newest_wins(&mut peers, &[3, 5, 8]);
    assert_logged(&master, &["continues from revision 8", "behind: ", "(revision 3)", "(revision 5)"]);
}

#[test]
fn a_peer_that_comes_back_later_to_a_new_master_brings_its_newer_checkpoint() {
    let mut master = master_at("127.0.0.1:0", BRIEFLY);
    let address = master.address();
    train_and_kill(address);
    master.kill9().expect("killed");
    let master = master_at(&address.to_string(), SOON);
    let mut peers = accepted(2, address);
    assert_newest_wins(&mut peers, &[2, 4]);
    let mut late = peer(2, address);
    join(&mut peers, &mut late);
    peers.push(late);
    assert_newest_wins(&mut peers, &[6, 6, 8]);
    assert_logged(&master, &["continues from revision 8", "held by 1 of 3 peers", "(revision 6)"]);
}
