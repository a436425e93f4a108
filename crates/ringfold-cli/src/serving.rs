//! What the commands that serve until a signal have in common: the token, certificates, addresses, the end.

use crate::signals::Signals;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use ringfold::{JoinToken, TlsFiles};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;

/// The join token from a file, or else from the environment.
pub(crate) fn join_token(file: Option<&Path>) -> Result<Option<JoinToken>> {
    match file {
        Some(path) => Ok(Some(JoinToken::from_file(path)?)),
        None => ringfold_bindings::join_token::read_environment().map_err(|failure| anyhow!(failure.text)),
    }
}

/// The files with the certificates of a run.
#[derive(Args, Debug, Default)]
pub(crate) struct TlsArguments {
    /// The file with the CA of the run, made by `ringfold keys new` [default: RINGFOLD_TLS_CA]
    #[arg(long, value_name = "PATH")]
    tls_ca: Option<PathBuf>,
    /// The file with the certificate of this process, made by `ringfold keys issue` [default: RINGFOLD_TLS_CERT]
    #[arg(long, value_name = "PATH")]
    tls_cert: Option<PathBuf>,
    /// The file with its private key [default: RINGFOLD_TLS_KEY]
    #[arg(long, value_name = "PATH")]
    tls_key: Option<PathBuf>,
    /// The file with revoked certificates, written by `ringfold keys revoke` [default: RINGFOLD_TLS_REVOKED]
    #[arg(long, visible_alias = "revoked", value_name = "PATH")]
    tls_revoked: Option<PathBuf>,
}

impl TlsArguments {
    /// The files that were given. What is missing is taken from the environment.
    pub(crate) fn files(&self) -> Result<Option<TlsFiles>> {
        let given = |path: &Option<PathBuf>, variable| {
            path.clone().or_else(|| std::env::var_os(variable).filter(|v| !v.is_empty()).map(Into::into))
        };
        TlsFiles::from_parts(
            given(&self.tls_ca, "RINGFOLD_TLS_CA"),
            given(&self.tls_cert, "RINGFOLD_TLS_CERT"),
            given(&self.tls_key, "RINGFOLD_TLS_KEY"),
            given(&self.tls_revoked, "RINGFOLD_TLS_REVOKED"),
        )
        .map_err(|error| anyhow!(error))
    }
}

/// Calls `interrupt` at the first signal, and also when standard input ends if asked to.
pub(crate) fn interrupt_at_end(
    mut signals: Signals,
    end_with_stdin: bool,
    interrupt: impl Fn() + Clone + Send + 'static,
) -> Result<()> {
    if end_with_stdin {
        let interrupt = interrupt.clone();
        thread::Builder::new().name("stdin".into()).spawn(move || {
            wait_for_end_of_stdin();
            interrupt();
        })?;
    }
    thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        interrupt();
    })?;
    Ok(())
}

/// Allows this process as many descriptors as the system permits: a process that serves many peers needs one for each.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Without permission it stays as it is, and the listener pauses when there are none left.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Prints a line that programs may wait for.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Adds the default port to an address without one.
pub(crate) fn with_port(text: &str, port: u16) -> String {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) if text.contains(':') || text.is_empty() => text.to_owned(),
        Err(_) => format!("{text}:{port}"),
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
        assert_eq!(with_port("10.0.0.1", 48148), "10.0.0.1:48148");
        assert_eq!(with_port("::1", 48148), "[::1]:48148");
        assert_eq!(with_port("[::1]", 48148), "[::1]:48148");
        assert_eq!(with_port("[::1]:0", 48148), "[::1]:0");
        assert_eq!(with_port("localhost:99", 48148), "localhost:99");
        assert_eq!(with_port("head", 48148), "head:48148");
    }
}
