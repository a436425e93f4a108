//! Masters within a Python process.

use crate::call::{SIGNALS_EVERY, blocking, is_interrupted};
use pyo3::prelude::*;
use ringfold_face::join_token;
use ringfold_face::result::{During, Failure};

/// A master, which serves from a thread of its own.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Master {
    master: ringfold::Master,
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
            Ok(Self { master: builder.build() })
        })
    }

    /// Listens, and serves.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.master.run().map_err(|e| Failure::of(&e, During::Master)))
    }

    /// Where it listens.
    fn addresses(&self) -> Vec<String> {
        self.master.addresses().iter().map(ToString::to_string).collect()
    }

    /// Has it end soon.
    fn interrupt(&self) {
        self.master.interrupt();
    }

    /// Waits until it has ended. Its port is free then.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || {
            loop {
                match self.master.wait_for(SIGNALS_EVERY) {
                    Some(ended) => return ended.map_err(|e| Failure::of(&e, During::Master)),
                    None if is_interrupted() => return Ok(()),
                    None => {}
                }
            }
        })
    }
}
