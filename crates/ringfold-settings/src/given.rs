//! Settings that a program has given: by a builder, a flag or a call.

use crate::{Setting, SettingError, Source, User};
use core::fmt;
use parking_lot::Mutex;
use std::path::PathBuf;

/// Settings by argument. They are checked when they are given, and the first error is reported when they are used.
#[derive(Clone, Default)]
pub struct Given {
    config: Option<PathBuf>,
    values: Vec<GivenValue>,
    error: Option<SettingError>,
}

#[derive(Clone)]
struct GivenValue {
    setting: &'static Setting,
    text: String,
    /// The flag, or what else is to be named in errors.
    from: String,
}

/// The settings of [`set_for_process`].
static PROCESS: Mutex<Given> = Mutex::new(Given { config: None, values: Vec::new(), error: None });

/// Sets a setting for all that is built in this process from now on; `None` undoes it. A builder's own has priority.
///
/// `config` is the path of a TOML file.
pub fn set_for_process(name: &str, value: Option<&str>) -> Result<(), SettingError> {
    let mut added = Given::default();
    match value {
        Some(value) => added.set(name, value),
        None if name == "config" => {}
        None => drop(Setting::require(name)?),
    }
    if let Some(error) = added.error {
        return Err(error);
    }
    let mut process = PROCESS.lock();
    if name == "config" {
        process.config = added.config;
    } else {
        process.values.retain(|given| given.setting.name != name);
        process.values.append(&mut added.values);
    }
    Ok(())
}

impl Given {
    /// What [`set_for_process`] has set.
    pub(crate) fn of_process() -> Self {
        PROCESS.lock().clone()
    }

    /// Sets a setting by its name; an empty text is no value, whatever other sources say. The last one counts. `config` is
    /// the path of a TOML file.
    pub fn set(&mut self, name: &str, value: impl fmt::Display) {
        let value = value.to_string();
        if name == "config" {
            return self.set_config(value);
        }
        match Setting::require(name) {
            Ok(setting) => self.set_as(setting, value, format!("setting {name}")),
            Err(error) => self.fail(error),
        }
    }

    /// Sets the TOML file to read. What it says comes after variables.
    pub fn set_config(&mut self, path: impl Into<PathBuf>) {
        self.config = Some(path.into());
    }

    /// Sets a setting that was given as `from`, which errors and reports name.
    pub fn set_as(&mut self, setting: &'static Setting, value: impl fmt::Display, from: impl Into<String>) {
        let (text, from) = (value.to_string(), from.into());
        if !text.is_empty()
            && let Err(why) = setting.kind.check(&text)
        {
            return self.fail(SettingError(format!("invalid {from} {:?}: {why}", setting.shown(&text))));
        }
        self.values.retain(|given| given.setting.name != setting.name);
        self.values.push(GivenValue { setting, text, from });
    }

    /// Sets what was written as `--set NAME=VALUE`.
    pub fn set_pair(&mut self, pair: &str) {
        match pair.split_once('=') {
            Some((name, value)) if name.trim() == "config" => self.set_config(value.trim()),
            Some((name, value)) => match Setting::require(name.trim()) {
                Ok(setting) => self.set_as(setting, value.trim(), format!("--set {}", setting.name)),
                Err(error) => self.fail(error),
            },
            None => self.fail(SettingError(format!("invalid --set {pair:?}: must be NAME=VALUE"))),
        }
    }

    /// What is for one user.
    pub fn only_for(&self, user: User) -> Self {
        let mut only = self.clone();
        only.values.retain(|given| given.setting.users.contains(&user));
        only
    }

    /// The first error, or all that was given.
    pub(crate) fn check(&self) -> Result<&Self, SettingError> {
        self.error.clone().map_or(Ok(self), Err)
    }

    pub(crate) fn config(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// The settings that were given.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &'static Setting> {
        self.values.iter().map(|given| given.setting)
    }

    pub(crate) fn find(&self, setting: &Setting) -> Option<(String, Source)> {
        let given = self.values.iter().find(|given| given.setting.name == setting.name)?;
        Some((given.text.clone(), Source::Argument(given.from.clone())))
    }

    fn fail(&mut self, error: SettingError) {
        self.error.get_or_insert(error);
    }
}

/// Without secrets.
impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter().map(|given| (given.setting.name, given.setting.shown(&given.text)));
        f.debug_map().entries(values).entries(self.config.iter().map(|path| ("config", path))).finish()
    }
}
