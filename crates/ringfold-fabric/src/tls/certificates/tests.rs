use super::*;
use crate::tls::issue::{Issued, issue, issue_from, new_ca};
use crate::tls::{Security, SecurityError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn identity(name: &str, role: Role) -> PeerIdentity {
    PeerIdentity { name: name.into(), role }
}

fn trusting(ca: &Issued, revoked: &str) -> TrustedRun {
    TrustedRun::new(ca.certificate.as_bytes(), Some(revoked.as_bytes())).unwrap()
}

/// What a process with an identity shows.
fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
    let certificate = first_certificate(issued.certificate.as_bytes()).unwrap();
    let key = read_key(issued.key.as_bytes()).unwrap();
    let leaf = sign_process_key(&certificate, key, &KeyPair::generate().unwrap()).unwrap();
    vec![leaf, certificate]
}

fn verify(run: &TrustedRun, chain: &[CertificateDer<'_>]) -> Result<PeerIdentity, CertificateProblem> {
    run.verify(chain, UnixTime::now())
}

#[test]
fn a_certificate_says_name_and_role() {
    let ca = new_ca("run-7").unwrap();
    for role in Role::ALL {
        let alice = identity("alice-2", role);
        assert_eq!(verify(&trusting(&ca, ""), &chain(&issue(&ca, &alice, 1).unwrap())), Ok(alice));
    }
    for wrong in ["", "Alice", "a.b", "-a", "a_b", &"a".repeat(41)] {
        assert!(issue(&ca, &identity(wrong, Role::Peer), 1).unwrap_err().contains("invalid name"), "{wrong}");
    }
    assert!(new_ca("A").is_err() && issue(&ca, &identity("a", Role::Peer), 0).is_err());
}

#[test]
fn another_ca_of_the_same_name_is_refused_and_several_cas_may_be_trusted() {
    let (ca, other) = (new_ca("run").unwrap(), new_ca("run").unwrap());
    let stranger = chain(&issue(&other, &identity("alice", Role::Peer), 1).unwrap());
    assert_eq!(verify(&trusting(&ca, ""), &stranger), Err(CertificateProblem::WrongCa));
    let both = TrustedRun::new(format!("{}{}", ca.certificate, other.certificate).as_bytes(), None).unwrap();
    assert!(verify(&both, &stranger).is_ok());
    // The right identity, but a key that it has not signed.
    let own = chain(&issue(&ca, &identity("alice", Role::Peer), 1).unwrap());
    let mixed = [stranger[0].clone(), own[1].clone()];
    assert_eq!(verify(&trusting(&ca, ""), &mixed), Err(CertificateProblem::WrongCa));
}

#[test]
fn the_end_of_a_certificate_is_known_before_and_after_it() {
    let ca = new_ca("run").unwrap();
    let begin = SystemTime::now() - 3 * DAY;
    for days in [1, 30] {
        let issued = issue_from(&ca, &identity("alice", Role::Peer), begin, days).unwrap();
        let end = valid_until(&first_certificate(issued.certificate.as_bytes()).unwrap()).unwrap();
        let off = end.duration_since(begin + days * DAY).unwrap_or_else(|early| early.duration());
        assert!(off < Duration::from_secs(2), "{off:?}");
    }
    assert!(valid_until(&first_certificate(ca.certificate.as_bytes()).unwrap()).is_some());
}

#[test]
fn time_is_checked() {
    let ca = new_ca("run").unwrap();
    let from = |begin| chain(&issue_from(&ca, &identity("alice", Role::Peer), begin, 1).unwrap());
    let now = SystemTime::now();
    assert_eq!(verify(&trusting(&ca, ""), &from(now - 2 * DAY)), Err(CertificateProblem::Expired));
    assert_eq!(verify(&trusting(&ca, ""), &from(now + DAY)), Err(CertificateProblem::NotYetValid));
}

#[test]
fn a_chain_that_has_expired_since_was_valid_lately() {
    let ca = new_ca("run").unwrap();
    let (run, shown) = (trusting(&ca, ""), chain(&issue(&ca, &identity("m", Role::Master), 2).unwrap()));
    let at = |days: u32| {
        let later = SystemTime::now() + days * DAY;
        UnixTime::since_unix_epoch(later.duration_since(SystemTime::UNIX_EPOCH).unwrap())
    };
    let lately = |days| run.verify_lately(&shown, at(days), 90 * DAY).map(|found| found.role);
    // The identity is valid for 2 days, the key of the process for 7.
    for days in [0, 1, 3, 8, 91] {
        assert_eq!(lately(days), Ok(Role::Master), "{days}");
    }
    assert_eq!(run.verify(&shown, at(3)), Err(CertificateProblem::Expired));
    assert_eq!(lately(93), Err(CertificateProblem::Expired));
    assert_eq!(lately(98), Err(CertificateProblem::Expired));
    let revoked = trusting(&ca, "m").verify_lately(&shown, at(3), 90 * DAY);
    assert_eq!(revoked, Err(CertificateProblem::Revoked));
}

#[test]
fn names_and_fingerprints_are_revoked() {
    let ca = new_ca("run").unwrap();
    let issued = issue(&ca, &identity("alice", Role::Peer), 1).unwrap();
    let fingerprint = crate::tls::issue::issued_in(&issued.certificate).remove(0).fingerprint;
    for (list, expected) in [
        ("# nobody\n\nbob\n".to_owned(), true),
        ("bob # gone\n alice # lost her key\n".to_owned(), false),
        (fingerprint.to_uppercase(), false),
    ] {
        let found = verify(&trusting(&ca, &list), &chain(&issued));
        assert_eq!(found.is_ok(), expected, "{list}");
        assert!(expected || found == Err(CertificateProblem::Revoked));
    }
}

/// A certificate with these names, signed by an identity.
fn signed(by: &Issued, names: &[&str], is_ca: bool) -> CertificateDer<'static> {
    let certificate = first_certificate(by.certificate.as_bytes()).unwrap();
    let named = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, names.first().cloned().unwrap_or_default());
        params
    };
    let issuer = Issuer::new(named(&[&name_of(&certificate).unwrap()]), read_key(by.key.as_bytes()).unwrap());
    let mut params = named(names);
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().into()
}

