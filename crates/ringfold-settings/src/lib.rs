//! The settings of Ringfold: one table ([`table::ALL`]), and where each value comes from.
//!
//! A value is taken from the first of these sources that has it:
//!
//! 1. an argument: a builder, a flag, `settings=` in Python, or [`set_for_process`] (`pcclSetOption` in C);
//! 2. the variable `RINGFOLD_<NAME>`, or its old name;
//! 3. the TOML file of `--config` or `RINGFOLD_CONFIG`: first its table for the kind of process, then its top level;
//! 4. the default.
//!
//! [`Settings::load`] does that for a master, peer, group or relay when it is built.
#![forbid(unsafe_code)]

pub mod bandwidth;
mod file;
mod given;
mod kind;
mod nearest;
mod reference;
mod relations;
mod settings;
pub mod table;
mod variables;

pub use file::SettingsFile;
pub use given::{Given, set_for_process};
pub use kind::Kind;
pub use reference::reference;
pub use settings::{Settings, Source};
pub use variables::{CONFIG_VARIABLE, warn_of_unknown_variables};

use core::fmt;

/// A row of the table.
#[derive(Debug)]
pub struct Setting {
    /// The name, which is the key in a TOML file.
    pub name: &'static str,
    /// The environment variable.
    pub variable: &'static str,
    /// The name of the variable in PCCL, which is read if the new one is not set.
    pub old_variable: Option<&'static str>,
    /// The flag of the commands, if there is one; `--set NAME=VALUE` is for all.
    pub flag: Option<&'static str>,
    /// The values.
    pub kind: Kind,
    /// The default, as it would be written; empty if there is none.
    pub default: &'static str,
    /// What uses it.
    pub users: &'static [User],
    pub(crate) about: &'static str,
}

/// What a setting is for. A TOML file has a table for each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum User {
    /// A master of an elastic run.
    Master,
    /// A peer of an elastic run: a communicator.
    Peer,
    /// A rank of a group.
    Group,
    /// A relay.
    Relay,
}

/// All users.
pub const USERS: [User; 4] = [User::Master, User::Peer, User::Group, User::Relay];

/// Why settings cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub(crate) String);

impl User {
    /// Its name: `master`, `peer`, `group` or `relay`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Peer => "peer",
            Self::Group => "group",
            Self::Relay => "relay",
        }
    }

    /// The user of this name.
    pub fn find(name: &str) -> Option<Self> {
        USERS.into_iter().find(|user| user.name() == name)
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Setting {
    /// The setting of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        table::ALL.iter().copied().find(|setting| setting.name == name)
    }

    /// The setting of this name, or an error with the nearest name.
    pub fn require(name: &str) -> Result<&'static Self, SettingError> {
        Self::find(name).ok_or_else(|| {
            let hint = nearest::hint(name, table::ALL.iter().map(|setting| setting.name));
            SettingError(format!("unknown setting {name:?}{hint}"))
        })
    }

    /// One sentence about it.
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }

    /// The names of its users, separated by commas.
    pub fn user_names(&self) -> String {
        self.users.iter().map(|user| user.name()).collect::<Vec<_>>().join(", ")
    }

    /// Whether its value must not be shown.
    pub fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    /// Its variables, the newest name first.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &'static str> {
        core::iter::once(self.variable).chain(self.old_variable)
    }

    /// A value as people may see it.
    pub(crate) fn shown<'a>(&self, text: &'a str) -> &'a str {
        if self.is_secret() && !text.is_empty() { "(set)" } else { text }
    }
}
