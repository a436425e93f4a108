//! What failures to connect mean, and what to do about them.

use core::time::Duration;
use ringfold_fabric::handshake::Rejection;
use ringfold_proto::doctor::Finding;
use ringfold_proto::handshake::{CertificateProblem, HandshakeError};
use ringfold_proto::hello::ConnectionRejection;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// Who is dialled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Party {
    Master,
    Peer,
}

impl Party {
    /// The name of a check of this party.
    pub fn check(self, name: &str) -> String {
        format!("{}.{name}", if self == Self::Master { "master" } else { "peer" })
    }

    fn start(self) -> &'static str {
        match self {
            Self::Master => "start the master there (`ringfold master`), or correct the address",
            Self::Peer => "start `ringfold doctor` there at the same time, with the same --port",
        }
    }
}

/// No TCP connection was made.
pub(super) fn connect_failure(party: Party, label: &str, to: SocketAddr, error: &io::Error) -> Finding {
    let port = to.port();
    let at = if label == to.to_string() { label.to_owned() } else { format!("{label} ({to})") };
    let (text, remedy) = match error.kind() {
        ErrorKind::ConnectionRefused => (
            format!("{at} refuses connections: nobody listens on that port, or a firewall rejects them"),
            format!("{}; if it runs, open TCP port {port} in the firewalls", party.start()),
        ),
        ErrorKind::TimedOut => (
            format!("no answer from {at}: a firewall drops the packets, or the host is down"),
            format!("open TCP port {port} in the firewalls between the hosts; {}", party.start()),
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => (
            format!("{at} cannot be reached: {error}"),
            "check the routes of both hosts (`ip route get`), and whether the address is the right one"
                .into(),
        ),
        _ => (format!("no connection with {at}: {error}"), party.start().into()),
    };
    Finding::fail(&party.check("port"), text, remedy)
}

/// A TCP connection was made, and then nothing came.
pub(super) fn stalled(party: Party, label: &str) -> Finding {
    Finding::fail(
        &party.check("port"),
        format!(
            "{label} accepts connections, but does not answer: its process is stopped or overloaded, or is another program"
        ),
        "look at the process that listens there (`ss -ltnp`) and at its log",
    )
}

/// The other end, or this one, rejects the connection.
pub(super) fn rejection(party: Party, label: &str, rejection: &Rejection) -> Finding {
    use ConnectionRejection as Refusal;
    use HandshakeError as Error;
    let fail = |check: &str, text: String, remedy: &str| Finding::fail(&party.check(check), text, remedy);
    let token = |text: String| {
        let remedy = "copy the file of `ringfold keys token` to this host, and name it by --token-file or RINGFOLD_JOIN_TOKEN_FILE";
        fail("token", text, remedy)
    };
    match rejection.error {
        Some(Error::NotRingfold) => fail(
            "port",
            format!("another program answers at {label}, not Ringfold"),
            "correct the address and the port",
        ),
        Some(Error::Version { ours, theirs }) => fail(
            "version",
            format!("no common version of the protocol: this host has {ours}, {label} {theirs}"),
            "install the same release on both hosts",
        ),
        Some(Error::TokenMissing) => token(format!("{label} requires a join token, and this host has none")),
        Some(Error::TokenUnexpected) => fail(
            "token",
            format!("this host has a join token, but {label} has none"),
            "give the token to the master, too, and restart it; or remove it here",
        ),
        Some(Error::BadToken | Error::Impostor) => {
            token(format!("the join token of this host is not that of {label}"))
        }
        Some(Error::Certificate(problem)) => fail(
            "tls",
            format!("the certificate of {label} {problem}"),
            certificate_remedy(problem, "that host"),
        ),
        Some(Error::Rejected(Refusal::Certificate(problem))) => fail(
            "tls",
            format!("{label} refuses the certificate of this host: it {problem}"),
            certificate_remedy(problem, "this host"),
        ),
        Some(Error::Rejected(Refusal::Plaintext)) => fail(
            "tls",
            format!("{label} encrypts its connections, and this host does not"),
            "give this host the token or the certificates of the run; if it has them, remove --insecure and RINGFOLD_INSECURE here",
        ),
        Some(Error::Rejected(Refusal::WrongPurpose)) => Finding::warn(
            &party.check("version"),
            format!("{label} is of a release without a doctor: nothing more can be checked"),
            "install the same release on both hosts",
        ),
        Some(Error::Rejected(Refusal::Full)) => Finding::warn(
            &party.check("port"),
            format!("{label} answers too many doctors at the moment"),
            "run it again later",
        ),
        _ => fail(
            "tls",
            format!("{label} accepts connections, but the handshake fails: {rejection}"),
            "compare the releases, tokens and certificates of both hosts, and look at the log of the other end",
        ),
    }
}

fn certificate_remedy(problem: CertificateProblem, host: &str) -> &'static str {
    match (problem, host) {
        (CertificateProblem::Expired, _) => {
            "issue a new one: `ringfold keys issue NAME --ca DIR --replace`, and copy both files to its host"
        }
        (CertificateProblem::NotYetValid, _) => "set the clocks of both hosts",
        (CertificateProblem::Missing, "this host") => {
            "give this host a certificate of the run: `ringfold keys issue`, then --tls-ca, --tls-cert and --tls-key"
        }
        (CertificateProblem::Missing, _) => {
            "give that host a certificate of the run, or remove those of this host"
        }
        (CertificateProblem::WrongCa, _) => {
            "use the ca.pem of the run, and certificates that its CA has issued, on all hosts"
        }
        (CertificateProblem::Revoked, _) => "issue a certificate with another name: `ringfold keys issue`",
        (CertificateProblem::WrongRole, _) => {
            "issue it with the right role: `ringfold keys issue NAME --role master` for masters"
        }
        (CertificateProblem::Invalid, _) => "issue it again: `ringfold keys issue NAME --ca DIR --replace`",
    }
}

