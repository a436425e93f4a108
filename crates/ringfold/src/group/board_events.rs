//! Collectives on the board that have ended, for the journal.
//!
//! A collective on the board may take less than a microsecond, so nothing is posted, and no clock is read, unless it waits.

use super::core::Core;
use super::operation::OperationRequest;
use crate::Error;
use crate::journal::{PeerEvent, SHORT_OP_MAX};
use ringfold_proto::id::Tag;
use ringfold_proto::peer::Failure;
use std::time::Instant;

/// Collectives of so many bytes take so long that reading a clock does not matter.
const LARGE_BYTES: u64 = 64 << 10;

impl Core {
    /// A collective on the board that had to wait has ended. Posts it if it failed, or took long.
    pub(super) fn note_board_op(
        &self,
        request: &OperationRequest,
        waited_from: Instant,
        slept: bool,
        result: &Result<(), Error>,
    ) {
        let is_wanted = if result.is_ok() { self.journal.wants_ops() } else { self.journal.wants_long_ops() };
        if !is_wanted {
            return;
        }
        let call = request.descriptor;
        if result.is_ok() && !slept && call.bytes() < LARGE_BYTES {
            return;
        }
        let duration = waited_from.elapsed();
        let result = match result {
            Ok(()) if duration < SHORT_OP_MAX => return,
            Ok(()) => Ok(self.context.world),
            Err(Error::GroupFailed(cause)) => Err(Failure::Aborted(cause.clone())),
            Err(error) => Err(Failure::Misuse(error.to_string())),
        };
        let (op, tag, sent_bytes, received_bytes) = (None, Tag(0), 0, 0);
        self.journal.post(PeerEvent::OpEnded { op, tag, call, result, sent_bytes, received_bytes, duration });
    }
}
