//! What the commands `ringfold` and `ccoip_master` are made of.
#![forbid(unsafe_code)]

pub mod demo;
pub mod log;
pub mod serve;
pub mod signals;
pub mod size;
