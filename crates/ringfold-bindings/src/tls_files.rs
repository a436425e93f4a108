//! The files with certificates, from a list of paths.

use crate::result::CallError;
use ringfold::TlsFiles;

/// The files in this order: CA, certificate, key, and the revocation list if there is one.
pub fn from_paths(paths: &[String]) -> Result<TlsFiles, CallError> {
    match paths {
        [ca, certificate, key] => Ok(TlsFiles::new(ca, certificate, key)),
        [ca, certificate, key, revoked] => Ok(TlsFiles::new(ca, certificate, key).revoked(revoked)),
        _ => Err(CallError::invalid_argument(format!(
            "invalid tls of {} paths: must be CA, certificate, key and, if there is one, revocation list",
            paths.len()
        ))),
    }
}
