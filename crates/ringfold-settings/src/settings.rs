//! The value of each setting, and its source.

use crate::bandwidth::Bandwidth;
use crate::file::SettingsFile;
use crate::{CONFIG_VARIABLE, Given, Setting, SettingError, User, kind, relations, table};
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Where a value comes from; later ones have priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The table.
    Default,
    /// A line of a TOML file.
    File(PathBuf, usize),
    /// This environment variable.
    Variable(&'static str),
    /// An argument of this name.
    Argument(String),
}

impl Source {
    /// Its place in the order of priority; higher ones come first.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File(..) => 1,
            Self::Variable(_) => 2,
            Self::Argument(_) => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Argument(name) => f.write_str(name),
        }
    }
}

/// The settings of a master, peer, group or relay: valid texts with their sources.
#[derive(Clone)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Source)>,
}

impl Settings {
    /// The settings from all sources.
    pub fn load(user: User, given: &Given) -> Result<Self, SettingError> {
        Self::resolve(user, given, &Given::of_process(), |name| std::env::var_os(name))
    }

    /// As [`Settings::load`], when something is started: warns of unknown variables, once in a process.
    pub fn start(user: User, given: &Given) -> Result<Self, SettingError> {
        let settings = Self::load(user, given);
        crate::warn_of_unknown_variables();
        settings
    }

    /// The settings of what has no builder, as for a group.
    pub fn without_builder() -> Result<Self, SettingError> {
        Self::load(User::Group, &Given::default())
    }

    pub(crate) fn resolve(
        user: User,
        given: &Given,
        process: &Given,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SettingError> {
        let given = given.check()?;
        if let Some(other) = given.settings().find(|setting| !setting.users.contains(&user)) {
            let (name, users) = (other.name, other.user_names());
            return Err(SettingError(format!("unknown setting {name:?} of a {user}: it is one of {users}")));
        }
        let read = |name: &'static str| read_variable(name, variable(name));
        let file = match given.config().or(process.config()) {
            Some(path) => Some(SettingsFile::read(path)?),
            None => match read(CONFIG_VARIABLE)? {
                Some(path) => Some(
                    SettingsFile::read(path.as_ref())
                        .map_err(|error| SettingError(format!("invalid {CONFIG_VARIABLE}: {error}")))?,
                ),
                None => None,
            },
        };
        let mut values = BTreeMap::new();
        for setting in table::ALL.iter().copied().filter(|setting| setting.users.contains(&user)) {
            let mut found = given.find(setting).or_else(|| process.find(setting));
            for name in setting.variables() {
                if found.is_none()
                    && let Some(text) = read(name)?
                {
                    let invalid = |why| format!("invalid {name} {:?}: {why}", setting.shown(&text));
                    setting.kind.check(&text).map_err(|why| SettingError(invalid(why)))?;
                    found = Some((text, Source::Variable(name)));
                }
            }
            let found = found
                .or_else(|| file.as_ref()?.find(setting, user))
                .unwrap_or_else(|| (setting.default.to_owned(), Source::Default));
            values.insert(setting.name, found);
        }
        let settings = Self { values };
        relations::check(&settings)?;
        Ok(settings)
    }

    /// The text, if there is a value.
    pub fn text(&self, setting: &Setting) -> Option<&str> {
        self.values.get(setting.name).map(|(text, _)| text.trim()).filter(|text| !text.is_empty())
    }

    /// Where the value is from.
    pub fn source(&self, setting: &Setting) -> &Source {
        self.values.get(setting.name).map_or(&Source::Default, |(_, source)| source)
    }

    /// Whether a source other than the table has a value.
    pub fn is_set(&self, setting: &Setting) -> bool {
        *self.source(setting) != Source::Default
    }

    /// Whether an argument has a value.
    pub fn is_argument(&self, setting: &Setting) -> bool {
        matches!(self.source(setting), Source::Argument(_))
    }

    /// The time, if there is a value.
    pub fn time(&self, setting: &Setting) -> Option<Duration> {
        self.text(setting).and_then(kind::parse_time)
    }

    /// The number, or number of bytes, if there is a value.
    pub fn number(&self, setting: &Setting) -> Option<usize> {
        let number = self.text(setting).and_then(kind::parse_bytes)?;
        usize::try_from(number).ok()
    }

    /// Whether it is on; off without a value.
    pub fn is_on(&self, setting: &Setting) -> bool {
        self.text(setting).and_then(kind::parse_bool).unwrap_or(false)
    }

    /// The cap, if there is one.
    pub fn cap(&self, setting: &Setting) -> Option<Bandwidth> {
        self.text(setting).and_then(|text| Bandwidth::parse_cap(text).ok().flatten())
    }

    /// The ports, if there is a value.
    pub fn ports(&self, setting: &Setting) -> Option<RangeInclusive<u16>> {
        self.text(setting).and_then(kind::parse_ports)
    }

    /// The IP address, if there is a value.
    pub fn ip(&self, setting: &Setting) -> Option<IpAddr> {
        self.text(setting)?.parse().ok()
    }

    /// The path, if there is a value.
    pub fn path(&self, setting: &Setting) -> Option<&Path> {
        self.text(setting).map(Path::new)
    }

    /// The entries of a list.
    pub fn list(&self, setting: &Setting) -> impl Iterator<Item = &str> {
        kind::split_list(self.text(setting).unwrap_or(""))
    }

    /// Each setting with its value, as people may see it, and its source; in the order of the table.
    pub fn rows(&self) -> impl Iterator<Item = (&'static Setting, &str, &Source)> {
        table::ALL.iter().filter_map(|setting| {
            let (text, source) = self.values.get(setting.name)?;
            Some((*setting, setting.shown(text), source))
        })
    }
}

/// Without secrets, and without defaults.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.rows().filter(|(_, _, source)| **source != Source::Default);
        f.debug_map().entries(set.map(|(setting, text, _)| (setting.name, text))).finish()
    }
}

