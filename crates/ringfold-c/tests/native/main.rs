//! Programs in C and C++, compiled against the headers, linked with the library, and run.

mod calls;
mod compiler;
mod examples;
mod headers;
mod install;
mod running;
mod seed;
