//! What links hand over.

use crate::slots::SlotBuffer;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::link_message::LinkMessage;

/// What arrived.
#[derive(Debug)]
pub enum Arrival {
    /// A frame for a slot.
    Frame(DataHeader, SlotBuffer),
    /// A frame that nobody needs; its payload is to be thrown away.
    Discarded(DataHeader, SlotBuffer),
    /// A message.
    Message(LinkMessage),
}

/// Whether a message can wait until something else leaves: slots that are given back are not missed at once, and
/// together with the next frame they cost nothing.
pub(crate) fn can_wait(message: &LinkMessage) -> bool {
    matches!(message, LinkMessage::Return { .. })
}
