//! The command that runs a master until SIGINT or SIGTERM.

use crate::exit_code::SUCCESS;
use crate::service_manager::ServiceManager;
use crate::serving;
use crate::signals::Signals;
use anyhow::{Context, Result};
use clap::Args;
use ringfold::Master;
use ringfold::settings::{Given, Settings, User, table};
use ringfold_bindings::log;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The arguments of a master.
#[derive(Args, Debug)]
pub struct MasterArguments {
    /// The address to listen on, HOST:PORT or HOST; may be repeated [default: all addresses, port 48148]
    #[arg(long, visible_alias = "listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    /// The file with the token that peers need to join; several lines are several tokens, of which all are accepted
    /// [default: RINGFOLD_JOIN_TOKEN, or the file named by RINGFOLD_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Serve metrics, health, the status and a web page over HTTP: HOST:PORT, HOST (port 48180) or PORT (at 127.0.0.1). It is
    /// not encrypted [default: RINGFOLD_HTTP, or off]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// The file with the token that is needed to read over HTTP [default: RINGFOLD_HTTP_TOKEN_FILE; or everybody who reaches
    /// the port may read]
    #[arg(long, value_name = "PATH")]
    http_token_file: Option<PathBuf>,
    /// The file with the token of operators, who may evict peers and drain the run; with certificates the role admin is
    /// enough [default: RINGFOLD_ADMIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    admin_token_file: Option<PathBuf>,
    #[command(flatten)]
    settings: serving::SettingArguments,
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
    #[arg(long, value_name = "N", value_parser = serving::valid(&table::THIS_MASTER))]
    this_master: Option<String>,
    /// The address of a relay for peers that cannot reach each other, HOST:PORT or HOST; may be repeated, up to 4. See
    /// `ringfold relay`
    #[arg(long, value_name = "ADDR")]
    relay: Vec<String>,
    /// The file with the tuning of all peers, written by `ringfold bench --tune`
    #[arg(long, value_name = "PATH")]
    tuning: Option<PathBuf>,
    #[command(flatten)]
    journal: serving::JournalArguments,
    /// How long a peer's host may answer nothing before its connection is closed, such as 30s, at least 3s
    /// [default: RINGFOLD_UNREACHABLE_AFTER, or 15s]
    #[arg(long, value_name = "TIME", value_parser = serving::valid(&table::UNREACHABLE_AFTER))]
    unreachable_after: Option<String>,
    /// Which state the run continues from when all peers that held it were lost and come back from checkpoints: newest,
    /// majority (a revision that most of the lost peers hold), or manual (reject all until a peer syncs as send-only)
    /// [default: RINGFOLD_RECOVER, or newest]
    #[arg(long, value_name = "POLICY", value_parser = serving::valid(&table::RECOVER))]
    recover: Option<String>,
    /// How long the first peers that come back wait for the others, such as 2min [default: RINGFOLD_RECOVER_AFTER, or 30s]
    #[arg(long, value_name = "TIME", value_parser = serving::valid(&table::RECOVER_AFTER))]
    recover_after: Option<String>,
    /// How many peers must be back for the run to continue earlier, and must hold a revision for it to win over older ones
    /// [default: RINGFOLD_RECOVER_MIN; or all lost peers must be back, and one holder is enough]
    #[arg(long, value_name = "PEERS", value_parser = serving::valid(&table::RECOVER_MIN))]
    recover_min: Option<String>,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

impl MasterArguments {
    /// Starts the log, serves until SIGINT or SIGTERM, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let given = self.given();
        let settings = Settings::load(User::Master, &given);
        log::start(settings.as_ref().ok());
        let settings = settings?;
        serving::raise_descriptor_limit();
        let signals = Signals::catch()?;
        let master = Arc::new(Master::builder().settings(given).try_build()?);
        master.run()?;
        let line = self.announce(&master.addresses(), settings.is_set(&table::LISTEN));
        for address in master.http_addresses() {
            serving::announce(&format!("{HTTP_LISTENING}{address}"));
        }
        let manager = ServiceManager::from_environment();
        manager.ready(&line);
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

    /// The settings by flag.
    fn given(&self) -> Given {
        let mut given = self.settings.given();
        serving::add_flags(&mut given, &table::LISTEN, &self.listen);
        serving::add_flags(&mut given, &table::MASTERS, &self.masters);
        serving::add_flags(&mut given, &table::RELAYS, &self.relay);
        self.tls.add_to(&mut given);
        self.journal.add_to(&mut given);
        let mut add = |setting, value: Option<String>| serving::add_flag(&mut given, setting, value);
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        add(&table::JOIN_TOKEN_FILE, path(&self.token_file));
        add(&table::ADMIN_TOKEN_FILE, path(&self.admin_token_file));
        add(&table::HTTP, self.http.clone());
        add(&table::HTTP_TOKEN_FILE, path(&self.http_token_file));
        add(&table::INSECURE, self.insecure.then(|| "true".into()));
        add(&table::LEASE, self.lease.clone());
        add(&table::THIS_MASTER, self.this_master.clone());
        add(&table::TUNING, path(&self.tuning));
        add(&table::UNREACHABLE_AFTER, self.unreachable_after.clone());
        add(&table::RECOVER, self.recover.clone());
        add(&table::RECOVER_AFTER, self.recover_after.clone());
        add(&table::RECOVER_MIN, self.recover_min.clone());
        given
    }

    /// Prints the addresses, also for programs that need the port. Returns the line.
    fn announce(&self, addresses: &[SocketAddr], is_chosen: bool) -> String {
        let texts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        // A dual-stack socket looks like an IPv6 socket.
        let note = if !is_chosen && addresses.iter().all(SocketAddr::is_ipv6) { " (and IPv4)" } else { "" };
        let line = format!("{LISTENING}{}{note}", texts.join(", "));
        serving::announce(&line);
        line
    }
}

/// The start of the line with the addresses, which are separated by commas.
pub const LISTENING: &str = "master listening on ";

/// The start of the line with an address of the HTTP server.
pub const HTTP_LISTENING: &str = "http listening on ";
