//! `ringfold lab`: runs programs on emulated hosts of this machine.

use crate::exit_code::{FAILURE, SUCCESS};
use crate::invocation::Invocation;
use crate::signals::{self, Signals};
use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use ringfold::MASTER_PORT;
use ringfold_lab::network::{HOSTS_MAX, Profile};
use ringfold_lab::{Host, Network};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The port that torch.distributed uses by default.
const TORCH_PORT: u16 = 29500;
/// How long programs may take to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the master may take to listen.
const MASTER_TIMEOUT: Duration = Duration::from_secs(10);

const ENVIRONMENT: &str = "\
Each command runs in a network namespace of its own, with these variables:
  RINGFOLD_LAB_HOST       its number, from 0
  RINGFOLD_LAB_ADDRESS    its address
  RINGFOLD_LAB_ADDRESSES  the addresses of all hosts, separated by commas
  RINGFOLD_MASTERS        the address of the master, with --master
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME  for torch.distributed

The exit code is 0 if all commands ended with 0. A profile is a JSON file; `ringfold lab profiles --json NAME` prints one to
start with. Needs Linux with TUN devices, and root or user namespaces.";

/// The arguments of `ringfold lab`.
#[derive(Args, Debug)]
pub struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Run a command once per emulated host, with emulated links between them
    Run(LabRun),
    /// List the profiles
    Profiles {
        /// Print the JSON of this profile
        #[arg(long, value_name = "NAME")]
        json: Option<String>,
    },
}

#[derive(Args, Debug)]
#[command(after_help = ENVIRONMENT)]
struct LabRun {
    /// The network: a name (`ringfold lab profiles`) or a JSON file
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// The number of hosts
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=HOSTS_MAX as u64))]
    peers: u64,
    /// Start a master on the first host
    #[arg(long)]
    master: bool,
    /// The congestion control of TCP on all hosts, for example reno or cubic [default: that of this machine]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Lab {
    /// Runs the command and returns the exit code.
    pub fn run(&self, invocation: &Invocation) -> Result<i32> {
        match &self.command {
            LabCommand::Run(run) => run.run(invocation),
            LabCommand::Profiles { json: Some(name) } => {
                print!("{}", Profile::text(name)?);
                Ok(SUCCESS)
            }
            LabCommand::Profiles { json: None } => {
                for name in Profile::names() {
                    println!("{name:10} {}", Profile::load(name)?.description);
                }
                Ok(SUCCESS)
            }
        }
    }
}

/// Creates the network of a profile; the error says what the machine lacks.
pub(crate) fn network(profile: &Profile, hosts: usize, congestion_control: Option<&str>) -> Result<Network> {
    let missing = |what: String| anyhow!("cannot emulate a network: this needs {what}");
    Network::available().map_err(missing)?;
    let network = Network::with_profile(profile, hosts).map_err(missing)?;
    if let Some(name) = congestion_control {
        network.set_congestion_control(name).map_err(|why| anyhow!(why))?;
    }
    Ok(network)
}

/// A master on a host. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct LabMaster {
    process: Child,
    /// Its address.
    pub(crate) address: String,
}

impl LabMaster {
    /// Starts a master and waits until it listens.
    pub(crate) fn start(host: &Host, invocation: &Invocation, arguments: &[OsString]) -> Result<Self> {
        Self::start_at(MASTER_PORT, host, invocation, arguments)
    }

    /// As [`LabMaster::start`], one of several masters of a host.
    pub(crate) fn start_at(
        port: u16,
        host: &Host,
        invocation: &Invocation,
        arguments: &[OsString],
    ) -> Result<Self> {
        let address = format!("{}:{port}", host.ipv4());
        let mut command = invocation.command()?;
        command.args(["master", "--end-with-stdin", "--listen", &address]).args(arguments);
        let mut command = host.enclose(&command);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the master")?;
        let output = process.stdout.take().context("the master has no output")?;
        let master = Self { process, address };
        let (sender, first) = channel();
        thread::Builder::new().name("master".into()).spawn(move || {
            let mut lines = BufReader::new(output).lines();
            // An error means that the wait has timed out.
            let _ = sender.send(lines.next().is_some_and(|line| line.is_ok()));
            lines.for_each(drop);
        })?;
        match first.recv_timeout(MASTER_TIMEOUT) {
            Ok(true) => Ok(master),
            _ => Err(anyhow!("the master on {} did not start", master.address)),
        }
    }
}

