//! What users of a run rely on, one promise per test: a master and a few peers are stepped through
//! virtual time by hand. Where the simulator draws its schedules at random, these read like the
//! specification.

mod deadlines;
#[path = "../draw/mod.rs"]
#[allow(dead_code, reason = "other tests draw what these do not")]
mod draw;
mod joining;
mod liveness;
mod misbehaving;
mod optimising;
mod reducing;
mod restarting;
mod sharing_state;
mod stage;
mod topology;
