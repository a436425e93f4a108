//! How the connections of a process are protected, and its keys.

use super::certificates::{PeerIdentity, TlsFiles, TrustedRun};
use super::exporter::ExporterSecret;
use super::session::TlsSession;
use crate::watched::Watched;
use rcgen::{KeyPair, PublicKeyData};
use ringfold_proto::handshake::{CertificateProblem, HandshakeError};
use ringfold_proto::id::PeerId;
use ringfold_settings::{Settings, table};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, UnbufferedServerConnection};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ServerConfig, SignatureScheme,
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

/// The keys of a process or a part of it could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Something of the system failed.
    #[error("cannot make the keys of encrypted connections: {0}")]
    Keys(String),
    /// The files with certificates cannot be used.
    #[error("{0}")]
    Certificates(String),
}

impl From<SecurityError> for std::io::Error {
    fn from(error: SecurityError) -> Self {
        Self::other(error)
    }
}

/// How connections are protected, and the keys of this end.
pub struct Security {
    encryption: Encryption,
    peer: PeerId,
    /// The key, if the run has certificates.
    certified_key: Option<Arc<KeyPair>>,
    configs: ConfigSource,
}

enum ConfigSource {
    Fixed(Arc<TlsConfigs>),
    Files(Watched<TlsConfigs>),
}

/// The settings of new connections.
pub(crate) struct TlsConfigs {
    pub(crate) client: ClientConfig,
    pub(crate) server: ServerConfig,
    /// What this end shows.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// Checks certificates, if the run has them.
    pub(crate) run: Option<Arc<TrustedRun>>,
}

impl core::fmt::Debug for Security {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Security").field("encryption", &self.encryption).field("peer", &self.peer).finish()
    }
}

impl Security {
    /// As [`Security::of`], with the settings of variables and files.
    pub fn by_default() -> Result<Self, SecurityError> {
        let settings = Settings::without_builder();
        Self::of(&settings.map_err(|error| SecurityError::Certificates(error.to_string()))?)
    }

    /// Makes new keys, for connections without a secret. The settings may name certificates, or turn encryption off.
    pub fn of(settings: &Settings) -> Result<Self, SecurityError> {
        if let Some(files) = TlsFiles::of(settings).map_err(SecurityError::Certificates)? {
            return Self::with_certificates(files);
        }
        Self::new(if settings.is_on(&table::INSECURE) { Encryption::Never } else { Encryption::default() })
    }

    /// Makes new keys. Nobody has certified them.
    pub fn new(encryption: Encryption) -> Result<Self, SecurityError> {
        let failed = |error: rcgen::Error| SecurityError::Keys(error.to_string());
        let key = KeyPair::generate().map_err(failed)?;
        let params = rcgen::CertificateParams::new(vec![NAME.into()]).map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.der().clone();
        let configs = TlsConfigs::new(&key, vec![certificate], None).map_err(SecurityError::Keys)?;
        let (peer, configs) = (id_of(&key), ConfigSource::Fixed(Arc::new(configs)));
        Ok(Self { encryption, peer, certified_key: None, configs })
    }

    /// Makes new keys, and certifies them with an identity of a run. All connections are encrypted, and both ends must show
    /// certificates of the run. The files are read again when they change.
    pub fn with_certificates(files: TlsFiles) -> Result<Self, SecurityError> {
        let key = KeyPair::generate().map_err(|error| SecurityError::Keys(error.to_string()))?;
        let key = Arc::new(key);
        let certified_key = Some(key.clone());
        let (peer, paths) = (id_of(&key), files.paths());
        let load = move || {
            let (run, chain) = files.load(&key)?;
            TlsConfigs::new(&key, chain, Some(Arc::new(run)))
        };
        let configs = Watched::new(paths, load).map_err(SecurityError::Certificates)?;
        let configs = ConfigSource::Files(configs);
        Ok(Self { encryption: Encryption::Always, peer, certified_key, configs })
    }

    /// Whether both ends show certificates of a run.
    pub fn has_certificates(&self) -> bool {
        matches!(self.configs, ConfigSource::Files(_))
    }

