//! Masters within a Python process.

use crate::call::{SIGNALS_EVERY, blocking, is_interrupted};
use crate::owned::Owned;
use pyo3::prelude::*;
use ringfold_bindings::join_token;
use ringfold_bindings::result::{During, Failure};

/// A master, which serves from a thread of its own.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Master {
    master: Owned<ringfold::Master>,
}

#[pymethods]
impl Master {
    /// It does not listen yet.
    #[new]
    fn new(py: Python<'_>, address: String, token: Option<String>) -> PyResult<Self> {
        blocking(py, || {
            let token = token.map_or_else(join_token::from_environment, |token| Ok(Some(token)))?;
            let mut builder = ringfold::Master::builder().listen(address);
            if let Some(token) = token {
                builder = builder.token(token);
            }
            Ok(Self { master: Owned::new(builder.build()) })
        })
    }

    /// Listens, and serves.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.master.require()?.run().map_err(|e| Failure::of(&e, During::Master)))
    }

    /// Where it listens. Nowhere, in a forked child.
    fn addresses(&self) -> Vec<String> {
        let addresses = self.master.here().map(ringfold::Master::addresses).unwrap_or_default();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Has it end soon. A forked child has no say in that.
    fn interrupt(&self) {
        if let Some(master) = self.master.here() {
            master.interrupt();
        }
    }

    /// Waits until it has ended. Its port is free then.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || {
            let master = self.master.require()?;
            loop {
                match master.wait_for(SIGNALS_EVERY) {
                    Some(ended) => return ended.map_err(|e| Failure::of(&e, During::Master)),
                    None if is_interrupted() => return Ok(()),
                    None => {}
                }
            }
        })
    }
}
