//! Diagnosis: checks of this host, of the paths to the master and to other hosts, and of all peers of a run.
//!
//! Each check is a [`Finding`]: a judgement, one sentence, and what to do. Masters answer the questions of a doctor, and so does a
//! running doctor on another host (`doctor/service.rs`); all of them authenticate as everything else does.

mod connection;
mod container;
mod cuda;
mod examination;
mod explain;
mod host;
pub(crate) mod limits;
mod link;
mod mtu;
mod names;
mod nat;
mod route;
mod service;
mod station;
mod torch;
mod visit;

pub(crate) use examination::{ExaminedMaster, examine_member};
pub(crate) use host::memory_bytes;
pub use ringfold_proto::doctor::{Finding, Judgement, worst};
pub(crate) use service::{DoctorService, StartExamination};
pub use torch::describe as describe_torch;

use crate::settings::{self, Given, Settings, User, master_addresses, table};
use crate::{Error, protection};
use connection::MessageConnection;
use explain::Party;
use nat::Observation;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::staged_dial::{self, ConnectSettings};
use ringfold_fabric::tls::{Security, TlsFiles};
use ringfold_proto::doctor::{DoctorAnswer, DoctorRequest};
use ringfold_proto::handshake::DialTarget;
use station::Station;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use visit::{Visit, VisitReport, days_left};

/// The port on which doctors find each other, unless they are told another one.
pub const DOCTOR_PORT: u16 = 48150;

/// Own certificates that end sooner are warned of.
const CERTIFICATE_DAYS_MIN: u64 = 14;

/// What a doctor examines, and how.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    /// The masters, `host:port` each.
    pub masters: Vec<String>,
    /// Other hosts on which a doctor runs, `host:port` each. The address of this host may be among them.
    pub peers: Vec<String>,
    /// The join token of the run.
    pub token: JoinToken,
    /// The certificates of the run.
    pub tls: Option<TlsFiles>,
    /// Whether connections are not encrypted.
    pub is_insecure: bool,
    /// The address to listen on; all if there is none.
    pub bind: Option<IpAddr>,
    /// The port to listen on: any free one if it is 0. Without one, this host does not listen.
    pub port: Option<u16>,
    /// How long to wait for the doctors of other hosts.
    pub wait: Duration,
    /// Leaves out what takes seconds: bandwidths, and opening CUDA devices.
    pub quick: bool,
    /// What a peer of this host would use.
    pub settings: Settings,
}

impl DoctorOptions {
    /// What the settings of a peer say, with those by argument.
    pub fn new(given: &Given) -> Result<Self, Error> {
        let settings = Settings::start(User::Peer, given)?;
        let masters = master_addresses(&settings);
        Ok(Self {
            masters: masters.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect(),
            peers: Vec::new(),
            token: settings::token(&settings, None)?,
            tls: settings::tls(&settings, None)?,
            is_insecure: settings.is_on(&table::INSECURE),
            bind: settings.ip(&table::BIND),
            port: None,
            wait: Duration::ZERO,
            quick: false,
            settings,
        })
    }
}

/// Says what is done at the moment.
pub type Progress<'p> = &'p (dyn Fn(&str) + Sync);

/// Examines this host and the paths from it.
pub fn examine(options: &DoctorOptions, progress: Progress<'_>) -> Vec<Finding> {
    progress("examining this host");
    let mut findings = host::examine();
    findings.extend(cuda::examine(!options.quick));
    findings.extend(examine_network(options, progress));
    findings
}

/// The quick checks before a peer connects: its host, and the way to its masters.
pub(crate) fn preflight(options: &DoctorOptions) -> Vec<Finding> {
    let mut findings = host::examine();
    findings.extend(examine_network(options, &|text| tracing::debug!("preflight: {text}")));
    findings
}

/// What the peers of a run have found: the name of each, and its findings.
pub type PeerFindings = Vec<(String, Vec<Finding>)>;

/// Has all peers of a run examine themselves. An error says why the master could not be asked.
pub fn examine_all(options: &DoctorOptions, progress: Progress<'_>) -> Result<PeerFindings, Vec<Finding>> {
    let (findings, security) = own_certificate(options);
    let Some(security) = security else { return Err(findings) };
    let service = DoctorService::of_doctor(options.token.clone(), security)
        .map_err(|error| vec![no_randomness(&error)])?;
    let (mut failures, mut answer) = (Vec::new(), None);
    for label in &options.masters {
        match ask_master(&service, label, progress) {
            // A master that stands by has no peers.
            Ok(peers) if !peers.is_empty() => return Ok(peers),
            Ok(none) => answer = Some(none),
            Err(finding) => failures.push(finding),
        }
    }
    answer.ok_or(failures)
}

