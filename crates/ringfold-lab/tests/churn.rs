//! The churn test: peers join and are killed while the others train.

use ringfold_lab::churn::Churn;
use ringfold_lab::network::Profile;
use ringfold_lab::{Network, skip};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The duration in seconds; the defaults are below.
const SECONDS_VARIABLE: &str = "RINGFOLD_CHURN_SECONDS";
const SECONDS: u64 = 10;
/// With `./test --long`.
const SECONDS_LONG: u64 = 180;
/// The same over an emulated network.
const SECONDS_WAN: u64 = 12;
const SECONDS_WAN_LONG: u64 = 600;
/// The seed; a new one each time by default.
const SEED_VARIABLE: &str = "RINGFOLD_CHURN_SEED";

/// A churn of so many seconds, with a new seed unless one is given.
fn churn(name: &str, seconds: u64) -> Churn {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let seed = number(SEED_VARIABLE).unwrap_or(since.as_nanos() as u64 % 1_000_000_007);
    println!("seed {seed}");
    Churn {
        master: env!("CARGO_BIN_EXE_lab-master").into(),
        peer: env!("CARGO_BIN_EXE_lab-peer").into(),
        time: Duration::from_secs(number(SECONDS_VARIABLE).unwrap_or(seconds)),
        peers_max: 8,
        pause: Duration::from_millis(500),
        seed,
        training: "tags=3 count=20000 bytes=65536 keys=4".into(),
        timing_preset: "default".into(),
        network: None,
        logs: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}")),
    }
}

fn is_long() -> bool {
    std::env::var_os("RINGFOLD_LONG").is_some()
}

#[test]
fn survivors_keep_the_same_bits_while_peers_join_and_are_killed() {
    let churn = churn("churn", if is_long() { SECONDS_LONG } else { SECONDS });
    let summary = churn.run().unwrap_or_else(|error| panic!("{error}"));
    println!("{summary}");
    assert!(summary.steps > 0 && summary.kills > 0, "no step or no kill: {summary}");
}

#[test]
fn survivors_keep_the_same_bits_over_unequal_paths_with_flaps_and_resets() {
    let test = "survivors_keep_the_same_bits_over_unequal_paths_with_flaps_and_resets";
    if !skip::check(test, Network::available()) {
        return;
    }
    let churn = Churn {
        pause: Duration::from_secs(1),
        network: Some(Profile::load("mixed").expect("a profile")),
        ..churn("churn-wan", if is_long() { SECONDS_WAN_LONG } else { SECONDS_WAN })
    };
    let summary = churn.run().unwrap_or_else(|error| panic!("{error}"));
    println!("{summary}");
    assert!(summary.steps > 0 && summary.cuts + summary.resets > 0, "nothing happened: {summary}");
}
