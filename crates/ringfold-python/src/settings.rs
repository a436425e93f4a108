//! Settings by name, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ringfold::settings::{self, Given, Setting, Settings, User, table};

/// Names and values, as `ringfold._settings` has written them.
pub(crate) type Pairs = Vec<(String, String)>;

/// Settings by argument.
pub(crate) fn given(pairs: &Pairs) -> Given {
    let mut given = Given::default();
    pairs.iter().for_each(|(name, value)| given.set(name, value));
    given
}

fn load(user: &str, pairs: &Pairs) -> PyResult<Settings> {
    let unknown = || PyValueError::new_err(format!("unknown kind of settings {user:?}"));
    let user = User::find(user).ok_or_else(unknown)?;
    Settings::load(user, &given(pairs)).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn find(name: &str) -> PyResult<&'static Setting> {
    Setting::require(name).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The names of the settings of a master, peer, group or relay.
#[pyfunction]
pub(crate) fn setting_names(user: &str) -> Vec<&'static str> {
    let of = |setting: &&&Setting| setting.users.iter().any(|of| of.name() == user);
    table::ALL.iter().filter(of).map(|setting| setting.name).collect()
}

/// The value of a setting as a text, with its default; `None` if it has none.
#[pyfunction]
#[pyo3(signature = (user, name, settings=Vec::new()))]
pub(crate) fn setting_text(user: &str, name: &str, settings: Pairs) -> PyResult<Option<String>> {
    Ok(load(user, &settings)?.text(find(name)?).map(Into::into))
}

/// Whether a setting is on.
#[pyfunction]
#[pyo3(signature = (user, name, settings=Vec::new()))]
pub(crate) fn setting_is_on(user: &str, name: &str, settings: Pairs) -> PyResult<bool> {
    Ok(load(user, &settings)?.is_on(find(name)?))
}

/// The seconds of a setting that is a time; `None` if only its default is known.
#[pyfunction]
#[pyo3(signature = (user, name, settings=Vec::new()))]
pub(crate) fn setting_seconds(user: &str, name: &str, settings: Pairs) -> PyResult<Option<f64>> {
    let (settings, setting) = (load(user, &settings)?, find(name)?);
    Ok(settings.is_set(setting).then(|| settings.time(setting)).flatten().map(|time| time.as_secs_f64()))
}

/// The masters that settings name, separated by commas, each with its port.
#[pyfunction]
#[pyo3(signature = (settings=Vec::new()))]
pub(crate) fn setting_masters(settings: Pairs) -> PyResult<Option<String>> {
    Ok(settings::master_addresses(&load("peer", &settings)?))
}
