//! A master that serves until it is told to end.

use crate::signals::Signals;
use crate::tuning_file;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ringfold::{MASTER_PORT, Master};
use ringfold_bindings::join_token;
use ringfold_bindings::log::{self, Level};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// No secret that a person or a program made is longer.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Where a master listens, and whom it lets in.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where to listen, HOST:PORT or an address alone; may be given several times [default: every address of
    /// the machine, port 48148]
    #[arg(long, visible_alias = "listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    /// A file with the secret that peers must know to join [default: PCCL_JOIN_TOKEN, or the file that
    /// PCCL_JOIN_TOKEN_FILE names]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// A file with a tuning, as `ringfold bench --tune` writes it; all peers take it
    #[arg(long, value_name = "PATH")]
    tuning: Option<PathBuf>,
    /// What to log: trace, debug, info, warn, error, off [default: RINGFOLD_LOG, PCCL_LOG_LEVEL, or warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<Level>,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

impl Serve {
    /// Starts the log, and serves until SIGINT or SIGTERM.
    pub fn run(&self) -> Result<()> {
        log::start(self.log);
        let token = match self.token_file.as_deref() {
            Some(path) => Some(token(path)?),
            None => join_token::from_environment().map_err(|failure| anyhow!(failure.text))?,
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
                end_of_stdin();
                interrupted.interrupt();
            })?;
        }
        master.wait().context("the master failed")
    }

    /// Told nothing, a master listens on its known port on all addresses of both families.
    fn start(&self, token: Option<&str>) -> Result<Master> {
        let mut builder = Master::builder();
        for text in &self.listen {
            builder = builder.listen(with_port(text));
        }
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(path) = &self.tuning {
            builder = builder.tuning(tuning_file::read(path)?);
        }
        let master = builder.build();
        master.run()?;
        Ok(master)
    }

    /// One line for people, and for programs that need to know the port.
    fn announce(&self, addresses: &[SocketAddr]) -> Result<()> {
        let texts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        // One socket for both families looks like one for IPv6 alone.
        let note = if self.listen.is_empty() && addresses.iter().all(SocketAddr::is_ipv6) {
            " (and IPv4)"
        } else {
            ""
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{LISTENING}{}{note}", texts.join(", "))
            .and_then(|()| out.flush())
            .context("standard output")
    }
}

/// What the line begins with that tells where a master listens; addresses follow, with commas between them.
pub const LISTENING: &str = "master listening on ";

/// An address alone gets the port that everybody knows.
fn with_port(text: &str) -> String {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, MASTER_PORT).to_string(),
        Err(_) => text.to_owned(),
    }
}

fn token(path: &Path) -> Result<String> {
    let open = || format!("can't read the token from {}", path.display());
    let file = std::fs::File::open(path).with_context(open)?;
    warn_if_others_can_read(path, &file);
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).with_context(open)?;
    if text.len() as u64 > TOKEN_BYTES_MAX {
        bail!("the token in {} is longer than {TOKEN_BYTES_MAX} bytes", path.display());
    }
    match text.trim() {
        "" => bail!("there is no token in {}: the file is empty", path.display()),
        token => Ok(token.to_owned()),
    }
}

fn warn_if_others_can_read(path: &Path, file: &std::fs::File) {
    use std::os::unix::fs::PermissionsExt;
    if file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o077 != 0) {
        tracing::warn!("other users of this machine may read the token in {}: chmod 600", path.display());
    }
}

/// Blocks until whoever holds the other end of our standard input has closed it, or is dead.
pub(crate) fn end_of_stdin() {
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
    fn an_address_alone_gets_the_known_port() {
        assert_eq!(with_port("10.0.0.1"), "10.0.0.1:48148");
        assert_eq!(with_port("::1"), "[::1]:48148");
        assert_eq!(with_port("[::1]"), "[::1]:48148");
        assert_eq!(with_port("[::1]:0"), "[::1]:0");
        assert_eq!(with_port("localhost:99"), "localhost:99");
    }

    #[test]
    fn a_token_file_that_holds_none_is_an_error() {
        let path = std::env::temp_dir().join(format!("ringfold-token-{}", std::process::id()));
        for (text, expected) in [("", None), (" \n", None), ("secret\n", Some("secret"))] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(token(&path).ok().as_deref(), expected);
        }
        std::fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(token(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(token(&path).unwrap_err().to_string().contains("ringfold-token"));
    }
}
