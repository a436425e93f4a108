//! What the ranks are told and what they answer, line by line. The ranks of other libraries, in the folder `bench`,
//! understand the same.

use super::kind::{Kind, Place};
use super::point::{Point, parse_dtype, parse_op, short_name};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a rank is to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Have two buffers of this size.
    Reserve { bytes: usize },
    /// Make ready for this.
    Prepare { point: Point, check: bool },
    /// Say how it is done, and why. Only our own ranks know.
    Explain,
    /// Make so many calls that do not count, and so many that do.
    Time { lead: u64, calls: u64 },
    /// No more.
    End,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserve { bytes } => write!(f, "reserve {bytes}"),
            Self::Prepare { point, check } => {
                let Point { kind, dtype, op, count, place } = point;
                let (dtype, place) = (short_name(*dtype), place.name());
                let check = if *check { "check" } else { "nocheck" };
                write!(f, "point {kind} {dtype} {op} {count} {place} {check}")
            }
            Self::Time { lead, calls } => write!(f, "time {lead} {calls}"),
            Self::Explain => f.write_str("explain"),
            Self::End => f.write_str("end"),
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        let words: Vec<_> = text.split_whitespace().collect();
        match words[..] {
            ["reserve", bytes] => Ok(Self::Reserve { bytes: number(bytes)? as usize }),
            ["point", kind, dtype, op, count, place, check] => {
                let kind: Kind = kind.parse()?;
                let place: Place = place.parse()?;
                let (dtype, op, count) = (parse_dtype(dtype)?, parse_op(op)?, number(count)? as usize);
                Ok(Self::Prepare { point: Point { kind, dtype, op, count, place }, check: check == "check" })
            }
            ["time", lead, calls] => Ok(Self::Time { lead: number(lead)?, calls: number(calls)? }),
            ["explain"] => Ok(Self::Explain),
            ["end"] => Ok(Self::End),
            _ => Err(format!("{text:?} is no order")),
        }
    }
}

/// The first line of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) rank: usize,
    /// What is measured there, with its version.
    pub(crate) about: String,
}

/// What a rank says of an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    /// It can't go on.
    Failed { error: String },
    /// It can't do that, but other things.
    Unsupported { unsupported: String },
    /// What calls have cost.
    Timed(Cost),
    /// It has prepared, and looked at a first result.
    Ready {
        ready: bool,
        /// `ok`, or what is wrong; nothing if it did not look.
        check: Option<String>,
    },
    /// How it is done, and why.
    Explained { plan: String },
    /// It has reserved.
    Reserved { reserved: bool },
    /// It is part of its group.
    Joined {
        joined: bool,
        /// What the group is like, if there is more to say than was asked for.
        #[serde(default)]
        how: Option<String>,
    },
}

/// What calls have cost a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    pub(crate) elapsed_ns: u64,
    /// Processor time of all threads.
    pub(crate) cpu_ns: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    /// Memory beside the buffers, at its peak.
    pub(crate) beyond_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::{DType, ReduceOp};

    #[test]
    fn orders_are_understood_as_they_are_written() {
        let (dtype, op) = (DType::BF16, ReduceOp::Max);
        let point = Point { kind: Kind::AllToAll, dtype, op, count: 12, place: Place::Out };
        for order in [
            Order::Reserve { bytes: 1 << 40 },
            Order::Prepare { point, check: true },
            Order::Prepare { point, check: false },
            Order::Time { lead: 3, calls: 1_000_000 },
            Order::Explain,
            Order::End,
        ] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for wrong in ["", "time 1", "point all_reduce f32 sum x in check", "dance"] {
            assert!(wrong.parse::<Order>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_what_the_programs_of_other_libraries_write() {
        let read = |text: &str| serde_json::from_str::<Answer>(text).unwrap();
        assert_eq!(read(r#"{"error": "x"}"#), Answer::Failed { error: "x".into() });
        assert_eq!(read(r#"{"unsupported": "x"}"#), Answer::Unsupported { unsupported: "x".into() });
        assert_eq!(read(r#"{"ready": true, "check": null}"#), Answer::Ready { ready: true, check: None });
        assert_eq!(read(r#"{"reserved": true}"#), Answer::Reserved { reserved: true });
        assert_eq!(read(r#"{"joined": true}"#), Answer::Joined { joined: true, how: None });
        let cost =
            r#"{"elapsed_ns": 5, "cpu_ns": 4, "minor_faults": 3, "major_faults": 2, "beyond_bytes": 1}"#;
        let expected = Cost { elapsed_ns: 5, cpu_ns: 4, minor_faults: 3, major_faults: 2, beyond_bytes: 1 };
        assert_eq!(read(cost), Answer::Timed(expected));
        let hello: Hello = serde_json::from_str(r#"{"rank": 1, "about": "Open MPI v4"}"#).unwrap();
        assert_eq!(hello.rank, 1);
    }
}
