//! What returning peers claim counts only with a master's signature, if the run has certificates.

use super::limits;
use ringfold_fabric::tls::Security;
use ringfold_proto::claim::{Signature, Signer};
use ringfold_proto::id::{Incarnation, PeerId};
use ringfold_proto::message::Resume;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Signs with the keys of a master, if it has certificates.
pub(super) fn signer(security: &Arc<Security>) -> Signer {
    if !security.has_certificates() {
        return Signer::default();
    }
    let security = security.clone();
    Signer::new(move |claim| {
        let bytes = security.sign(claim);
        if bytes.is_none() {
            tracing::error!(target: "ringfold::master", "cannot sign a decision: another master will not believe it");
        }
        Some(Signature { signer: security.peer(), bytes: bytes? })
    })
}

/// Drops the claims that no master has signed.
pub(super) struct ClaimChecker {
    security: Arc<Security>,
    /// Valid signatures, whose they are and over what: all members return with the same.
    verified: HashMap<Vec<u8>, (PeerId, Vec<u8>)>,
}

impl ClaimChecker {
    pub fn new(security: Arc<Security>) -> Self {
        Self { security, verified: HashMap::new() }
    }

    /// Drops unsigned claims of a peer. `incarnation` is that of the machine, which knows its own epochs.
    pub fn check(&mut self, resume: &mut Resume, from: SocketAddr, incarnation: Option<Incarnation>) {
        if !self.security.has_certificates() {
            return;
        }
        let name = &resume.join.name;
        let mut signers = Vec::new();
        for chain in core::mem::take(&mut resume.chains) {
            match self.security.claim_signer(&chain) {
                Ok(signer) => signers.push(signer),
                Err(problem) => {
                    tracing::warn!(target: "ringfold::master", "ignoring signatures that {name:?} at {from} returns with: the certificate of their master {problem}");
                }
            }
        }
        if self.verified.len() >= limits::VERIFIED_MAX {
            self.verified.clear();
        }
        let verified = &mut self.verified;
        // No master has made an invalid one, so the others of this peer need not be looked at.
        let mut is_forged = false;
        let mut is_signed = |signature: &Signature, claim: &[u8]| {
            let Signature { signer: id, bytes } = signature;
            let Some(signer) = signers.iter().find(|signer| signer.peer() == *id && !is_forged) else {
                return false;
            };
            if verified.get(bytes).is_some_and(|(of, over)| of == id && over == claim) {
                return true;
            }
            if signer.has_signed(claim, bytes) {
                verified.insert(bytes.clone(), (*id, claim.to_vec()));
                return true;
            }
            is_forged = true;
            false
        };
        let mut dropped = vec![resume.retain_signed_charter(&mut is_signed)];
        if incarnation != Some(resume.incarnation) {
            dropped.push(resume.retain_signed_epochs(&mut is_signed));
        }
        for dropped in dropped.into_iter().filter(|dropped| !dropped.is_empty()) {
            let name = &resume.join.name;
            tracing::warn!(target: "ringfold::master", "ignoring claims that {name:?} at {from} returns with, and that no master has signed: {dropped}");
        }
    }
}
