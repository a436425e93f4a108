//! Ports: memory that others write into, and connections to it.

pub mod abort_page;
pub mod device_handle;
pub mod fifo;
pub mod trigger;
mod words;