/// A variable that is set and not empty.
fn read_variable(name: &str, value: Option<OsString>) -> Result<Option<String>, SettingError> {
    let text = value.map(|value| value.into_string().map_err(|_| format!("invalid {name}: not UTF-8")));
    let text = text.transpose().map_err(SettingError)?;
    Ok(text.filter(|text| !text.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::*;

    fn file(text: &str) -> PathBuf {
        static LAST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ringfold-settings-{}-{number}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    fn resolve(user: User, given: &Given, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        Settings::resolve(user, given, &Given::default(), variable).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_precede_variables_and_variables_the_file_and_the_file_the_default() {
        let path = file("silence_max = \"20s\"\nheartbeat = 3\n[master]\nsilence_max = 10.5\n");
        let config = path.to_str().unwrap();
        let (mut given, variables) = (Given::default(), [("RINGFOLD_SILENCE_MAX", "9s")]);
        let source = |user, given: &Given, variables: &[(&str, &str)]| {
            let settings = resolve(user, given, variables).unwrap();
            (settings.time(&SILENCE_MAX).unwrap().as_secs_f64(), settings.source(&SILENCE_MAX).to_string())
        };
        assert_eq!(source(User::Master, &given, &[]), (2.5, "default".into()));
        given.set("config", config);
        assert_eq!(source(User::Master, &given, &[]), (10.5, format!("{config}:4")));
        let mut peer = given.clone();
        peer.set("stall_after", "1min");
        assert_eq!(source(User::Peer, &peer, &[]), (20.0, format!("{config}:1")));
        assert_eq!(source(User::Master, &given, &variables), (9.0, "RINGFOLD_SILENCE_MAX".into()));
        given.set("silence_max", "8s");
        assert_eq!(source(User::Master, &given, &variables), (8.0, "setting silence_max".into()));
        given.set_as(&SILENCE_MAX, 7, "--silence-max");
        assert_eq!(source(User::Master, &given, &variables), (7.0, "--silence-max".into()));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_variable_may_name_the_file_and_an_argument_another_one() {
        let (one, two) = (file("redial = \"1s\""), file("redial = \"2s\""));
        let variables = [("RINGFOLD_CONFIG", one.to_str().unwrap())];
        let redial = |given: &Given| resolve(User::Peer, given, &variables).unwrap().time(&REDIAL);
        assert_eq!(redial(&Given::default()), Some(Duration::from_secs(1)));
        let mut given = Given::default();
        given.set_config(&two);
        assert_eq!(redial(&given), Some(Duration::from_secs(2)));
        std::fs::remove_file(&one).unwrap();
        std::fs::remove_file(two).unwrap();
        let error = resolve(User::Peer, &Given::default(), &variables).unwrap_err();
        assert!(error.starts_with("invalid RINGFOLD_CONFIG: cannot read the settings file"), "{error}");
    }

    #[test]
    fn a_new_variable_precedes_its_old_name_and_empty_ones_are_not_set() {
        let token = |variables: &[(&str, &str)]| {
            let settings = resolve(User::Peer, &Given::default(), variables).unwrap();
            settings.text(&JOIN_TOKEN).map(str::to_owned)
        };
        assert_eq!(token(&[("PCCL_JOIN_TOKEN", "old")]), Some("old".into()));
        assert_eq!(token(&[("PCCL_JOIN_TOKEN", "old"), ("RINGFOLD_JOIN_TOKEN", "new")]), Some("new".into()));
        assert_eq!(token(&[("RINGFOLD_JOIN_TOKEN", "")]), None);
        let mut given = Given::default();
        given.set("join_token", "");
        let settings = resolve(User::Peer, &given, &[("PCCL_JOIN_TOKEN", "old")]).unwrap();
        assert_eq!(settings.text(&JOIN_TOKEN), None, "an argument may remove it");
    }

    #[test]
    fn errors_name_the_source() {
        let error =
            |given: &Given, variables: &[(&str, &str)]| resolve(User::Master, given, variables).unwrap_err();
        let none = Given::default();
        assert_eq!(
            error(&none, &[("RINGFOLD_RECOVER", "oldest")]),
            "invalid RINGFOLD_RECOVER \"oldest\": must be one of newest, majority, manual"
        );
        let given = |name: &str, value: &str| {
            let mut given = Given::default();
            given.set(name, value);
            given
        };
        assert_eq!(
            error(&given("hartbeat", "1s"), &[]),
            "unknown setting \"hartbeat\": did you mean \"heartbeat\"?"
        );
        assert!(
            error(&given("heartbeat", "soon"), &[])
                .starts_with("invalid setting heartbeat \"soon\": must be a time")
        );
        assert_eq!(
            error(&given("volunteer_relay", "true"), &[]),
            "unknown setting \"volunteer_relay\" of a master: it is one of peer"
        );
        let mut pair = Given::default();
        pair.set_pair("heartbeat");
        assert_eq!(error(&pair, &[]), "invalid --set \"heartbeat\": must be NAME=VALUE");
    }

    #[test]
    fn secrets_are_never_shown() {
        let mut given = Given::default();
        given.set("join_token", "sesame");
        let settings = resolve(User::Peer, &given, &[]).unwrap();
        assert_eq!(settings.text(&JOIN_TOKEN), Some("sesame"));
        let shown = settings.rows().map(|(_, text, _)| text).collect::<String>();
        assert!(shown.contains("(set)"));
        assert!(!format!("{shown} {given:?} {settings:?}").contains("sesame"));
    }

    #[test]
    fn a_process_may_have_settings_that_a_builder_overrides() {
        let mut process = Given::default();
        process.set("redial", "4s");
        process.set("recover", "manual");
        let redial = |given: &Given| {
            let settings = Settings::resolve(User::Peer, given, &process, |_| None).unwrap();
            settings.time(&REDIAL).unwrap().as_secs()
        };
        assert_eq!(redial(&Given::default()), 4);
        let mut given = Given::default();
        given.set("redial", "5s");
        assert_eq!(redial(&given), 5);
        assert!(crate::set_for_process("hartbeat", None).is_err());
        assert!(crate::set_for_process("heartbeat", Some("soon")).is_err());
    }
}
