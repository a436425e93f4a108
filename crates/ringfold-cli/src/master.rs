//! The command that runs a master until SIGINT or SIGTERM.

use crate::exit_code::SUCCESS;
use crate::serving;
use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use ringfold::{MASTER_PORT, Master, RELAY_PORT, TuningFile};
use ringfold_bindings::log::{self, LogLevel};
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
    /// The file with the token that peers need to join [default: PCCL_JOIN_TOKEN, or the file named by
    /// PCCL_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Do not encrypt connections, for measurements. All peers need RINGFOLD_INSECURE=1 [default: RINGFOLD_INSECURE]
    #[arg(long)]
    insecure: bool,
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
        let master = Arc::new(self.start(token.as_deref())?);
        self.announce(&master.addresses())?;
        let interrupted = master.clone();
        serving::interrupt_at_end(signals, self.end_with_stdin, move || interrupted.interrupt())?;
        master.wait().context("the master failed")?;
        Ok(SUCCESS)
    }

    fn start(&self, token: Option<&str>) -> Result<Master> {
        let mut builder = Master::builder();
        for text in &self.listen {
            builder = builder.listen(serving::with_port(text, MASTER_PORT));
        }
        for text in &self.relay {
            builder = builder.relay(serving::with_port(text, RELAY_PORT));
        }
        if let Some(token) = token {
            builder = builder.token(token);
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
        let master = builder.build();
        master.run()?;
        Ok(master)
    }

    /// Prints the addresses, also for programs that need the port.
    fn announce(&self, addresses: &[SocketAddr]) -> Result<()> {
        let texts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        // A dual-stack socket looks like an IPv6 socket.
        let note = if self.listen.is_empty() && addresses.iter().all(SocketAddr::is_ipv6) {
            " (and IPv4)"
        } else {
            ""
        };
        serving::print_line(&format!("{LISTENING}{}{note}", texts.join(", ")))
    }
}

/// The start of the line with the addresses, which are separated by commas.
pub const LISTENING: &str = "master listening on ";
