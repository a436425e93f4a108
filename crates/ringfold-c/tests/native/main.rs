//! Programs in C and C++ that are compiled, linked with the library, and run.

mod calls;
mod compiler;
mod examples;
mod headers;
mod install;
mod running;
mod seed;
mod standby;
