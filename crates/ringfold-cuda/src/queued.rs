//! What the user's program has queued before it called us.

use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::event::Event;
use crate::stream::Stream;

/// Marks the default stream's queue on some devices: copies begin after what is in it now. Work on streams that are not
/// ordered with the default one is for the user to wait for.
pub struct Queued {
    marks: Vec<Event>,
}

impl Queued {
    /// What is queued now on the devices that these memories are of.
    pub fn now<'a>(memories: impl IntoIterator<Item = &'a DeviceMemory>) -> Result<Self, CudaError> {
        let mut marks: Vec<Event> = Vec::new();
        for device in memories.into_iter().filter_map(DeviceMemory::device) {
            if marks.iter().all(|mark| mark.context.ordinal != device.ordinal) {
                marks.push(Stream::legacy(device.context()).mark()?);
            }
        }
        Ok(Self { marks })
    }

    /// A stream of a device's goes on after what was queued there.
    pub(crate) fn before(&self, stream: &Stream, ordinal: i32) -> Result<(), CudaError> {
        self.marks.iter().filter(|mark| mark.context.ordinal == ordinal).try_for_each(|m| stream.wait(m))
    }
}
