//! `ringfold doctor`: says what is wrong with a host, with the way to the master, and between hosts.

mod python;
mod report;

use crate::client::{ClientArguments, RunArguments};
use crate::exit_code::{FAILURE, SUCCESS, USAGE};
use crate::invocation::Invocation;
use crate::progress::Progress;
use crate::serving;
use crate::signals::{self, Signals};
use anyhow::{Context, Result};
use clap::Args;
use ratatui::termion;
use report::{HostFindings, Style};
use ringfold::MASTER_PORT;
use ringfold::doctor::{self, DOCTOR_PORT, DoctorOptions, Finding, Judgement};
use ringfold::settings::with_port;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// The width of a terminal that does not tell it.
const WIDTH: usize = 110;

const AFTER_HELP: &str = "\
Run it on each host, at the same time, with the same --peers: each one connects to all others, and waits for them. The master answers, too. Each line is ok, \
warn or fail, with a sentence and what to do.

The exit code is 0 if nothing failed, 1 if something did, 2 if the arguments are invalid.

Examples:
  ringfold doctor                                        only this host
  ringfold doctor head:48148                             and the way to the master
  ringfold doctor head:48148 --peers host-1,host-2,host-3  on each of the three hosts
  ringfold doctor head:48148 --all                       all peers of a run, through its master
  ringfold doctor head:48148 --preflight && start-the-run";

/// The arguments of `ringfold doctor`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArguments {
    #[command(flatten)]
    run: RunArguments,
    /// The hosts of the run, HOST:PORT or HOST each, separated by commas. A doctor must run on each of them. This host may be
    /// among them
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    peers: Vec<String>,
    /// Have all peers of the run examine themselves, through the master
    #[arg(long, conflicts_with = "peers")]
    all: bool,
    /// The same, but say only what is wrong, and end with 1 if a peer must not start
    #[arg(long, conflicts_with = "peers")]
    preflight: bool,
    /// Leave out what takes seconds: bandwidths, and opening CUDA devices
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The port to listen on, for other doctors and for the master, which tries to connect to this host. Use the port of your peers if
    /// it is fixed (listen_ports) [default: 48150 with --peers, any free port without]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The address to listen on, as your peers do [default: all]
    #[arg(long, value_name = "ADDR")]
    bind: Option<IpAddr>,
    /// How long to wait for the doctors of other hosts, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    #[command(flatten)]
    client: ClientArguments,
}

/// What the thread that examines has to say.
enum Note {
    Progress(String),
    Done(Vec<HostFindings>),
    Interrupted,
}

impl DoctorArguments {
    /// Examines, prints, and returns the exit code.
    pub fn run(&self, invocation: &Invocation) -> Result<i32> {
        let options = self.options()?;
        let through_run = self.all || self.preflight;
        if through_run && options.masters.is_empty() {
            eprintln!("ringfold doctor: --all and --preflight need the address of the master");
            return Ok(USAGE);
        }
        let (notes, received) = channel();
        let mut signals = Signals::catch()?;
        let interrupt = notes.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            let _ = interrupt.send(Note::Interrupted);
        })?;
        let invocation = invocation.clone();
        let examine = move || {
            let hosts = examine(&options, through_run, &invocation, &notes);
            let _ = notes.send(Note::Done(hosts));
        };
        thread::Builder::new().name("doctor".into()).spawn(examine)?;
        let mut progress = Progress::spinner();
        let hosts = loop {
            match received.recv().context("the examination ended unexpectedly")? {
                Note::Progress(text) => progress.message(&text),
                Note::Interrupted => return Ok(signals::exit_code()),
                Note::Done(hosts) => break hosts,
            }
        };
        drop(progress);
        self.print(&hosts)
    }

    fn options(&self) -> Result<DoctorOptions> {
        let mut options = DoctorOptions::new(&self.client.given())?;
        if let Some(masters) = self.run.given() {
            options.masters = masters.split(',').map(|text| with_port(text.trim(), MASTER_PORT)).collect();
        }
        let port = self.port.unwrap_or(if self.peers.is_empty() { 0 } else { DOCTOR_PORT });
        let peer_port = if port == 0 { DOCTOR_PORT } else { port };
        options.peers = self.peers.iter().map(|text| with_port(text, peer_port)).collect();
        let has_others = !options.masters.is_empty() || !options.peers.is_empty();
        options.port = has_others.then_some(port);
        options.bind = self.bind.or(options.bind);
        options.wait = Duration::from_secs(self.wait);
        options.quick = self.quick;
        Ok(options)
    }

    fn print(&self, hosts: &[HostFindings]) -> Result<i32> {
        let code = if report::verdict(hosts) == Judgement::Fail { FAILURE } else { SUCCESS };
        if self.json {
            serving::print_line(&report::json(hosts)?)?;
            return Ok(code);
        }
        let terminal = std::io::stdout().is_terminal();
        let columns = termion::terminal_size().map_or(WIDTH, |(columns, _)| usize::from(columns));
        let style = Style {
            colours: terminal && std::env::var_os("NO_COLOR").is_none(),
            width: terminal.then_some(columns),
            only_trouble: self.preflight,
            names_hosts: self.all || self.preflight,
        };
        serving::print_line(report::table(hosts, style).trim_end())?;
        if self.preflight {
            let failed: Vec<_> =
                hosts.iter().filter(|of| doctor::worst(&of.findings) == Judgement::Fail).collect();
            let names: Vec<_> = failed.iter().map(|of| of.host.as_str()).collect();
            serving::print_line(&match names.is_empty() {
                true => format!(
                    "preflight passed: {} peer{} ready",
                    hosts.len(),
                    if hosts.len() == 1 { " is" } else { "s are" }
                ),
                false => format!("preflight failed, do not start the run: {} not ready", names.join(", ")),
            })?;
        }
        Ok(code)
    }
}

fn examine(
    options: &DoctorOptions,
    through_run: bool,
    invocation: &Invocation,
    notes: &Sender<Note>,
) -> Vec<HostFindings> {
    let progress = |text: &str| {
        let _ = notes.send(Note::Progress(text.to_owned()));
    };
    if through_run {
        return match doctor::examine_all(options, &progress) {
            Ok(peers) if peers.is_empty() => {
                let finding = Finding::fail(
                    "master.peers",
                    "no peer has joined the run, or waits to be admitted: nobody was examined",
                    "start the peers, and run this again",
                );
                vec![HostFindings { host: options.masters.join(","), findings: vec![finding] }]
            }
            Ok(peers) => peers.into_iter().map(|(host, findings)| HostFindings { host, findings }).collect(),
            Err(findings) => vec![HostFindings { host: host_name(), findings }],
        };
    }
    let mut findings = doctor::examine(options, &progress);
    progress("asking Python");
    findings.extend(python::examine(invocation));
    vec![HostFindings { host: host_name(), findings }]
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this host".into() } else { name.trim().to_owned() }
}
