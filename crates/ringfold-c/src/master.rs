//! Masters: made, run, interrupted, awaited, destroyed.

use crate::handles::{Handles, drop_last};
use crate::result::{ResultCode, guarded};
use crate::types::{MasterInstance, SocketAddress};
use ringfold::{Error, Master};
use ringfold_bindings::result::{ApiCall, CallError};
use ringfold_bindings::{join_token, log};
use std::sync::Arc;

/// All masters of the process; the names of communicators have another remainder.
static MASTERS: Handles<Master> = Handles::new(8);

fn find(handle: *const MasterInstance) -> Result<Arc<Master>, CallError> {
    if handle.is_null() {
        return Err(CallError::null("master_instance"));
    }
    MASTERS.find(handle).ok_or_else(|| CallError::invalid_argument("this is no master, or a destroyed one"))
}

/// Makes a master, and binds its address if that is available.
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
        let mut builder = Master::builder().listen(listen_address.to_rust()?.to_string());
        if let Some(token) = join_token::read_environment()? {
            builder = builder.token(token);
        }
        let master = builder.build();
        if let Err(error) = master.bind() {
            tracing::debug!("{error}; pcclRunMaster tries again");
        }
        let handle = MASTERS.issue(master);
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { p_master_handle_out.write(handle) };
        Ok(())
    })
}

/// Serves on a thread of its own; binds first if that is still to be done.
#[unsafe(no_mangle)]
pub extern "C" fn pcclRunMaster(master_instance: *mut MasterInstance) -> ResultCode {
    guarded(|| find(master_instance)?.run().map_err(|e| CallError::from_error(&e, ApiCall::Master)))
}

/// Tells where a master listens.
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
                "this master is not bound: its address was not available, and it was not run",
            ));
        };
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { address_out.write(address.into()) };
        Ok(())
    })
}

/// Tells the master to stop.
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

/// Frees the master; one that runs is stopped first.
#[unsafe(no_mangle)]
pub extern "C" fn pcclDestroyMaster(master_instance: *mut MasterInstance) -> ResultCode {
    guarded(|| {
        let master = find(master_instance)?;
        // Of two threads that destroy it, one does.
        MASTERS
            .retire(master_instance)
            .ok_or_else(|| CallError::invalid_argument("this master was destroyed"))?;
        master.interrupt();
        match master.wait() {
            Ok(()) | Err(Error::Misuse(_)) => {}
            Err(error) => tracing::warn!("a master ended badly: {error}"),
        }
        drop_last(master);
        Ok(())
    })
}
