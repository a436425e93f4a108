//! The command that shows settings and checks files with settings.

use crate::exit_code::SUCCESS;
use crate::serving::{self, SettingArguments};
use anyhow::Result;
use clap::{Args, Subcommand};
use ringfold::settings::{Given, Setting, Settings, SettingsFile, USERS, User, table};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Show the settings in force and where they come from, or check a file with settings.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand, Debug)]
enum ConfigCommand {
    /// Print each setting, its value, and where it comes from: a flag, a variable, a line of a file, or the default
    Show(ShowArguments),
    /// Check the keys and values of a TOML file with settings
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
struct ShowArguments {
    /// Only the settings of a master, peer, group or relay
    #[arg(long = "for", value_name = "KIND", value_parser = parse_user)]
    user: Option<User>,
    #[command(flatten)]
    settings: SettingArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_user(text: &str) -> Result<User, String> {
    User::find(text).ok_or_else(|| "must be master, peer, group or relay".into())
}

/// A setting as some users see it.
#[derive(Debug)]
struct Row {
    setting: &'static Setting,
    value: String,
    source: String,
    users: Vec<User>,
}

impl ConfigArguments {
    /// Does it, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        match &self.command {
            ConfigCommand::Show(show) => show.run()?,
            ConfigCommand::Check { file } => {
                let count = SettingsFile::read(file)?.len();
                let mut given = Given::default();
                given.set_config(file);
                for user in USERS {
                    Settings::load(user, &given)?;
                }
                serving::print_line(&format!("{}: {count} valid settings", file.display()))?;
            }
        }
        Ok(SUCCESS)
    }
}

impl ShowArguments {
    fn run(&self) -> Result<()> {
        let rows = self.rows()?;
        if self.json {
            let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
            return serving::print_line(&serde_json::to_string_pretty(&rows)?);
        }
        let cells = rows.iter().map(|row| {
            let users = match row.users.len() == row.setting.users.len() {
                true => String::new(),
                false => row.users.iter().map(|user| user.name()).collect::<Vec<_>>().join(", "),
            };
            let name = match users.is_empty() {
                true => row.setting.name.to_owned(),
                false => format!("{} ({users})", row.setting.name),
            };
            [name, row.shown_value().into(), row.source.clone(), row.setting.about().into()]
        });
        let titles = ["setting", "value", "from", "meaning"].map(String::from);
        let lines: Vec<_> = std::iter::once(titles).chain(cells).collect();
        let width =
            |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        let [names, values, sources] = [width(0), width(1).min(40), width(2).min(40)];
        for [name, value, source, about] in &lines {
            serving::print_line(&format!("{name:names$}  {value:values$}  {source:sources$}  {about}"))?;
        }
        Ok(())
    }

    /// One row for each setting, or several if users see different values.
    fn rows(&self) -> Result<Vec<Row>> {
        let given = self.settings.given();
        let users = self.user.map_or(USERS.to_vec(), |user| vec![user]);
        let mut found: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
        for user in users {
            // A setting for one kind of process is no error for the others.
            let settings = if self.user.is_some() { given.clone() } else { given.only_for(user) };
            for (setting, value, source) in Settings::start(user, &settings)?.rows() {
                let rows = found.entry(setting.name).or_default();
                let (value, source) = (value.to_owned(), source.to_string());
                match rows.iter_mut().find(|row| row.value == value && row.source == source) {
                    Some(row) => row.users.push(user),
                    None => rows.push(Row { setting, value, source, users: vec![user] }),
                }
            }
        }
        Ok(table::ALL.iter().filter_map(|setting| found.remove(setting.name)).flatten().collect())
    }
}

impl Row {
    fn shown_value(&self) -> &str {
        if self.value.is_empty() { "-" } else { &self.value }
    }

    fn to_json(&self) -> serde_json::Value {
        let value = (!self.value.is_empty()).then_some(&self.value);
        serde_json::json!({
            "name": self.setting.name,
            "value": value,
            "source": self.source,
            "for": self.users.iter().map(|user| user.name()).collect::<Vec<_>>(),
            "variable": self.setting.variable,
            "type": self.setting.kind.name(),
            "default": self.setting.default,
            "about": self.setting.about(),
        })
    }
}
