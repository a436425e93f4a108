//! Peers come and are killed all the time, and the others train on with the same bits.

use ringfold_lab::churn::Churn;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long the churn lasts, in seconds; without this variable, the shorter or the longer of the times below.
const SECONDS_VARIABLE: &str = "RINGFOLD_CHURN_SECONDS";
const SECONDS: u64 = 10;
/// With `./test --long`.
const SECONDS_LONG: u64 = 180;
/// What is decided by chance is decided by this number, if it is given.
const SEED_VARIABLE: &str = "RINGFOLD_CHURN_SEED";

#[test]
fn survivors_train_on_with_the_same_bits_while_peers_come_and_are_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let seed = number(SEED_VARIABLE).unwrap_or(since.as_nanos() as u64 % 1_000_000_007);
    println!("seed {seed}");
    let seconds = if std::env::var_os("RINGFOLD_LONG").is_some() { SECONDS_LONG } else { SECONDS };
    let churn = Churn {
        master: env!("CARGO_BIN_EXE_lab-master").into(),
        peer: env!("CARGO_BIN_EXE_lab-peer").into(),
        time: Duration::from_secs(number(SECONDS_VARIABLE).unwrap_or(seconds)),
        peers_max: 8,
        pause: Duration::from_millis(500),
        seed,
        training: "tags=3 count=20000 bytes=65536 keys=4".into(),
        pace: "default".into(),
        logs: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("churn-{seed}")),
    };
    let summary = churn.run().unwrap_or_else(|problem| panic!("{problem}"));
    println!("{summary}");
    assert!(summary.steps > 0 && summary.kills > 0, "nothing happened: {summary}");
}
