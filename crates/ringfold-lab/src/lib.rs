//! Tests with real processes under real faults. For development only.
//!
//! A [`Network`] is hosts made of network namespaces, and emulated links between them: delay, rate, loss, cuts, resets. A
//! [`Process`] is a program whose output is read line by line, and that can be killed, stopped and measured
//! ([`Usage`]). A test that the machine cannot run is reported as skipped ([`skip::check`]).
//!
//! The programs `lab-master` and `lab-peer` ([`programs`]) form a run. A peer reads commands line by line, so a test can
//! put it into any phase. It checks its results itself ([`contributions`]).
#![deny(unsafe_code)]

pub mod churn;
pub mod contributions;
pub mod log;
pub mod network;
pub mod peer_reply;
pub mod process;
pub mod programs;
pub mod skip;
pub mod socket;
pub mod timing_preset;
pub mod usage;

pub use contributions::Participants;
pub use network::{Host, Network};
pub use peer_reply::PeerReply;
pub use process::Process;
pub use timing_preset::TimingPreset;
pub use usage::Usage;
