//! Makes the certificates of a run.
//!
//! The CA of a run signs the certificates of identities. An identity is itself a CA, for its own name only: each process signs with
//! it a certificate for the key that it makes when it starts. So processes with one identity have keys, and ids, of their own.

use super::certificates::{PeerIdentity, first_certificate, name_of, read_key, valid_until};
use core::fmt::Write;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 40;
/// How far the clocks of two machines may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// How long the CA of a run is valid.
const CA_DAYS: u32 = 3650;
/// How long the certificate of a process is valid. It is signed again every day.
const PROCESS_DAYS: u32 = 7;

/// A certificate and its private key, as PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key, which is secret.
    pub key: String,
}

impl core::fmt::Debug for Issued {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Makes the CA of a run.
pub fn new_ca(run: &str) -> Result<Issued, String> {
    check_name("run", run)?;
    let key = KeyPair::generate().map_err(text)?;
    let mut params = ca_params(&format!("{run}.ca.ringfold"), BasicConstraints::Unconstrained)?;
    set_validity(&mut params, SystemTime::now(), CA_DAYS);
    let certificate = params.self_signed(&key).map_err(text)?;
    Ok(Issued {
        certificate: pem("CERTIFICATE", certificate.der()),
        key: pem("PRIVATE KEY", key.serialized_der()),
    })
}

/// Makes an identity, signed by a CA, for so many days from now on.
pub fn issue(ca: &Issued, identity: &PeerIdentity, days: u32) -> Result<Issued, String> {
    issue_from(ca, identity, SystemTime::now(), days)
}

/// As [`issue`], from another time on.
pub fn issue_from(
    ca: &Issued,
    identity: &PeerIdentity,
    begin: SystemTime,
    days: u32,
) -> Result<Issued, String> {
    check_name("name", &identity.name)?;
    if days == 0 || days > CA_DAYS {
        return Err(format!("invalid number of days {days}: must be 1 to {CA_DAYS}"));
    }
    let issuer = issuer_of(&first_certificate(ca.certificate.as_bytes())?, read_key(ca.key.as_bytes())?)
        .map_err(|error| format!("invalid CA: {error}"))?;
    let key = KeyPair::generate().map_err(text)?;
    let mut params = ca_params(&identity.to_string(), BasicConstraints::Constrained(0))?;
    set_validity(&mut params, begin, days);
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(identity.to_string())],
        excluded_subtrees: Vec::new(),
    });
    let certificate = params.signed_by(&key, &issuer).map_err(text)?;
    Ok(Issued {
        certificate: pem("CERTIFICATE", certificate.der()),
        key: pem("PRIVATE KEY", key.serialized_der()),
    })
}

/// Signs the key of a process with an identity.
pub(super) fn sign_process_key(
    identity: &CertificateDer<'_>,
    identity_key: KeyPair,
    key: &KeyPair,
) -> Result<CertificateDer<'static>, String> {
    let name = name_of(identity).ok_or("not made by `ringfold keys issue`")?;
    let issuer = issuer_of(identity, identity_key)?;
    let mut params = named(&name)?;
    set_validity(&mut params, SystemTime::now(), PROCESS_DAYS);
    Ok(params.signed_by(key, &issuer).map_err(text)?.into())
}

/// What a certificate says that was made by [`issue`].
#[derive(Debug)]
pub struct IssuedCertificate {
    /// Whose it is.
    pub identity: PeerIdentity,
    /// Its end.
    pub valid_until: Option<SystemTime>,
    /// What a revocation list names it by, besides its name.
    pub fingerprint: String,
}

/// The certificates of identities among those of a PEM file, in their order.
pub fn issued_in(pem: &str) -> Vec<IssuedCertificate> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).flatten();
    let describe = |certificate: CertificateDer<'_>| {
        let identity = PeerIdentity::parse(&name_of(&certificate)?)?;
        let (valid_until, fingerprint) = (valid_until(&certificate), fingerprint_of(&certificate));
        Some(IssuedCertificate { identity, valid_until, fingerprint })
    };
    certificates.filter_map(describe).collect()
}

/// What a revocation list names a certificate by: the SHA-256 hash of its bytes.
pub(super) fn fingerprint_of(certificate: &CertificateDer<'_>) -> String {
    Sha256::digest(certificate).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An issuer. Its certificate has its name twice, so that it can be found without parsing distinguished names.
fn issuer_of(certificate: &CertificateDer<'_>, key: KeyPair) -> Result<Issuer<'static, KeyPair>, String> {
    let name = name_of(certificate).ok_or("not made by `ringfold keys`")?;
    if !is_key_of(&key, certificate) {
        return Err("the key does not belong to the certificate".into());
    }
    Ok(Issuer::new(ca_params(&name, BasicConstraints::Unconstrained)?, key))
}

pub(super) fn is_key_of(key: &KeyPair, certificate: &CertificateDer<'_>) -> bool {
    let certified = rustls::server::ParsedCertificate::try_from(certificate);
    certified.is_ok_and(|certified| {
        certified.subject_public_key_info().as_ref() == rcgen::PublicKeyData::subject_public_key_info(key)
    })
}

fn ca_params(name: &str, constraints: BasicConstraints) -> Result<CertificateParams, String> {
    let mut params = named(name)?;
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

fn named(name: &str) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(text)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, begin: SystemTime, days: u32) {
    let begin = begin.duration_since(UNIX_EPOCH).unwrap_or_default();
    let zero = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = zero + begin.saturating_sub(CLOCK_SKEW);
    params.not_after = zero + begin + Duration::from_secs(u64::from(days) * 24 * 3600);
}

/// A name is part of a DNS name.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    match is_valid {
        true => Ok(()),
        false => Err(format!(
            "invalid {what} {name:?}: must have 1 to {NAME_BYTES_MAX} of a-z, 0-9 and -, with - only inside"
        )),
    }
}

fn text(error: rcgen::Error) -> String {
    error.to_string()
}

fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            for place in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
                text.push(if place <= group.len() { char::from(digit) } else { '=' });
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "-----END {label}-----");
    text
}
