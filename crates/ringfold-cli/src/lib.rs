//! The commands `ringfold`, `ccoip_master` and `pccl_master`.
#![forbid(unsafe_code)]

pub mod bench;
mod client;
pub mod command;
mod config;
pub mod demo;
pub mod doctor;
pub mod exit_code;
pub mod invocation;
pub mod keys;
pub mod lab;
pub mod master;
pub mod observe;
mod progress;
pub mod relay;
pub mod replay;
mod service_manager;
mod serving;
pub mod signals;
pub mod size;
