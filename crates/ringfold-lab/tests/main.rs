//! All integration tests of this crate, linked once. A new file needs a line here.
#![forbid(unsafe_code)]

#[path = "../../ringfold-fabric/tests/suite/blocked.rs"]
mod blocked;
mod churn;
mod elastic;
mod fixture;
mod host_loss;
mod hostile;
mod isolation;
mod master;
mod network;
mod partition;
mod recover;
mod relay;
mod resets;
mod restart;
mod settings;
mod shared_state;
mod standby;
mod traffic;
mod wan;
