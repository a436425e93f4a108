//! Initialisation of the library, once per process.

use crate::result::{ResultCode, guarded};
use crate::types::BuildInfo;
use core::sync::atomic::{AtomicBool, Ordering};
use ringfold::cuda::Driver;
use ringfold_bindings::log;
use ringfold_bindings::result::CallError;

static READY: AtomicBool = AtomicBool::new(false);

/// Initialises the library; may be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn pcclInit() -> ResultCode {
    guarded(|| {
        log::start_once();
        READY.store(true, Ordering::Release);
        Ok(())
    })
}

/// Returns the features of this build.
///
/// # Safety
/// As `pccl.h` says: the pointer is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetBuildInfo(build_info_out: *mut BuildInfo) -> ResultCode {
    guarded(|| {
        if build_info_out.is_null() {
            return Err(CallError::null("build_info_out"));
        }
        // SAFETY: it is not null, and the caller promises that it can be written.
        unsafe { build_info_out.write(BuildInfo { has_cuda_support: Driver::is_usable() }) };
        Ok(())
    })
}

/// An error before `pcclInit`.
pub(crate) fn require_init() -> Result<(), CallError> {
    if READY.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(CallError::new(ResultCode::NotInitialized, "pcclInit was not called"))
}
