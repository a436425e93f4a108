//! Streams of a device that are lent to one user at a time.

use crate::device::Device;
use crate::error::CudaError;
use crate::stream::Stream;
use core::ops::Deref;

/// The most unused streams of a device that are kept.
const KEPT_MAX: usize = 8;

/// A stream that nothing else uses: what is queued on it waits for no other operation. Its user waits for all its work before it
/// is dropped.
pub(crate) struct StreamLease {
    pub(crate) device: &'static Device,
    /// None only while it is dropped.
    stream: Option<Stream>,
}

impl StreamLease {
    pub(crate) fn take(device: &'static Device) -> Result<Self, CudaError> {
        let kept = device.spare_streams.lock().pop();
        let stream = match kept {
            Some(stream) => stream,
            None => Stream::open(device.context)?,
        };
        Ok(Self { device, stream: Some(stream) })
    }
}

impl Deref for StreamLease {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.stream.as_ref().expect("a lease has its stream until it is dropped")
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        let mut spare = self.device.spare_streams.lock();
        if spare.len() < KEPT_MAX {
            spare.extend(self.stream.take());
        }
    }
}
