//! Communicators: made, connected, voting, destroyed.

use crate::handles::{Handles, drop_last};
use crate::in_flight::InFlight;
use crate::init::require_init;
use crate::join_token;
use crate::result::{During, Failure, ResultCode, guarded};
use crate::types::{Comm, CommCreateParams};
use core::ffi::c_int;
use parking_lot::Mutex;
use ringfold::{Communicator, Error};
use std::sync::Arc;
use std::time::Duration;

/// All communicators of the process.
static COMMUNICATORS: Handles<Session> = Handles::new(0);

/// How long an abandoned operation may take to let go of its buffers; it is told to, so it takes milliseconds.
const ABANDONED_WAIT_MAX: Duration = Duration::from_secs(60);

/// What a `pcclComm_t` stands for.
pub(crate) struct Session {
    pub communicator: Communicator,
    pub in_flight: InFlight,
    /// Why this peer is no longer part of the run, once a call has found out.
    lost: Mutex<Option<Failure>>,
}

impl Session {
    /// What the handle stands for.
    pub fn of(handle: *const Comm) -> Result<Arc<Self>, Failure> {
        require_init()?;
        if handle.is_null() {
            return Err(Failure::null("communicator"));
        }
        COMMUNICATORS
            .find(handle)
            .ok_or_else(|| Failure::argument("this is no communicator, or a destroyed one"))
    }

    /// The failure that an error of a call is; the end of this peer's part in the run is remembered.
    pub fn failed(&self, error: &Error, during: During) -> Failure {
        let failure = Failure::of(error, during);
        let over = matches!(error, Error::MasterLost(_) | Error::Removed(_) | Error::Left);
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
                format!("{count} asynchronous operations have not been awaited"),
            )),
        }
    }
}

/// Makes a communicator.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCreateCommunicator(
    params: *const CommCreateParams,
    comm_out: *mut *mut Comm,
) -> ResultCode {
    guarded(|| {
        require_init()?;
        // SAFETY: it is null or valid, by the caller's promise.
        let Some(params) = (unsafe { params.as_ref() }) else { return Err(Failure::null("params")) };
        if comm_out.is_null() {
            return Err(Failure::null("comm_out"));
        }
        let handle = COMMUNICATORS.issue(create(params)?);
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { comm_out.write(handle) };
        Ok(())
    })
}

fn create(params: &CommCreateParams) -> Result<Session, Failure> {
    let master = params.master_address.to_rust()?;
    if master.port() == 0 {
        return Err(Failure::argument("master_address: no master listens on port 0"));
    }
    let streams = u16::try_from(params.p2p_connection_pool_size).map_err(|_| {
        Failure::argument(format!(
            "p2p_connection_pool_size: {} are too many",
            params.p2p_connection_pool_size
        ))
    })?;
    let mut builder =
        Communicator::builder(master.to_string()).peer_group(params.peer_group).streams(streams);
    if let Some(token) = join_token::from_environment()? {
        builder = builder.token(token);
    }
    let communicator = builder.build().map_err(|e| Failure::of(&e, During::Creation))?;
    Ok(Session { communicator, in_flight: InFlight::default(), lost: Mutex::new(None) })
}

/// Leaves the run and frees the communicator.
#[unsafe(no_mangle)]
pub extern "C" fn pcclDestroyCommunicator(communicator: *mut Comm) -> ResultCode {
    guarded(|| {
        let session = Session::of(communicator)?;
        // Of two threads that destroy it, one does.
        COMMUNICATORS
            .retire(communicator)
            .ok_or_else(|| Failure::argument("this communicator was destroyed"))?;
        session.communicator.leave();
        for work in session.in_flight.abandon() {
            // The caller may free the buffers when this returns.
            if work.wait_for(ABANDONED_WAIT_MAX).is_none() {
                tracing::error!("an abandoned operation has not let go of its buffers");
            }
        }
        drop_last(session);
        Ok(())
    })
}

/// Registers with the master and waits until accepted.
#[unsafe(no_mangle)]
pub extern "C" fn pcclConnect(communicator: *mut Comm) -> ResultCode {
    guarded(|| {
        let session = Session::of(communicator)?;
        session.communicator.connect().map_err(|e| session.failed(&e, During::Connect))
    })
}

/// Admits whoever waits to join.
#[unsafe(no_mangle)]
pub extern "C" fn pcclUpdateTopology(communicator: *mut Comm) -> ResultCode {
    guarded(|| {
        let session = Session::of(communicator)?;
        session.require_awaited()?;
        session.communicator.update_topology().map_err(|e| session.failed(&e, During::UpdateTopology))
    })
}

/// Measures, and takes a better ring.
#[unsafe(no_mangle)]
pub extern "C" fn pcclOptimizeTopology(communicator: *const Comm) -> ResultCode {
    guarded(|| {
        let session = Session::of(communicator)?;
        session.require_awaited()?;
        session.communicator.optimize_topology().map_err(|e| session.failed(&e, During::OptimizeTopology))
    })
}

/// Tells whether anyone waits to join.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclArePeersPending(
    communicator: *const Comm,
    peers_pending_out: *mut bool,
) -> ResultCode {
    guarded(|| {
        let session = Session::of(communicator)?;
        if peers_pending_out.is_null() {
            return Err(Failure::null("peers_pending_out"));
        }
        let pending =
            session.communicator.are_peers_pending().map_err(|e| session.failed(&e, During::PendingVote))?;
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { peers_pending_out.write(pending) };
        Ok(())
    })
}

/// Another name of [`pcclArePeersPending`].
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAreNewPeersPending(
    communicator: *const Comm,
    peers_pending_out: *mut bool,
) -> ResultCode {
    // SAFETY: the same promises.
    unsafe { pcclArePeersPending(communicator, peers_pending_out) }
}

/// Tells a world size.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetAttribute(
    communicator: *const Comm,
    attribute: c_int,
    p_attribute_out: *mut c_int,
) -> ResultCode {
    guarded(|| {
        let session = Session::of(communicator)?;
        if p_attribute_out.is_null() {
            return Err(Failure::null("p_attribute_out"));
        }
        let attributes = session.communicator.attributes();
        let value = match attribute {
            1 => attributes.global_world,
            2 => attributes.group_world,
            3 => attributes.groups,
            4 => attributes.largest_group_world,
            other => return Err(Failure::argument(format!("{other} is no attribute"))),
        };
        // A program that only looks at world sizes shall not wait for ever for others to join a run that it
        // is no longer part of.
        if let Some(lost) = &*session.lost.lock() {
            return Err(lost.clone());
        }
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { p_attribute_out.write(c_int::try_from(value).unwrap_or(c_int::MAX)) };
        Ok(())
    })
}
