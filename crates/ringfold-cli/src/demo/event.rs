//! What a peer of the demo tells its parent: one line each, on standard output.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// Reasons are cut here, so that lines have a bound.
const WHY_CHARS_MAX: usize = 900;

/// A moment, the same for all processes of the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Something that happened to a peer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Event {
    /// It was accepted.
    Joined { world: u32, waited: Duration },
    /// A vote on the topology changed the number of peers.
    Voted { world: u32, took: Duration },
    /// It received shared state.
    Synced { revision: u64, rx_bytes: u64, took: Duration },
    /// It begins the all-reduce of this step.
    Began { step: u64 },
    /// The all-reduce was aborted, for all; it will be tried again.
    Aborted { step: u64, why: String },
    /// There is nobody left to reduce with.
    Alone { step: u64 },
    /// The step is done; `hash` is of the weights after it.
    Stepped { step: u64, world: u32, reduce: Duration, retries: u32, tx_bytes: u64, loss: f32, hash: u64 },
    /// All steps are done.
    Finished { step: u64, hash: u64 },
    /// It gives up.
    Failed { why: String },
}

/// An event and when it happened, as a line.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    pub(crate) at: Moment,
    pub(crate) event: Event,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at.0)?;
        match &self.event {
            Event::Joined { world, waited } => {
                write!(f, "joined world {world} waited_us {}", waited.as_micros())
            }
            Event::Voted { world, took } => write!(f, "voted world {world} took_us {}", took.as_micros()),
            Event::Synced { revision, rx_bytes, took } => {
                write!(f, "synced revision {revision} rx_bytes {rx_bytes} took_us {}", took.as_micros())
            }
            Event::Began { step } => write!(f, "began step {step}"),
            Event::Aborted { step, why } => write!(f, "aborted step {step} why {}", one_line(why)),
            Event::Alone { step } => write!(f, "alone step {step}"),
            Event::Stepped { step, world, reduce, retries, tx_bytes, loss, hash } => write!(
                f,
                "stepped step {step} world {world} reduce_us {} retries {retries} tx_bytes {tx_bytes} loss {loss} \
                 hash {hash:016x}",
                reduce.as_micros()
            ),
            Event::Finished { step, hash } => write!(f, "finished step {step} hash {hash:016x}"),
            Event::Failed { why } => write!(f, "failed why {}", one_line(why)),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WHY_CHARS_MAX).collect()
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Fields(text).line().ok_or_else(|| format!("a line that makes no sense: {text:?}"))
    }
}

/// What is left of a line.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn line(mut self) -> Option<Line> {
        let at = Moment(self.word()?.parse().ok()?);
        let event = match self.word()? {
            "joined" => Event::Joined { world: self.field("world")?, waited: self.micros("waited_us")? },
            "voted" => Event::Voted { world: self.field("world")?, took: self.micros("took_us")? },
            "synced" => Event::Synced {
                revision: self.field("revision")?,
                rx_bytes: self.field("rx_bytes")?,
                took: self.micros("took_us")?,
            },
            "began" => Event::Began { step: self.field("step")? },
            "aborted" => Event::Aborted { step: self.field("step")?, why: self.rest("why")? },
            "alone" => Event::Alone { step: self.field("step")? },
            "stepped" => Event::Stepped {
                step: self.field("step")?,
                world: self.field("world")?,
                reduce: self.micros("reduce_us")?,
                retries: self.field("retries")?,
                tx_bytes: self.field("tx_bytes")?,
                loss: self.field("loss")?,
                hash: self.hash("hash")?,
            },
            "finished" => Event::Finished { step: self.field("step")?, hash: self.hash("hash")? },
            "failed" => Event::Failed { why: self.rest("why")? },
            _ => return None,
        };
        Some(Line { at, event })
    }

    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    fn value(&mut self, key: &str) -> Option<&'a str> {
        if self.word()? == key { self.word() } else { None }
    }

    fn field<T: FromStr>(&mut self, key: &str) -> Option<T> {
        self.value(key)?.parse().ok()
    }

    fn micros(&mut self, key: &str) -> Option<Duration> {
        self.field(key).map(Duration::from_micros)
    }

    fn hash(&mut self, key: &str) -> Option<u64> {
        u64::from_str_radix(self.value(key)?, 16).ok()
    }

    fn rest(&mut self, key: &str) -> Option<String> {
        (self.word()? == key).then(|| self.0.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_writes_the_parent_reads() {
        let us = Duration::from_micros;
        for event in [
            Event::Joined { world: 4, waited: us(5) },
            Event::Voted { world: 3, took: us(0) },
            Event::Synced { revision: 7, rx_bytes: 1 << 40, took: us(123) },
            Event::Began { step: 1 },
            Event::Aborted { step: 2, why: "peer C was lost: its line broke".into() },
            Event::Alone { step: 2 },
            Event::Stepped {
                step: 12,
                world: 4,
                reduce: us(5123),
                retries: 1,
                tx_bytes: 9,
                loss: 0.25,
                hash: 0x1234_abcd,
            },
            Event::Finished { step: 60, hash: u64::MAX },
            Event::Failed { why: String::new() },
        ] {
            let line = Line { at: Moment(1_700_000_000_000_000), event };
            assert_eq!(line.to_string().parse(), Ok(line));
        }
    }

    #[test]
    fn lines_that_are_cut_or_strange_are_refused() {
        for text in
            ["", "12", "12 stepped", "12 began step", "12 began tag 3", "x began step 3", "12 sang song 3"]
        {
            assert!(text.parse::<Line>().is_err(), "{text}");
        }
    }
}
