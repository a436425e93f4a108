//! Claims: what a peer reports of an earlier master's decisions, and the signatures of masters over them.
//!
//! In a run with certificates masters sign what they decide. A peer keeps the signatures, and a later master counts only claims
//! that a master has signed. This crate defines which bytes are signed and what happens to claims without a signature; drivers
//! sign and verify. Without certificates all that may join could be masters, and nothing is signed.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::charter::Charter;
use crate::epoch::EpochDescription;
use crate::id::{OpId, PeerId};
use crate::message::{OpProgress, Outcome, Resume};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A signature of a master over a [`Claim`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Signature {
    /// The id that belongs to the key of the master's process.
    pub signer: PeerId,
    pub bytes: Vec<u8>,
}

/// The certificates of a signer, its own first, in DER.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CertificateChain(pub Vec<Vec<u8>>);

/// What a master decided, and a peer may report to another one.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// The epoch was proposed.
    Proposed(&'a EpochDescription),
    /// The epoch was opened, with the pairs without a link and the network that are in the description then.
    Opened(&'a EpochDescription),
    /// The operation was decided. The cause of an abort is only for messages to the user, and is not covered.
    Decided(OpId, &'a Outcome),
    /// The charter is in force.
    Charter(&'a Charter),
}

impl Claim<'_> {
    /// The bytes that are signed: a text that says what is claimed, a zero byte, and the encoding of the claim.
    ///
    /// ```
    /// use ringfold_proto::charter::Charter;
    /// use ringfold_proto::claim::Claim;
    ///
    /// let bytes = Claim::Charter(&Charter::initial()).signed_bytes();
    /// assert_eq!(bytes, b"ringfold charter 1\0\0\0\x01\0\0");
    /// ```
    pub fn signed_bytes(&self) -> Vec<u8> {
        let (domain, encoded) = match self {
            Self::Proposed(description) => ("ringfold epoch proposed 1", postcard::to_allocvec(description)),
            Self::Opened(description) => ("ringfold epoch opened 1", postcard::to_allocvec(description)),
            Self::Decided(op, outcome) => {
                let committed = match outcome {
                    Outcome::Committed { network } => Some(network),
                    Outcome::Aborted(_) => None,
                };
                ("ringfold operation decided 1", postcard::to_allocvec(&(op, committed)))
            }
            Self::Charter(charter) => ("ringfold charter 1", postcard::to_allocvec(charter)),
        };
        // Encoding into memory cannot fail for these types.
        [domain.as_bytes(), &[0], &encoded.unwrap_or_default()].concat()
    }
}

/// Signs the claims of a master, if its run has certificates.
#[derive(Clone, Default)]
pub struct Signer(Option<Arc<SignFunction>>);

type SignFunction = dyn Fn(&[u8]) -> Option<Signature> + Send + Sync;

impl Signer {
    /// Signs with this function. It returns none if it cannot sign.
    pub fn new(sign: impl Fn(&[u8]) -> Option<Signature> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sign)))
    }

    pub(crate) fn sign(&self, claim: Claim<'_>) -> Option<Box<Signature>> {
        self.0.as_ref().and_then(|sign| sign(&claim.signed_bytes())).map(Box::new)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Signer(..)" } else { "Signer(none)" })
    }
}

/// How many claims of a [`Resume`] were dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DroppedClaims {
    pub epochs: usize,
    pub outcomes: usize,
    pub charters: usize,
}

impl DroppedClaims {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for DroppedClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epochs, outcomes, charters } = self;
        write!(f, "{epochs} epochs, {outcomes} outcomes of operations, {charters} charters")
    }
}

impl Resume {
    /// Whose signatures it has, without repetitions, those that matter most first.
    pub fn signers(&self) -> Vec<PeerId> {
        let epochs = self.epochs.iter().filter_map(|record| record.signature.as_deref());
        let ops = self.epochs.iter().flat_map(|record| &record.ops);
        let all = epochs
            .chain(self.charter_signature.as_deref())
            .chain(ops.filter_map(|record| record.signature.as_deref()));
        let mut signers = Vec::new();
        for Signature { signer, .. } in all {
            if !signers.contains(signer) {
                signers.push(*signer);
            }
        }
        signers
    }

    /// Drops the charter if no master has signed it. `is_signed` verifies a signature over bytes.
    pub fn retain_signed_charter(
        &mut self,
        mut is_signed: impl FnMut(&Signature, &[u8]) -> bool,
    ) -> DroppedClaims {
        let claim = Claim::Charter(&self.voter.charter);
        let signature = self.charter_signature.as_deref();
        if self.voter.charter == Charter::initial()
            || signature.is_some_and(|signature| is_signed(signature, &claim.signed_bytes()))
        {
            return DroppedClaims::default();
        }
        (self.voter.charter, self.charter_signature) = (Charter::initial(), None);
        DroppedClaims { charters: 1, ..DroppedClaims::default() }
    }

    /// Drops the epochs and the outcomes of operations that no master has signed. An operation that the peer has called, and
    /// whose outcome is dropped, is done on it. `is_signed` verifies a signature over bytes.
    pub fn retain_signed_epochs(
        &mut self,
        mut is_signed: impl FnMut(&Signature, &[u8]) -> bool,
    ) -> DroppedClaims {
        let mut dropped = DroppedClaims::default();
        let mut is_claim_signed = |signature: Option<&Signature>, claim: Claim<'_>| {
            signature.is_some_and(|signature| is_signed(signature, &claim.signed_bytes()))
        };
        self.epochs.retain_mut(|record| {
            let claim = match record.opened {
                true => Claim::Opened(&record.description),
                false => Claim::Proposed(&record.description),
            };
            if !is_claim_signed(record.signature.as_deref(), claim) {
                dropped.epochs += 1;
                return false;
            }
            let epoch = record.description.id;
            record.ops.retain_mut(|record| {
                let OpProgress::Decided(outcome) = &record.progress else { return true };
                let op = OpId { epoch, tag: record.tag, seq: record.seq };
                if is_claim_signed(record.signature.as_deref(), Claim::Decided(op, outcome)) {
                    return true;
                }
                dropped.outcomes += 1;
                (record.progress, record.signature) = (OpProgress::Done, None);
                record.descriptor.is_some()
            });
            true
        });
        dropped
    }
}