#[test]
fn an_identity_signs_only_its_own_name() {
    let ca = new_ca("run").unwrap();
    let alice = issue(&ca, &identity("alice", Role::Peer), 1).unwrap();
    let certificate = first_certificate(alice.certificate.as_bytes()).unwrap();
    let run = trusting(&ca, "");
    let shown = |leaf| verify(&run, &[leaf, certificate.clone()]);
    assert!(shown(signed(&alice, &["alice.peer.ringfold"], false)).is_ok());
    for names in [
        &["alice.master.ringfold"][..],
        &["bob.peer.ringfold"],
        &["x.alice.peer.ringfold"],
        &["alice.peer.ringfold", "alice.master.ringfold"],
        &[],
    ] {
        assert_eq!(shown(signed(&alice, names, false)), Err(CertificateProblem::Invalid), "{names:?}");
    }
    assert_eq!(
        shown(signed(&alice, &["alice.peer.ringfold"], true)),
        Err(CertificateProblem::Invalid),
        "a CA signs no session"
    );
    // Neither the identity itself, nor what the CA signed directly, nor a longer chain.
    assert!(verify(&run, &[certificate.clone(), certificate.clone()]).is_err());
    assert_eq!(shown(signed(&ca, &["alice.peer.ringfold"], false)), Err(CertificateProblem::Invalid));
    let long = [signed(&alice, &["alice.peer.ringfold"], false), certificate.clone(), certificate.clone()];
    assert_eq!(verify(&run, &long), Err(CertificateProblem::Invalid));
    let alone = [signed(&alice, &["alice.peer.ringfold"], false)];
    assert_eq!(verify(&run, &alone), Err(CertificateProblem::Missing));
}

/// Files of a run in a directory of their own.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringfold-certificates-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, ca: &str, certificate: &str, key: &str) -> TlsFiles {
        for (name, text) in [("ca.pem", ca), ("a.pem", certificate), ("a.key", key)] {
            std::fs::write(self.0.join(name), text).unwrap();
        }
        TlsFiles::new(self.0.join("ca.pem"), self.0.join("a.pem"), self.0.join("a.key"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let files = Files::new("errors");
    let (ca, other) = (new_ca("run").unwrap(), new_ca("other").unwrap());
    let alice = issue(&ca, &identity("alice", Role::Peer), 1).unwrap();
    let bob = issue(&ca, &identity("bob", Role::Peer), 1).unwrap();
    let old = issue_from(&ca, &identity("old", Role::Peer), SystemTime::now() - 3 * DAY, 1).unwrap();
    let error = |ca: &str, certificate: &str, key: &str| match Security::with_certificates(files.write(
        ca,
        certificate,
        key,
    )) {
        Err(SecurityError::Certificates(error)) => error,
        other => panic!("{other:?}"),
    };
    let (good, key) = (&alice.certificate, &alice.key);
    for (found, expected) in [
        (error(&ca.certificate, good, &bob.key), "a.key: it does not belong to the TLS certificate"),
        (error(&other.certificate, good, key), "it was not signed by the CA in"),
        (error(&ca.certificate, &old.certificate, &old.key), "it has expired"),
        (error("nothing", good, key), "ca.pem: the file has no certificate"),
        (error(&ca.certificate, "nothing", key), "a.pem: the file has no certificate"),
        (error(&ca.certificate, good, "nothing"), "a.key: the file has no private key"),
        (error(good, good, key), "ca.pem: it is the certificate of alice, and not of a CA"),
    ] {
        assert!(found.contains(expected), "{found}");
    }
    let missing = TlsFiles { ca: files.0.join("absent"), ..files.write(&ca.certificate, good, key) };
    let text = Security::with_certificates(missing).unwrap_err().to_string();
    assert!(text.contains("cannot read the TLS CA in") && text.contains("absent"), "{text}");
    let unlisted = files.write(&ca.certificate, good, key).revoked(files.0.join("absent"));
    assert!(Security::with_certificates(unlisted).unwrap_err().to_string().contains("revocation list"));
    assert!(Security::with_certificates(files.write(&ca.certificate, good, key)).unwrap().has_certificates());
}

#[test]
fn parts_of_files_are_an_error() {
    let some = || Some(PathBuf::from("x"));
    assert_eq!(TlsFiles::from_parts(None, None, None, None), Ok(None));
    assert!(TlsFiles::from_parts(some(), some(), some(), None).unwrap().is_some());
    for (ca, certificate, key, revoked) in
        [(some(), None, None, None), (some(), some(), None, None), (None, None, None, some())]
    {
        assert!(TlsFiles::from_parts(ca, certificate, key, revoked).unwrap_err().contains("incomplete"));
    }
}
