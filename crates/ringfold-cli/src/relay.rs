//! The command that runs a relay until SIGINT or SIGTERM.

use crate::exit_code::SUCCESS;
use crate::service_manager::ServiceManager;
use crate::serving;
use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use ringfold::{JoinToken, RELAY_PORT, Relay};
use ringfold_bindings::log::{self, LogLevel};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The arguments of a relay.
#[derive(Args, Debug)]
pub struct RelayArguments {
    /// The address to listen on, HOST:PORT or HOST; may be repeated [default: all addresses, port 48149]
    #[arg(long, visible_alias = "listen", value_name = "ADDR")]
    bind: Vec<String>,
    /// The file with the join token of the run [default: PCCL_JOIN_TOKEN, or the file named by PCCL_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// The log level: trace, debug, info, warn, error, off [default: RINGFOLD_LOG, PCCL_LOG_LEVEL, or warn]; info logs
    /// each pair
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

/// The start of the line with the addresses, which are separated by commas.
pub const LISTENING: &str = "relay listening on ";

impl RelayArguments {
    /// Starts the log, serves until SIGINT or SIGTERM, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        log::start(self.log);
        let token = serving::join_token(self.token_file.as_deref())?;
        let signals = Signals::catch()?;
        let relay = Arc::new(self.start(token)?);
        let texts: Vec<_> = relay.addresses().iter().map(SocketAddr::to_string).collect();
        let line = format!("{LISTENING}{}", texts.join(", "));
        serving::print_line(&line)?;
        let manager = ServiceManager::from_environment();
        manager.ready(&line);
        let interrupted = relay.clone();
        serving::interrupt_at_end(signals, self.end_with_stdin, move || {
            manager.stopping();
            interrupted.interrupt();
        })?;
        relay.wait().context("the relay failed")?;
        let done = relay.statistics();
        serving::print_line(&format!("relayed {} bytes between {} pairs", done.bytes, done.pairs))?;
        Ok(SUCCESS)
    }

    fn start(&self, token: Option<JoinToken>) -> Result<Relay> {
        let mut builder = Relay::builder();
        for text in &self.bind {
            builder = builder.listen(serving::with_port(text, RELAY_PORT));
        }
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(seconds) = self.unreachable_after {
            builder = builder.unreachable_after(Duration::from_secs(seconds));
        }
        Ok(builder.start()?)
    }
}
