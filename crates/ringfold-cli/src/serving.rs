//! What the commands that serve until a signal have in common: the token, addresses, the end.

use crate::signals::Signals;
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;

const TOKEN_BYTES_MAX: u64 = 4096;

/// The join token from a file, or else from the environment.
pub(crate) fn join_token(file: Option<&Path>) -> Result<Option<String>> {
    match file {
        Some(path) => read_token(path).map(Some),
        None => ringfold_bindings::join_token::read_environment().map_err(|failure| anyhow!(failure.text)),
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
        Err(_) => text.to_owned(),
    }
}

fn read_token(path: &Path) -> Result<String> {
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
        assert_eq!(with_port("10.0.0.1", 48148), "10.0.0.1:48148");
        assert_eq!(with_port("::1", 48148), "[::1]:48148");
        assert_eq!(with_port("[::1]", 48148), "[::1]:48148");
        assert_eq!(with_port("[::1]:0", 48148), "[::1]:0");
        assert_eq!(with_port("localhost:99", 48148), "localhost:99");
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
