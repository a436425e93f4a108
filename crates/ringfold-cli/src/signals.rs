//! Waits for SIGINT and SIGTERM.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The last signal that was caught.
static CAUGHT: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(SIGINT as usize)));

/// The exit code of a command that a signal has ended, as shells have it: 130 for SIGINT, 143 for SIGTERM.
pub fn exit_code() -> i32 {
    128 + CAUGHT.load(Ordering::Acquire) as i32
}

/// SIGINT and SIGTERM, caught.
#[derive(Debug)]
pub struct Signals {
    arrived: UnixStream,
}

impl Signals {
    /// Catches the first SIGINT or SIGTERM from now on. A second one ends the process.
    pub fn catch() -> Result<Self> {
        let (arrived, raise) = UnixStream::pair().context("cannot create a pipe for signals")?;
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let raise = raise.try_clone().context("cannot create a pipe for signals")?;
            // The order matters: the flag is checked before it is set.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
                .and_then(|_| signal_hook::flag::register(signal, again.clone()))
                .and_then(|_| signal_hook::flag::register_usize(signal, CAUGHT.clone(), signal as usize))
                .and_then(|_| signal_hook::low_level::pipe::register(signal, raise))
                .context("cannot catch signals")?;
        }
        Ok(Self { arrived })
    }

    /// Blocks until a signal arrives.
    pub fn wait(&mut self) {
        // On an error no signal would be seen any more, so end too.
        let _ = self.arrived.read_exact(&mut [0]);
    }
}
