//! Calls of a group of fixed ranks, as texts name them.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::descriptor::Collective;
use crate::dtype::DType;
use crate::id::Rank;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GroupCallKind {
    /// A call that all ranks make.
    Collective(Collective),
    Send {
        to: Rank,
    },
    Recv {
        from: Rank,
    },
    /// Writing into the window of a rank.
    Put {
        to: Rank,
    },
    Signal {
        to: Rank,
    },
    WaitSignal {
        from: Rank,
    },
    /// Closing a window.
    CloseWindow,
    /// A collective by kernels on CUDA devices, of which only the number is known.
    OnDevice,
}

/// A call of one rank.
///
/// ```
/// use ringfold_proto::dtype::DType;
/// use ringfold_proto::group_call::{GroupCall, GroupCallKind};
/// use ringfold_proto::id::Rank;
///
/// let send = GroupCall { kind: GroupCallKind::Send { to: Rank(2) }, number: 3, tag: 7, count: 16, dtype: DType::F32 };
/// assert_eq!(send.to_string(), "send #3 to rank 2 (16 float32, tag 7)");
/// assert_eq!(send.counterpart(Rank(0)).to_string(), "recv #3 from rank 0 (16 float32, tag 7)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupCall {
    pub kind: GroupCallKind,
    /// Its number among the collectives of the group, or among the transfers of a direction and tag, from 1; 0 if it has none.
    pub number: u64,
    /// The tag of a transfer.
    pub tag: u32,
    /// The elements of the whole; 0 if there are none, or if only pairs of ranks know.
    pub count: u64,
    pub dtype: DType,
}

impl GroupCall {
    /// A call without number and elements.
    pub fn plain(kind: GroupCallKind) -> Self {
        Self { kind, number: 0, tag: 0, count: 0, dtype: DType::U8 }
    }

    /// The call by which another rank meets this one of rank `me`.
    #[must_use]
    pub fn counterpart(self, me: Rank) -> Self {
        let kind = match self.kind {
            GroupCallKind::Send { .. } => GroupCallKind::Recv { from: me },
            GroupCallKind::Recv { .. } => GroupCallKind::Send { to: me },
            GroupCallKind::Signal { .. } => GroupCallKind::WaitSignal { from: me },
            GroupCallKind::WaitSignal { .. } => GroupCallKind::Signal { to: me },
            all => all,
        };
        Self { kind, ..self }
    }

    /// Whether it is the same call, whatever its arguments.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.kind, self.number, self.tag) == (other.kind, other.number, other.tag)
    }

    /// Whether all ranks make it.
    pub fn is_collective(&self) -> bool {
        use GroupCallKind::{CloseWindow, Collective, OnDevice};
        matches!(self.kind, Collective(_) | CloseWindow | OnDevice)
    }
}

/// The name of the call as in programs, its number, and its arguments.
impl fmt::Display for GroupCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, other, root) = match self.kind {
            GroupCallKind::Collective(collective) => (collective.call(), None, collective.root()),
            GroupCallKind::Send { to } => ("send", Some(("to", to)), None),
            GroupCallKind::Recv { from } => ("recv", Some(("from", from)), None),
            GroupCallKind::Put { to } => ("a put", Some(("to", to)), None),
            GroupCallKind::Signal { to } => ("signal", Some(("to", to)), None),
            GroupCallKind::WaitSignal { from } => ("wait_signal", Some(("from", from)), None),
            GroupCallKind::CloseWindow => ("close of a window", None, None),
            GroupCallKind::OnDevice => ("a collective", None, None),
        };
        f.write_str(name)?;
        if self.number > 0 {
            write!(f, " #{}", self.number)?;
        }
        if let Some((way, rank)) = other {
            write!(f, " {way} {rank}")?;
        }
        if self.kind == GroupCallKind::OnDevice {
            f.write_str(" on its CUDA device")?;
        }
        let size = (self.count > 0).then(|| format!("{} {}", self.count, self.dtype));
        let root = root.map(|root| format!("root {}", root.0));
        let tag = (self.tag > 0).then(|| format!("tag {}", self.tag));
        let arguments: Vec<_> = [size, root, tag].into_iter().flatten().collect();
        if arguments.is_empty() { Ok(()) } else { write!(f, " ({})", arguments.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_with_their_numbers_and_arguments() {
        let call = |collective, number, count| GroupCall {
            number,
            count,
            dtype: DType::F32,
            ..GroupCall::plain(GroupCallKind::Collective(collective))
        };
        assert_eq!(call(Collective::AllReduce, 412, 1024).to_string(), "all_reduce #412 (1024 float32)");
        assert_eq!(call(Collective::Barrier, 1, 0).to_string(), "barrier #1");
        let broadcast = call(Collective::Broadcast { root: Rank(3) }, 2, 5);
        assert_eq!(broadcast.to_string(), "broadcast #2 (5 float32, root 3)");
        assert_eq!(broadcast.counterpart(Rank(1)), broadcast);
        let wait = GroupCall::plain(GroupCallKind::WaitSignal { from: Rank(0) });
        assert_eq!(wait.to_string(), "wait_signal from rank 0");
        assert_eq!(wait.counterpart(Rank(1)).to_string(), "signal to rank 1");
    }
}
