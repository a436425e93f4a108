//! What a collective does, step by step, and the poll-driven executor that does it over any medium.
#![forbid(unsafe_code)]
