//! The vocabulary, the messages, and the master and peer machines of Ringfold.
//!
//! Everything here is pure: no sockets, no clock, no threads, no randomness of its own. A driver feeds
//! the machines with messages and with the time, and carries out the actions that they ask for. The
//! simulator is one such driver, the `ringfold` crate's threads are another.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod cause;
pub mod data_header;
pub mod descriptor;
pub mod dtype;
pub mod epoch;
pub mod event;
pub mod frame;
mod frugal;
pub mod handshake;
pub mod hello;
pub mod id;
pub mod limits;
pub mod link_message;
pub mod master;
pub mod message;
pub mod peer;
pub mod quantization;
pub mod reduce_op;
pub mod round;
pub mod session;
pub mod shared_state;
pub mod time;
pub mod timing;
pub mod tuning;