    /// Checks the certificate of the other end of a connection again, as of now; none if this end uses none.
    pub(crate) fn check(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Option<Result<PeerIdentity, CertificateProblem>> {
        self.configs().run.as_ref().map(|run| run.verify(chain, UnixTime::now()))
    }

    /// Changes when the files with certificates were read again.
    pub fn version(&self) -> u64 {
        match &self.configs {
            ConfigSource::Fixed(_) => 0,
            ConfigSource::Files(files) => files.version(),
        }
    }

    /// The settings of connections that begin now.
    pub(crate) fn configs(&self) -> Arc<TlsConfigs> {
        match &self.configs {
            ConfigSource::Fixed(configs) => configs.clone(),
            ConfigSource::Files(files) => files.current(),
        }
    }

    /// The key of this end, if certificates of a run certify it.
    pub(super) fn certified_key(&self) -> Option<&KeyPair> {
        self.certified_key.as_deref()
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

    /// The session of a dialler.
    pub(crate) fn dial(&self) -> Result<TlsSession, Error> {
        let (exporter, configs) = (Arc::new(ExporterSecret::default()), self.configs());
        let mut config = configs.client.clone();
        config.key_log = exporter.clone();
        let name = ServerName::try_from(NAME).map_err(|_| Error::General("invalid name".into()))?;
        UnbufferedClientConnection::new(Arc::new(config), name)
            .map(|connection| TlsSession::new(connection, exporter, configs.run.clone()))
    }

    /// The session of an acceptor.
    pub(crate) fn accept(&self) -> Result<TlsSession, Error> {
        let (exporter, configs) = (Arc::new(ExporterSecret::default()), self.configs());
        let mut config = configs.server.clone();
        config.key_log = exporter.clone();
        UnbufferedServerConnection::new(Arc::new(config))
            .map(|connection| TlsSession::new(connection, exporter, configs.run.clone()))
    }
}

impl TlsConfigs {
    fn new(
        key: &KeyPair,
        chain: Vec<CertificateDer<'static>>,
        run: Option<Arc<TrustedRun>>,
    ) -> Result<Self, String> {
        let failed = |error: Error| error.to_string();
        let private = || PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let verifier = Arc::new(CertificateVerifier(run.clone()));
        let mut server = ServerConfig::builder_with_provider(PROVIDER.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(chain.clone(), private())
            .map_err(failed)?;
        let mut client = ClientConfig::builder_with_provider(PROVIDER.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain.clone(), private())
            .map_err(failed)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        server.send_tls13_tickets = 0;
        Ok(Self { client, server, chain, run })
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The id of the peer that a certificate belongs to: a truncated hash of its public key.
pub(crate) fn peer_of(certificate: &CertificateDer<'_>) -> Option<PeerId> {
    let key = ParsedCertificate::try_from(certificate).ok()?.subject_public_key_info();
    Some(id_of_public(&key))
}

fn id_of(key: &KeyPair) -> PeerId {
    id_of_public(&key.subject_public_key_info())
}

fn id_of_public(key: &[u8]) -> PeerId {
    let hash: [u8; 32] = Sha256::digest(key).into();
    PeerId(u128::from_le_bytes(core::array::from_fn(|index| hash[index])))
}

/// AES comes first on processors that have instructions for it. All suites have SHA-256.
pub(super) static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
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

/// Accepts any certificate whose key the other end has; a dialler of a run with certificates only those of the run. What an acceptor
/// does not accept, the handshake rejects: so the dialler learns why.
#[derive(Debug)]
struct CertificateVerifier(Option<Arc<TrustedRun>>);

impl CertificateVerifier {
    fn algorithms() -> WebPkiSupportedAlgorithms {
        PROVIDER.signature_verification_algorithms
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not used".into()))
    }
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(run) = &self.0 {
            let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
            run.verify(&chain, now).map_err(|problem| {
                let error = OtherError(Arc::new(HandshakeError::Certificate(problem)));
                Error::InvalidCertificate(CertificateError::Other(error))
            })?;
        }
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

impl ClientCertVerifier for CertificateVerifier {
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
