//! Processes that end with this one, and the lines that they print.

use super::interrupt::Interrupt;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Processes that are killed when this is dropped.
pub(crate) struct Children(pub(crate) Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The lines of a process, read by a thread.
pub(crate) fn lines(output: Option<impl std::io::Read + Send + 'static>) -> Result<Receiver<String>> {
    let output = output.context("a rank has no output")?;
    let (sender, lines) = channel();
    thread::Builder::new().name("lines".into()).spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Waits for the next line, which is JSON.
pub(crate) fn next<T: DeserializeOwned>(
    lines: &Receiver<String>,
    interrupt: &Interrupt,
    timeout: Duration,
) -> Result<T> {
    let began = Instant::now();
    loop {
        interrupt.check()?;
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => return serde_json::from_str(&line).context("invalid line of a rank"),
            Err(RecvTimeoutError::Disconnected) => {
                interrupt.check()?;
                bail!("a rank ended early")
            }
            Err(RecvTimeoutError::Timeout) if began.elapsed() > timeout => {
                bail!("timed out after {timeout:?} waiting for a rank")
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
