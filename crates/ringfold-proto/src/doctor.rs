//! What `ringfold doctor` asks, and what masters, peers and other doctors answer.
//!
//! A connection of [`Purpose::Doctor`](crate::hello::Purpose::Doctor) carries questions of the dialler, one at a time, each with one
//! answer; only [`DoctorRequest::ExamineAll`] has several. All are frames as on a control connection.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::bounded::{Bounded, LimitExceeded, at_most, check_name};
use crate::limits;
use crate::text::Printable;
use core::fmt;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// How a check turned out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Judgement {
    /// Nothing to do.
    #[default]
    Ok,
    /// It works, but not as well as it could, or not for ever.
    Warn,
    /// It does not work.
    Fail,
}

impl Judgement {
    pub const ALL: [Self; 3] = [Self::Ok, Self::Warn, Self::Fail];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The check, as `family.name`.
    pub check: String,
    pub judgement: Judgement,
    /// One sentence.
    pub text: String,
    /// What to do; empty if nothing is to be done.
    pub remedy: String,
}

impl Finding {
    pub fn ok(check: &str, text: impl Into<String>) -> Self {
        Self { check: check.to_owned(), judgement: Judgement::Ok, text: text.into(), remedy: String::new() }
    }

    pub fn warn(check: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check: check.to_owned(), judgement: Judgement::Warn, text: text.into(), remedy: remedy.into() }
    }

    pub fn fail(check: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { judgement: Judgement::Fail, ..Self::warn(check, text, remedy) }
    }

    /// The family of the check: the part before the dot.
    pub fn family(&self) -> &str {
        self.check.split_once('.').map_or(&self.check, |(family, _)| family)
    }

    /// The same, within the limits of a message, and with texts that may be printed.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        for text in [&mut self.check, &mut self.text, &mut self.remedy] {
            *text = Printable(&*text).to_string();
            if text.len() > limits::FINDING_TEXT_BYTES_MAX {
                let end = (0..=limits::FINDING_TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
                text.truncate(end.unwrap_or(0));
            }
        }
        self
    }

    pub(crate) fn check_all(findings: &[Self]) -> Result<(), LimitExceeded> {
        at_most("findings", findings.len(), limits::FINDINGS_MAX)?;
        for text in findings.iter().flat_map(|finding| [&finding.check, &finding.text, &finding.remedy]) {
            at_most("bytes of a finding", text.len(), limits::FINDING_TEXT_BYTES_MAX)?;
        }
        Ok(())
    }
}

/// The worst of some findings.
pub fn worst<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Judgement {
    findings.into_iter().map(|finding| finding.judgement).max().unwrap_or_default()
}

/// A question on a connection of a doctor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DoctorRequest {
    /// Who answers, and at which address does it see this end? Answered by [`DoctorAnswer::About`].
    About { instance: u64, name: String },
    /// Answered by so many bytes. The padding only makes the question longer.
    Echo { answer_bytes: u32, padding: Vec<u8> },
    /// Answered by the time of the other end's clock.
    Time,
    /// Dial the address that this connection comes from, and no other one, at this port. The process with this instance
    /// should answer.
    DialBack { port: u16, instance: u64 },
    /// After [`DoctorAnswer::Ready`] the dialler sends as much as it can, or the acceptor if it is the way back that is measured;
    /// the other end reports the rate, as in a probe.
    Bandwidth { back: bool },
    /// Return a datagram with this content that arrives at the port of the same number, by UDP.
    Datagram { content: [u8; 16] },
    /// Answered when the other end has completed its own checks, or at its deadline.
    Finish,
    /// Have all peers of the run examine themselves. Each answers with [`DoctorAnswer::Examined`]; then comes
    /// [`DoctorAnswer::Ready`].
    ExamineAll,
}

/// How an attempt to dial back ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DialBack {
    Reached,
    /// A connection was made, but not with the process that asked.
    Stranger,
    /// No connection was made.
    Failed {
        why: String,
    },
    /// The other end dials too many at the moment.
    Busy,
}

