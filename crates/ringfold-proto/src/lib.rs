//! The vocabulary, the messages, and the master and peer machines of Ringfold.
//!
//! Everything here is pure: no sockets, clocks, threads or randomness. A driver passes messages and the time to the
//! machines, and carries out the actions that they return. The simulator is one driver, the crate `ringfold` another.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod cause;
pub mod charter;
pub mod claim;
pub mod coordinator;
pub mod cores;
pub mod data_header;
mod decode_budget;
pub mod descriptor;
pub mod doctor;
pub mod dtype;
pub mod epoch;
pub mod event;
pub mod frame;
pub mod group_call;

pub mod handshake;
pub mod hello;
pub mod id;
pub mod integrity;
pub mod limits;
pub mod link_message;
pub mod master;
pub mod message;
pub mod network;
pub mod observe;
pub mod peer;
pub mod quantization;
pub mod recovery;
pub mod reduce_op;
pub mod round;
pub mod session;
pub mod shared_state;
pub mod status;
pub mod text;
pub mod time;
pub mod timing;
pub mod tuning;
