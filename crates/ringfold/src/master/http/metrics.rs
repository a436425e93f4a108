//! The metrics of a master in the text format of Prometheus. Peers are counted, never named: names would be endless.

use crate::master::counters::{Counters, DEPARTURE_REASONS, Histogram};
use crate::master::snapshot::Snapshot;
use ringfold_proto::status::{EdgeStatus, Health, MasterRole, Membership, RunStatus};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// What the HTTP server counts itself.
#[derive(Default, Debug)]
pub(super) struct HttpCounters {
    /// Responses by their status.
    pub responses: BTreeMap<u16, u64>,
    pub connections: usize,
    pub streams: usize,
}

/// Text that is being written.
#[derive(Default)]
struct Page(String);

/// Labels and value of a sample. Labels are as in the text format, without braces.
type Sample<'a> = (&'a str, f64);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text cannot fail.
        let _ = write!(self.0, "# HELP ringfold_{name} {help}\n# TYPE ringfold_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "ringfold_{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, &[("", value)]);
    }

    fn gauges(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        self.family(name, "gauge", help);
        samples.iter().for_each(|(labels, value)| self.sample(name, labels, value));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help, [(String::new(), value)]);
    }

    fn counters(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (String, u64)>) {
        self.family(name, "counter", help);
        samples.into_iter().for_each(|(labels, value)| self.sample(name, &labels, value));
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let mut below = 0;
        for (bound, count) in Histogram::BOUNDS.iter().zip(histogram.counts) {
            below += count;
            self.sample(&format!("{name}_bucket"), &format!("le=\"{bound}\""), below);
        }
        self.sample(&format!("{name}_bucket"), "le=\"+Inf\"", histogram.count);
        self.sample(&format!("{name}_sum"), "", histogram.sum);
        self.sample(&format!("{name}_count"), "", histogram.count);
    }
}

/// All metrics.
pub(super) fn render(snapshot: &Snapshot, http: &HttpCounters) -> String {
    let mut page = Page::default();
    write_master(&mut page, snapshot);
    write_run(&mut page, &snapshot.status.run);
    write_ring(&mut page, &snapshot.status.run.ring);
    write_operations(&mut page, snapshot);
    write_events(&mut page, &snapshot.counters);
    page.gauge("http_connections", "Connections of the HTTP server.", http.connections as f64);
    page.gauge("http_streams", "Clients that follow the run by events.", http.streams as f64);
    let by_code = http.responses.iter().map(|(code, count)| (format!("code=\"{code}\""), *count));
    page.counters("http_responses_total", "Responses of the HTTP server by their status.", by_code);
    write_process(&mut page);
    page.0
}

