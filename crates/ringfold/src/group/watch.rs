//! Collectives on the board that take long, for the journal.
//!
//! A collective on the board may take less than a microsecond, so nothing is posted, and no clock is read, unless it waits.

use super::core::Core;
use super::operation::OperationRequest;
use crate::Error;
use crate::journal::{PeerEvent, SHORT_OP_MAX};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Tag;
use ringfold_proto::peer::Failure;
use std::sync::LazyLock;
use std::time::Instant;

/// Collectives of so many bytes take so long that reading a clock does not matter.
const LARGE_BYTES: u64 = 64 << 10;

/// The collective that this rank waits in, as another thread sees it.
#[derive(Debug, Default)]
pub(super) struct BoardWatch {
    /// When it began, in nanoseconds; 0 if there is none, or it was posted.
    began: AtomicU64,
    collective: AtomicU64,
    bytes: AtomicU64,
    is_used: AtomicBool,
}

/// The origin of times.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl BoardWatch {
    /// A collective has to wait.
    pub(super) fn begin(&self, now: Instant, descriptor: &Descriptor) {
        self.collective.store(descriptor.collective.number(), Ordering::Relaxed);
        self.bytes.store(descriptor.bytes(), Ordering::Relaxed);
        let nanos = now.saturating_duration_since(*ORIGIN).as_nanos() as u64;
        self.is_used.store(true, Ordering::Relaxed);
        self.began.store(nanos.max(1), Ordering::Release);
    }

    fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    /// Whether there was ever one.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// The name, bytes and time of a collective that has been waiting for so long, once.
    pub(super) fn take_running(&self, at_least: Duration) -> Option<(&'static str, u64, Duration)> {
        let began = self.began.load(Ordering::Acquire);
        let waited = ORIGIN.elapsed().saturating_sub(Duration::from_nanos(began));
        if began == 0 || waited < at_least {
            return None;
        }
        let name = Collective::name_of(self.collective.load(Ordering::Relaxed))?;
        let bytes = self.bytes.load(Ordering::Relaxed);
        // If it has ended meanwhile, the values may be those of the next one.
        let is_same = self.began.compare_exchange(began, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_same.then_some((name, bytes, waited))
    }
}

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
        self.watch.end();
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
