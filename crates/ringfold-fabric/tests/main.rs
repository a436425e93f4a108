//! All integration tests of this crate, as one program: it is linked once. A new file needs a line here.

mod connecting;
mod descriptors;
mod encryption;
mod killed;
mod media;
mod mesh;
mod node;
mod probe;
mod relay;
mod sharing;
mod suite;
mod tcp_queues;
