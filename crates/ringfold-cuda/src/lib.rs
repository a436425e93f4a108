//! CUDA devices: their memory, streams, modules, and the compiler for them.
//!
//! Driver and compiler are loaded when someone first asks for them. Nothing here needs them to build, and where they are
//! not to be had there are words for that instead of a panic.
//!
//! A [`Gpu`] is a device. [`GpuMemory`] is memory of it that is ours, [`HostWords`] are words of the host that it sees,
//! [`IpcMemory`] is memory of another process. A [`Module`] has kernels, which [`nvrtc`] compiles. Nothing of that uses
//! the default stream, or disturbs the capture of a stream.
//!
//! [`DeviceMemory`] is memory of a device that someone lends. A [`Download`] brings it into page-locked memory
//! of this host, piece by piece; [`upload`] brings bytes back. Both begin after the work that was in the default
//! stream's queue when it was [`Queued`].

mod api;
mod capture;
mod cleaner;
mod context;
mod device;
pub mod device_arena;
mod device_buffer;
mod device_memory;
mod download;
mod driver;
mod error;
mod event;
mod function;
mod gpu;
mod gpu_memory;
pub mod headers;
mod host_words;
mod ipc;
mod limits;
mod loaded_module;
mod module;
pub mod nvrtc;
mod open_table;
mod pinned;
pub mod port;
mod queued;
mod stream;
mod upload;
mod word_ring;

pub use capture::{RelaxedCapture, relaxed_capture};
pub use context::Current;
pub use device_buffer::DeviceBuffer;
pub use device_memory::DeviceMemory;
pub use download::Download;
pub use driver::Driver;
pub use error::CudaError;
pub use event::Event;
pub use function::{Block, Function, FunctionAttributes, Grid};
pub use gpu::Gpu;
pub use gpu_memory::GpuMemory;
pub use host_words::HostWords;
pub use ipc::{IpcMemory, IpcRecord, buffer_id};
pub use module::Module;
pub use pinned::Pinned;
pub use queued::Queued;
pub use stream::Stream;
pub use upload::{Piece, upload};
