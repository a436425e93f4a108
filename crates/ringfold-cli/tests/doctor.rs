//! Tests of `ringfold doctor`: faults are injected on emulated hosts, and must be named.

use crate::process::{DEADLINE, Process, RINGFOLD, command, eventually, output};
use ringfold::{Communicator, Master};
use ringfold_fabric::tls::PeerIdentity;
use ringfold_fabric::tls::issue::{Issued, issue, issue_from, new_ca};
use ringfold_lab::network::{Firewall, PathSettings};
use ringfold_lab::{Host, Network, skip};
use ringfold_proto::handshake::Role;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const MASTER: &str = "10.77.0.1:48148";
const TOKEN: &str = "a token of more than sixteen bytes";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The report of a doctor and its exit code.
struct Report {
    code: Option<i32>,
    json: Value,
}

impl Report {
    fn of(output: &std::process::Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        let json = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        Self { code: output.status.code(), json }
    }

    /// The first finding of a check: its verdict and its text.
    fn find(&self, check: &str) -> Option<(&str, &str)> {
        let findings = self.json["findings"].as_array()?;
        let found = findings.iter().find(|finding| finding["check"] == check)?;
        Some((found["verdict"].as_str()?, found["text"].as_str()?))
    }

    /// Checks that a check has this verdict, and a text and a remedy that say something.
    #[track_caller]
    fn expect(&self, check: &str, verdict: &str, text: &str) {
        let (found, words) = self.find(check).unwrap_or_else(|| panic!("no {check}: {:#}", self.json));
        assert!(found == verdict && words.contains(text), "{check} is {found}: {words}: {:#}", self.json);
        for finding in self.json["findings"].as_array().expect("a list") {
            assert_eq!(finding["remedy"] == "", finding["verdict"] == "ok", "{finding}");
        }
    }

    /// Checks that nothing else failed.
    #[track_caller]
    fn expect_only_failure(&self, check: &str) {
        let findings = self.json["findings"].as_array().expect("a list");
        let failed: Vec<_> = findings.iter().filter(|finding| finding["verdict"] == "fail").collect();
        assert!(failed.len() == 1 && failed[0]["check"] == check, "{failed:#?}");
        assert_eq!((self.code, &self.json["verdict"]), (Some(1), &Value::from("fail")));
    }
}

/// A child that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn network(test: &str, hosts: usize) -> Option<Network> {
    skip::check(test, Network::available()).then(|| Network::new(hosts).expect("a network"))
}

fn on(host: &Host, arguments: &[&str], token: &str) -> Command {
    let mut command = host.enclose(command(RINGFOLD, arguments).env("PCCL_JOIN_TOKEN", token));
    command.stdin(Stdio::null());
    command
}

/// A master on the first host; none if it does not listen.
fn start_master(network: &Network, listen: &str, arguments: &[&str]) -> Option<Killed> {
    let all = [&["master", "--listen", listen][..], arguments].concat();
    let child = on(network.host(0), &all, TOKEN).stdout(Stdio::piped()).spawn().expect("a master");
    let mut master = Killed(child);
    let mut line = String::new();
    let out = master.0.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    line.contains("listening").then_some(master)
}

fn master(network: &Network) -> Killed {
    start_master(network, MASTER, &[]).expect("it listens")
}

fn doctor(host: &Host, arguments: &[&str], token: &str) -> Report {
    let all = [&["doctor", "--json"][..], arguments].concat();
    Report::of(&on(host, &all, token).output().expect("a doctor"))
}

/// Doctors on several hosts at the same time.
fn doctors(network: &Network, arguments: &[&[&str]]) -> Vec<Report> {
    std::thread::scope(|scope| {
        let run = |(host, arguments)| scope.spawn(move || doctor(host, arguments, TOKEN));
        let threads: Vec<_> = network.hosts().iter().zip(arguments.iter().copied()).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a report")).collect()
    })
}

