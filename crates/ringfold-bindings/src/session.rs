//! A communicator as the faces use it: its errors are result codes, and it knows what has not been awaited.

use crate::in_flight::InFlight;
use crate::result::{During, Failure, ResultCode};
use parking_lot::Mutex;
use ringfold::{Communicator, Error, Failure as CallFailure};
use std::time::Duration;

/// How long an abandoned operation may take to let go of its buffers; it is told to, so it takes milliseconds.
const ABANDONED_WAIT_MAX: Duration = Duration::from_secs(60);

/// What a user's communicator stands for.
pub struct Session {
    /// The communicator.
    pub communicator: Communicator,
    /// Its tags.
    pub in_flight: InFlight,
    /// Why this peer is no longer part of the run, once a call has found out.
    lost: Mutex<Option<Failure>>,
}

impl Session {
    /// A session of a communicator that was not used yet.
    pub fn new(communicator: Communicator) -> Self {
        Self { communicator, in_flight: InFlight::default(), lost: Mutex::new(None) }
    }

    /// The failure that an error of a call is; the end of this peer's part in the run is remembered.
    pub fn failed(&self, error: &Error, during: During) -> Failure {
        let failure = Failure::of(error, during);
        let over = matches!(
            error,
            Error::Failed(CallFailure::MasterLost(_) | CallFailure::Removed(_))
                | Error::Left
                | Error::Interrupted
        );
        if over && during != During::Connect {
            *self.lost.lock() = Some(failure.clone());
        }
        failure
    }

    /// What was launched must be awaited before a vote, even if it has ended by itself.
    pub fn require_awaited(&self) -> Result<(), Failure> {
        match self.in_flight.unawaited() {
            0 => Ok(()),
            count => Err(Failure::new(
                ResultCode::PendingAsyncOps,
                format!("{count} asynchronous operations have not been awaited: wait for them first"),
            )),
        }
    }

    /// Registers with the master and waits until accepted.
    pub fn connect(&self) -> Result<(), Failure> {
        self.communicator.connect().map_err(|e| self.failed(&e, During::Connect))
    }

    /// Admits whoever waits to join.
    pub fn update_topology(&self) -> Result<(), Failure> {
        self.require_awaited()?;
        self.communicator.update_topology().map_err(|e| self.failed(&e, During::UpdateTopology))
    }

    /// Measures, and takes a better ring.
    pub fn optimize_topology(&self) -> Result<(), Failure> {
        self.require_awaited()?;
        self.communicator.optimize_topology().map_err(|e| self.failed(&e, During::OptimizeTopology))
    }

    /// Tells whether anyone waits to join.
    pub fn are_peers_pending(&self) -> Result<bool, Failure> {
        self.communicator.are_peers_pending().map_err(|e| self.failed(&e, During::PendingVote))
    }

    /// The world size with this number.
    pub fn attribute(&self, number: i32) -> Result<u32, Failure> {
        let attributes = self.communicator.attributes();
        let value = match number {
            1 => attributes.global_world,
            2 => attributes.group_world,
            3 => attributes.groups,
            4 => attributes.largest_group_world,
            other => return Err(Failure::argument(format!("{other} is no attribute"))),
        };
        // A program that only looks at world sizes shall not wait for ever for others to join a run that it
        // is no longer part of.
        match &*self.lost.lock() {
            Some(lost) => Err(lost.clone()),
            None => Ok(value),
        }
    }

    /// Leaves the run. When this returns, nothing of ours touches the buffers of what was never awaited.
    pub fn leave(&self) {
        self.communicator.leave();
        for work in self.in_flight.abandon() {
            if work.wait_for(ABANDONED_WAIT_MAX).is_none() {
                tracing::error!("an abandoned operation has not let go of its buffers");
            }
        }
    }
}
