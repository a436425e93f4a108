//! How the connections of a process are protected, and its keys.

use super::exporter::ExporterSecret;
use super::session::TlsSession;
use ringfold_proto::id::PeerId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, UnbufferedServerConnection};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

/// The protocol, as TLS names it.
const ALPN: &[u8] = b"ringfold/1";

/// The label of the exported value that proofs cover.
pub(crate) const BINDING_LABEL: &[u8] = b"EXPORTER-ringfold";

/// The name in certificates. Nobody verifies it.
const NAME: &str = "ringfold";

/// Which connections are encrypted. The dialler decides, and the acceptor refuses what it does not allow: nothing is
/// negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encryption {
    /// None.
    Never,
    /// All that leave this host.
    #[default]
    OffLoopback,
    /// All.
    Always,
}

/// The environment variable that turns encryption off.
const INSECURE_VARIABLE: &str = "RINGFOLD_INSECURE";

/// Whether the environment turns encryption off: `RINGFOLD_INSECURE=1`.
pub fn insecure_by_environment() -> bool {
    std::env::var(INSECURE_VARIABLE).is_ok_and(|value| !matches!(value.trim(), "" | "0"))
}

/// The keys of a process or a part of it could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the keys of encrypted connections: {0}")]
pub struct SecurityError(String);

impl From<SecurityError> for std::io::Error {
    fn from(error: SecurityError) -> Self {
        Self::other(error)
    }
}

/// How connections are protected, and the keys of this end.
pub struct Security {
    encryption: Encryption,
    peer: PeerId,
    client: ClientConfig,
    server: ServerConfig,
}

impl core::fmt::Debug for Security {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Security").field("encryption", &self.encryption).field("peer", &self.peer).finish()
    }
}

impl Security {
    /// Makes new keys, for connections without a secret. The environment may turn encryption off.
    pub fn by_default() -> Result<Self, SecurityError> {
        Self::new(if insecure_by_environment() { Encryption::Never } else { Encryption::default() })
    }

    /// Makes new keys.
    pub fn new(encryption: Encryption) -> Result<Self, SecurityError> {
        let failed = |error: &dyn core::fmt::Display| SecurityError(error.to_string());
        let key = rcgen::generate_simple_self_signed(vec![NAME.into()]).map_err(|error| failed(&error))?;
        let chain = vec![key.cert.der().clone()];
        let peer = peer_of(&chain[0]).ok_or_else(|| SecurityError("invalid certificate".into()))?;
        let private = || PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()).into();
        let verifier = Arc::new(AnyCertificate);
        let mut server = ServerConfig::builder_with_provider(PROVIDER.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(chain.clone(), private())
            .map_err(|error| failed(&error))?;
        let mut client = ClientConfig::builder_with_provider(PROVIDER.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, private())
            .map_err(|error| failed(&error))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        server.send_tls13_tickets = 0;
        Ok(Self { encryption, peer, client, server })
    }

    /// The id that belongs to the keys.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Which connections are encrypted.
    pub fn encryption(&self) -> Encryption {
        self.encryption
    }

    /// Whether connections to or from an address are encrypted.
    pub(crate) fn encrypts(&self, address: IpAddr) -> bool {
        match self.encryption {
            Encryption::Never => false,
            Encryption::OffLoopback => !is_loopback(address),
            Encryption::Always => true,
        }
    }

    /// The settings of QUIC.
    pub(crate) fn quic_configs(&self) -> (ClientConfig, ServerConfig) {
        (self.client.clone(), self.server.clone())
    }

    /// The session of a dialler.
    pub(crate) fn dial(&self) -> Result<TlsSession, Error> {
        let exporter = Arc::new(ExporterSecret::default());
        let mut config = self.client.clone();
        config.key_log = exporter.clone();
        let name = ServerName::try_from(NAME).map_err(|_| Error::General("invalid name".into()))?;
        UnbufferedClientConnection::new(Arc::new(config), name)
            .map(|connection| TlsSession::new(connection, exporter))
    }

    /// The session of an acceptor.
    pub(crate) fn accept(&self) -> Result<TlsSession, Error> {
        let exporter = Arc::new(ExporterSecret::default());
        let mut config = self.server.clone();
        config.key_log = exporter.clone();
        UnbufferedServerConnection::new(Arc::new(config))
            .map(|connection| TlsSession::new(connection, exporter))
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The id of the peer that a certificate belongs to: a truncated hash of its public key.
pub(crate) fn peer_of(certificate: &CertificateDer<'_>) -> Option<PeerId> {
    let key = ParsedCertificate::try_from(certificate).ok()?.subject_public_key_info();
    let hash = Sha256::digest(&key);
    hash.first_chunk().map(|bytes| PeerId(u128::from_le_bytes(*bytes)))
}

/// AES comes first on processors that have instructions for it. All suites have SHA-256.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !has_aes() {
        provider.cipher_suites.reverse();
    }
    // QUIC's headers need the first one.
    debug_assert!(
        provider.cipher_suites.iter().any(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256)
    );
    Arc::new(provider)
});

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// Accepts any certificate whose key the other end has.
#[derive(Debug)]
struct AnyCertificate;

impl AnyCertificate {
    fn algorithms() -> WebPkiSupportedAlgorithms {
        PROVIDER.signature_verification_algorithms
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not used".into()))
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &Self::algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::algorithms().supported_schemes()
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &Self::algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::algorithms().supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_the_host_is_encrypted_by_default() {
        let encrypts =
            |encryption, address: &str| Security::new(encryption).unwrap().encrypts(address.parse().unwrap());
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.7"] {
            assert!(!encrypts(Encryption::OffLoopback, address) && encrypts(Encryption::Always, address));
        }
        for address in ["10.0.0.7", "fe80::1", "::ffff:10.0.0.7"] {
            assert!(encrypts(Encryption::OffLoopback, address) && !encrypts(Encryption::Never, address));
        }
    }

    #[test]
    fn keys_differ_and_have_ids() {
        let (one, other) =
            (Security::new(Encryption::Always).unwrap(), Security::new(Encryption::Always).unwrap());
        assert_ne!(one.peer(), other.peer());
        assert_ne!(one.peer(), PeerId(0));
    }
}
