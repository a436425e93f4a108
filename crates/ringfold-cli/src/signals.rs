//! SIGINT and SIGTERM as something that can be waited for.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The wish of a user, or of the system, that this process ends.
#[derive(Debug)]
pub struct Signals {
    arrived: UnixStream,
}

impl Signals {
    /// From now on the first SIGINT or SIGTERM is reported here instead of ending the process. Who sends
    /// a second one is in a hurry: it ends the process at once.
    pub fn catch() -> Result<Self> {
        let (arrived, raise) = UnixStream::pair().context("can't make a pipe for signals")?;
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let raise = raise.try_clone().context("can't make a pipe for signals")?;
            // The order matters: the flag is looked at before it is set.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
                .and_then(|_| signal_hook::flag::register(signal, again.clone()))
                .and_then(|_| signal_hook::low_level::pipe::register(signal, raise))
                .context("can't catch signals")?;
        }
        Ok(Self { arrived })
    }

    /// Blocks until one arrives.
    pub fn wait(&mut self) {
        // An error means that signals can't be seen any more: the same as one that says "end".
        let _ = self.arrived.read_exact(&mut [0]);
    }
}
