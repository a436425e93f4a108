//! Plans of collectives, and the poll-driven executor that runs them over any transport.
//!
//! A [`plan`] is a pure function of the request and the group's shape. The executor runs one small state machine per
//! operation over a [`medium`]. It never reads payloads: memory and arithmetic belong to the operation's [`workspace`].
#![forbid(unsafe_code)]

pub mod checker;
pub mod choice;
pub mod cost;
pub mod estimate;
pub mod event;
pub mod executor;
pub mod fused;
pub mod layout;
pub mod limits;
pub mod medium;
pub mod method;
pub mod network;
pub mod ownership;
pub mod parts;
pub mod plan;
pub mod shape;
pub mod step;
pub mod structure;
pub mod workspace;