impl Drop for LabMaster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

enum Happened {
    Signal,
    Ended(usize, std::io::Result<ExitStatus>),
}

impl LabRun {
    fn run(&self, invocation: &Invocation) -> Result<i32> {
        if let Some(code) = ringfold_lab::network::in_user_namespace().map_err(|why| anyhow!(why))? {
            return Ok(code);
        }
        let profile = Profile::load(&self.profile)?;
        let mut signals = Signals::catch()?;
        let (sender, happened) = channel();
        let signalled = sender.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            let _ = signalled.send(Happened::Signal);
        })?;
        let network = network(&profile, self.peers as usize, self.congestion_control.as_deref())?;
        let master = self.master.then(|| LabMaster::start(network.host(0), invocation, &[])).transpose()?;
        let mut pids = Vec::new();
        for host in network.hosts() {
            pids.push(Some(self.start(&network, host, master.as_ref(), &sender)?));
        }
        let mut code = SUCCESS;
        let mut deadline = None;
        while pids.iter().any(Option::is_some) {
            let left = deadline.map_or(Duration::from_secs(3600), |at: Instant| {
                at.saturating_duration_since(Instant::now())
            });
            match happened.recv_timeout(left) {
                Ok(Happened::Ended(host, status)) => {
                    pids[host] = None;
                    let status = status.context("cannot wait for a command")?;
                    if !status.success() && code == SUCCESS {
                        eprintln!("ringfold lab: the command on host {host} ended with {status}");
                        code = status.code().unwrap_or(FAILURE);
                    }
                }
                Ok(Happened::Signal) => {
                    code = signals::exit_code();
                    deadline = Some(Instant::now() + END_TIMEOUT);
                    for pid in pids.iter().flatten() {
                        let _ = kill_process(*pid, Signal::TERM);
                    }
                }
                // The network kills what is left.
                Err(_) if deadline.is_some() => break,
                Err(_) => {}
            }
        }
        Ok(code)
    }

    /// Starts the command on a host. Its output gets the number of the host in front of each line.
    fn start(
        &self,
        network: &Network,
        host: &Host,
        master: Option<&LabMaster>,
        sender: &Sender<Happened>,
    ) -> Result<Pid> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        let mut command = host.enclose(&command);
        let addresses: Vec<_> = network.hosts().iter().map(|host| host.ipv4().to_string()).collect();
        let number = host.index().to_string();
        let world = self.peers.to_string();
        command.env("RINGFOLD_LAB_HOST", &number).env("RINGFOLD_LAB_ADDRESS", &addresses[host.index()]);
        command.env("RINGFOLD_LAB_ADDRESSES", addresses.join(","));
        command.env("RANK", &number).env("WORLD_SIZE", &world).env("MASTER_ADDR", &addresses[0]);
        command.env("MASTER_PORT", TORCH_PORT.to_string()).env("GLOO_SOCKET_IFNAME", "eth0");
        if let Some(master) = master {
            command.env("RINGFOLD_MASTERS", &master.address);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {:?}", self.command[0]))?;
        let pid = Pid::from_child(&child);
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let (index, sender) = (host.index(), sender.clone());
        thread::Builder::new().name(format!("host {index}")).spawn(move || {
            thread::scope(|scope| {
                scope.spawn(|| forward(index, output, std::io::stdout()));
                scope.spawn(|| forward(index, errors, std::io::stderr()));
            });
            let _ = sender.send(Happened::Ended(index, child.wait()));
        })?;
        Ok(pid)
    }
}

fn forward(host: usize, from: Option<impl Read>, mut to: impl Write) {
    let Some(from) = from else { return };
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let text = String::from_utf8_lossy(&line);
        // An error means that nobody reads any more.
        let _ = to.write_all(format!("[{host}] {}\n", text.trim_end_matches('\n')).as_bytes());
        line.clear();
    }
}
