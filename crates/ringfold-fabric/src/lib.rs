//! Sockets, memory and channels: every system call of Ringfold. It moves bytes and never interprets them.
#![warn(missing_docs)]

pub mod memory;