fn set_paths(network: &Network, settings: PathSettings) {
    for from in network.hosts() {
        for to in network.hosts().iter().filter(|to| to.index() != from.index()) {
            network.set_path(from, to, settings);
        }
    }
}

#[test]
fn healthy_hosts_pass_and_a_firewall_between_two_is_named() {
    let test = "healthy_hosts_pass_and_a_firewall_between_two_is_named";
    let Some(network) = network(test, 3) else { return };
    let _master = master(&network);
    let all = [MASTER, "--peers", "10.77.0.1,10.77.0.2,10.77.0.3", "--wait", "60"];
    // The third one can be dialled by nobody.
    network.set_firewall(network.host(2), Some(Firewall { forgets_after: Duration::from_secs(60) }));
    let reports = doctors(&network, &[&all, &all, &all]);
    for report in &reports {
        for check in
            ["master.port", "master.tls", "master.token", "master.version", "master.clock", "master.mtu"]
        {
            assert_eq!(report.find(check).map(|found| found.0), Some("ok"), "{check}: {:#}", report.json);
        }
        assert!(report.find("master.bandwidth").is_some() && report.find("peer.bandwidth").is_some());
        report.expect("network.nat", "ok", "no NAT");
        assert_eq!(report.code, Some(0), "{:#}", report.json);
    }
    reports[0].expect("master.port-back", "ok", "can connect to this host, at 10.77.0.1:48150");
    reports[1].expect("peer.mtu", "ok", "packets of 1500 bytes pass");
    reports[1].expect(
        "names.interface",
        "ok",
        "by eth0 from 10.77.0.2, MTU 1500: it is in the network 10.77.0.0/24",
    );
    reports[2].expect(
        "master.port-back",
        "warn",
        "cannot connect to this host, at 10.77.0.3:48150: no answer",
    );
    // One direction is enough for a link.
    let dialled = |report: &Report| {
        let findings = report.json["findings"].as_array().cloned().unwrap_or_default();
        let text = |finding: &Value| finding["text"].as_str().unwrap_or_default().to_owned();
        findings.iter().any(|f| {
            f["check"] == "peer.port" && text(f).contains("10.77.0.3") && text(f).contains("links between")
        })
    };
    assert!(dialled(&reports[0]) && dialled(&reports[1]), "{:#}", reports[0].json);
}

#[test]
fn a_closed_port_is_named() {
    let Some(network) = network("a_closed_port_is_named", 3) else { return };
    let _master = master(&network);
    network.set_firewall(network.host(0), Some(Firewall { forgets_after: Duration::from_secs(60) }));
    let [dropped, refused, missing] = std::thread::scope(|scope| {
        let arguments: [&[&str]; 3] = [
            &[MASTER, "--quick"],
            &["10.77.0.3:48148", "--quick"],
            &["--peers", "10.77.0.3", "--quick", "--wait", "1"],
        ];
        let host = network.host(1);
        let run = |arguments| scope.spawn(move || doctor(host, arguments, TOKEN));
        arguments.map(run).map(|thread| thread.join().expect("a report"))
    });
    dropped.expect("master.port", "fail", "no answer from 10.77.0.1:48148: a firewall drops the packets");
    dropped.expect_only_failure("master.port");
    refused.expect("master.port", "fail", "10.77.0.3:48148 refuses connections: nobody listens");
    refused.expect_only_failure("master.port");
    missing.expect("peer.port", "fail", "10.77.0.3:48150 refuses connections");
    assert!(
        missing.json.to_string().contains("start `ringfold doctor` there at the same time"),
        "{:#}",
        missing.json
    );
}

