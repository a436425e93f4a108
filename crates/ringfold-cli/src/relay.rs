//! The command that runs a relay until SIGINT or SIGTERM.

use crate::exit_code::SUCCESS;
use crate::service_manager::ServiceManager;
use crate::serving;
use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use ringfold::Relay;
use ringfold::settings::{Given, Settings, User, table};
use ringfold_bindings::log;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The arguments of a relay.
#[derive(Args, Debug)]
pub struct RelayArguments {
    /// The address to listen on, HOST:PORT or HOST; may be repeated [default: all addresses, port 48149]
    #[arg(long, visible_alias = "listen", value_name = "ADDR")]
    bind: Vec<String>,
    /// The file with the join token of the run [default: RINGFOLD_JOIN_TOKEN, or the file named by RINGFOLD_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: serving::TlsArguments,
    #[command(flatten)]
    journal: serving::JournalArguments,
    /// How long a peer's host may answer nothing before its connection is closed, such as 30s, at least 3s
    /// [default: RINGFOLD_UNREACHABLE_AFTER, or 15s]
    #[arg(long, value_name = "TIME", value_parser = serving::valid(&table::UNREACHABLE_AFTER))]
    unreachable_after: Option<String>,
    #[command(flatten)]
    settings: serving::SettingArguments,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

/// The start of the line with the addresses, which are separated by commas.
pub const LISTENING: &str = "relay listening on ";

impl RelayArguments {
    /// Starts the log, serves until SIGINT or SIGTERM, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let given = self.given();
        let settings = Settings::load(User::Relay, &given);
        log::start(settings.as_ref().ok());
        settings?;
        let signals = Signals::catch()?;
        let relay = Arc::new(Relay::builder().settings(given).start()?);
        let texts: Vec<_> = relay.addresses().iter().map(SocketAddr::to_string).collect();
        let line = format!("{LISTENING}{}", texts.join(", "));
        serving::announce(&line);
        let manager = ServiceManager::from_environment();
        manager.ready(&line);
        let interrupted = relay.clone();
        serving::interrupt_at_end(signals, self.end_with_stdin, move || {
            manager.stopping();
            interrupted.interrupt();
        })?;
        relay.wait().context("the relay failed")?;
        let done = relay.statistics();
        serving::announce(&format!("relayed {} bytes between {} pairs", done.bytes, done.pairs));
        Ok(SUCCESS)
    }

    /// The settings by flag.
    fn given(&self) -> Given {
        let mut given = self.settings.given();
        serving::add_flags(&mut given, &table::LISTEN, &self.bind);
        let token_file = self.token_file.as_ref().map(|path| path.display());
        serving::add_flag(&mut given, &table::JOIN_TOKEN_FILE, token_file);
        self.tls.add_to(&mut given);
        self.journal.add_to(&mut given);
        serving::add_flag(&mut given, &table::UNREACHABLE_AFTER, self.unreachable_after.as_ref());
        given
    }
}
