//! The certificates of masters whose signatures a peer has.

use ringfold_proto::claim::CertificateChain;
use ringfold_proto::id::PeerId;
use ringfold_proto::limits;
use ringfold_proto::message::Resume;

/// The certificates of masters, that of the last connection last.
#[derive(Default)]
pub(super) struct SignerChains(Vec<(PeerId, CertificateChain)>);

impl SignerChains {
    /// Keeps what a master shows that was connected to.
    pub fn add(&mut self, (master, chain): (PeerId, CertificateChain)) {
        let is_long = |certificate: &Vec<u8>| certificate.len() > limits::CERTIFICATE_BYTES_MAX;
        if chain.0.len() > limits::CERTIFICATES_IN_CHAIN_MAX || chain.0.iter().any(is_long) {
            return tracing::warn!(
                "the certificates of the master are too long: another one may not believe this peer"
            );
        }
        self.0.retain(|(known, _)| *known != master);
        self.0.push((master, chain));
    }

    /// Adds those that are needed to a report, and forgets all others but the last.
    pub fn complete(&mut self, resume: &mut Resume) {
        let mut signers = resume.signers();
        signers.truncate(limits::CHAINS_IN_RESUME_MAX);
        let last = self.0.pop();
        let of = |signer: &PeerId| self.0.iter().chain(&last).find(|(known, _)| known == signer);
        resume.chains = signers.iter().filter_map(of).map(|(_, chain)| chain.clone()).collect();
        self.0.retain(|(known, _)| signers.contains(known));
        self.0.extend(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::claim::Signature;
    use ringfold_proto::message::Join;

    fn chain(byte: u8) -> CertificateChain {
        CertificateChain(vec![vec![byte]])
    }

    /// A report with a charter that this master signed.
    fn resume(signer: u128) -> Resume {
        let signature = Signature { signer: PeerId(signer), bytes: Vec::new() };
        Resume {
            join: Join {
                group: Default::default(),
                name: String::new(),
                host: 0,
                site: 0,
                cores: Default::default(),
                addresses: Vec::new(),
                relays: false,
            },
            incarnation: Default::default(),
            previous: None,
            received: 0,
            seniority: 0,
            epochs: Vec::new(),
            rounds: Default::default(),
            last_pending: false,
            synced: None,
            attributes: Default::default(),
            voter: Default::default(),
            charter_signature: Some(Box::new(signature)),
            chains: Vec::new(),
            held_bytes: 0,
        }
    }

    #[test]
    fn what_is_signed_with_is_kept_and_the_rest_is_forgotten() {
        let mut chains = SignerChains::default();
        (1..=9).for_each(|master| chains.add((PeerId(u128::from(master)), chain(master))));
        let mut report = resume(3);
        chains.complete(&mut report);
        assert_eq!(report.chains, [chain(3)]);
        assert_eq!(chains.0, [(PeerId(3), chain(3)), (PeerId(9), chain(9))]);
        // Another certificate for the same key.
        chains.add((PeerId(3), chain(33)));
        chains.complete(&mut report);
        assert_eq!((report.chains, chains.0.len()), (vec![chain(33)], 1));
        chains.add((PeerId(4), CertificateChain(vec![vec![0; limits::CERTIFICATE_BYTES_MAX + 1]])));
        let mut report = resume(4);
        chains.complete(&mut report);
        assert_eq!(report.chains, []);
    }
}