/// The master dials back, but no doctor runs there.
#[test]
fn a_missing_doctor_on_the_host_of_the_master_is_named() {
    let test = "a_missing_doctor_on_the_host_of_the_master_is_named";
    let Some(network) = network(test, 2) else { return };
    let _master = master(&network);
    let arguments = [MASTER, "--peers", "10.77.0.1", "--quick", "--wait", "1"];
    let report = doctor(network.host(1), &arguments, TOKEN);
    report.expect("master.port-back", "ok", "can connect to this host");
    report.expect("peer.port", "fail", "10.77.0.1:48150 refuses connections");
    report.expect_only_failure("peer.port");
}

#[test]
fn an_mtu_black_hole_is_named_with_the_size_that_passes() {
    let test = "an_mtu_black_hole_is_named_with_the_size_that_passes";
    let Some(network) = network(test, 2) else { return };
    set_paths(&network, PathSettings { drops_above: Some(1290), ..PathSettings::default() });
    let _master = master(&network);
    let report = doctor(network.host(1), &[MASTER, "--quick"], TOKEN);
    report.expect("master.mtu", "fail", "an MTU black hole: packets of 1500 bytes");
    report.expect("master.mtu", "fail", "those of 1280 bytes pass");
    report.expect("master.port-back", "ok", "can connect to this host");
    report.expect("network.nat", "ok", "no NAT");
    report.expect_only_failure("master.mtu");
}

#[test]
fn an_address_that_others_cannot_reach_is_named() {
    let test = "an_address_that_others_cannot_reach_is_named";
    let Some(network) = network(test, 2) else { return };
    let added = network.host(1).command("ip").args(["addr", "add", "10.99.0.1/32", "dev", "lo"]).status();
    assert!(added.expect("ip").success());
    let reports = doctors(
        &network,
        &[
            &["--peers", "10.77.0.2", "--quick", "--wait", "1"],
            &["--peers", "10.77.0.1", "--quick", "--wait", "20", "--bind", "10.99.0.1"],
        ],
    );
    let text = "this host would listen on 10.99.0.1, but packets to 10.77.0.1:48150 leave from 10.77.0.2";
    reports[1].expect("names.listen-address", "fail", text);
    assert_eq!(reports[1].code, Some(1));
}

#[test]
fn a_slow_link_is_named() {
    let Some(network) = network("a_slow_link_is_named", 2) else { return };
    let slow =
        PathSettings { rate: Some(5_000_000), delay: Duration::from_millis(5), ..PathSettings::default() };
    set_paths(&network, slow);
    let _master = master(&network);
    let report = doctor(network.host(1), &[MASTER], TOKEN);
    report.expect("master.bandwidth", "warn", "a slow link, 100 MB take");
    report.expect("master.round-trip", "ok", "10.77.0.1:48148 takes 1");
    assert_eq!((report.code, &report.json["verdict"]), (Some(0), &Value::from("warn")), "{:#}", report.json);
}

#[test]
fn a_wrong_token_is_named() {
    let Some(network) = network("a_wrong_token_is_named", 2) else { return };
    let _master = master(&network);
    let wrong = doctor(network.host(1), &[MASTER, "--quick"], "another token of many bytes");
    wrong.expect("master.token", "fail", "is not that of 10.77.0.1:48148");
    wrong.expect("master.port", "ok", "accepts connections");
    wrong.expect_only_failure("master.token");
    let missing = doctor(network.host(1), &[MASTER, "--quick"], "");
    missing.expect("master.token", "fail", "requires a join token, and this host has none");
    let short = doctor(network.host(1), &[MASTER, "--quick"], "short");
    short.expect("master.token", "fail", "invalid join token of 5 bytes");
}

/// The files of a run with certificates. They are removed at the end.
struct Certificates {
    folder: PathBuf,
    ca: Issued,
}

impl Certificates {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("ringfold-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let ca = new_ca("run").expect("a CA");
        std::fs::write(folder.join("ca.pem"), &ca.certificate).expect("written");
        Self { folder, ca }
    }

