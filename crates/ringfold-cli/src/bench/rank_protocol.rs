//! The commands and replies between the measuring process and the ranks, one per line.
//!
//! The ranks of other libraries (`peers/`) use the same protocol; bench/README.md describes it.

use super::bench_op::{BenchOp, Placement};
use super::point::{Point, parse_dtype, parse_op, short_name};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A command to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RankCommand {
    /// Allocate two buffers of this size.
    Reserve { bytes: usize },
    /// Prepare a point, and check the result of a first call on request.
    Prepare { point: Point, check: bool },
    /// Explain the plan of the prepared point. Only Ringfold's ranks support it.
    Explain,
    /// Make `lead` calls that are not timed, then `calls` timed calls.
    Time { lead: u64, calls: u64 },
    /// End the process.
    End,
}

impl fmt::Display for RankCommand {
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

impl FromStr for RankCommand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("invalid number {text:?}"));
        let words: Vec<_> = text.split_whitespace().collect();
        match words[..] {
            ["reserve", bytes] => Ok(Self::Reserve { bytes: number(bytes)? as usize }),
            ["point", kind, dtype, op, count, place, check] => {
                let kind: BenchOp = kind.parse()?;
                let place = Placement::from_str(place, false)?;
                let (dtype, op, count) = (parse_dtype(dtype)?, parse_op(op)?, number(count)? as usize);
                Ok(Self::Prepare { point: Point { kind, dtype, op, count, place }, check: check == "check" })
            }
            ["time", lead, calls] => Ok(Self::Time { lead: number(lead)?, calls: number(calls)? }),
            ["explain"] => Ok(Self::Explain),
            ["end"] => Ok(Self::End),
            _ => Err(format!("unknown command {text:?}")),
        }
    }
}

/// The first line of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RankHello {
    pub(crate) rank: usize,
    /// The name and version of the measured library.
    pub(crate) about: String,
}

/// The reply to a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum RankReply {
    /// The rank failed and ends.
    Failed {
        error: String,
    },
    /// The library does not support the point.
    Unsupported {
        unsupported: String,
    },
    Timed(CallCost),
    /// The point is prepared.
    Ready {
        ready: bool,
        /// `ok`, or the error; none without a check.
        check: Option<String>,
    },
    /// The plan of the prepared point, and why it was chosen.
    Explained {
        plan: String,
    },
    Reserved {
        reserved: bool,
    },
    /// The rank has joined its group.
    Joined {
        joined: bool,
        /// A note about the group for the report.
        #[serde(default)]
        note: Option<String>,
    },
}

/// The cost of the timed calls on one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CallCost {
    pub(crate) elapsed_ns: u64,
    /// Processor time of all threads.
    pub(crate) cpu_ns: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    /// The peak of the memory in addition to the buffers.
    pub(crate) beyond_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::{DType, ReduceOp};

    #[test]
    fn commands_survive_a_round_trip() {
        let (dtype, op) = (DType::BF16, ReduceOp::Max);
        let point = Point { kind: BenchOp::AllToAll, dtype, op, count: 12, place: Placement::Out };
        for command in [
            RankCommand::Reserve { bytes: 1 << 40 },
            RankCommand::Prepare { point, check: true },
            RankCommand::Prepare { point, check: false },
            RankCommand::Time { lead: 3, calls: 1_000_000 },
            RankCommand::Explain,
            RankCommand::End,
        ] {
            assert_eq!(command.to_string().parse(), Ok(command));
        }
        for wrong in ["", "time 1", "point all_reduce f32 sum x in check", "unknown"] {
            assert!(wrong.parse::<RankCommand>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn replies_of_other_libraries_are_parsed() {
        let read = |text: &str| serde_json::from_str::<RankReply>(text).unwrap();
        assert_eq!(read(r#"{"error": "x"}"#), RankReply::Failed { error: "x".into() });
        assert_eq!(read(r#"{"unsupported": "x"}"#), RankReply::Unsupported { unsupported: "x".into() });
        assert_eq!(read(r#"{"ready": true, "check": null}"#), RankReply::Ready { ready: true, check: None });
        assert_eq!(read(r#"{"reserved": true}"#), RankReply::Reserved { reserved: true });
        assert_eq!(read(r#"{"joined": true}"#), RankReply::Joined { joined: true, note: None });
        let cost =
            r#"{"elapsed_ns": 5, "cpu_ns": 4, "minor_faults": 3, "major_faults": 2, "beyond_bytes": 1}"#;
        let expected =
            CallCost { elapsed_ns: 5, cpu_ns: 4, minor_faults: 3, major_faults: 2, beyond_bytes: 1 };
        assert_eq!(read(cost), RankReply::Timed(expected));
        let hello: RankHello = serde_json::from_str(r#"{"rank": 1, "about": "Open MPI v4"}"#).unwrap();
        assert_eq!(hello.rank, 1);
    }
}
