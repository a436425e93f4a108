//! The exporter of TLS 1.3 (RFC 8446, section 7.5), for sessions whose library does not offer it.

use hmac::{Hmac, KeyInit, Mac};
use rustls::KeyLog;
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// Keeps the exporter secret of one session. All suites that are used have SHA-256.
#[derive(Default)]
pub(super) struct ExporterSecret(OnceLock<[u8; 32]>);

impl core::fmt::Debug for ExporterSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ExporterSecret(..)")
    }
}

impl KeyLog for ExporterSecret {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if let (true, Ok(secret)) = (self.will_log(label), secret.try_into()) {
            self.0.get_or_init(|| secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == "EXPORTER_SECRET"
    }
}

impl ExporterSecret {
    /// The exported value for a label and no context; none before the session has keys.
    pub(super) fn export(&self, label: &[u8]) -> Option<[u8; 32]> {
        let nothing = Sha256::digest([]);
        let derived = expand_label(self.0.get()?, label, &nothing);
        Some(expand_label(&derived, b"exporter", &nothing))
    }
}

/// HKDF-Expand-Label for 32 bytes, which are one block of SHA-256.
fn expand_label(secret: &[u8; 32], label: &[u8], context: &[u8]) -> [u8; 32] {
    let prefix = b"tls13 ";
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.chain_update([0, 32, (prefix.len() + label.len()) as u8])
        .chain_update(prefix)
        .chain_update(label)
        .chain_update([context.len() as u8])
        .chain_update(context)
        .chain_update([1])
        .finalize()
        .into_bytes()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_secrets_are_not_kept() {
        let secret = ExporterSecret::default();
        secret.log("CLIENT_TRAFFIC_SECRET_0", &[], &[1; 32]);
        assert_eq!(secret.export(b"label"), None);
        secret.log("EXPORTER_SECRET", &[], &[1; 32]);
        let value = secret.export(b"label");
        assert!(value.is_some() && value != secret.export(b"another"));
    }
}
