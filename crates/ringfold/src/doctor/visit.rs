//! The checks of one other host: a master, or a peer on which a doctor runs.

use super::connection::MessageConnection;
use super::explain::{self, Party};
use super::mtu;
use super::nat::Observation;
use super::service::{DoctorService, RELEASE, short, unix_us};
use super::{limits, link};
use crate::settings::Settings;
use ringfold_fabric::probe::{self, Measured};
use ringfold_fabric::staged_dial::{self, Authenticated, ConnectSettings, StageFailure};
use ringfold_proto::doctor::{DialBack, DoctorAnswer, DoctorRequest, Finding};
use ringfold_proto::handshake::{DialTarget, HandshakeError};
use ringfold_proto::hello::ConnectionRejection;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

/// Certificates that end sooner are warned of.
const CERTIFICATE_DAYS_MIN: u64 = 14;
/// Segments that pass every path.
pub(super) const SMALL_SEGMENT: u16 = 536;
/// Round trips that are measured.
const ROUND_TRIPS: usize = 6;

pub(super) type Questions = MessageConnection<DoctorRequest, DoctorAnswer>;

/// What a visit needs.
pub(super) struct Visit<'v> {
    pub service: &'v DoctorService,
    /// What a peer of this host would use for links; none for a master, with which it has none.
    pub settings: Option<&'v Settings>,
    pub party: Party,
    /// The address as the user wrote it.
    pub label: &'v str,
    pub addresses: &'v [SocketAddr],
    /// The port that this host listens on.
    pub port: Option<u16>,
    /// How long to wait until the other end is there.
    pub wait: Duration,
    /// Leaves the bandwidth out.
    pub quick: bool,
    pub progress: &'v (dyn Fn(&str) + Sync),
}

/// What a visit has found.
#[derive(Default)]
pub(super) struct VisitReport {
    pub findings: Vec<Finding>,
    /// The address that answers.
    pub address: Option<SocketAddr>,
    pub observation: Option<Observation>,
    /// Whether the address is one of this process.
    pub is_self: bool,
    /// Whether the other end answers too many doctors.
    pub is_full: bool,
}

/// A connection that was made.
struct Reached {
    questions: Questions,
    address: SocketAddr,
    segment_bytes: Option<u16>,
    /// The version of the protocol.
    version: u16,
}

