//! The certificates of a run: the files that hold them, and the check of what another end shows.

use super::issue::{fingerprint_of, is_key_of, sign_process_key};
use super::security::PROVIDER;
use crate::watched::warn_if_readable_by_others;
use core::fmt;
use core::time::Duration;
use rcgen::KeyPair;
use ringfold_proto::handshake::{CertificateProblem, Role};
use ringfold_settings::{Settings, table};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, UnixTime};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use webpki::{EndEntityCert, KeyUsage};

/// The end of all names in certificates.
const SUFFIX: &str = ".ringfold";

/// The files with the certificates of a run, made by `ringfold keys`. All are PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The CA of the run; several while it is replaced.
    pub ca: PathBuf,
    /// The certificate of this end.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The revocation list, if there is one: the name or the fingerprint of a certificate per line.
    pub revoked: Option<PathBuf>,
}

impl TlsFiles {
    /// Files without a revocation list.
    pub fn new(ca: impl Into<PathBuf>, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { ca: ca.into(), certificate: certificate.into(), key: key.into(), revoked: None }
    }

    /// Adds a revocation list.
    #[must_use]
    pub fn revoked(mut self, path: impl Into<PathBuf>) -> Self {
        self.revoked = Some(path.into());
        self
    }

    /// Files that were given one by one; none of them, or all but the revocation list.
    pub fn from_parts(
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        revoked: Option<PathBuf>,
    ) -> Result<Option<Self>, String> {
        match (ca, certificate, key, revoked) {
            (None, None, None, None) => Ok(None),
            (Some(ca), Some(certificate), Some(key), revoked) => {
                Ok(Some(Self { ca, certificate, key, revoked }))
            }
            _ => Err("incomplete certificates: the CA, the certificate and its key must all be given \
                      (RINGFOLD_TLS_CA, RINGFOLD_TLS_CERT and RINGFOLD_TLS_KEY)"
                .into()),
        }
    }

    /// The files that settings name.
    pub fn of(settings: &Settings) -> Result<Option<Self>, String> {
        let path = |setting| settings.path(setting).map(PathBuf::from);
        let [ca, certificate, key] = [&table::TLS_CA, &table::TLS_CERT, &table::TLS_KEY].map(path);
        Self::from_parts(ca, certificate, key, path(&table::TLS_REVOKED))
    }

    /// What the files say, without checking more of it than that it can be read.
    pub fn dates(&self) -> Result<CertificateDates, String> {
        let named = format!("TLS certificate {}", self.certificate.display());
        let certificate = first_certificate(&read("TLS certificate", &self.certificate)?)
            .map_err(|error| format!("invalid {named}: {error}"))?;
        let ca = first_certificate(&read("TLS CA", &self.ca)?)
            .map_err(|error| format!("invalid TLS CA {}: {error}", self.ca.display()))?;
        let identity = name_of(&certificate).and_then(|name| PeerIdentity::parse(&name));
        let identity =
            identity.ok_or_else(|| format!("invalid {named}: not made by `ringfold keys issue`"))?;
        Ok(CertificateDates {
            identity,
            valid_until: valid_until(&certificate),
            ca_valid_until: valid_until(&ca),
        })
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        [&self.ca, &self.certificate, &self.key].into_iter().chain(&self.revoked).cloned().collect()
    }

    /// Reads the files, and signs the key of this process.
    pub(super) fn load(
        &self,
        process: &KeyPair,
    ) -> Result<(TrustedRun, Vec<CertificateDer<'static>>), String> {
        let run = TrustedRun::new(
            &read("TLS CA", &self.ca)?,
            self.revoked.as_ref().map(|path| read("revocation list", path)).transpose()?.as_deref(),
        )
        .map_err(|error| format!("invalid TLS CA {}: {error}", self.ca.display()))?;
        let named = format!("TLS certificate {}", self.certificate.display());
        let identity = first_certificate(&read("TLS certificate", &self.certificate)?)
            .map_err(|error| format!("invalid {named}: {error}"))?;
        warn_if_readable_by_others("TLS key", &self.key);
        let key = read_key(&read("TLS key", &self.key)?)
            .map_err(|error| format!("invalid TLS key {}: {error}", self.key.display()))?;
        if !is_key_of(&key, &identity) {
            return Err(format!("invalid TLS key {}: it does not belong to the {named}", self.key.display()));
        }
        let leaf =
            sign_process_key(&identity, key, process).map_err(|error| format!("invalid {named}: {error}"))?;
        let chain = vec![leaf, identity];
        // What other ends would refuse is refused here, with the name of the file.
        match run.verify(&chain, UnixTime::now()) {
            Ok(_) => Ok((run, chain)),
            Err(CertificateProblem::WrongCa) => {
                Err(format!("invalid {named}: it was not signed by the CA in {}", self.ca.display()))
            }
            Err(problem) => Err(format!("invalid {named}: it {problem}")),
        }
    }
}

/// What the files with certificates say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateDates {
    /// Who this end is.
    pub identity: PeerIdentity,
    /// The end of its certificate.
    pub valid_until: Option<SystemTime>,
    /// The end of the first CA.
    pub ca_valid_until: Option<SystemTime>,
}