    /// Writes a certificate; returns the options that name it.
    fn add(&self, name: &str, issued: &Issued) -> [String; 3] {
        let path = |suffix: &str| self.folder.join(format!("{name}.{suffix}"));
        std::fs::write(path("pem"), &issued.certificate).expect("written");
        std::fs::write(path("key"), &issued.key).expect("written");
        let option = |name: &str, path: PathBuf| format!("--tls-{name}={}", path.display());
        [option("ca", self.folder.join("ca.pem")), option("cert", path("pem")), option("key", path("key"))]
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn words(options: &[String; 3]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[test]
fn expired_certificates_are_named() {
    let Some(network) = network("expired_certificates_are_named", 2) else { return };
    let files = Certificates::new();
    let identity = |name: &str, role| PeerIdentity { name: name.into(), role };
    let head = files.add("head", &issue(&files.ca, &identity("head", Role::Master), 10).expect("issued"));
    let alice =
        files.add("alice", &issue(&files.ca, &identity("alice", Role::Observer), 365).expect("issued"));
    let begin = SystemTime::now() - 3 * DAY;
    let bob =
        files.add("bob", &issue_from(&files.ca, &identity("bob", Role::Peer), begin, 1).expect("issued"));
    let _master = start_master(&network, MASTER, &words(&head)).expect("it listens");
    let with = |master: &str, options: &[String; 3]| {
        doctor(network.host(1), &[&[master, "--quick"], &words(options)[..]].concat(), TOKEN)
    };
    // A master does not start with a certificate that has expired, so this one expires soon after. Busy machines need longer.
    const OTHER: &str = "10.77.0.1:7001";
    let (_other, end) = [2, 8, 32]
        .into_iter()
        .find_map(|seconds| {
            let end = SystemTime::now() + Duration::from_secs(seconds);
            let soon = issue_from(&files.ca, &identity("other", Role::Master), end - DAY, 1).expect("issued");
            Some((start_master(&network, OTHER, &words(&files.add("other", &soon)))?, end))
        })
        .expect("it listens");
    let good = with(MASTER, &alice);
    good.expect(
        "host.certificate",
        "ok",
        "this host is alice.observer.ringfold, with a certificate that is valid for 36",
    );
    good.expect("master.tls", "warn", "is head.master.ringfold, whose certificate ends in 9 days");
    let expired = with(MASTER, &bob);
    expired.expect("host.certificate", "fail", "bob.pem: it has expired");
    expired.expect_only_failure("host.certificate");
    std::thread::sleep((end + Duration::from_secs(1)).duration_since(SystemTime::now()).unwrap_or_default());
    let expired = with(OTHER, &alice);
    expired.expect("master.tls", "fail", "the certificate of 10.77.0.1:7001 has expired");
    expired.expect_only_failure("master.tls");
}

#[test]
fn all_peers_of_a_run_examine_themselves_through_the_master() {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().expect("a master");
    let address = master.addresses()[0].to_string();
    let peer = |name: &str| Communicator::builder(&address).name(name).build().expect("a peer");
    let (first, second) = (peer("first"), peer("second"));
    first.connect().expect("connected");
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| second.connect());
        let end = Instant::now() + DEADLINE;
        while !first.are_peers_pending().expect("an answer") {
            assert!(Instant::now() < end, "nobody is pending");
        }
        // One is a member, the other one waits.
        let report = Report::of(&output(RINGFOLD, &["doctor", &address, "--all", "--json"]));
        let hosts = |report: &Report| {
            let findings = report.json["findings"].as_array().cloned().unwrap_or_default();
            let mut hosts: Vec<_> =
                findings.iter().map(|f| f["host"].as_str().unwrap_or("").to_owned()).collect();
            hosts.dedup();
            hosts.sort();
            hosts.dedup();
            hosts
        };
        assert_eq!(hosts(&report), ["first", "second"], "{:#}", report.json);
        report.expect("host.descriptors", "ok", "may open");
        report.expect("peer.neighbours", "ok", "no neighbours");
        for check in [
            "master.port",
            "master.version",
            "master.round-trip",
            "master.clock",
            "master.mtu",
            "network.nat",
        ] {
            assert_eq!(report.find(check).map(|found| found.0), Some("ok"), "{check}: {:#}", report.json);
        }
        first.update_topology().expect("admitted");
        joins.join().expect("joined").expect("connected");
        let report = Report::of(&output(RINGFOLD, &["doctor", &address, "--all", "--json"]));
        report.expect("peer.port", "ok", "accepts connections");
        let passed = output(RINGFOLD, &["doctor", &address, "--preflight"]);
        let text = String::from_utf8_lossy(&passed.stdout).into_owned();
        assert!(passed.status.success() && text.contains("preflight passed: 2 peers are ready"), "{text}");
        // One of the peers could not have links to many others.
        let peer = format!(
            "ulimit -n 200; exec {RINGFOLD} demo-peer --master {address} --name low --elements 4 --steps 100000 --compute-ms 1 --late"
        );
        let _low = Process::spawn(command("sh", &["-c", &peer]).stdin(Stdio::piped()));
        let (code, text) = eventually("the third peer", || {
            let refused = output(RINGFOLD, &["doctor", &address, "--preflight"]);
            let text = String::from_utf8_lossy(&refused.stdout).into_owned();
            text.contains("low").then_some((refused.status.code(), text))
        });
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("low\n  fail  host.descriptors    this process may open 200 files"), "{text}");
        assert!(text.contains("→ raise the limit: `ulimit -n 65536`"), "{text}");
        assert!(text.ends_with("preflight failed, do not start the run: low not ready\n"), "{text}");
    });
    drop((first, second));
    let nobody = Master::builder().listen("127.0.0.1:0").build();
    nobody.run().expect("a master");
    let empty = output(RINGFOLD, &["doctor", &nobody.addresses()[0].to_string(), "--preflight"]);
    let text = String::from_utf8_lossy(&empty.stdout).into_owned();
    assert!(empty.status.code() == Some(1) && text.contains("no peer has joined the run"), "{text}");
    master.interrupt();
    let gone = output(RINGFOLD, &["doctor", &address, "--preflight"]);
    let text = String::from_utf8_lossy(&gone.stdout).into_owned();
    assert!(gone.status.code() == Some(1) && text.contains("preflight failed"), "{text}");
    let peer = Communicator::builder(&address).preflight(true).build().expect("a peer");
    let error = peer.connect().expect_err("no master").to_string();
    assert!(
        error.contains("the preflight check failed: master.port: ") && error.contains("start the master"),
        "{error}"
    );
}

