//! Memory of CUDA devices, and copies of it.
//!
//! The driver is loaded when someone first asks for it. Nothing here needs it to build, and where it is not to be
//! had there are words for that instead of a panic.
//!
//! [`DeviceMemory`] is memory of a device that someone lends. A [`Download`] brings it into page-locked memory
//! of this host, piece by piece; [`upload`] brings bytes back. Both begin after the work that was in the default
//! stream's queue when it was [`Queued`].

mod api;
mod device;
mod device_buffer;
mod device_memory;
mod download;
mod driver;
mod error;
mod event;
mod limits;
pub mod headers;
mod pinned;
pub mod port;
mod queued;
mod stream;
mod upload;

pub use device_buffer::DeviceBuffer;
pub use device_memory::DeviceMemory;
pub use download::Download;
pub use driver::Driver;
pub use error::CudaError;
pub use pinned::Pinned;
pub use queued::Queued;
pub use upload::{Piece, upload};
