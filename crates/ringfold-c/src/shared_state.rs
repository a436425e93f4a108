//! Synchronisation of the shared state.

use crate::communicator;
use crate::result::{ResultCode, guarded};
use crate::types::{Comm, SharedState, SharedStateSyncInfo, TensorInfo};
use core::ffi::{CStr, c_int};
use ringfold::cuda::{DeviceMemory, Driver};
use ringfold::{DType, Memory, StateMemory, StateTensor, SyncCompany};
use ringfold_bindings::address_range::AddressRange;
use ringfold_bindings::alias::find_aliases;
use ringfold_bindings::enum_values;
use ringfold_bindings::result::{ApiCall, CallError};
use std::collections::HashSet;

const DEVICE_CPU: c_int = 0;
const DEVICE_CUDA: c_int = 1;

/// Makes the state equal on all peers of the group.
///
/// # Safety
/// As `pccl.h` says: pointers are null or valid, and nobody else uses the tensors until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclSynchronizeSharedState(
    communicator: *const Comm,
    shared_state: *mut SharedState,
    strategy: c_int,
    sync_info_out: *mut SharedStateSyncInfo,
) -> ResultCode {
    guarded(|| {
        let session = communicator::find(communicator)?;
        // SAFETY: it is null or valid and nobody else's, by the caller's promise.
        let state = unsafe { shared_state.as_mut() }.ok_or_else(|| CallError::null("shared_state"))?;
        let strategy = enum_values::parse_strategy(strategy)?;
        // SAFETY: the entries are as many as the state says, by the caller's promise.
        let entries = checked(unsafe { infos(state) }?)?;
        session.require_awaited()?;
        // SAFETY: the caller lends the tensors until we return, and so does `sync_memory`; shared ones are copied.
        let tensors = entries.into_iter().map(|entry| unsafe { entry.tensor() }).collect::<Result<_, _>>()?;
        let info = session
            .communicator
            .sync_memory(state.revision, tensors, strategy, SyncCompany::Alone)
            .map_err(|e| session.record_error(&e, ApiCall::Sync))?;
        state.revision = info.revision;
        if !sync_info_out.is_null() {
            let moved = SharedStateSyncInfo { tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes };
            // SAFETY: it is not null, and the caller promises that it can be written.
            unsafe { sync_info_out.write(moved) };
        }
        Ok(())
    })
}

/// # Safety
/// If they are not null, there are as many as the state says.
unsafe fn infos(state: &SharedState) -> Result<&[TensorInfo], CallError> {
    if state.count == 0 {
        return Ok(&[]);
    }
    if state.infos.is_null() {
        return Err(CallError::null("shared_state->infos"));
    }
    if state.count > isize::MAX as usize / size_of::<TensorInfo>() {
        return Err(CallError::invalid_argument(format!("invalid shared_state->count {}", state.count)));
    }
    // SAFETY: the caller's promise, and they fit into the address space.
    Ok(unsafe { core::slice::from_raw_parts(state.infos, state.count) })
}

/// A checked entry of the state.
#[derive(Debug)]
struct StateEntry<'a> {
    info: &'a TensorInfo,
    key: String,
    dtype: DType,
    span: AddressRange,
    /// Whether an earlier entry has the same memory.
    alias: bool,
}

impl StateEntry<'_> {
    /// # Safety
    /// The contents are lent until the tensor is gone.
    unsafe fn tensor(self) -> Result<StateTensor, CallError> {
        let memory = if self.info.device_type == DEVICE_CUDA {
            // SAFETY: the caller's promise. Tied tensors are staged in copies of their own anyway.
            let memory =
                unsafe { DeviceMemory::borrowed(self.span.start as u64, self.span.bytes, Box::new(())) };
            let invalid = |why| CallError::invalid_argument(format!("invalid data of {:?}: {why}", self.key));
            StateMemory::Device(memory.map_err(invalid)?)
        } else {
            // SAFETY: the caller's promise.
            let memory = unsafe { Memory::kept(self.info.data.cast(), self.span.bytes, Box::new(())) };
            // Tied tensors use a temporary copy: the same content arrives for both names.
            StateMemory::Host(if self.alias { Memory::from(memory.as_slice().to_vec()) } else { memory })
        };
        let allow_content_inequality = self.info.allow_content_inequality != 0;
        Ok(StateTensor { key: self.key, dtype: self.dtype, memory, allow_content_inequality })
    }
}

fn checked(infos: &[TensorInfo]) -> Result<Vec<StateEntry<'_>>, CallError> {
    let mut entries = infos.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    let mut keys = HashSet::new();
    if let Some(duplicate) = entries.iter().find(|e| !keys.insert(e.key.as_str())) {
        return Err(CallError::invalid_argument(format!("duplicate key {:?}", duplicate.key)));
    }
    let spans: Vec<_> =
        entries.iter().map(|e| (e.key.as_str(), e.span, e.info.allow_content_inequality != 0)).collect();
    let aliases = find_aliases(&spans)?;
    for (entry, alias) in entries.iter_mut().zip(aliases) {
        entry.alias = alias;
    }
    Ok(entries)
}

fn entry(info: &TensorInfo) -> Result<StateEntry<'_>, CallError> {
    if info.name.is_null() {
        return Err(CallError::null("the name of a tensor"));
    }
    // SAFETY: it is not null, and the caller promises that it is a string.
    let key = unsafe { CStr::from_ptr(info.name) };
    let Ok(key) = key.to_str() else {
        return Err(CallError::invalid_argument(format!("invalid name {key:?}: not UTF-8")));
    };
    match info.device_type {
        DEVICE_CPU => {}
        DEVICE_CUDA => {
            Driver::loaded()
                .map_err(|why| CallError::invalid_argument(format!("CUDA tensor {key:?}: {why}")))?;
        }
        other => return Err(CallError::invalid_argument(format!("{key:?}: unknown device type {other}"))),
    }
    let dtype = enum_values::parse_dtype(info.datatype)
        .map_err(|f| CallError::invalid_argument(format!("{key:?}: {}", f.text)))?;
    let span = AddressRange::of(&format!("the data of {key:?}"), info.data.cast_const(), info.count, dtype)?;
    Ok(StateEntry { info, key: key.to_owned(), dtype, span, alias: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &CStr, data: usize, count: usize) -> TensorInfo {
        TensorInfo {
            name: name.as_ptr(),
            data: core::ptr::without_provenance_mut(data),
            count,
            datatype: DType::F32 as c_int,
            device_type: DEVICE_CPU,
            allow_content_inequality: 0,
        }
    }

    #[test]
    fn keys_are_unique_strings() {
        assert!(checked(&[info(c"a", 4096, 4), info(c"a", 8192, 4)]).is_err());
        assert!(checked(&[info(c"\xff", 4096, 4)]).is_err());
        assert!(checked(&[TensorInfo { name: core::ptr::null(), ..info(c"a", 4096, 4) }]).is_err());
    }

    #[test]
    fn cuda_tensors_outside_of_device_memory_are_rejected() {
        let cuda = TensorInfo { device_type: DEVICE_CUDA, ..info(c"weights", 4096, 4) };
        // SAFETY: rejected memory is never read.
        let tensor = |entry: StateEntry<'_>| unsafe { entry.tensor() };
        let failure = checked(&[cuda]).and_then(|mut entries| tensor(entries.remove(0))).unwrap_err();
        assert_eq!(failure.code, ResultCode::InvalidArgument);
        assert!(failure.text.contains("weights") && failure.text.contains("CUDA"), "{}", failure.text);
    }
}
