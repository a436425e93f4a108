//! What the commands that serve until a signal have in common: settings, certificates, the end.

use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use ringfold::settings::{Given, Setting, table};
use ringfold_bindings::log::LogFilter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::thread;

/// The file and the settings by argument.
#[derive(Args, Debug, Default)]
pub(crate) struct SettingArguments {
    /// A TOML file with settings; flags and variables have priority [default: RINGFOLD_CONFIG]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Any setting by its name; may be repeated. `ringfold config show` lists them
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl SettingArguments {
    /// What was given.
    pub(crate) fn given(&self) -> Given {
        let mut given = Given::default();
        self.config.iter().for_each(|path| given.set_config(path));
        self.set.iter().for_each(|pair| given.set_pair(pair));
        given
    }
}

/// Where events go.
#[derive(Args, Debug, Default)]
pub(crate) struct JournalArguments {
    /// The log level: trace, debug, info, warn, error or off; or a filter such as warn,ringfold=debug [default: RINGFOLD_LOG,
    /// PCCL_LOG_LEVEL, or warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogFilter>,
    /// The format of the log: text, or json with one object per line [default: RINGFOLD_LOG_FORMAT, or text]
    #[arg(long, value_name = "FORMAT", value_parser = valid(&table::LOG_FORMAT))]
    log_format: Option<String>,
    /// The directory of the flight recorder: a file with the last events of this process, which can be read after a crash
    /// with `ringfold replay` [default: RINGFOLD_FLIGHT_DIR, or no recorder]
    #[arg(long, value_name = "DIR")]
    flight_dir: Option<PathBuf>,
}

impl JournalArguments {
    /// Adds what was given.
    pub(crate) fn add_to(&self, given: &mut Given) {
        add_flag(given, &table::LOG, self.log.as_ref());
        add_flag(given, &table::LOG_FORMAT, self.log_format.as_ref());
        add_flag(given, &table::FLIGHT_DIR, self.flight_dir.as_ref().map(|path| path.display()));
    }
}

/// Checks the value of a flag.
pub(crate) fn valid(
    setting: &'static Setting,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| setting.kind.check(text).map(|()| text.to_owned())
}

/// Adds the value of a setting's flag, if it was given.
pub(crate) fn add_flag(given: &mut Given, setting: &'static Setting, value: Option<impl std::fmt::Display>) {
    if let (Some(value), Some(flag)) = (value, setting.flag) {
        given.set_as(setting, value, flag);
    }
}

/// The same for a flag that may be repeated.
pub(crate) fn add_flags(given: &mut Given, setting: &'static Setting, values: &[String]) {
    add_flag(given, setting, (!values.is_empty()).then(|| values.join(",")));
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
    /// Adds the files that were given.
    pub(crate) fn add_to(&self, given: &mut Given) {
        let files = [
            (&table::TLS_CA, &self.tls_ca),
            (&table::TLS_CERT, &self.tls_cert),
            (&table::TLS_KEY, &self.tls_key),
            (&table::TLS_REVOKED, &self.tls_revoked),
        ];
        for (setting, path) in files {
            add_flag(given, setting, path.as_ref().map(|path| path.display()));
        }
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

/// Prints a line for a process that serves, which goes on if standard output is closed.
pub(crate) fn announce(line: &str) {
    if let Err(error) = print_line(line) {
        tracing::warn!("{error:#}; going on without: {line}");
    }
}

/// Prints a line that programs may wait for.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
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
