//! All integration tests of this crate as one program, which is linked once. A new file needs a line here.

mod decode_never_panics;
mod events;
mod examples;
mod golden_bytes;
mod handshake;
mod machines;
mod message_generator;
