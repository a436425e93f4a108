//! What users of a run rely on, one promise per test: a master and a few peers are stepped through
//! specification.

mod deadlines;
mod joining;
mod liveness;
mod reducing;
mod restarting;
mod sharing_state;
mod stage;
mod topology;