#[test]
fn a_preflight_passes_where_the_master_answers() {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().expect("a master");
    let address = master.addresses()[0].to_string();
    let peer = Communicator::builder(&address).preflight(true).build().expect("a peer");
    peer.connect().expect("connected");
}

#[test]
fn people_get_a_table_and_invalid_arguments_the_code_2() {
    let plain = output(RINGFOLD, &["doctor", "--quick"]);
    let text = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(plain.status.success() || text.contains("failure"), "{plain:?}");
    assert!(
        text.starts_with("this host\n") && text.contains("descriptors") && !text.contains('\x1b'),
        "{text}"
    );
    for invalid in ["--all", "--nonsense"] {
        let refused = output(RINGFOLD, &["doctor", invalid]);
        assert_eq!(refused.status.code(), Some(2), "{invalid}: {refused:?}");
    }
    // Ctrl-C ends it at once, also while it waits for others.
    let mut waits = Process::start(RINGFOLD, &["doctor", "--quick", "--port", "0", "--peers", "127.0.0.1:9"]);
    eventually("the examination", || waits.has_thread("doctor").then_some(()));
    waits.signal(rustix::process::Signal::INT);
    let (status, stderr) = waits.end();
    assert_eq!(status.code(), Some(130), "{status}: {stderr}");
}
