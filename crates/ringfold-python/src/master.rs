//! Masters in a Python process.

use crate::call::{try_detached, wait_interruptible};
use crate::fork_guard::ForkGuard;
use crate::settings::{self, Pairs};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ringfold::settings::{Settings, User, table};
use ringfold_bindings::result::{ApiCall, CallError};
use ringfold_bindings::tls_files;
use std::time::Duration;

/// Where a master listens that was given no address.
const EVERYWHERE: &str = "0.0.0.0:48148";

/// A master, which serves from a thread of its own.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Master {
    master: ForkGuard<ringfold::Master>,
}

#[pymethods]
impl Master {
    /// A master that does not listen yet.
    #[new]
    #[pyo3(signature = (address=None, token=None, tls=None, masters=None, this_master=None, recover=None, recover_after=None, recover_min=None, http=None, http_token=None, admin_token=None, settings=Vec::new()))]
    #[allow(clippy::too_many_arguments)] // Named in Python.
    fn new(
        py: Python<'_>,
        address: Option<String>,
        token: Option<String>,
        tls: Option<Vec<String>>,
        masters: Option<Vec<String>>,
        this_master: Option<usize>,
        recover: Option<String>,
        recover_after: Option<f64>,
        recover_min: Option<usize>,
        http: Option<String>,
        http_token: Option<String>,
        admin_token: Option<String>,
        settings: Pairs,
    ) -> PyResult<Self> {
        if this_master == Some(0) {
            return Err(PyValueError::new_err("invalid this_master 0: positions begin with 1"));
        }
        let recover = recover.map(|text| text.parse::<ringfold::Recover>()).transpose();
        let recover = recover.map_err(PyValueError::new_err)?;
        let seconds = recover_after.map(Duration::try_from_secs_f64).transpose();
        let recover_after =
            seconds.map_err(|e| PyValueError::new_err(format!("invalid recover_after: {e}")))?;
        try_detached(py, || -> Result<_, CallError> {
            let invalid = |e: ringfold::Error| CallError::from_error(&e, ApiCall::Master);
            let given = settings::given(&settings);
            let found = Settings::load(User::Master, &given).map_err(|e| invalid(e.into()))?;
            let mut builder = ringfold::Master::builder().settings(given);
            let default = (!found.is_set(&table::LISTEN)).then(|| EVERYWHERE.to_owned());
            if let Some(address) = address.or(default) {
                builder = builder.listen(address);
            }
            if let Some(token) = token {
                builder = builder.token(token);
            }
            if let Some(paths) = tls {
                builder = builder.tls(tls_files::from_paths(&paths)?);
            }
            if let Some(masters) = masters {
                builder = builder.masters(masters);
            }
            if let Some(position) = this_master {
                builder = builder.this_master(position - 1);
            }
            if let Some(policy) = recover {
                builder = builder.recover(policy);
            }
            if let Some(time) = recover_after {
                builder = builder.recover_after(time);
            }
            if let Some(peers) = recover_min {
                builder = builder.recover_min(peers);
            }
            if let Some(address) = http {
                builder = builder.http(address);
            }
            if let Some(token) = http_token {
                builder = builder.http_token(token);
            }
            if let Some(token) = admin_token {
                builder = builder.admin_token(token);
            }
            Ok(Self { master: ForkGuard::new(builder.try_build().map_err(invalid)?) })
        })
    }

    /// Listens and serves.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        try_detached(py, || {
            self.master.require()?.run().map_err(|e| CallError::from_error(&e, ApiCall::Master))
        })
    }

    /// The addresses where it listens; none in a forked child.
    fn addresses(&self) -> Vec<String> {
        let addresses = self.master.get().map(ringfold::Master::addresses).unwrap_or_default();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// The addresses of its HTTP server; none in a forked child.
    fn http_addresses(&self) -> Vec<String> {
        let addresses = self.master.get().map(ringfold::Master::http_addresses).unwrap_or_default();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Stops it without waiting. Does nothing in a forked child.
    fn interrupt(&self) {
        if let Some(master) = self.master.get() {
            master.interrupt();
        }
    }

    /// Waits until it has stopped. Its port is free then.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        try_detached(py, || {
            let master = self.master.require()?;
            let end = wait_interruptible(None, |timeout| master.wait_for(timeout));
            end.unwrap_or(Ok(())).map_err(|e| CallError::from_error(&e, ApiCall::Master))
        })
    }
}
