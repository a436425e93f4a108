//! Formats the replies of `lab-peer`.

use ringfold::{Error, Failure};
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::time::Instant;

/// A reply under construction.
pub struct ReplyLine {
    line: String,
    message: Option<String>,
    began: Option<Instant>,
}

impl ReplyLine {
    /// The command succeeded.
    pub fn ok(command: &str, began: Instant) -> Self {
        Self { line: format!("ok {command}"), message: None, began: Some(began) }
    }

    /// A step of the command succeeded.
    pub fn step(command: &str, began: Instant) -> Self {
        Self { line: format!("step {command}"), message: None, began: Some(began) }
    }

    /// The library returned an error.
    pub fn failed(command: &str, error: &Error, began: Instant) -> Self {
        let debug = match error {
            Error::Failed(failure) => format!("{failure:?}"),
            error => format!("{error:?}"),
        };
        let kind = word(&debug);
        let line = Self::wrong(command, &error.to_string(), began)
            .with("kind", kind)
            .with("retryable", error.is_retryable());
        match error {
            Error::Failed(Failure::Aborted(cause) | Failure::VoteFailed(cause)) => {
                line.with("cause", word(&format!("{cause:?}")))
            }
            Error::Failed(Failure::StateRejected(why)) => line.with("cause", word(&format!("{why:?}"))),
            _ => line,
        }
    }

    /// A check of the peer failed.
    pub fn wrong(command: &str, what: &str, began: Instant) -> Self {
        Self { line: format!("failed {command}"), message: Some(what.to_owned()), began: Some(began) }
    }

    /// The command is invalid.
    pub fn invalid_command(line: &str, why: &str) -> Self {
        let command = line.split_whitespace().next().unwrap_or("nothing");
        Self { line: format!("failed {command} kind=Script"), message: Some(why.to_owned()), began: None }
    }

    /// Adds a field. Its value must not contain spaces.
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        let _ = write!(self.line, " {name}={value}");
        self
    }

    /// Prints the line at once.
    pub fn print(mut self) {
        if let Some(began) = self.began {
            self = self.with("us", began.elapsed().as_micros());
        }
        if let Some(message) = &self.message {
            let _ = write!(self.line, " message={}", message.replace('\n', "; "));
        }
        // An error means that the reader has ended; continue.
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{}", self.line).and_then(|()| stdout.flush());
    }
}

/// The name of a variant in its debug output.
fn word(debug: &str) -> &str {
    debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(debug)
}
