//! Initialisation of the library, once per process.

use crate::result::{ResultCode, guarded};
use crate::types::BuildInfo;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};
use ringfold::TlsFiles;
use ringfold::cuda::Driver;
use ringfold::settings::{SettingError, set_for_process};
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
        // SAFETY: the caller promises that they are null or texts.
        let path = |path| unsafe { text(path, "path") };
        let (ca, certificate) = (path(ca_path)?, path(certificate_path)?);
        let (key, revoked) = (path(key_path)?, path(revoked_path)?);
        let [given @ .., _] = [ca, certificate, key, revoked];
        let files = TlsFiles::from_parts(
            ca.map(PathBuf::from),
            certificate.map(PathBuf::from),
            key.map(PathBuf::from),
            revoked.map(PathBuf::from),
        );
        let is_given = files.map_err(CallError::invalid_argument)?.is_some();
        let names = ["tls_ca", "tls_cert", "tls_key"];
        let set = |name, value| set_for_process(name, value).map_err(invalid);
        names.into_iter().zip(given).try_for_each(|(name, path)| set(name, path))?;
        // Without a list here, that of the environment is not used either.
        set("tls_revoked", if is_given { revoked.or(Some("")) } else { None })
    })
}

/// Sets a setting of what is created from now on.
///
/// # Safety
/// As `pccl.h` says: the pointers are null or texts that end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclSetOption(name: *const c_char, value: *const c_char) -> ResultCode {
    guarded(|| {
        // SAFETY: the caller promises that they are null or texts.
        let (name, value) = unsafe { (text(name, "name")?, text(value, "value")?) };
        set_for_process(name.ok_or_else(|| CallError::null("name"))?, value).map_err(invalid)
    })
}

fn invalid(error: SettingError) -> CallError {
    CallError::invalid_argument(error.to_string())
}

/// A text; none if it is null.
///
/// # Safety
/// It is null, or a text that ends with a zero and stays valid as long as the result is used.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, CallError> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and the caller promises that it is a text.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| CallError::invalid_argument(format!("invalid {what}: not UTF-8")))
}

/// An error before `pcclInit`.
pub(crate) fn require_init() -> Result<(), CallError> {
    if READY.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(CallError::new(ResultCode::NotInitialized, "pcclInit was not called"))
}