impl Visit<'_> {
    pub fn run(&self) -> VisitReport {
        let mut report = VisitReport::default();
        (self.progress)(&format!("connecting to {}", self.label));
        let Some(mut reached) = self.reach(&mut report) else { return report };
        if let Err(error) = self.question(&mut reached, &mut report) {
            let text = format!("{} does not answer any more: {error}", self.label);
            let remedy = "look at its log, and run the doctor again";
            report.findings.push(Finding::fail(&self.party.check("port"), text, remedy));
            return report;
        }
        if !self.quick && !report.is_self {
            (self.progress)(&format!("measuring the bandwidth to {}", self.label));
            report.findings.push(self.bandwidth(reached));
        }
        report
    }

    /// Only connects.
    pub fn connect(&self) -> (Option<Questions>, Vec<Finding>) {
        let mut report = VisitReport::default();
        let reached = self.reach(&mut report);
        (reached.map(|reached| reached.questions), report.findings)
    }

    fn target(&self) -> DialTarget {
        match self.party {
            Party::Master => DialTarget::doctor_to_master(),
            Party::Peer => DialTarget::doctor(),
        }
    }

    /// Connects to the first address that answers.
    fn reach(&self, report: &mut VisitReport) -> Option<Reached> {
        let begin = Instant::now();
        loop {
            let mut failures = Vec::new();
            for address in self.addresses {
                match staged_dial::connect(*address, ConnectSettings::default(), limits::CONNECT_MAX) {
                    Ok(stream) => return self.authenticate(stream, *address, report),
                    Err(error) => failures.push((*address, error)),
                }
            }
            // A host that has dialled this one runs its doctor.
            let seen = self.addresses.iter().any(|address| self.service.was_visited_from(address.ip()));
            let patience = if seen { limits::ONE_WAY_AFTER.min(self.wait) } else { self.wait };
            if begin.elapsed() + limits::RETRY_PAUSE < patience {
                (self.progress)(&format!("waiting for {}", self.label));
                std::thread::sleep(limits::RETRY_PAUSE);
                continue;
            }
            let (address, error) = failures.first()?;
            report.findings.push(explain::connect_failure(self.party, self.label, *address, error));
            return None;
        }
    }

    fn authenticate(
        &self,
        stream: std::net::TcpStream,
        address: SocketAddr,
        report: &mut VisitReport,
    ) -> Option<Reached> {
        let credentials = self.service.credentials(self.target());
        let security = self.service.security();
        let mut segment_bytes = None;
        let mut authenticated =
            staged_dial::authenticate(stream, &credentials, security, limits::HANDSHAKE_MAX);
        if let Err(StageFailure::Stalled) = authenticated {
            // Small segments pass where large ones are lost.
            (self.progress)(&format!("{} does not answer: trying small packets", self.label));
            segment_bytes = Some(SMALL_SEGMENT);
            authenticated = self.dial(address, segment_bytes, limits::HANDSHAKE_MAX);
        }
        let check = |name| self.party.check(name);
        match authenticated {
            Err(StageFailure::Stalled) => {
                report.findings.push(explain::stalled(self.party, self.label));
                None
            }
            Err(StageFailure::Rejected(rejection)) => {
                let is_self = HandshakeError::Rejected(ConnectionRejection::Itself);
                report.is_self = rejection.error == Some(is_self);
                let is_full = HandshakeError::Rejected(ConnectionRejection::Full);
                report.is_full = rejection.error == Some(is_full);
                if !report.is_self {
                    let reached = format!("{} accepts connections", self.label);
                    let finding = explain::rejection(self.party, self.label, &rejection);
                    let is_about_port = finding.check == check("port");
                    report.findings.extend((!is_about_port).then(|| Finding::ok(&check("port"), reached)));
                    report.findings.push(finding);
                }
                None
            }
            Ok(reached) => {
                report.address = Some(address);
                report
                    .findings
                    .push(Finding::ok(&check("port"), format!("{} accepts connections", self.label)));
                report.findings.push(self.judge_security(&reached, address));
                report.findings.extend(self.judge_token(&reached, address));
                let version = reached.established.version;
                let questions = Questions::new(reached.connection);
                Some(Reached { questions, address, segment_bytes, version })
            }
        }
    }

    /// Another connection to an address.
    pub fn dial(
        &self,
        address: SocketAddr,
        segment_bytes: Option<u16>,
        timeout: Duration,
    ) -> Result<Authenticated, StageFailure> {
        let settings = ConnectSettings { segment_bytes, local: None };
        let stream = staged_dial::connect(address, settings, limits::CONNECT_MAX)?;
        let credentials = self.service.credentials(self.target());
        staged_dial::authenticate(stream, &credentials, self.service.security(), timeout)
    }

    fn judge_security(&self, reached: &Authenticated, address: SocketAddr) -> Finding {
        let check = self.party.check("tls");
        let label = self.label;
        match (&reached.identity, reached.is_encrypted) {
            (Some((identity, end)), _) => {
                let text = format!("encrypted; {label} is {identity}");
                match days_left(*end) {
                    Some(days) if days < CERTIFICATE_DAYS_MIN => Finding::warn(
                        &check,
                        format!("{text}, whose certificate ends in {days} days"),
                        format!("issue a new one: `ringfold keys issue {} --replace`", identity.name),
                    ),
                    Some(days) => {
                        Finding::ok(&check, format!("{text}, whose certificate is valid for {days} days"))
                    }
                    None => Finding::ok(&check, text),
                }
            }
            (None, true) => Finding::ok(&check, format!("the connection with {label} is encrypted")),
            (None, false) if address.ip().is_loopback() => Finding::ok(
                &check,
                format!("the connection with {label} stays on this host, and is not encrypted"),
            ),
            (None, false) => Finding::warn(
                &check,
                format!("the connection with {label} is not encrypted"),
                "remove --insecure and RINGFOLD_INSECURE on all hosts",
            ),
        }
    }

    fn judge_token(&self, reached: &Authenticated, address: SocketAddr) -> Option<Finding> {
        let check = self.party.check("token");
        match (self.service.token().is_none(), &reached.identity) {
            (false, _) => {
                Some(Finding::ok(&check, format!("this host and {} have the same join token", self.label)))
            }
            (true, Some(_)) => None,
            (true, None) if address.ip().is_loopback() => {
                Some(Finding::ok(&check, "no join token, and none is needed on this host"))
            }
            (true, None) => Some(Finding::warn(
                &check,
                format!(
                    "no join token and no certificates: anyone can join the run, or be at the other end of {}",
                    self.label
                ),
                "make a token with `ringfold keys token`, and give it to the master and all peers",
            )),
        }
    }

    /// All questions on one connection.
    fn question(&self, reached: &mut Reached, report: &mut VisitReport) -> io::Result<()> {
        let (service, label, party) = (self.service, self.label, self.party);
        let about = DoctorRequest::About { instance: service.instance(), name: service.name().to_owned() };
        let DoctorAnswer::About { instance, release, observed, .. } =
            reached.questions.ask(&about, limits::ANSWER_MAX)?
        else {
            return Err(io::Error::other("invalid answer"));
        };
        let local = reached.questions.connection().local_address()?;
        if instance == service.instance() {
            (report.is_self, report.findings) = (true, Vec::new());
            return Ok(());
        }
        if let Party::Master = party {
            service.note_master(instance);
        }
        report.findings.push(explain::version(party, label, RELEASE, &release, reached.version));
        (self.progress)(&format!("measuring the round trip to {label}"));
        let (round_trip, offset_us) = self.time(&mut reached.questions)?;
        let trip = format!("the round trip to {label} takes {}", milliseconds(round_trip));
        report.findings.push(Finding::ok(&party.check("round-trip"), trip));
        let has_certificates = service.security().has_certificates();
        report.findings.push(explain::clock(party, label, offset_us, round_trip, has_certificates));
        (self.progress)(&format!("sending large packets to {label}"));
        let probe = mtu::Probe { visit: self, address: reached.address, round_trip };
        let (finding, replacement) = probe.run(&mut reached.questions, reached.segment_bytes);
        report.findings.push(finding);
        if let Some((questions, segment_bytes)) = replacement {
            (reached.questions, reached.segment_bytes) = (questions, segment_bytes);
        }
        let mut observation = Observation { by: label.to_owned(), local, observed, is_reachable: None };
        if let Some(port) = self.port {
            (self.progress)(&format!("{label} connects to this host"));
            let answer = reached
                .questions
                .ask(&DoctorRequest::DialBack { port, instance: service.instance() }, limits::ANSWER_MAX)?;
            if let DoctorAnswer::DialedBack(outcome) = answer {
                observation.is_reachable = Some(outcome == DialBack::Reached);
                report.findings.push(link::dial_back(party, label, observed, port, &outcome));
            }
        }
        report.observation = Some(observation);
        if let Some(settings) = self.settings {
            let udp = self.datagram(&mut reached.questions, reached.address)?;
            report.findings.push(link::streams(label, reached.address, round_trip, udp, settings));
        }
        Ok(())
    }

    /// The shortest round trip, and how far the other clock is ahead.
    fn time(&self, questions: &mut Questions) -> io::Result<(Duration, i64)> {
        let mut best: Option<(Duration, i64)> = None;
        for _ in 0..ROUND_TRIPS {
            let (before, begin) = (unix_us(), Instant::now());
            let DoctorAnswer::Time { unix_us: theirs } =
                questions.ask(&DoctorRequest::Time, limits::ANSWER_MAX)?
            else {
                return Err(io::Error::other("invalid answer"));
            };
            let round_trip = begin.elapsed();
            let ours = before.saturating_add(round_trip.as_micros() as u64 / 2);
            let offset = i64::try_from(i128::from(theirs) - i128::from(ours)).unwrap_or(i64::MAX);
            if best.is_none_or(|(shortest, _)| round_trip < shortest) {
                best = Some((round_trip, offset));
            }
        }
        best.ok_or_else(|| io::Error::other("no round trip"))
    }

    /// Whether a datagram comes back; none if the other end does not answer any.
    fn datagram(&self, questions: &mut Questions, to: SocketAddr) -> io::Result<Option<bool>> {
        let content: [u8; 16] = ringfold_fabric::random::bytes()?;
        let asked = DoctorRequest::Datagram { content };
        if questions.ask(&asked, limits::ANSWER_MAX)? != DoctorAnswer::Ready {
            return Ok(None);
        }
        let any: std::net::IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let Ok(socket) = UdpSocket::bind((any, 0)) else { return Ok(None) };
        socket.connect(to)?;
        socket.set_read_timeout(Some(limits::DATAGRAM_PAUSE))?;
        let mut buffer = [0; 64];
        for _ in 0..limits::DATAGRAM_ATTEMPTS {
            // An error says that an earlier one was refused.
            let _ = socket.send(&content);
            if socket.recv(&mut buffer).is_ok_and(|bytes| buffer[..bytes] == content) {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Measures both ways, each on a connection of its own: what is still under way of the first would slow down the second.
    fn bandwidth(&self, reached: Reached) -> Finding {
        let (address, segment_bytes) = (reached.address, reached.segment_bytes);
        let measured = self.measure(reached.questions, false).and_then(|forward| {
            let again = self.dial(address, segment_bytes, limits::HANDSHAKE_MAX);
            let again = again.map_err(|_| io::Error::other("it does not accept another connection"))?;
            Ok(Measured { forward, backward: self.measure(Questions::new(again.connection), true)? })
        });
        match measured {
            Ok(measured) => link::bandwidth(self.party, self.label, measured),
            Err(error) => link::no_bandwidth(self.party, self.label, &short(&error)),
        }
    }

    /// Measures one way, while nobody else does on either host.
    fn measure(&self, mut questions: Questions, back: bool) -> io::Result<u64> {
        let end = Instant::now() + limits::BANDWIDTH_WAIT_MAX;
        loop {
            let measuring = self.service.measuring().try_lock();
            let answer = match &measuring {
                Some(_) => questions.ask(&DoctorRequest::Bandwidth { back }, limits::ANSWER_MAX)?,
                None => DoctorAnswer::Busy,
            };
            match answer {
                DoctorAnswer::Ready if back => return probe::receive_rate(questions.into_inner()),
                DoctorAnswer::Ready => return probe::send_rate(questions.into_inner()),
                DoctorAnswer::Busy if Instant::now() < end => {
                    drop(measuring);
                    // Two ends that want to measure each other must not try at the same moments.
                    let spread = Duration::from_millis(u64::from(std::process::id() % 50));
                    std::thread::sleep(limits::BANDWIDTH_PAUSE + spread);
                }
                _ => return Err(io::Error::other("it is busy")),
            }
        }
    }
}

/// Days until a time.
pub(super) fn days_left(end: Option<SystemTime>) -> Option<u64> {
    Some(end?.duration_since(SystemTime::now()).unwrap_or_default().as_secs() / 86_400)
}

pub(super) fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}
