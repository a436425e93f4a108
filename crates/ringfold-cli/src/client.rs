//! The arguments of commands that connect to a run as a client: `status`, `top`, `evict`, `drain` and `doctor`.

use crate::serving;
use anyhow::Result;
use clap::Args;
use ringfold::ObserverOptions;
use ringfold::settings::{Given, Settings, User, master_addresses, table};
use std::path::PathBuf;

/// Which run.
#[derive(Args, Debug)]
pub struct RunArguments {
    /// The master, HOST:PORT or HOST (port 48148); several separated by commas [default: RINGFOLD_MASTERS; then this machine, or none for doctor]
    #[arg(value_name = "MASTER", conflicts_with = "master")]
    address: Option<String>,
    /// The same
    #[arg(long, value_name = "MASTER")]
    master: Option<String>,
}

impl RunArguments {
    /// What was given.
    pub fn given(&self) -> Option<&str> {
        self.address.as_deref().or(self.master.as_deref())
    }
}

/// What shows who asks.
#[derive(Args, Debug)]
pub struct ClientArguments {
    /// The file with the join token of the run [default: RINGFOLD_JOIN_TOKEN, or the file named by RINGFOLD_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    settings: serving::SettingArguments,
    #[command(flatten)]
    tls: serving::TlsArguments,
    /// Do not encrypt connections, as a run that does not [default: RINGFOLD_INSECURE]
    #[arg(long)]
    insecure: bool,
}

impl ClientArguments {
    /// The settings by flag.
    pub fn given(&self) -> Given {
        let mut given = self.settings.given();
        self.tls.add_to(&mut given);
        let token_file = self.token_file.as_ref().map(|path| path.display());
        serving::add_flag(&mut given, &table::JOIN_TOKEN_FILE, token_file);
        serving::add_flag(&mut given, &table::INSECURE, self.insecure.then_some("true"));
        given
    }

    pub fn options(&self) -> ObserverOptions {
        ObserverOptions::default().settings(self.given())
    }

    /// The masters that were given, or those of the settings, or the one of this machine.
    pub fn masters(&self, run: &RunArguments) -> Result<String> {
        let listed = || Ok::<_, anyhow::Error>(master_addresses(&Settings::load(User::Peer, &self.given())?));
        let masters = match run.given() {
            Some(masters) => Some(masters.to_owned()),
            None => listed()?,
        };
        Ok(masters.unwrap_or_else(|| "127.0.0.1".into()))
    }
}