/// The end of a certificate.
pub(crate) fn valid_until(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    // At the end of the year 9999 every certificate has expired, and the error says when.
    const FAR: Duration = Duration::from_secs(253_402_300_799);
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let algorithms = PROVIDER.signature_verification_algorithms.all;
    let far = UnixTime::since_unix_epoch(FAR);
    match parsed.verify_for_usage(algorithms, &[], &[], far, KeyUsage::client_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

/// Who another end is, as its certificate says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PeerIdentity {
    /// The name of the identity. Several processes may share it.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

/// The name in the certificate.
impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}{SUFFIX}", self.name, self.role)
    }
}

impl PeerIdentity {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (name, role) = name.strip_suffix(SUFFIX)?.split_once('.')?;
        Some(Self { name: name.to_owned(), role: role.parse().ok()? })
    }
}

/// The only name in a certificate.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_dns_names();
    let name = names.next()?.to_owned();
    names.next().is_none().then_some(name)
}

/// The CAs of a run, and what they have revoked.
pub(crate) struct TrustedRun {
    anchors: Vec<TrustAnchor<'static>>,
    /// Names and fingerprints.
    revoked: HashSet<String>,
}

impl fmt::Debug for TrustedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustedRun").field("revoked", &self.revoked).finish_non_exhaustive()
    }
}

impl TrustedRun {
    fn new(ca: &[u8], revoked: Option<&[u8]>) -> Result<Self, String> {
        let mut anchors = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(ca) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            if let Some(identity) = name_of(&certificate).and_then(|name| PeerIdentity::parse(&name)) {
                return Err(format!("it is the certificate of {}, and not of a CA", identity.name));
            }
            let anchor = webpki::anchor_from_trusted_cert(&certificate).map_err(|error| error.to_string())?;
            anchors.push(anchor.to_owned());
        }
        if anchors.is_empty() {
            return Err("the file has no certificate".into());
        }
        let revoked = String::from_utf8_lossy(revoked.unwrap_or_default()).into_owned();
        let entries = revoked.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let revoked = entries.filter(|entry| !entry.is_empty()).map(str::to_ascii_lowercase).collect();
        Ok(Self { anchors, revoked })
    }

    /// Checks what another end shows: the certificate of its key, and that of the identity which signed it.
    pub(crate) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerIdentity, CertificateProblem> {
        self.verify_at(chain, now).map_err(|(problem, _)| problem)
    }

    /// The same, for certificates that have expired since, no longer ago than this: all were valid at one time.
    pub(super) fn verify_lately(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expired_max: Duration,
    ) -> Result<PeerIdentity, CertificateProblem> {
        let mut at = now;
        loop {
            match self.verify_at(chain, at) {
                Err((CertificateProblem::Expired, Some(not_after)))
                    if not_after < at && not_after.as_secs() + expired_max.as_secs() >= now.as_secs() =>
                {
                    at = not_after;
                }
                verified => return verified.map_err(|(problem, _)| problem),
            }
        }
    }

    /// Checks a chain as of some time. An error has the end of an expired certificate.
    fn verify_at(
        &self,
        chain: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> Result<PeerIdentity, (CertificateProblem, Option<UnixTime>)> {
        use CertificateProblem::{Expired, Invalid, Missing, NotYetValid, Revoked, WrongCa};
        const INVALID: (CertificateProblem, Option<UnixTime>) = (Invalid, None);
        let [leaf, identity] = chain else {
            return Err((if chain.len() < 2 { Missing } else { Invalid }, None));
        };
        let parsed = EndEntityCert::try_from(leaf).map_err(|_| INVALID)?;
        let algorithms = PROVIDER.signature_verification_algorithms.all;
        let intermediates = std::slice::from_ref(identity);
        let path = parsed
            .verify_for_usage(
                algorithms,
                &self.anchors,
                intermediates,
                at,
                KeyUsage::client_auth(),
                None,
                None,
            )
            .map_err(|error| match error {
                webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => (WrongCa, None),
                webpki::Error::CertExpired { not_after, .. } => (Expired, Some(not_after)),
                webpki::Error::CertNotValidYet { .. } => (NotYetValid, None),
                _ => INVALID,
            })?;
        // The CA signs identities only.
        if path.intermediate_certificates().count() != 1 {
            return Err(INVALID);
        }
        let name = name_of(leaf).filter(|name| name_of(identity).as_ref() == Some(name)).ok_or(INVALID)?;
        let found = PeerIdentity::parse(&name).ok_or(INVALID)?;
        if self.revoked.contains(&found.name) || self.revoked.contains(&fingerprint_of(identity)) {
            tracing::warn!("the certificate of {found} was revoked");
            return Err((Revoked, None));
        }
        Ok(found)
    }
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read the {what} in {}: {error}", path.display()))
}

pub(super) fn first_certificate(pem: &[u8]) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(pem).map_err(|error| format!("the file has no certificate: {error}"))
}

pub(super) fn read_key(pem: &[u8]) -> Result<KeyPair, String> {
    let key = PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| format!("the file has no private key: {error}"))?;
    KeyPair::try_from(&key).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
