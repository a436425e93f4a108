//! Replicas of several ranks, over real sockets. One rank is a process that is killed.

use ringfold::{AllReduce, Communicator, Error, Failure, Master, Replica, ReplicaId};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The address of the master, in the child process.
const MASTER: &str = "RINGFOLD_TEST_MASTER";

const SOON: Duration = Duration::from_secs(60);

/// How many all-reduces the replicas do that are left.
const LATER: u32 = 20;

fn rank(master: &str, name: &str, id: u128, rank: u32) -> Communicator {
    let replica = Replica { id: ReplicaId(id), ranks: 2 };
    Communicator::builder(master).name(name).peer_group(rank).replica(replica).build().expect("building")
}

/// Connects, waits for three replicas, and reduces until two have done so `LATER` times, or a call fails for good.
fn work(rank: &Communicator, mut at_three: impl FnMut()) -> Result<(), Error> {
    rank.connect()?;
    let end = Instant::now() + SOON;
    while rank.attributes().group_world < 3 {
        assert!(Instant::now() < end, "timed out waiting for the other replicas");
        rank.update_topology()?;
    }
    let mut later = 0;
    while later < LATER {
        assert!(Instant::now() < end, "timed out after {later} all-reduces of two replicas");
        let mut data = [1.0_f32; 64];
        match rank.all_reduce(&mut data, AllReduce::sum()) {
            Ok(info) => {
                assert_eq!(data, [info.world as f32; 64]);
                later += u32::from(info.world == 2);
                at_three();
            }
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other half of a_killed_rank_takes_its_replica_with_it_and_the_others_go_on"]
fn child_is_rank_1() {
    if let Some(master) = std::env::var_os(MASTER) {
        let _ = work(&rank(&master.to_string_lossy(), "a1", 1, 1), || ());
    }
}

#[test]
fn a_killed_rank_takes_its_replica_with_it_and_the_others_go_on() {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().expect("listening on a free port");
    let address = master.addresses()[0].to_string();

    // The first replica is not admitted before its second rank has joined.
    let lone = Communicator::builder(&address)
        .replica(Replica { id: ReplicaId(9), ranks: 2 })
        .connect_timeout(Duration::from_millis(500))
        .build()
        .expect("building");
    assert!(matches!(lone.connect(), Err(Error::Failed(Failure::MasterLost(_)))));

    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "replicas::child_is_rank_1"])
        .env(MASTER, &address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = Some(Killed(child));
    thread::scope(|scope| {
        let run = |name: &'static str, id, number| {
            let address = address.clone();
            scope.spawn(move || work(&rank(&address, name, id, number), || ()))
        };
        let survivors = [run("b0", 2, 0), run("b1", 2, 1), run("c0", 3, 0), run("c1", 3, 1)];
        // The first rank of the replica of the child kills it after some all-reduces.
        let mut reduces = 0;
        let lost = work(&rank(&address, "a0", 1, 0), || {
            reduces += 1;
            if reduces == 20 {
                child = None;
            }
        });
        let why = lost.expect_err("its replica was lost").to_string();
        assert!(why.contains("a1, a rank of its replica, lost its connection"), "{why}");
        for survivor in survivors {
            survivor.join().unwrap().expect("the other replicas go on");
        }
    });
}