fn ask_master(service: &DoctorService, label: &str, progress: Progress<'_>) -> Result<PeerFindings, Finding> {
    let addresses = names::resolve(label)?;
    let visit = Visit {
        service,
        settings: None,
        party: Party::Master,
        label,
        addresses: &addresses,
        port: None,
        wait: Duration::ZERO,
        quick: true,
        progress,
    };
    progress(&format!("connecting to {label}"));
    let (mut questions, findings) = visit.connect();
    let Some(questions) = &mut questions else {
        let failure = findings.into_iter().find(|finding| finding.judgement == Judgement::Fail);
        return Err(failure.unwrap_or_else(|| explain::stalled(Party::Master, label)));
    };
    progress("the peers examine themselves");
    let broken = |why: String| {
        Finding::fail(
            "master.port",
            format!("{label} did not pass the request on: {why}"),
            "look at the log of the master",
        )
    };
    let end = Instant::now() + 3 * limits::EXAMINATION_MAX;
    questions
        .send(&DoctorRequest::ExamineAll, limits::ANSWER_MAX)
        .map_err(|error| broken(error.to_string()))?;
    let mut peers = Vec::new();
    loop {
        let answer = questions.receive(end.saturating_duration_since(Instant::now()));
        match answer.map_err(|error| broken(error.to_string()))? {
            DoctorAnswer::Examined { peer, findings, unanswered } => {
                let silent = unanswered.map(|why| {
                    Finding::fail(
                        "peer.answer",
                        format!("{peer} has not examined itself: {why}"),
                        "look at its log",
                    )
                });
                peers.push((peer, findings.into_iter().chain(silent).map(Finding::shortened).collect()));
            }
            DoctorAnswer::Ready => return Ok(peers),
            DoctorAnswer::Busy => return Err(broken("other doctors ask for the same".into())),
            _ => return Err(broken("it cannot do that".into())),
        }
    }
}

/// The keys of this host, and what is wrong with its certificates.
fn own_certificate(options: &DoctorOptions) -> (Vec<Finding>, Option<Arc<Security>>) {
    const CHECK: &str = "host.certificate";
    let security = match protection::keys(&options.token, options.tls.as_ref(), options.is_insecure) {
        Ok(security) => security,
        Err(error) => {
            let remedy = "issue a new one: `ringfold keys issue NAME --ca DIR --replace`, and name the files by --tls-ca, --tls-cert \
                          and --tls-key or RINGFOLD_TLS_CA, RINGFOLD_TLS_CERT and RINGFOLD_TLS_KEY";
            return (vec![Finding::fail(CHECK, error.to_string(), remedy)], None);
        }
    };
    let findings = options.tls.as_ref().map(|files| match files.dates() {
        Err(error) => {
            Finding::warn(CHECK, error, "issue it again: `ringfold keys issue NAME --ca DIR --replace`")
        }
        Ok(dates) => {
            let (who, days) = (&dates.identity, days_left(dates.valid_until).unwrap_or(0));
            let ca_days = days_left(dates.ca_valid_until).unwrap_or(u64::MAX);
            let least = days.min(ca_days);
            if least < CERTIFICATE_DAYS_MIN {
                let which = if ca_days < days { "CA of the run" } else { "certificate" };
                let remedy = format!("issue a new one: `ringfold keys issue {} --replace`", who.name);
                Finding::warn(
                    CHECK,
                    format!("this host is {who}, and the {which} ends in {least} days"),
                    remedy,
                )
            } else {
                Finding::ok(
                    CHECK,
                    format!("this host is {who}, with a certificate that is valid for {days} days"),
                )
            }
        }
    });
    (findings.into_iter().collect(), Some(security))
}

