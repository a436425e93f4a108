//! All-reduces: blocking, asynchronous, and several with retry.

use crate::communicator;
use crate::request::Request;
use crate::result::{ResultCode, guarded};
use crate::types::{AsyncReduceOp, Comm, ReduceDescriptor, ReduceInfo, ReduceOpDescriptor};
use core::ffi::{c_int, c_void};
use ringfold_bindings::all_reduce_args::{AllReduceArgs, require_disjoint};
use ringfold_bindings::result::{ApiCall, CallError};

/// Runs an all-reduce.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid, and nobody else uses the buffers until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    descriptor: *const ReduceDescriptor,
    communicator: *const Comm,
    reduce_info_out: *mut ReduceInfo,
) -> ResultCode {
    guarded(|| {
        let session = communicator::find(communicator)?;
        // SAFETY: it is null or valid, by the caller's promise.
        let descriptor = unsafe { descriptor.as_ref() }.ok_or_else(|| CallError::null("descriptor"))?;
        let request = Request::checked(sendbuf, recvbuf, descriptor, &session)?;
        let _reservation = session.in_flight.reserve([request.operands.tag])?;
        // SAFETY: the caller lends the buffers until we return, which is after the work has ended.
        let reduction = unsafe { request.reduction() }?;
        let info =
            session.communicator.reduce(reduction).map_err(|e| session.record_error(&e, ApiCall::Reduce))?;
        // SAFETY: it is null or valid, by the caller's promise.
        unsafe { report(info, reduce_info_out) };
        Ok(())
    })
}

/// Starts an all-reduce.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid, and nobody else uses the buffers until the operation was awaited
/// or its communicator destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduceAsync(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    descriptor: *const ReduceDescriptor,
    communicator: *const Comm,
    reduce_handle_out: *mut AsyncReduceOp,
) -> ResultCode {
    guarded(|| {
        let session = communicator::find(communicator)?;
        // SAFETY: it is null or valid, by the caller's promise.
        let descriptor = unsafe { descriptor.as_ref() }.ok_or_else(|| CallError::null("descriptor"))?;
        if reduce_handle_out.is_null() {
            return Err(CallError::null("reduce_handle_out"));
        }
        let request = Request::checked(sendbuf, recvbuf, descriptor, &session)?;
        let tag = request.operands.tag;
        let reservation = session.in_flight.reserve([tag])?;
        // SAFETY: the caller lends the buffers until the operation was awaited or the communicator destroyed;
        // both wait until the work has ended.
        let reduction = unsafe { request.reduction() }?;
        let work = session
            .communicator
            .reduce_async(reduction)
            .map_err(|e| session.record_error(&e, ApiCall::Reduce))?;
        reservation.keep(work);
        let handle = AsyncReduceOp { comm: communicator.cast_mut(), tag };
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { reduce_handle_out.write(handle) };
        Ok(())
    })
}

/// Waits for a started all-reduce.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAwaitAsyncReduce(
    reduce_handle: *const AsyncReduceOp,
    reduce_info_out: *mut ReduceInfo,
) -> ResultCode {
    guarded(|| {
        // SAFETY: it is null or valid, by the caller's promise.
        let handle = unsafe { reduce_handle.as_ref() }.ok_or_else(|| CallError::null("reduce_handle"))?;
        let session = communicator::find(handle.comm)?;
        let (work, _reservation) = session.in_flight.take_launched(handle.tag).ok_or_else(|| {
            CallError::invalid_argument(format!(
                "invalid handle: tag {} is not in flight or was awaited before",
                handle.tag
            ))
        })?;
        let info = work.wait().map_err(|e| session.record_error(&e, ApiCall::Reduce))?;
        // SAFETY: it is null or valid, by the caller's promise.
        unsafe { report(info, reduce_info_out) };
        Ok(())
    })
}

/// Runs several all-reduces, with retries, until all have succeeded.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid, and nobody else uses the buffers until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduceMultipleWithRetry(
    descriptors: *const ReduceOpDescriptor,
    count: usize,
    communicator: *const Comm,
    reduce_info_out: *mut ReduceInfo,
    max_in_flight: c_int,
) -> ResultCode {
    guarded(|| {
        let session = communicator::find(communicator)?;
        if descriptors.is_null() {
            return Err(CallError::null("descriptors"));
        }
        if count == 0 || count > isize::MAX as usize / size_of::<ReduceOpDescriptor>() {
            return Err(CallError::invalid_argument(format!("invalid descriptor count {count}")));
        }
        let in_flight_max = usize::try_from(max_in_flight).ok().filter(|max| *max > 0);
        let in_flight_max = in_flight_max
            .ok_or_else(|| CallError::invalid_argument("invalid max_in_flight: must be at least 1"))?;
        // SAFETY: there are so many of them, by the caller's promise, and they fit into the address space.
        let descriptors = unsafe { core::slice::from_raw_parts(descriptors, count) };
        let checked =
            |d: &ReduceOpDescriptor| Request::checked(d.sendbuf, d.recvbuf, &d.descriptor, &session);
        let requests = descriptors.iter().map(checked).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<AllReduceArgs> = requests.iter().map(|r| r.operands).collect();
        require_disjoint(&operands)?;
        let _reservation = session.in_flight.reserve(operands.iter().map(|o| o.tag))?;
        // SAFETY: the caller lends the buffers until we return, which is after all have ended; those that are
        // written overlap nothing.
        let reductions = requests.iter().map(|r| unsafe { r.reduction() }).collect::<Result<Vec<_>, _>>()?;
        let info = session
            .communicator
            .all_reduce_many(reductions, in_flight_max)
            .map_err(|e| session.record_error(&e, ApiCall::Reduce))?;
        // SAFETY: it is null or valid, by the caller's promise.
        unsafe { report(info, reduce_info_out) };
        Ok(())
    })
}

/// # Safety
/// The pointer is null or can be written.
unsafe fn report(info: ringfold::ReduceInfo, out: *mut ReduceInfo) {
    let info = ReduceInfo { local_world_size: info.world, tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes };
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(info) };
    }
}
