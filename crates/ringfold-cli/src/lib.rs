//! What the commands `ringfold`, `ccoip_master` and `pccl_master` are made of.
#![forbid(unsafe_code)]

pub mod bench;
pub mod command;
pub mod demo;
pub mod invocation;
pub mod serve;
pub mod signals;
pub mod size;
pub mod tuning_file;
