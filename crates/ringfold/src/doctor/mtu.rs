//! Finds paths on which large packets are lost without a message (MTU black holes).
//!
//! On such a path a connection is made, small messages pass, and the first full segment is sent again for ever. The largest packet
//! that passes is found by connections with smaller segments.

use super::limits;
use super::visit::{Questions, SMALL_SEGMENT, Visit};
use core::time::Duration;
use ringfold_fabric::host;
use ringfold_proto::doctor::{DoctorAnswer, DoctorRequest, Finding};
use ringfold_proto::limits::ECHO_BYTES_MAX;
use std::io;
use std::net::SocketAddr;

/// Sizes of packets of common networks: the least of IPv4 and IPv6, tunnels, PPPoE, Ethernet, jumbo frames.
const SIZES: [u16; 16] =
    [576, 1000, 1200, 1280, 1340, 1380, 1400, 1420, 1436, 1450, 1472, 1492, 1500, 2000, 4000, 8000];
/// Bytes of an echo at least.
const ECHO_BYTES_MIN: usize = 8 * 1024;

/// Examines the path to an address.
pub(super) struct Probe<'p, 'v> {
    pub visit: &'p Visit<'v>,
    pub address: SocketAddr,
    pub round_trip: Duration,
}

/// Which way an echo is large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Out,
    Back,
}

impl Probe<'_, '_> {
    /// Sends large messages both ways. If that breaks the connection, there is another one with small segments. `segment_bytes` is
    /// set if larger ones did not even pass the handshake.
    pub fn run(
        &self,
        questions: &mut Questions,
        segment_bytes: Option<u16>,
    ) -> (Finding, Option<(Questions, u16)>) {
        let check = self.visit.party.check("mtu");
        let label = self.visit.label;
        let known = usize::from(host::path_mtu(self.address).unwrap_or(1500));
        let lost = match segment_bytes {
            Some(_) => "to or from",
            None => match self.lost_way(questions) {
                None => {
                    return (
                        Finding::ok(&check, format!("packets of {known} bytes pass to {label} and back")),
                        None,
                    );
                }
                Some(Way::Out) => "to",
                Some(Way::Back) => "from",
            },
        };
        let overhead = if self.address.is_ipv4() { 40 } else { 60 };
        let sizes: Vec<u16> = SIZES.into_iter().filter(|size| usize::from(*size) < known).collect();
        let largest = largest_passing(&sizes, |size| self.passes(size - overhead));
        let replacement = self.connect(SMALL_SEGMENT).ok().map(|questions| (questions, SMALL_SEGMENT));
        let Some(largest) = largest else {
            let text =
                format!("messages of a few KiB do not pass {lost} {label}, whatever the size of the packets");
            let remedy =
                "look for a firewall or a VPN that ends connections, and for high packet loss (`mtr`)";
            return (Finding::fail(&check, text, remedy), replacement);
        };
        let interface =
            super::route::lookup(self.address.ip()).map_or("eth0".into(), |route| route.interface);
        let text = format!(
            "an MTU black hole: packets of {known} bytes {lost} {label} are lost without a message, those of {largest} bytes pass"
        );
        let remedy = format!(
            "ip link set dev {interface} mtu {largest}, on both hosts; or let ICMP (fragmentation needed, packet too big) through the \
             firewalls; or sysctl -w net.ipv4.tcp_mtu_probing=1 on both hosts"
        );
        (Finding::fail(&check, text, remedy), replacement)
    }

    /// The way on which large messages do not pass.
    fn lost_way(&self, questions: &mut Questions) -> Option<Way> {
        let segment = questions.connection().segment_bytes().unwrap_or(1460) as usize;
        let bytes = (4 * segment).clamp(ECHO_BYTES_MIN, ECHO_BYTES_MAX);
        [Way::Out, Way::Back].into_iter().find(|way| self.echo(questions, *way, bytes).is_err())
    }

    fn echo(&self, questions: &mut Questions, way: Way, bytes: usize) -> io::Result<()> {
        let (out, back) = if way == Way::Out { (bytes, 0) } else { (0, bytes) };
        let echo = DoctorRequest::Echo { answer_bytes: back as u32, padding: vec![0; out] };
        match questions.ask(&echo, limits::ECHO_MAX + 8 * self.round_trip)? {
            DoctorAnswer::Echo { .. } => Ok(()),
            _ => Err(io::Error::other("invalid answer")),
        }
    }

    fn connect(&self, segment_bytes: u16) -> io::Result<Questions> {
        let timeout = limits::ECHO_MAX + 8 * self.round_trip;
        let reached = self.visit.dial(self.address, Some(segment_bytes), timeout);
        reached
            .map(|reached| Questions::new(reached.connection))
            .map_err(|_| io::Error::other("no connection"))
    }

    /// Whether large messages pass both ways in segments of this size.
    fn passes(&self, segment_bytes: u16) -> bool {
        (self.visit.progress)(&format!("sending packets of {segment_bytes} bytes to {}", self.visit.label));
        let Ok(mut questions) = self.connect(segment_bytes) else { return false };
        [Way::Out, Way::Back].into_iter().all(|way| self.echo(&mut questions, way, ECHO_BYTES_MIN).is_ok())
    }
}

/// The largest of ascending sizes that passes, if any does.
fn largest_passing(sizes: &[u16], mut passes: impl FnMut(u16) -> bool) -> Option<u16> {
    let (mut good, mut bad) = (None, sizes.len());
    let mut low = 0;
    while low < bad {
        let middle = low + (bad - low) / 2;
        if passes(sizes[middle]) {
            (good, low) = (Some(sizes[middle]), middle + 1);
        } else {
            bad = middle;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_found_in_few_attempts() {
        for limit in [0, 576, 1199, 1279, 1280, 1500, 9000] {
            let mut attempts = 0;
            let found = largest_passing(&SIZES, |size| {
                attempts += 1;
                size <= limit
            });
            assert_eq!(found, SIZES.into_iter().filter(|size| *size <= limit).max());
            assert!(attempts <= 5, "{attempts}");
        }
        assert_eq!(largest_passing(&[], |_| true), None);
    }
}
