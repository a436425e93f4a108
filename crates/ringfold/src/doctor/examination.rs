//! What a peer of a run examines when the master asks it to.

use super::{host, limits};
use crate::driver::Directory;
use ringfold_proto::doctor::Finding;
use ringfold_proto::hello::Purpose;
use ringfold_proto::limits::FINDINGS_MAX;
use std::time::{Duration, Instant};

/// How long a neighbour may take to accept a connection.
const NEIGHBOUR_MAX: Duration = Duration::from_secs(2);

/// Examines the host of a peer, and the paths to its neighbours.
pub(crate) fn examine_member(directory: &Directory) -> Vec<Finding> {
    let mut findings = host::examine();
    let end = Instant::now() + limits::EXAMINATION_MAX / 2;
    let neighbours = directory.neighbours();
    if neighbours.is_empty() {
        findings
            .push(Finding::ok("peer.neighbours", "no neighbours: the peer is alone or waits to be admitted"));
    }
    for peer in neighbours {
        let (name, left) = (directory.name_of(peer), end.saturating_duration_since(Instant::now()));
        if findings.len() + 1 >= FINDINGS_MAX || left.is_zero() {
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
    findings.into_iter().map(Finding::shortened).collect()
}
