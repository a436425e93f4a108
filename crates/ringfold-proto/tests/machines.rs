//! What users of a run rely on, one promise per test: a master and a few peers are stepped through
//! virtual time by hand. Where the simulator draws its schedules at random, these read like the
//! specification.

mod deadlines;
mod joining;
mod liveness;
mod misbehaving;
mod optimising;
mod reducing;
mod restarting;
mod sharing_state;
mod test_run;
mod topology;
