//! Communicators: creation, connection, votes, destruction.

use crate::handles::{Handles, drop_last};
use crate::init::require_init;
use crate::result::{ResultCode, guarded};
use crate::types::{Comm, CommCreateParams, PeerTraffic, Traffic};
use core::ffi::c_int;
use ringfold::settings::{self, Given, Settings, User};
use ringfold::{Communicator, Error};
use ringfold_bindings::communicator_handle::CommunicatorHandle;
use ringfold_bindings::result::{ApiCall, CallError};
use std::sync::Arc;

/// All communicators of the process.
static COMMUNICATORS: Handles<CommunicatorHandle> = Handles::new(0);

/// The communicator of a handle.
pub(crate) fn find(handle: *const Comm) -> Result<Arc<CommunicatorHandle>, CallError> {
    require_init()?;
    if handle.is_null() {
        return Err(CallError::null("communicator"));
    }
    COMMUNICATORS
        .find(handle)
        .ok_or_else(|| CallError::invalid_argument("invalid communicator: unknown or destroyed handle"))
}

/// Creates a communicator.
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
        let Some(params) = (unsafe { params.as_ref() }) else { return Err(CallError::null("params")) };
        if comm_out.is_null() {
            return Err(CallError::null("comm_out"));
        }
        let handle = COMMUNICATORS.issue(create(params)?);
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { comm_out.write(handle) };
        Ok(())
    })
}

fn create(params: &CommCreateParams) -> Result<CommunicatorHandle, CallError> {
    let master = params.master_address.to_rust()?;
    if master.port() == 0 {
        return Err(CallError::invalid_argument("invalid master_address: port 0"));
    }
    let streams = u16::try_from(params.p2p_connection_pool_size).map_err(|_| {
        CallError::invalid_argument(format!(
            "invalid p2p_connection_pool_size {}: must be at most {}",
            params.p2p_connection_pool_size,
            u16::MAX
        ))
    })?;
    let invalid = |e: Error| CallError::from_error(&e, ApiCall::Creation);
    // The list of all masters has priority over the address of one.
    let settings = Settings::load(User::Peer, &Given::default()).map_err(|e| invalid(e.into()))?;
    let masters = settings::master_addresses(&settings).unwrap_or_else(|| master.to_string());
    let builder = Communicator::builder(masters).peer_group(params.peer_group).streams(streams);
    let communicator = builder.build().map_err(invalid)?;
    Ok(CommunicatorHandle::new(communicator))
}

/// Leaves the run and frees the communicator.
#[unsafe(no_mangle)]
pub extern "C" fn pcclDestroyCommunicator(communicator: *mut Comm) -> ResultCode {
    guarded(|| {
        let session = find(communicator)?;
        // If two threads destroy it, one of them fails here.
        COMMUNICATORS
            .retire(communicator)
            .ok_or_else(|| CallError::invalid_argument("invalid communicator: it was destroyed"))?;
        // The caller may free the buffers when this has succeeded.
        let late = session.leave();
        require_released(late, drop_last(session))
    })
}

fn require_released(late: usize, is_dropped: bool) -> Result<(), CallError> {
    let users = match (late, is_dropped) {
        (0, true) => return Ok(()),
        (0, false) => "calls of other threads".to_owned(),
        (late, _) => format!("{late} asynchronous operations"),
    };
    let text =
        format!("the communicator was destroyed, but {users} may still use their buffers: do not free them");
    Err(CallError::new(ResultCode::InternalError, text))
}

/// Connects to the master and waits until accepted.
#[unsafe(no_mangle)]
pub extern "C" fn pcclConnect(communicator: *mut Comm) -> ResultCode {
    guarded(|| find(communicator)?.connect())
}

/// Accepts waiting peers.
#[unsafe(no_mangle)]
pub extern "C" fn pcclUpdateTopology(communicator: *mut Comm) -> ResultCode {
    guarded(|| find(communicator)?.update_topology())
}

/// Measures the bandwidth and chooses the best ring.
#[unsafe(no_mangle)]
pub extern "C" fn pcclOptimizeTopology(communicator: *const Comm) -> ResultCode {
    guarded(|| find(communicator)?.optimize_topology())
}

/// Returns whether peers wait to join.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclArePeersPending(
    communicator: *const Comm,
    peers_pending_out: *mut bool,
) -> ResultCode {
    guarded(|| {
        let session = find(communicator)?;
        if peers_pending_out.is_null() {
            return Err(CallError::null("peers_pending_out"));
        }
        let pending = session.are_peers_pending()?;
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { peers_pending_out.write(pending) };
        Ok(())
    })
}

/// An alias of [`pcclArePeersPending`].
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

/// Returns a world size.
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
        let session = find(communicator)?;
        if p_attribute_out.is_null() {
            return Err(CallError::null("p_attribute_out"));
        }
        let value = session.attribute(attribute)?;
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { p_attribute_out.write(c_int::try_from(value).unwrap_or(c_int::MAX)) };
        Ok(())
    })
}

/// Returns what was sent and received in the run.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetTraffic(communicator: *const Comm, traffic_out: *mut Traffic) -> ResultCode {
    guarded(|| {
        let session = find(communicator)?;
        if traffic_out.is_null() {
            return Err(CallError::null("traffic_out"));
        }
        let traffic = session.communicator.traffic().total.into();
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { traffic_out.write(traffic) };
        Ok(())
    })
}

/// Returns what was sent to each peer and received from it.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid, and there is room for `capacity` peers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetPeerTraffic(
    communicator: *const Comm,
    peers_out: *mut PeerTraffic,
    capacity: usize,
    count_out: *mut usize,
) -> ResultCode {
    guarded(|| {
        let session = find(communicator)?;
        if count_out.is_null() {
            return Err(CallError::null("count_out"));
        }
        if peers_out.is_null() && capacity > 0 {
            return Err(CallError::null("peers_out"));
        }
        let peers = session.communicator.traffic().peers;
        for (index, peer) in peers.iter().take(capacity).enumerate() {
            let entry = PeerTraffic { peer: peer.peer.to_be_bytes(), traffic: peer.traffic.into() };
            // SAFETY: the caller promises that there is room for so many.
            unsafe { peers_out.add(index).write(entry) };
        }
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { count_out.write(peers.len()) };
        Ok(())
    })
}

/// Sets whether quantized sums and averages carry over their error.
#[unsafe(no_mangle)]
pub extern "C" fn pcclSetErrorFeedback(communicator: *mut Comm, enabled: u8) -> ResultCode {
    guarded(|| {
        find(communicator)?.set_error_feedback(enabled != 0);
        Ok(())
    })
}

/// Sets whether all-reduces that are not quantised are resumed when a peer is lost.
#[unsafe(no_mangle)]
pub extern "C" fn pcclSetResume(communicator: *mut Comm, enabled: u8) -> ResultCode {
    guarded(|| {
        find(communicator)?.set_resume(enabled != 0);
        Ok(())
    })
}

/// Sets whether all-reduces are reproducible.
#[unsafe(no_mangle)]
pub extern "C" fn pcclSetReproducible(communicator: *mut Comm, enabled: u8) -> ResultCode {
    guarded(|| {
        find(communicator)?.set_reproducible(enabled != 0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroying_fails_while_buffers_may_be_in_use() {
        assert_eq!(require_released(0, true), Ok(()));
        for (late, is_dropped, users) in
            [(2, true, "2 asynchronous"), (1, false, "1 asynchronous"), (0, false, "other threads")]
        {
            let error = require_released(late, is_dropped).unwrap_err();
            assert!(error.code == ResultCode::InternalError && error.text.contains(users), "{error:?}");
        }
    }
}
