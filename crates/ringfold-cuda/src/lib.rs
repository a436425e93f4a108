//! CUDA devices: memory, streams, modules, ports and the kernel compiler.
//!
//! The driver and NVRTC are loaded at run time, on first use. Neither is needed to build; where one is missing, calls
//! return an error that says so.
//!
//! A [`Gpu`] is a device. [`GpuMemory`] is memory allocated on it, [`HostWords`] is mapped host memory, [`IpcMemory`]
//! is memory of another process. A [`Module`] holds kernels, which [`nvrtc`] compiles. None of these uses the default
//! stream or invalidates a stream capture.
//!
//! [`DeviceMemory`] is device memory borrowed from the user. A [`Download`] copies it into page-locked host memory,
//! piece by piece; [`upload`] copies bytes back. Both start after the work that a [`DefaultStreamMark`] recorded. A
//! [`PieceDownload`] and a [`ScratchUpload`] do the same for an operation that runs meanwhile.

/// Implements `Debug` for a type by a format string.
macro_rules! debug_as {
    ($type:ty, $self:ident => $($arguments:tt)+) => {
        impl core::fmt::Debug for $type {
            fn fmt(&$self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(out, $($arguments)+)
            }
        }
    };
}

mod api;
mod block_cache;
mod capture;
mod context;
mod default_stream_mark;
mod device;
pub mod device_arena;
mod device_buffer;
mod device_memory;
mod download;
mod driver;
mod error;
mod event;
mod function;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod gpu;
mod gpu_memory;
pub mod headers;
mod host_words;
mod ipc;
mod kernel_image;
mod leaf_hashes;
mod limits;
mod loaded_module;
mod module;
pub mod nvrtc;
mod open_table;
mod piece_download;
mod pinned;
pub mod port;
mod release_queue;
mod scratch;
mod scratch_upload;
mod stream;
mod stream_lease;
mod survey;
mod upload;
mod word_ring;

pub use capture::{RelaxedCapture, relaxed_capture};
pub use context::CurrentContext;
pub use default_stream_mark::DefaultStreamMark;
pub use device_buffer::DeviceBuffer;
pub use device_memory::DeviceMemory;
pub use download::Download;
pub use driver::Driver;
pub use error::CudaError;
pub use event::Event;
pub use function::{Dim3, Function, FunctionAttributes};
pub use gpu::Gpu;
pub use gpu_memory::GpuMemory;
pub use host_words::HostWords;
pub use ipc::{IpcMemory, IpcRecord, buffer_id};
pub use kernel_image::default_cache;
pub use leaf_hashes::{Leaf, hash_leaves};
pub use module::Module;
pub use piece_download::PieceDownload;
pub use pinned::Pinned;
pub use release_queue::release_soon;
pub use scratch_upload::ScratchUpload;
pub use stream::{CapturedNodes, Stream};
pub use survey::{Survey, SurveyedDevice};
pub use upload::{UploadPiece, upload};
