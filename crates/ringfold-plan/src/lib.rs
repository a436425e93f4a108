//! What a collective does, step by step, and the poll-driven executor that does it over any medium.
//!
//! A [`plan`] is a pure function of what was asked for and of the group's shape. The executor runs one
//! small state machine per operation over a [`medium`], and never looks at the bytes: arithmetic and
//! memory belong to the operation's [`workspace`].
#![forbid(unsafe_code)]

pub mod checker;
pub mod choice;
pub mod cost;
pub mod event;
pub mod executor;
pub mod fused;
pub mod layout;
pub mod limits;
pub mod medium;
pub mod method;
pub mod parts;
pub mod plan;
pub mod shape;
pub mod step;
pub mod structure;
pub mod workspace;
