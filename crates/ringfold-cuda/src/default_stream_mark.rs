//! The work that the user's program has queued on the default stream.

use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::event::Event;
use crate::stream::Stream;

/// A position in the default streams of some devices: copies start after the work before it.
///
/// The user must wait for work on streams that are not ordered with the default stream.
pub struct DefaultStreamMark {
    events: Vec<Event>,
}

impl DefaultStreamMark {
    /// Records an event on the default stream of every device that these memories are on.
    pub fn record<'a>(memories: impl IntoIterator<Item = &'a DeviceMemory>) -> Result<Self, CudaError> {
        let mut events: Vec<Event> = Vec::new();
        for device in memories.into_iter().filter_map(DeviceMemory::device) {
            if events.iter().all(|event| event.context.ordinal != device.ordinal) {
                events.push(Stream::legacy(device.context).record_event()?);
            }
        }
        Ok(Self { events })
    }

    /// Makes a stream of device `ordinal` wait for the work before the mark.
    pub(crate) fn make_wait(&self, stream: &Stream, ordinal: i32) -> Result<(), CudaError> {
        let mut events = self.events.iter().filter(|event| event.context.ordinal == ordinal);
        events.try_for_each(|event| stream.wait(event))
    }
}
