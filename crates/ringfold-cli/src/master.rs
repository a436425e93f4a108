//! The command that runs a master until SIGINT or SIGTERM.

use crate::exit_code::SUCCESS;
use crate::signals::Signals;
use crate::tuning_file;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ringfold::{MASTER_PORT, Master, RELAY_PORT};
use ringfold_bindings::join_token;
use ringfold_bindings::log::{self, LogLevel};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const TOKEN_BYTES_MAX: u64 = 4096;

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
        let token = match self.token_file.as_deref() {
            Some(path) => Some(read_token(path)?),
            None => join_token::read_environment().map_err(|failure| anyhow!(failure.text))?,
        };
        let mut signals = Signals::catch()?;
        let master = Arc::new(self.start(token.as_deref())?);
        self.announce(&master.addresses())?;

        let interrupted = master.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            interrupted.interrupt();
        })?;
        if self.end_with_stdin {
            let interrupted = master.clone();
            thread::Builder::new().name("stdin".into()).spawn(move || {
                wait_for_end_of_stdin();
                interrupted.interrupt();
            })?;
        }
        master.wait().context("the master failed")?;
        Ok(SUCCESS)
    }

    fn start(&self, token: Option<&str>) -> Result<Master> {
        let mut builder = Master::builder();
        for text in &self.listen {
            builder = builder.listen(with_port(text, MASTER_PORT));
        }
        for text in &self.relay {
            builder = builder.relay(with_port(text, RELAY_PORT));
        }
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(path) = &self.tuning {
            builder = builder.tuning(tuning_file::read(path)?);
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
        let mut out = std::io::stdout().lock();
        writeln!(out, "{LISTENING}{}{note}", texts.join(", "))
            .and_then(|()| out.flush())
            .context("cannot write to standard output")
    }
}

/// The start of the line with the addresses, which are separated by commas.
pub const LISTENING: &str = "master listening on ";

/// Adds the default port to an address without one.
pub(crate) fn with_port(text: &str, port: u16) -> String {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => text.to_owned(),
    }
}

pub(crate) fn read_token(path: &Path) -> Result<String> {
    let open = || format!("cannot read the token from {}", path.display());
    let file = std::fs::File::open(path).with_context(open)?;
    warn_if_readable_by_others(path, &file);
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).with_context(open)?;
    if text.len() as u64 > TOKEN_BYTES_MAX {
        bail!("invalid token in {}: longer than {TOKEN_BYTES_MAX} bytes", path.display());
    }
    match text.trim() {
        "" => bail!("no token in {}: the file is empty", path.display()),
        token => Ok(token.to_owned()),
    }
}

fn warn_if_readable_by_others(path: &Path, file: &std::fs::File) {
    use std::os::unix::fs::PermissionsExt;
    if file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o077 != 0) {
        tracing::warn!("other users of this machine can read the token in {}: run chmod 600", path.display());
    }
}

/// Blocks until the parent closes our standard input or dies.
pub(crate) fn wait_for_end_of_stdin() {
    let mut buffer = [0; 256];
    let mut stdin = std::io::stdin().lock();
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_the_default_port() {
        assert_eq!(with_port("10.0.0.1", MASTER_PORT), "10.0.0.1:48148");
        assert_eq!(with_port("::1", MASTER_PORT), "[::1]:48148");
        assert_eq!(with_port("[::1]", MASTER_PORT), "[::1]:48148");
        assert_eq!(with_port("[::1]:0", MASTER_PORT), "[::1]:0");
        assert_eq!(with_port("localhost:99", MASTER_PORT), "localhost:99");
    }

    #[test]
    fn a_file_without_a_token_is_an_error() {
        let path = std::env::temp_dir().join(format!("ringfold-token-{}", std::process::id()));
        for (text, expected) in [("", None), (" \n", None), ("secret\n", Some("secret"))] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_token(&path).ok().as_deref(), expected);
        }
        std::fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(read_token(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(read_token(&path).unwrap_err().to_string().contains("ringfold-token"));
    }
}
