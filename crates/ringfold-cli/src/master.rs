//! The command that runs a master until SIGINT or SIGTERM.

use crate::exit_code::SUCCESS;
use crate::service_manager::ServiceManager;
use crate::serving;
use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use ringfold::{JoinToken, MASTER_PORT, Master, RELAY_PORT, Recover, TuningFile};
use ringfold_bindings::log::{self, LogLevel};
use ringfold_bindings::masters;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The arguments of a master.
#[derive(Args, Debug)]
pub struct MasterArguments {
    /// The address to listen on, HOST:PORT or HOST; may be repeated [default: all addresses, port 48148]
    #[arg(long, visible_alias = "listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    /// The file with the token that peers need to join; several lines are several tokens, of which all are accepted
    /// [default: PCCL_JOIN_TOKEN, or the file named by PCCL_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: serving::TlsArguments,
    /// Do not encrypt connections, for measurements. All peers need RINGFOLD_INSECURE=1 [default: RINGFOLD_INSECURE]
    #[arg(long)]
    insecure: bool,
    /// All masters of the run, HOST:PORT or HOST each, this one included, separated by commas: the same list, in the same
    /// order, for all masters and peers. One is active, the others stand by and take over [default: RINGFOLD_MASTERS, or
    /// this one alone]
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    masters: Vec<String>,
    /// A lease in etcd that decides which master is active, instead of votes: etcd://HOST:PORT/PATH, with another path for
    /// each run
    #[arg(long, value_name = "ADDR")]
    lease: Option<String>,
    /// The position of this master in the list, from 1: behind a NAT or in a container, where it does not listen on its
    /// address of the list [default: the one whose address it listens on]
    #[arg(long, value_name = "N")]
    this_master: Option<usize>,
    /// The address of a relay for peers that cannot reach each other, HOST:PORT or HOST; may be repeated, up to 4. See
    /// `ringfold relay`
    #[arg(long, value_name = "ADDR")]
    relay: Vec<String>,
    /// The file with the tuning of all peers, written by `ringfold bench --tune`
    #[arg(long, value_name = "PATH")]
    tuning: Option<PathBuf>,
    /// The log level: trace, debug, info, warn, error, off [default: RINGFOLD_LOG, PCCL_LOG_LEVEL, or warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// How long a peer's host may answer nothing before its connection is closed, in seconds, at least 3
    /// [default: RINGFOLD_UNREACHABLE_AFTER, or 15]
    #[arg(long, value_name = "SECONDS")]
    unreachable_after: Option<u64>,
    /// Which state the run continues from when all peers that held it were lost and come back from checkpoints: newest,
    /// majority (a revision that most of the lost peers hold), or manual (reject all until a peer syncs as send-only)
    /// [default: RINGFOLD_RECOVER, or newest]
    #[arg(long, value_name = "POLICY")]
    recover: Option<Recover>,
    /// How long the first peers that come back wait for the others, in seconds [default: RINGFOLD_RECOVER_AFTER, or 30]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    recover_after: Option<Duration>,
    /// How many peers must be back for the run to continue earlier, and must hold a revision for it to win over older ones
    /// [default: RINGFOLD_RECOVER_MIN; or all lost peers must be back, and one holder is enough]
    #[arg(long, value_name = "PEERS")]
    recover_min: Option<usize>,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

impl MasterArguments {
    /// Starts the log, serves until SIGINT or SIGTERM, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        log::start(self.log);
        serving::raise_descriptor_limit();
        let token = serving::join_token(self.token_file.as_deref())?;
        let signals = Signals::catch()?;
        let master = Arc::new(self.start(token)?);
        let manager = ServiceManager::from_environment();
        manager.ready(&self.announce(&master.addresses())?);
        let watched = master.clone();
        manager.watch(move |time| watched.responds_within(time))?;
        let interrupted = master.clone();
        serving::interrupt_at_end(signals, self.end_with_stdin, move || {
            manager.stopping();
            interrupted.interrupt();
        })?;
        master.wait().context("the master failed")?;
        Ok(SUCCESS)
    }

    fn start(&self, token: Option<JoinToken>) -> Result<Master> {
        let mut builder = Master::builder();
        for text in &self.listen {
            builder = builder.listen(serving::with_port(text, MASTER_PORT));
        }
        let listed = masters::listed().unwrap_or_default();
        let listed = listed.split(',').filter(|text| self.masters.is_empty() && !text.trim().is_empty());
        let masters = self.masters.iter().map(String::as_str).chain(listed);
        builder = builder.masters(masters.map(|text| serving::with_port(text.trim(), MASTER_PORT)));
        if let Some(address) = &self.lease {
            builder = builder.lease(address.as_str());
        }
        if let Some(position) = self.this_master {
            let index = position.checked_sub(1).context("invalid --this-master 0: positions begin with 1")?;
            builder = builder.this_master(index);
        }
        for text in &self.relay {
            builder = builder.relay(serving::with_port(text, RELAY_PORT));
        }
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(files) = self.tls.files()? {
            builder = builder.tls(files);
        }
        if self.insecure {
            builder = builder.insecure(true);
        }
        if let Some(path) = &self.tuning {
            builder = builder.tuning(TuningFile::read(path)?.tuning);
        }
        if let Some(seconds) = self.unreachable_after {
            builder = builder.unreachable_after(Duration::from_secs(seconds));
        }
        if let Some(policy) = self.recover {
            builder = builder.recover(policy);
        }
        if let Some(time) = self.recover_after {
            builder = builder.recover_after(time);
        }
        if let Some(peers) = self.recover_min {
            builder = builder.recover_min(peers);
        }
        let master = builder.build();
        master.run()?;
        Ok(master)
    }

    /// Prints the addresses, also for programs that need the port. Returns the line.
    fn announce(&self, addresses: &[SocketAddr]) -> Result<String> {
        let texts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        // A dual-stack socket looks like an IPv6 socket.
        let note = if self.listen.is_empty() && addresses.iter().all(SocketAddr::is_ipv6) {
            " (and IPv4)"
        } else {
            ""
        };
        let line = format!("{LISTENING}{}{note}", texts.join(", "));
        serving::print_line(&line)?;
        Ok(line)
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|e| e.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

/// The start of the line with the addresses, which are separated by commas.
pub const LISTENING: &str = "master listening on ";
