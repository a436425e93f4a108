//! The ring through a bandwidth matrix whose slowest edge is fastest.
#![forbid(unsafe_code)]
