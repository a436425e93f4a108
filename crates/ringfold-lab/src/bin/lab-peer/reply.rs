//! One line of answer.

use ringfold::{Error, Failure};
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::time::Instant;

/// A line that is being put together.
pub struct Reply {
    line: String,
    message: Option<String>,
    began: Option<Instant>,
}

impl Reply {
    /// The command was done.
    pub fn ok(command: &str, began: Instant) -> Self {
        Self { line: format!("ok {command}"), message: None, began: Some(began) }
    }

    /// A step of the command was done.
    pub fn step(command: &str, began: Instant) -> Self {
        Self { line: format!("step {command}"), message: None, began: Some(began) }
    }

    /// The library said no.
    pub fn failed(command: &str, error: &Error, began: Instant) -> Self {
        let debug = match error {
            Error::Failed(failure) => format!("{failure:?}"),
            error => format!("{error:?}"),
        };
        let kind = word(&debug);
        let reply = Self::wrong(command, &error.to_string(), began)
            .with("kind", kind)
            .with("retryable", error.is_retryable());
        match error {
            Error::Failed(Failure::Aborted(cause) | Failure::VoteFailed(cause)) => {
                reply.with("cause", word(&format!("{cause:?}")))
            }
            Error::Failed(Failure::StateRejected(why)) => reply.with("cause", word(&format!("{why:?}"))),
            _ => reply,
        }
    }

    /// The library did what it must not: a failed check of the peer itself. It has no kind.
    pub fn wrong(command: &str, what: &str, began: Instant) -> Self {
        Self { line: format!("failed {command}"), message: Some(what.to_owned()), began: Some(began) }
    }

    /// The script is wrong.
    pub fn misunderstood(line: &str, why: &str) -> Self {
        let command = line.split_whitespace().next().unwrap_or("nothing");
        Self { line: format!("failed {command} kind=Script"), message: Some(why.to_owned()), began: None }
    }

    /// With a field more. Its value holds no spaces.
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
        // Who reads it may be gone; the script goes on.
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{}", self.line).and_then(|()| stdout.flush());
    }
}

/// The name of a variant, by how it is debugged.
fn word(debug: &str) -> &str {
    debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(debug)
}