/// An answer on a connection of a doctor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DoctorAnswer {
    /// Who answers: a random number that is new for every process, its name, its release, and the address at which it sees the
    /// dialler.
    About {
        instance: u64,
        name: String,
        release: String,
        observed: SocketAddr,
    },
    Echo {
        padding: Vec<u8>,
    },
    /// Microseconds since 1970.
    Time {
        unix_us: u64,
    },
    DialedBack(DialBack),
    /// Done, or ready.
    Ready,
    /// Not now; ask again later.
    Busy,
    /// It does not do this.
    Unsupported,
    /// What a peer of the run has found; none if it does not answer. The reason is for those that were not asked.
    Examined {
        peer: String,
        findings: Vec<Finding>,
        unanswered: Option<String>,
    },
}

impl Bounded for DoctorRequest {
    const BYTES_MAX: usize = limits::DOCTOR_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = 2 * limits::DOCTOR_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::About { name, .. } => check_name(name),
            Self::Echo { answer_bytes, padding } => {
                at_most("bytes of an echo", *answer_bytes as usize, limits::ECHO_BYTES_MAX)?;
                at_most("bytes of an echo", padding.len(), limits::ECHO_BYTES_MAX)
            }
            Self::Time
            | Self::DialBack { .. }
            | Self::Bandwidth { .. }
            | Self::Datagram { .. }
            | Self::Finish
            | Self::ExamineAll => Ok(()),
        }
    }
}

impl Bounded for DoctorAnswer {
    const BYTES_MAX: usize = limits::DOCTOR_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = 2 * limits::DOCTOR_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::About { name, release, .. } => check_name(name).and(check_name(release)),
            Self::Echo { padding } => at_most("bytes of an echo", padding.len(), limits::ECHO_BYTES_MAX),
            Self::DialedBack(DialBack::Failed { why }) => {
                at_most("bytes of a finding", why.len(), limits::FINDING_TEXT_BYTES_MAX)
            }
            Self::Examined { peer, findings, unanswered } => {
                check_name(peer)?;
                let why = unanswered.as_ref().map_or(0, String::len);
                at_most("bytes of a finding", why, limits::FINDING_TEXT_BYTES_MAX)?;
                Finding::check_all(findings)
            }
            Self::DialedBack(DialBack::Reached | DialBack::Stranger | DialBack::Busy)
            | Self::Time { .. }
            | Self::Ready
            | Self::Busy
            | Self::Unsupported => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let (ok, warn) = (Finding::ok("host.a", "good"), Finding::warn("host.b", "so so", "do this"));
        let fail = Finding::fail("net.c", "bad", "do that");
        assert_eq!(worst([]), Judgement::Ok);
        assert_eq!(worst([&ok, &warn]), Judgement::Warn);
        assert_eq!(worst([&fail, &ok, &warn]), Judgement::Fail);
        assert_eq!((fail.family(), fail.judgement.to_string()), ("net", "fail".into()));
    }

    #[test]
    fn a_long_finding_is_shortened_at_a_character() {
        let long = Finding::fail("host.a", "ä".repeat(limits::FINDING_TEXT_BYTES_MAX), "short");
        let short = long.shortened();
        assert!(Finding::check_all(std::slice::from_ref(&short)).is_ok());
        assert!(short.text.ends_with('ä') && short.remedy == "short");
        let forged = Finding::fail("host.a", "\u{1b}[2Jall is\nwell", "\u{202e}").shortened();
        assert_eq!((&*forged.text, &*forged.remedy), ("\u{fffd}[2Jall is\u{fffd}well", "\u{fffd}"));
    }

    #[test]
    fn echoes_are_limited() {
        let echo = |answer_bytes, padding| DoctorRequest::Echo { answer_bytes, padding: vec![0; padding] };
        assert!(echo(limits::ECHO_BYTES_MAX as u32, limits::ECHO_BYTES_MAX).check().is_ok());
        assert!(echo(limits::ECHO_BYTES_MAX as u32 + 1, 0).check().is_err());
        assert!(echo(0, limits::ECHO_BYTES_MAX + 1).check().is_err());
    }
}
