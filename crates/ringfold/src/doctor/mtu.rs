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
/// Bytes of an echo of the search, which sends many at the same time.
const SEARCH_BYTES: usize = 4 * 1024;

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
    ) -> (Finding, Option<(Questions, Option<u16>)>) {
        let check = self.visit.party.check("mtu");
        let label = self.visit.label;
        let known = usize::from(host::path_mtu(self.address).unwrap_or(1500));
        let passes = || Finding::ok(&check, format!("packets of {known} bytes pass to {label} and back"));
        let lost = match segment_bytes {
            Some(_) => "to or from",
            None => match self.lost_way(questions) {
                None => return (passes(), None),
                Some(Way::Out) => "to",
                Some(Way::Back) => "from",
            },
        };
        let overhead = if self.address.is_ipv4() { 40 } else { 60 };
        let smaller = SIZES.into_iter().filter(|size| usize::from(*size) < known);
        // The first attempt may have been late for another reason.
        let sizes: Vec<Option<u16>> = smaller.map(Some).chain([None]).collect();
        (self.visit.progress)(&format!("looking for the largest packet that passes to {label}"));
        let passing: Vec<bool> = std::thread::scope(|scope| {
            let attempt = |size: &Option<u16>| {
                let segment_bytes = size.map(|size| size - overhead);
                scope.spawn(move || self.passes(segment_bytes))
            };
            let attempts: Vec<_> = sizes.iter().map(attempt).collect();
            attempts.into_iter().map(|attempt| attempt.join().unwrap_or(false)).collect()
        });
        if passing.last() == Some(&true) {
            let replacement = self.connect(None).ok().map(|questions| (questions, None));
            return (passes(), replacement);
        }
        let passing = sizes.iter().zip(passing).filter(|(_, passes)| *passes);
        let largest = passing.filter_map(|(size, _)| *size).max();
        let small = Some(SMALL_SEGMENT);
        let replacement = self.connect(small).ok().map(|questions| (questions, small));
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

    fn connect(&self, segment_bytes: Option<u16>) -> io::Result<Questions> {
        let timeout = limits::ECHO_MAX + 8 * self.round_trip;
        let reached = self.visit.dial(self.address, segment_bytes, timeout);
        reached
            .map(|reached| Questions::new(reached.connection))
            .map_err(|_| io::Error::other("no connection"))
    }

    /// Whether large messages pass both ways in segments of this size.
    fn passes(&self, segment_bytes: Option<u16>) -> bool {
        let Ok(mut questions) = self.connect(segment_bytes) else { return false };
        let bytes = SEARCH_BYTES.max(2 * segment_bytes.map_or(ECHO_BYTES_MIN, usize::from));
        [Way::Out, Way::Back].into_iter().all(|way| self.echo(&mut questions, way, bytes).is_ok())
    }
}
