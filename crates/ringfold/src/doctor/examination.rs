//! What a peer of a run examines when the master asks it to.

use super::explain::Party;
use super::service::DoctorService;
use super::visit::Visit;
use super::{cuda, host, limits, names, nat, torch};
use crate::driver::Directory;
use ringfold_cuda::Driver as CudaDriver;
use ringfold_fabric::join_token::JoinToken;
use ringfold_proto::doctor::Finding;
use ringfold_proto::hello::Purpose;
use ringfold_proto::limits::FINDINGS_MAX;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a neighbour may take to accept a connection.
const NEIGHBOUR_MAX: Duration = Duration::from_secs(2);

/// The master of a peer.
#[derive(Clone, Debug)]
pub(crate) struct ExaminedMaster {
    /// Its address as the user wrote it.
    pub label: String,
    pub addresses: Vec<SocketAddr>,
    pub token: JoinToken,
}

/// Examines the host of a peer, the way to its master, and those to its neighbours.
pub(crate) fn examine_member(directory: &Directory, master: Option<&ExaminedMaster>) -> Vec<Finding> {
    let mut findings = host::examine();
    // A process that does not use CUDA is not made to.
    if CudaDriver::in_use().is_some() {
        findings.extend(cuda::examine(false));
    }
    findings.extend(torch::examine());
    std::thread::scope(|scope| {
        let to_master = scope.spawn(|| master.map_or_else(Vec::new, |master| visit(directory, master)));
        let neighbours = examine_neighbours(directory);
        findings.extend(to_master.join().unwrap_or_default());
        findings.extend(neighbours);
    });
    findings.truncate(FINDINGS_MAX);
    findings.into_iter().map(Finding::shortened).collect()
}

/// The way to the master.
fn visit(directory: &Directory, master: &ExaminedMaster) -> Vec<Finding> {
    let ExaminedMaster { label, addresses, token } = master;
    let Ok(security) = directory.poller().security() else { return Vec::new() };
    let Ok(service) = DoctorService::of_doctor(token.clone(), security) else { return Vec::new() };
    let mut findings: Vec<_> = addresses.first().map(|to| names::interface(to.ip())).into_iter().collect();
    let (wait, progress) = (Duration::ZERO, &|_: &str| {});
    let visit = Visit {
        service: &service,
        settings: None,
        party: Party::Master,
        label,
        addresses,
        port: None,
        wait,
        quick: true,
        progress,
    };
    let end = Instant::now() + limits::EXAMINATION_MAX / 2;
    let report = loop {
        let report = visit.run();
        // All peers ask at the same time.
        if !report.is_full || Instant::now() >= end {
            break report;
        }
        std::thread::sleep(limits::RETRY_PAUSE);
    };
    if !report.is_full {
        findings.extend(report.observation.and_then(|seen| nat::judge(&[seen], None)));
        findings.extend(report.findings);
    }
    findings
}

fn examine_neighbours(directory: &Directory) -> Vec<Finding> {
    let mut findings = Vec::new();
    let end = Instant::now() + limits::EXAMINATION_MAX / 2;
    let neighbours = directory.neighbours();
    if neighbours.is_empty() {
        findings
            .push(Finding::ok("peer.neighbours", "no neighbours: the peer is alone or waits to be admitted"));
    }
    for peer in neighbours {
        let (name, left) = (directory.name_of(peer), end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            break;
        }
        let begin = Instant::now();
        findings.push(match directory.dial(peer, Purpose::Probe, left.min(NEIGHBOUR_MAX)) {
            Ok(_) => Finding::ok(
                "peer.port",
                format!("{name} accepts connections, after {:.0} ms", begin.elapsed().as_secs_f64() * 1e3),
            ),
            // The link may exist nevertheless: one of the two has dialled it.
            Err(error) => Finding::warn(
                "peer.port",
                error.to_string(),
                format!("open the port that {name} listens on (`listen_ports`), or start `ringfold relay`"),
            ),
        });
    }
    findings
}