/// Judges the difference of two clocks. `round_trip` bounds its error.
pub(super) fn clock(
    party: Party,
    label: &str,
    offset_us: i64,
    round_trip: Duration,
    has_certificates: bool,
) -> Finding {
    let check = party.check("clock");
    let off = (offset_us.unsigned_abs() as f64 - round_trip.as_micros() as f64 / 2.0).max(0.0) / 1e6;
    let way = if offset_us > 0 { "ahead of" } else { "behind" };
    let remedy = "run chrony or systemd-timesyncd on both hosts";
    match off {
        ..1.0 => Finding::ok(
            &check,
            format!(
                "the clocks of this host and {label} agree within {:.0} ms",
                off.mul_add(1e3, 1.0).ceil()
            ),
        ),
        300.0.. if has_certificates => Finding::fail(
            &check,
            format!(
                "the clock of {label} is {off:.0} s {way} that of this host: certificates look expired or not valid yet"
            ),
            remedy,
        ),
        _ => Finding::warn(
            &check,
            format!("the clock of {label} is {off:.1} s {way} that of this host"),
            remedy,
        ),
    }
}

/// Judges the release of the other end.
pub(super) fn version(party: Party, label: &str, ours: &str, theirs: &str, protocol: u16) -> Finding {
    let check = party.check("version");
    let parts = |text: &str| {
        let mut numbers = text.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    };
    let (here, there) = (parts(ours), parts(theirs));
    if here.0 != there.0 || here.1.abs_diff(there.1) > 1 {
        return Finding::warn(
            &check,
            format!("{label} is of release {theirs}, this host of {ours}: they may not work together"),
            "install releases that are at most one minor version apart",
        );
    }
    Finding::ok(&check, format!("{label} is of release {theirs}, protocol version {protocol}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::doctor::Judgement::{Fail, Ok as Good, Warn};

    #[test]
    fn each_rejection_is_named() {
        let named = |error: HandshakeError| {
            let finding = rejection(Party::Master, "head:1", &Rejection::from(error));
            assert!(!finding.remedy.is_empty() && finding.text.contains("head:1"), "{finding:?}");
            (finding.check, finding.judgement)
        };
        assert_eq!(named(HandshakeError::BadToken), ("master.token".into(), Fail));
        assert_eq!(named(HandshakeError::TokenMissing), ("master.token".into(), Fail));
        assert_eq!(named(HandshakeError::NotRingfold), ("master.port".into(), Fail));
        for problem in CertificateProblem::ALL {
            assert_eq!(named(HandshakeError::Certificate(problem)), ("master.tls".into(), Fail));
            let refused = ConnectionRejection::Certificate(problem);
            assert_eq!(named(HandshakeError::Rejected(refused)), ("master.tls".into(), Fail));
        }
        let old = HandshakeError::Rejected(ConnectionRejection::WrongPurpose);
        assert_eq!(named(old), ("master.version".into(), Warn));
    }

    #[test]
    fn clocks_are_judged_within_the_error_of_the_round_trip() {
        let judged = |offset, round_trip_ms, certificates| {
            clock(Party::Peer, "b", offset, Duration::from_millis(round_trip_ms), certificates).judgement
        };
        assert_eq!(judged(900_000, 1, false), Good);
        assert_eq!(judged(-1_100_000, 400, false), Good);
        assert_eq!(judged(-1_100_000, 1, false), Warn);
        assert_eq!((judged(400_000_000, 1, false), judged(-400_000_000, 1, true)), (Warn, Fail));
    }

    #[test]
    fn releases_may_be_one_minor_version_apart() {
        let judged = |theirs| version(Party::Master, "m", "0.2.0", theirs, 1).judgement;
        assert_eq!(
            (judged("0.2.7"), judged("0.3.0"), judged("0.4.0"), judged("1.2.0")),
            (Good, Good, Warn, Warn)
        );
    }
}
