//! What links deliver.

use crate::slots::SlotBuffer;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::link_message::LinkMessage;

/// What arrived.
#[derive(Debug)]
pub enum Arrival {
    /// A frame for a slot.
    Frame(DataHeader, SlotBuffer),
    /// A frame that is not needed; its payload is to be dropped.
    Discarded(DataHeader, SlotBuffer),
    /// A message.
    Message(LinkMessage),
}

/// Whether a message can wait for the next frame: returned slots are not missed at once.
pub(crate) fn can_wait(message: &LinkMessage) -> bool {
    matches!(message, LinkMessage::Return { .. })
}
