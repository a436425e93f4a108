//! Signatures of simulated masters: a hash stands for one. Peers are honest, so a master must never drop a claim.

use super::Simulation;
use crate::oracle::Guarantee;
use ringfold_proto::claim::{Signature, Signer};
use ringfold_proto::id::PeerId;
use ringfold_proto::limits;
use ringfold_proto::message::Resume;
use std::hash::{DefaultHasher, Hasher};

/// Signs for one life of a master.
pub(super) fn signer(master: usize, start: u64) -> Signer {
    let signer = PeerId(((master as u128) << 64) + u128::from(start));
    Signer::new(move |claim| Some(Signature { signer, bytes: hash(signer, claim) }))
}

fn is_signed(signature: &Signature, claim: &[u8]) -> bool {
    signature.bytes == hash(signature.signer, claim)
}

fn hash(signer: PeerId, claim: &[u8]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    hasher.write_u128(signer.0);
    hasher.write(claim);
    hasher.finish().to_le_bytes().to_vec()
}

impl Simulation {
    /// Checks that masters have signed what a peer returns with, and that the certificates of few are needed.
    pub(super) fn check_claims(&mut self, resume: &Resume) {
        let mut checked = resume.clone();
        let dropped = [checked.retain_signed_charter(is_signed), checked.retain_signed_epochs(is_signed)];
        let signers = resume.signers().len();
        if dropped.iter().any(|dropped| !dropped.is_empty()) || signers > limits::CHAINS_IN_RESUME_MAX {
            let what =
                format!("{} returns with unsigned claims: {dropped:?}, {signers} signers", resume.join.name);
            self.oracle.report_violation(self.now, Guarantee::NoFalseAccusation, what);
        }
    }
}
