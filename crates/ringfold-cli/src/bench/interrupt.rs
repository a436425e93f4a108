//! SIGINT and SIGTERM as a flag that all waits check.

use crate::signals::Signals;
use anyhow::{Result, bail};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGINT or SIGTERM has arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// The error of a wait that a signal ended. It is not reported.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Interrupt {
    /// A flag that the first SIGINT or SIGTERM sets.
    pub(crate) fn by_signals() -> Result<Self> {
        let mut signals = Signals::catch()?;
        let interrupt = Self::default();
        let flag = interrupt.0.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            flag.store(true, Ordering::Relaxed);
        })?;
        Ok(interrupt)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        Ok(())
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
