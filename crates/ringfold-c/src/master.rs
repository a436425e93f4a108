//! Masters: creation, start, interrupt, destruction.

use crate::handles::{Handles, drop_last};
use crate::result::{ResultCode, guarded};
use crate::types::{MasterInstance, SocketAddress};
use ringfold::{Error, Master};
use ringfold_bindings::log;
use ringfold_bindings::result::{ApiCall, CallError};
use std::sync::Arc;

/// All masters of the process; the handles of communicators have another remainder.
static MASTERS: Handles<Master> = Handles::new(8);

fn find(handle: *const MasterInstance) -> Result<Arc<Master>, CallError> {
    if handle.is_null() {
        return Err(CallError::null("master_instance"));
    }
    MASTERS
        .find(handle)
        .ok_or_else(|| CallError::invalid_argument("invalid master: unknown or destroyed handle"))
}

/// Creates a master, and binds its address if it is available.
///
/// # Safety
/// As `pccl.h` says: the pointer is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCreateMaster(
    listen_address: SocketAddress,
    p_master_handle_out: *mut *mut MasterInstance,
) -> ResultCode {
    guarded(|| {
        log::start_once();
        if p_master_handle_out.is_null() {
            return Err(CallError::null("p_master_handle_out"));
        }
        let builder = Master::builder().listen(listen_address.to_rust()?.to_string());
        let master = builder.try_build().map_err(|e| CallError::from_error(&e, ApiCall::Master))?;
        if let Err(error) = master.bind() {
            tracing::debug!("{error}; pcclRunMaster tries again");
        }
        let handle = MASTERS.issue(master);
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { p_master_handle_out.write(handle) };
        Ok(())
    })
}

/// Starts the master on its own thread; binds its address if necessary.
#[unsafe(no_mangle)]
pub extern "C" fn pcclRunMaster(master_instance: *mut MasterInstance) -> ResultCode {
    guarded(|| find(master_instance)?.run().map_err(|e| CallError::from_error(&e, ApiCall::Master)))
}

/// Returns the address of a master.
///
/// # Safety
/// As `pccl.h` says: the pointer is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetMasterAddress(
    master_instance: *const MasterInstance,
    address_out: *mut SocketAddress,
) -> ResultCode {
    guarded(|| {
        let master = find(master_instance)?;
        if address_out.is_null() {
            return Err(CallError::null("address_out"));
        }
        let Some(address) = master.addresses().first().copied() else {
            return Err(CallError::new(
                ResultCode::InvalidUsage,
                "the master is not bound: its address was not available, and it was not run",
            ));
        };
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { address_out.write(address.into()) };
        Ok(())
    })
}

/// Stops the master.
#[unsafe(no_mangle)]
pub extern "C" fn pcclInterruptMaster(master_instance: *mut MasterInstance) -> ResultCode {
    guarded(|| {
        find(master_instance)?.interrupt();
        Ok(())
    })
}

/// Waits until the master has stopped.
#[unsafe(no_mangle)]
pub extern "C" fn pcclMasterAwaitTermination(master_instance: *mut MasterInstance) -> ResultCode {
    guarded(|| find(master_instance)?.wait().map_err(|e| CallError::from_error(&e, ApiCall::Master)))
}

/// Stops and frees the master.
#[unsafe(no_mangle)]
pub extern "C" fn pcclDestroyMaster(master_instance: *mut MasterInstance) -> ResultCode {
    guarded(|| {
        let master = find(master_instance)?;
        // If two threads destroy it, one of them fails here.
        MASTERS
            .retire(master_instance)
            .ok_or_else(|| CallError::invalid_argument("invalid master: it was destroyed"))?;
        master.interrupt();
        match master.wait() {
            Ok(()) | Err(Error::Misuse(_)) => {}
            Err(error) => tracing::warn!("the master ended with an error: {error}"),
        }
        drop_last(master);
        Ok(())
    })
}
