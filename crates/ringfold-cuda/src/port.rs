//! Ports: memory that others write into, and connections to it.

pub mod abort_page;
