//! Initialisation of the library, once per process.

use crate::result::{ResultCode, guarded};
use crate::types::BuildInfo;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};
use ringfold::TlsFiles;
use ringfold::cuda::Driver;
use ringfold_bindings::log;
use ringfold_bindings::result::CallError;
use std::path::PathBuf;

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

/// Sets the certificates of what is created from now on.
///
/// # Safety
/// As `pccl.h` says: the pointers are null or texts that end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclSetTls(
    ca_path: *const c_char,
    certificate_path: *const c_char,
    key_path: *const c_char,
    revoked_path: *const c_char,
) -> ResultCode {
    guarded(|| {
        let path = |text: *const c_char| -> Result<Option<PathBuf>, CallError> {
            if text.is_null() {
                return Ok(None);
            }
            // SAFETY: it is not null, and the caller promises that it is a text.
            let text = unsafe { CStr::from_ptr(text) };
            let text = text.to_str().map_err(|_| CallError::invalid_argument("invalid path: not UTF-8"))?;
            Ok(Some(text.into()))
        };
        let (ca, certificate) = (path(ca_path)?, path(certificate_path)?);
        let files = TlsFiles::from_parts(ca, certificate, path(key_path)?, path(revoked_path)?);
        TlsFiles::set_default(files.map_err(CallError::invalid_argument)?);
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