fn number(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn write_master(page: &mut Page, snapshot: &Snapshot) {
    let master = &snapshot.status.master;
    let version = format!("version=\"{}\"", master.version);
    page.gauges("build_info", "The version of the master; always 1.", &[(&version, 1.0)]);
    page.gauge("master_active", "Whether this master is the active one.", number(master.active));
    let known = number(master.active_position.is_some());
    page.gauge("master_active_known", "Whether an active master is known to this one.", known);
    let masters = &snapshot.status.run.masters;
    let in_role = |role: MasterRole| masters.iter().filter(|master| master.role == role).count() as f64;
    let by_state = [
        ("state=\"active\"", in_role(MasterRole::Active)),
        ("state=\"standby\"", in_role(MasterRole::Standby)),
        ("state=\"blank\"", in_role(MasterRole::Blank)),
        ("state=\"lost\"", in_role(MasterRole::Lost)),
        ("state=\"unknown\"", in_role(MasterRole::Unknown)),
    ];
    page.gauges("masters", "The masters of the list, as this one knows them.", &by_state);
    page.gauge("master_uptime_seconds", "How long this master has run.", master.uptime_s);
    page.counter(
        "master_takeovers_total",
        "How often this master became active.",
        snapshot.counters.takeovers,
    );
}

fn write_run(page: &mut Page, run: &RunStatus) {
    page.gauge("run_healthy", "Whether the run needs no attention.", number(run.health == Health::Healthy));
    page.gauge("run_draining", "Whether new peers are refused.", number(run.draining));
    let count = |of: Membership| run.peers.iter().filter(|peer| peer.membership == of).count() as f64;
    let by_membership = [
        ("membership=\"member\"", count(Membership::Member)),
        ("membership=\"pending\"", count(Membership::Pending)),
        ("membership=\"returned\"", count(Membership::Returned)),
    ];
    page.gauges("peers", "Peers by what they are in the run.", &by_membership);
    let disconnected = run.peers.iter().filter(|peer| !peer.connected).count();
    page.gauge(
        "peers_suspected",
        "Peers without a connection to the master, which may resume.",
        disconnected as f64,
    );
    let heard = run.peers.iter().map(|peer| peer.heard_s).fold(0.0, f64::max);
    page.gauge(
        "peer_heard_seconds_max",
        "How long ago the peer was heard that has been silent longest.",
        heard,
    );
    page.gauge("groups", "Peer groups.", run.groups.len() as f64);
    page.gauge("epoch", "The number of the newest open epoch.", run.epoch.unwrap_or(0) as f64);
    let in_flight = run.groups.iter().map(|group| group.operations).sum::<usize>();
    page.gauge(
        "operations_in_flight",
        "Operations that the master has heard of, and not decided.",
        in_flight as f64,
    );
    page.gauge("waits", "Calls in which peers wait for others.", run.waits.len() as f64);
    let longest = run.waits.iter().map(|wait| wait.waited_s).fold(0.0, f64::max);
    page.gauge(
        "wait_seconds_max",
        "How long peers have waited in the call that has waited longest.",
        longest,
    );
}

fn write_ring(page: &mut Page, ring: &[EdgeStatus]) {
    let mut speeds: Vec<_> = ring.iter().filter_map(|edge| edge.bytes_per_s).collect();
    speeds.sort_unstable();
    let help = "The measured bandwidth of the edges of the rings.";
    let name = "ring_edge_bandwidth_bytes_per_second";
    let at = |index: usize| speeds.get(index).map(|speed| *speed as f64);
    match (at(0), at(speeds.len() / 2)) {
        (Some(min), Some(median)) => {
            page.gauges(name, help, &[("stat=\"min\"", min), ("stat=\"median\"", median)]);
        }
        _ => page.gauges(name, help, &[]),
    }
    let trips = ring.iter().filter_map(|edge| edge.round_trip_s).reduce(f64::max);
    let samples: Vec<_> = trips.map(|max| ("stat=\"max\"", max)).into_iter().collect();
    page.gauges(
        "ring_edge_round_trip_seconds",
        "The measured round trip of the edges of the rings.",
        &samples,
    );
}

fn write_operations(page: &mut Page, snapshot: &Snapshot) {
    let totals = &snapshot.status.throughput;
    let outcomes = [("committed", totals.operations_total), ("aborted", totals.aborted_total)];
    let outcomes = outcomes.map(|(outcome, count)| (format!("outcome=\"{outcome}\""), count));
    page.counters("operations_total", "Collective operations by their outcome.", outcomes);
    let help = "Bytes of one peer's buffers, of operations that were committed.";
    page.counter("operation_bytes_total", help, totals.bytes_total);
    let help = "The time between two operations of one tag: that of a step of training.";
    page.histogram("step_seconds", help, &snapshot.counters.steps);
}

fn write_events(page: &mut Page, counters: &Counters) {
    page.counter("joins_total", "Peers that have registered.", counters.joins);
    page.counter("joins_rejected_total", "Peers that were rejected.", counters.joins_rejected);
    page.counter("admissions_total", "Peers that became members.", counters.admissions);
    let by_reason = DEPARTURE_REASONS.iter().zip(counters.departures);
    let by_reason = by_reason.map(|(reason, count)| (format!("reason=\"{reason}\""), count));
    page.counters("departures_total", "Peers that have departed, by reason.", by_reason);
    page.counter("suspicions_total", "Connections of peers that ended.", counters.suspicions);
    page.counter("reconnections_total", "Peers that have resumed.", counters.reconnections);
    page.counter("epochs_total", "Epochs that were opened.", counters.epochs);
    page.counter("syncs_total", "Syncs of shared state that were completed.", counters.syncs);
    page.counter(
        "states_rejected_total",
        "Shared states of peers that were rejected.",
        counters.states_rejected,
    );
    page.counter("wait_warnings_total", "Warnings of calls that wait too long.", counters.wait_warnings);
}

/// What the system says of this process. What cannot be read is left out.
fn write_process(page: &mut Page) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    if let Some(kib) = kib {
        let help = "The memory of the process of the master.";
        page.gauge("process_resident_memory_bytes", help, (kib * 1024) as f64);
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the folder itself.
        let count = descriptors.count().saturating_sub(1);
        page.gauge("process_open_fds", "Descriptors that the process of the master has open.", count as f64);
    }
    let limits = read("/proc/self/limits");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    if let Some(most) = files.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()) {
        page.gauge(
            "process_max_fds",
            "Descriptors that the process of the master may have open.",
            most as f64,
        );
    }
}
