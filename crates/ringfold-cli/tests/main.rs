//! All integration tests of this crate, linked once. A new file needs a line here.

mod bench;
mod config;
mod demo;
mod doctor;
mod lab;
mod master;
mod masters;
mod process;
mod relay;
mod replay;
mod service_manager;
mod status;
