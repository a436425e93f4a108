//! `ringfold demo`: a run on one machine that loses a peer and adds another.

mod arguments;
mod child;
mod event;
mod model;
mod parent;
mod peer;
mod report;
mod schedule;

pub use arguments::Demo;
pub(crate) use parent::start_master;
pub use peer::PeerArguments;
