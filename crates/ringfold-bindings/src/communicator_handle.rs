//! A communicator as the bindings use it: with result codes, and the operations that were not awaited.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::in_flight::InFlight;
use crate::result::{ApiCall, CallError, ResultCode};
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use ringfold::{AllReduce, Communicator, Error, Failure, Work};
use std::time::{Duration, Instant};

/// How long an operation may take to release its buffers after leaving; milliseconds are expected.
const RELEASE_MAX: Duration = Duration::from_secs(60);

/// A communicator with its tags in flight and its last fatal error.
pub struct CommunicatorHandle {
    pub communicator: Communicator,
    pub in_flight: InFlight,
    /// The error that ended this peer's membership, once a call has returned it.
    lost: Mutex<Option<CallError>>,
    /// Whether quantized sums and averages carry over their error, for bindings without an option for it.
    error_feedback: AtomicBool,
    reproducible: AtomicBool,
    resume: AtomicBool,
}

impl CommunicatorHandle {
    pub fn new(communicator: Communicator) -> Self {
        let (in_flight, lost) = (InFlight::default(), Mutex::new(None));
        Self {
            communicator,
            in_flight,
            lost,
            error_feedback: AtomicBool::new(false),
            reproducible: AtomicBool::new(false),
            resume: AtomicBool::new(false),
        }
    }

    /// Converts the error of a call, and remembers it if it ended this peer's membership.
    pub fn record_error(&self, error: &Error, during: ApiCall) -> CallError {
        let failure = CallError::from_error(error, during);
        let over = matches!(
            error,
            Error::Failed(Failure::MasterLost(_) | Failure::Removed(_)) | Error::Left | Error::Interrupted
        );
        if over && during != ApiCall::Connect {
            *self.lost.lock() = Some(failure.clone());
        }
        failure
    }

    /// Fails if a launched operation was not awaited, even if it has ended.
    pub fn require_awaited(&self) -> Result<(), CallError> {
        match self.in_flight.count_unawaited() {
            0 => Ok(()),
            count => Err(CallError::new(
                ResultCode::PendingAsyncOps,
                format!("{count} asynchronous operations were not awaited: wait for them first"),
            )),
        }
    }

    /// Registers with the master and waits until accepted.
    pub fn connect(&self) -> Result<(), CallError> {
        self.communicator.connect().map_err(|e| self.record_error(&e, ApiCall::Connect))
    }

    /// Admits pending peers.
    pub fn update_topology(&self) -> Result<(), CallError> {
        self.require_awaited()?;
        self.communicator.update_topology().map_err(|e| self.record_error(&e, ApiCall::UpdateTopology))
    }

    /// Measures bandwidths and adopts a better ring.
    pub fn optimize_topology(&self) -> Result<(), CallError> {
        self.require_awaited()?;
        self.communicator.optimize_topology().map_err(|e| self.record_error(&e, ApiCall::OptimizeTopology))
    }

    /// Asks whether peers wait to join.
    pub fn are_peers_pending(&self) -> Result<bool, CallError> {
        self.communicator.are_peers_pending().map_err(|e| self.record_error(&e, ApiCall::PendingVote))
    }

    /// The world size with this number of `pcclAttribute_t`.
    pub fn attribute(&self, number: i32) -> Result<u32, CallError> {
        let attributes = self.communicator.attributes();
        let value = match number {
            1 => attributes.global_world,
            2 => attributes.group_world,
            3 => attributes.groups,
            4 => attributes.largest_group_world,
            other => return Err(CallError::invalid_argument(format!("unknown attribute {other}"))),
        };
        // A program that only polls world sizes must learn that it is no longer a member.
        match &*self.lost.lock() {
            Some(lost) => Err(lost.clone()),
            None => Ok(value),
        }
    }

    /// Sets whether quantized sums and averages carry over their error. Turning it off forgets the errors.
    pub fn set_error_feedback(&self, enabled: bool) {
        self.error_feedback.store(enabled, Ordering::Relaxed);
        if !enabled {
            self.communicator.clear_error_feedback(None);
        }
    }

    /// Sets whether all-reduces are reproducible.
    pub fn set_reproducible(&self, enabled: bool) {
        self.reproducible.store(enabled, Ordering::Relaxed);
    }

    /// Sets whether all-reduces that are not quantised are resumed when a peer is lost.
    pub fn set_resume(&self, enabled: bool) {
        self.resume.store(enabled, Ordering::Relaxed);
    }

    /// The options of an all-reduce with these settings.
    pub fn with_settings(&self, options: AllReduce) -> AllReduce {
        let is_wanted = self.error_feedback.load(Ordering::Relaxed) && options.supports_error_feedback();
        let options = if is_wanted { options.error_feedback() } else { options };
        let options =
            if self.resume.load(Ordering::Relaxed) { options.resume_if_possible() } else { options };
        if self.reproducible.load(Ordering::Relaxed) { options.reproducible() } else { options }
    }

    /// Leaves the run, and waits until operations that were never awaited have released their buffers. Returns how many
    /// still use theirs.
    pub fn leave(&self) -> usize {
        self.communicator.leave();
        let until = Instant::now() + RELEASE_MAX;
        let uses_buffers =
            |work: &Work| work.wait_for(until.saturating_duration_since(Instant::now())).is_none();
        let late = self.in_flight.take_unawaited().iter().filter(|work| uses_buffers(work)).count();
        if late > 0 {
            tracing::error!(
                "{late} operations that were not awaited still use their buffers {RELEASE_MAX:?} after leaving"
            );
        }
        late
    }
}
