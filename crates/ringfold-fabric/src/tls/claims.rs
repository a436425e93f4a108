//! Signatures of masters over what they decide, made and verified with the keys of the run's certificates.

use super::certificates::PeerIdentity;
use super::security::{Security, peer_of};
use core::time::Duration;
use rcgen::SigningKey;
use ringfold_proto::claim::CertificateChain;
use ringfold_proto::handshake::{CertificateProblem, Role};
use ringfold_proto::id::PeerId;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;

/// How long ago a signer's certificate may have expired. Peers have the one that their master showed when they connected, and a
/// connection may last.
const EXPIRED_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// A master that signs claims, as its certificates say.
#[derive(Debug)]
pub struct ClaimSigner {
    peer: PeerId,
    certificate: CertificateDer<'static>,
}

impl ClaimSigner {
    /// The id that belongs to its key.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Whether this is its signature over these bytes: ECDSA with P-256 and SHA-256, in DER.
    pub fn has_signed(&self, claim: &[u8], signature: &[u8]) -> bool {
        let parsed = EndEntityCert::try_from(&self.certificate);
        parsed.is_ok_and(|parsed| {
            parsed.verify_signature(webpki::ring::ECDSA_P256_SHA256, claim, signature).is_ok()
        })
    }
}

impl Security {
    /// Signs with the key of this process; none if this end uses no certificates.
    pub fn sign(&self, claim: &[u8]) -> Option<Vec<u8>> {
        self.certified_key()?.sign(claim).ok()
    }

    /// The certificates that this end shows, for those that verify its signatures.
    pub fn chain(&self) -> CertificateChain {
        let configs = self.configs();
        CertificateChain(configs.chain.iter().map(|certificate| certificate.to_vec()).collect())
    }

    /// Checks the certificates of a signer: they must be a master's, of this run, and not revoked. They may have expired, but not
    /// long ago.
    pub fn claim_signer(&self, chain: &CertificateChain) -> Result<ClaimSigner, CertificateProblem> {
        let chain: Vec<_> =
            chain.0.iter().map(|certificate| CertificateDer::from(&certificate[..])).collect();
        let configs = self.configs();
        let run = configs.run.as_ref().ok_or(CertificateProblem::Missing)?;
        let PeerIdentity { role, .. } = run.verify_lately(&chain, UnixTime::now(), EXPIRED_MAX)?;
        if role != Role::Master {
            return Err(CertificateProblem::WrongRole);
        }
        let certificate = chain.into_iter().next().ok_or(CertificateProblem::Missing)?.into_owned();
        let peer = peer_of(&certificate).ok_or(CertificateProblem::Invalid)?;
        Ok(ClaimSigner { peer, certificate })
    }
}

#[cfg(test)]
mod tests;
