//! The guarantees of the machines, one per test, with a master and a few peers in virtual time.

mod claiming;
mod deadlines;
mod integrity;
mod joining;
mod leading;
mod liveness;
mod misbehaving;
mod optimising;
mod recovering;
mod reducing;
mod replicas;
mod resetting;
mod restarting;
mod resuming;
mod scale;
mod sharing_state;
mod signing;
mod test_run;
mod topology;
mod watching;
