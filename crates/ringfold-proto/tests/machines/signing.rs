//! Signatures of masters in tests: a hash stands for a signature.

use ringfold_proto::claim::{DroppedClaims, Signature, Signer};
use ringfold_proto::id::PeerId;
use ringfold_proto::limits;
use ringfold_proto::message::Resume;
use std::hash::{DefaultHasher, Hasher};

/// Signs as this master.
pub fn signer(master: PeerId) -> Signer {
    Signer::new(move |claim| Some(Signature { signer: master, bytes: hash(master, claim) }))
}

pub fn is_signed(signature: &Signature, claim: &[u8]) -> bool {
    signature.bytes == hash(signature.signer, claim)
}

fn hash(signer: PeerId, claim: &[u8]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    hasher.write_u128(signer.0);
    hasher.write(claim);
    hasher.finish().to_le_bytes().to_vec()
}

/// Drops what no master has signed, as a driver does.
pub fn retain_signed(resume: &mut Resume) -> [DroppedClaims; 2] {
    [resume.retain_signed_charter(is_signed), resume.retain_signed_epochs(is_signed)]
}

/// Checks that a resume of an honest peer loses nothing, and needs few certificates.
pub fn assert_signed(resume: &Resume) {
    let mut checked = resume.clone();
    assert!(retain_signed(&mut checked).iter().all(DroppedClaims::is_empty), "{resume:?}");
    assert_eq!(checked, *resume);
    assert!(resume.signers().len() <= limits::CHAINS_IN_RESUME_MAX, "{:?}", resume.signers());
}
