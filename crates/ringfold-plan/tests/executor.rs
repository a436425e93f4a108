//! The executor's promises, kept between peers in one process.

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