fn examine_network(options: &DoctorOptions, progress: Progress<'_>) -> Vec<Finding> {
    let (mut findings, security) = own_certificate(options);
    let masters = resolve_all(&options.masters, progress, &mut findings);
    let peers = resolve_all(&options.peers, progress, &mut findings);
    let with_sources = |parties: &[(String, Vec<SocketAddr>)]| {
        let source = |(label, addresses): &(String, Vec<SocketAddr>)| {
            Some((
                label.clone(),
                ringfold_fabric::host::source_address(addresses.first()?.ip().to_canonical())?,
            ))
        };
        parties.iter().filter_map(source).collect::<Vec<_>>()
    };
    if let Some(bind) = options.bind {
        let targets = with_sources(if peers.is_empty() { &masters } else { &peers });
        findings.extend(names::listen_address(bind, &targets, !peers.is_empty()));
    }
    let Some(security) = security else {
        findings.extend(masters.iter().filter_map(|(label, addresses)| connect_only(label, addresses)));
        return findings;
    };
    let addresses: Vec<_> = masters.iter().chain(&peers).flat_map(|(_, found)| found).copied().collect();
    if let Err(error) = protection::check_dial(&options.token, &security, &addresses, &options.settings) {
        findings.push(Finding::fail(
            "master.token",
            error.to_string(),
            "make one with `ringfold keys token`",
        ));
        return findings;
    }
    let service = match DoctorService::of_doctor(options.token.clone(), security) {
        Ok(service) => service,
        Err(error) => {
            findings.push(no_randomness(&error));
            return findings;
        }
    };
    let station = options.port.and_then(|port| {
        let (station, finding) = listen(&service, options.bind, port);
        findings.push(finding);
        station
    });
    let visit = |party, (label, addresses): &(String, Vec<SocketAddr>)| {
        let (wait, settings) = match party {
            Party::Peer => (options.wait, Some(&options.settings)),
            Party::Master => (Duration::ZERO, None),
        };
        let (port, quick) = (station.as_ref().map(Station::port), options.quick);
        Visit { service: &service, settings, party, label, addresses, port, wait, quick, progress }.run()
    };
    let mut reports: Vec<VisitReport> = masters.iter().map(|master| visit(Party::Master, master)).collect();
    relax(&mut reports);
    let mut of_peers: Vec<VisitReport> = std::thread::scope(|scope| {
        let threads: Vec<_> = peers.iter().map(|peer| scope.spawn(|| visit(Party::Peer, peer))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    for (report, (_, addresses)) in of_peers.iter_mut().zip(&peers) {
        accept_one_way(report, &service, addresses);
    }
    reports.append(&mut of_peers);
    let seen: Vec<_> = reports.iter().filter_map(|report| report.observation.clone()).collect();
    let mapped = seen.iter().any(Observation::is_translated).then(|| map_twice(&service, &reports)).flatten();
    findings.extend(nat::judge(&seen, mapped));
    let reached: Vec<SocketAddr> =
        reports[masters.len()..].iter().filter(|r| !r.is_self).filter_map(|r| r.address).collect();
    findings.extend(reports.into_iter().flat_map(|report| report.findings));
    service.set_done();
    if !peers.is_empty() {
        progress("waiting until the other doctors are done");
        finish(&service, &reached);
        service.wait_until_idle();
    }
    findings
}

fn no_randomness(error: &std::io::Error) -> Finding {
    Finding::fail("host.random", error.to_string(), "allow getrandom in the sandbox of this process")
}

/// Resolves names, and examines which way they are reached.
fn resolve_all(
    labels: &[String],
    progress: Progress<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<(String, Vec<SocketAddr>)> {
    let mut found = Vec::new();
    for label in labels.iter().take(limits::PEERS_MAX) {
        progress(&format!("resolving {label}"));
        match names::resolve(label) {
            Err(finding) => findings.push(finding),
            Ok(addresses) => {
                findings.extend(names::resolution(label, &addresses));
                let interface = addresses.first().map(|address| names::interface(address.ip()));
                // Several ports of one host have one route.
                findings.extend(interface.filter(|finding| !findings.contains(finding)));
                found.push((label.clone(), addresses));
            }
        }
    }
    if labels.len() > limits::PEERS_MAX {
        findings.push(Finding::warn(
            "names.resolution",
            format!("only the first {} of {} hosts are examined", limits::PEERS_MAX, labels.len()),
            "examine the others by another run",
        ));
    }
    found
}

/// Without keys only the port can be examined.
fn connect_only(label: &str, addresses: &[SocketAddr]) -> Option<Finding> {
    let address = addresses.first()?;
    Some(match staged_dial::connect(*address, ConnectSettings::default(), limits::CONNECT_MAX) {
        Ok(_) => Finding::ok("master.port", format!("{label} accepts connections")),
        Err(error) => explain::connect_failure(Party::Master, label, *address, &error),
    })
}

fn listen(service: &DoctorService, bind: Option<IpAddr>, port: u16) -> (Option<Station>, Finding) {
    const CHECK: &str = "network.listen";
    match Station::start(service, bind, port) {
        Ok(station) => {
            let at = bind.map_or("all addresses".to_owned(), |ip| ip.to_string());
            let udp = if station.has_udp { " by TCP and UDP" } else { " by TCP; its UDP port is in use" };
            let text = format!("listens on port {} of {at}{udp}", station.port());
            (Some(station), Finding::ok(CHECK, text))
        }
        Err(error) => {
            let remedy =
                "choose another port with --port, the same on all hosts, or end the program that uses it";
            (None, Finding::fail(CHECK, format!("cannot listen: {error}"), remedy))
        }
    }
}

/// If one of several masters works, failures of the others are warnings.
fn relax(masters: &mut [VisitReport]) {
    if masters.iter().any(|master| worst(&master.findings) != Judgement::Fail) {
        let findings = masters.iter_mut().flat_map(|master| &mut master.findings);
        for finding in findings.filter(|finding| finding.judgement == Judgement::Fail) {
            finding.judgement = Judgement::Warn;
            finding.text += "; another master works";
        }
    }
}

/// A peer that cannot be dialled, but has dialled this host, gets links.
fn accept_one_way(report: &mut VisitReport, service: &DoctorService, addresses: &[SocketAddr]) {
    if report.address.is_some() || !addresses.iter().any(|at| service.was_visited_from(at.ip())) {
        return;
    }
    for finding in report.findings.iter_mut().filter(|finding| finding.check == "peer.port") {
        finding.judgement = Judgement::Warn;
        finding.text += "; but it can connect to this host, so links between the two are made";
    }
}

/// How two other hosts see connections from one port of this host.
fn map_twice(service: &DoctorService, reports: &[VisitReport]) -> Option<[SocketAddr; 2]> {
    let mut others = reports.iter().filter_map(|report| report.address);
    let (one, other) = (others.next()?, others.next()?);
    let any: IpAddr = if one.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let observe = |to: SocketAddr, local: SocketAddr| {
        let settings = ConnectSettings { segment_bytes: None, local: Some(local) };
        let stream = staged_dial::connect(to, settings, limits::CONNECT_MAX).ok()?;
        let local = stream.local_addr().ok()?;
        // Roles are checked by the visit.
        let credentials = service.credentials(DialTarget::doctor());
        let security = service.security();
        let reached =
            staged_dial::authenticate(stream, &credentials, security, limits::HANDSHAKE_MAX).ok()?;
        let mut questions = MessageConnection::new(reached.connection);
        let about = DoctorRequest::About { instance: service.instance(), name: service.name().to_owned() };
        match questions.ask(&about, limits::ANSWER_MAX).ok()? {
            DoctorAnswer::About { observed, .. } => Some((observed, local.port(), questions)),
            _ => None,
        }
    };
    // The first connection stays open, so that its mapping does.
    let (first, port, _open) = observe(one, SocketAddr::new(any, 0))?;
    let (second, ..) = observe(other, SocketAddr::new(any, port))?;
    Some([first, second])
}

/// Waits until other doctors have completed their checks, which may need this process.
fn finish(service: &DoctorService, reached: &[SocketAddr]) {
    let wait = |to: SocketAddr| {
        let stream = staged_dial::connect(to, ConnectSettings::default(), limits::CONNECT_MAX).ok()?;
        let credentials = service.credentials(DialTarget::doctor());
        let security = service.security();
        let reached =
            staged_dial::authenticate(stream, &credentials, security, limits::HANDSHAKE_MAX).ok()?;
        let mut questions = MessageConnection::<DoctorRequest, DoctorAnswer>::new(reached.connection);
        // It may have ended, which is as good.
        questions.ask(&DoctorRequest::Finish, limits::FINISH_MAX).ok()
    };
    std::thread::scope(|scope| {
        for to in reached {
            scope.spawn(move || wait(*to));
        }
    });
}

/// Runs something on another thread, and stops waiting for it after a time.
fn within<T: Send + 'static>(
    timeout: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = channel();
    let run = move || {
        // Nobody waits any more if it is late.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name(format!("doctor-{name}")).spawn(run).ok()?;
    receiver.recv_timeout(timeout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_master_that_works_is_enough() {
        let report = |findings| VisitReport { findings, ..VisitReport::default() };
        let good = || report(vec![Finding::ok("master.port", "fine")]);
        let bad = || report(vec![Finding::fail("master.port", "refused", "start it")]);
        let mut both = [good(), bad()];
        relax(&mut both);
        assert_eq!(worst(&both[1].findings), Judgement::Warn);
        let mut none = [bad(), bad()];
        relax(&mut none);
        assert_eq!(worst(&none[0].findings), Judgement::Fail);
    }

    #[test]
    fn late_work_is_not_waited_for() {
        assert_eq!(within(Duration::from_secs(10), "test", || 7), Some(7));
        let (_keep, blocked) = channel::<()>();
        let late = move || blocked.recv_timeout(Duration::from_secs(10)).is_ok();
        assert_eq!(within(Duration::from_millis(1), "test", late), None);
    }
}
