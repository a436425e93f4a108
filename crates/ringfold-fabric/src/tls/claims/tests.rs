use super::*;
use crate::tls::TlsFiles;
use crate::tls::issue::{Issued, issue, new_ca};
use std::path::PathBuf;
use std::time::Instant;

/// The files of a run, in a directory of their own.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringfold-claims-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn end(&self, ca: &Issued, name: &str, role: Role, revoked: &str) -> Security {
        let Issued { certificate, key } = issue(ca, &PeerIdentity { name: name.into(), role }, 1).unwrap();
        let write = |file: String, text: &str| {
            let path = self.0.join(file);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = TlsFiles::new(
            write(format!("{name}.ca"), &ca.certificate),
            write(format!("{name}.pem"), &certificate),
            write(format!("{name}.key"), &key),
        );
        let revoked = write(format!("{name}.revoked"), revoked);
        Security::with_certificates(files.revoked(revoked)).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_master_verifies_the_signatures_of_another_one() {
    let (files, ca) = (Files::new("verify"), new_ca("run").unwrap());
    let (signer, verifier) = (files.end(&ca, "a", Role::Master, ""), files.end(&ca, "b", Role::Master, ""));
    let found = verifier.claim_signer(&signer.chain()).unwrap();
    assert_eq!(found.peer(), signer.peer());
    let signature = signer.sign(b"claim").unwrap();
    assert!(found.has_signed(b"claim", &signature));
    assert!(!found.has_signed(b"other", &signature) && !found.has_signed(b"claim", &[]));
    assert!(!found.has_signed(b"claim", &verifier.sign(b"claim").unwrap()));
    assert_eq!(Security::new(Default::default()).unwrap().sign(b"claim"), None);
}

#[test]
fn peers_strangers_and_revoked_masters_are_no_signers() {
    let (files, ca) = (Files::new("refuse"), new_ca("run").unwrap());
    let verifier = files.end(&ca, "b", Role::Master, "lost\n");
    let problem = |security: &Security| verifier.claim_signer(&security.chain()).unwrap_err();
    assert_eq!(problem(&files.end(&ca, "alice", Role::Peer, "")), CertificateProblem::WrongRole);
    assert_eq!(problem(&files.end(&ca, "lost", Role::Master, "")), CertificateProblem::Revoked);
    let other = new_ca("run").unwrap();
    assert_eq!(problem(&files.end(&other, "a", Role::Master, "")), CertificateProblem::WrongCa);
    let eve = files.end(&ca, "eve", Role::Peer, "").chain();
    let mixed = CertificateChain(vec![eve.0[0].clone(), verifier.chain().0[1].clone()]);
    assert!(verifier.claim_signer(&mixed).is_err());
    for wrong in [vec![], vec![Vec::new(); 2], vec![vec![0x30; 300]; 2], vec![Vec::new(); 4]] {
        assert!(verifier.claim_signer(&CertificateChain(wrong)).is_err());
    }
}

/// Prints what signing costs: `cargo test --release -p ringfold-fabric --lib claims -- --nocapture`.
#[test]
fn signing_takes_microseconds() {
    let (files, ca) = (Files::new("cost"), new_ca("run").unwrap());
    let signer = files.end(&ca, "a", Role::Master, "");
    let (claim, chain) = ([7; 100], signer.chain());
    let found = signer.claim_signer(&chain).unwrap();
    let signature = signer.sign(&claim).unwrap();
    let signing = median(|| assert!(signer.sign(&claim).is_some()));
    let verifying = median(|| assert!(found.has_signed(&claim, &signature)));
    let checking = median(|| assert!(signer.claim_signer(&chain).is_ok()));
    println!(
        "a signature takes {signing:?}, its verification {verifying:?}, that of the certificates {checking:?}"
    );
}

fn median(mut act: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..200)
        .map(|_| {
            let began = Instant::now();
            act();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
