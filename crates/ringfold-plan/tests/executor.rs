//! Tests of the executor with peers in one process.

mod abort;
mod credit;
mod data_flow;
mod early;
mod hostile;
mod links;
mod memory;
mod net;
mod pairs;
mod plans;
