//! The operations of a group by name, with their arguments: one table for all language bindings.

use super::operation::{GroupOp, TransferTag};
use crate::Error;
use crate::error::invalid;
use ringfold_proto::reduce_op::ReduceOp;

/// Arguments of an operation besides its buffers. It uses those that its row in [`OPERATIONS`] names.
#[derive(Clone, Debug)]
pub struct OpArguments {
    /// The reduction.
    pub reduce: ReduceOp,
    /// The root, the source or the destination.
    pub peer: i64,
    /// Elements per rank that it contributes or gets, or that are sent to it.
    pub counts: Option<Vec<usize>>,
    /// Elements received from each rank.
    pub others: Option<Vec<usize>>,
    /// The tag of a transfer.
    pub tag: TransferTag,
}

macro_rules! operations {
    ($($name:literal => $variant:ident { $($field:tt: $argument:ident),* },)*) => {
        /// All operations: the name, and the arguments besides the buffers.
        pub const OPERATIONS: &[(&str, &[&str])] = &[$(($name, &[$(stringify!($argument)),*])),*];

        impl GroupOp {
            /// The operation's name in all language bindings.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)* }
            }

            /// The operation with this name and those of `arguments` that it uses.
            ///
            /// # Errors
            /// [`Error::BadArgument`] if the operation is unknown, or an argument is missing.
            pub fn from_name(name: &str, mut arguments: OpArguments) -> Result<Self, Error> {
                Ok(match name {
                    $($name => Self::$variant { $($field: arguments.$argument()?),* },)*
                    _ => return Err(invalid!("unknown operation {name:?}")),
                })
            }
        }
    };
}

operations! {
    "barrier" => Barrier {},
    "all_reduce" => AllReduce { 0: reduce },
    "reduce" => Reduce { root: root, op: reduce },
    "broadcast" => Broadcast { root: root },
    "all_gather" => AllGather {},
    "all_gather_v" => AllGatherV { 0: counts },
    "reduce_scatter" => ReduceScatter { 0: reduce },
    "reduce_scatter_v" => ReduceScatterV { 0: counts, 1: reduce },
    "gather" => Gather { root: root },
    "gather_v" => GatherV { root: root, counts: root_counts },
    "scatter" => Scatter { root: root },
    "scatter_v" => ScatterV { root: root, counts: root_counts },
    "all_to_all" => AllToAll {},
    "all_to_all_v" => AllToAllV { send: counts, receive: others },
    "send" => Send { to: dst, tag: tag },
    "recv" => Recv { from: src, tag: tag },
}

/// The arguments by the names that the table uses.
impl OpArguments {
    fn reduce(&self) -> Result<ReduceOp, Error> {
        Ok(self.reduce)
    }

    fn tag(&self) -> Result<TransferTag, Error> {
        Ok(self.tag)
    }

    fn root(&self) -> Result<usize, Error> {
        self.rank("root")
    }

    fn src(&self) -> Result<usize, Error> {
        self.rank("src")
    }

    fn dst(&self) -> Result<usize, Error> {
        self.rank("dst")
    }

    fn counts(&mut self) -> Result<Vec<usize>, Error> {
        required(self.counts.take())
    }

    fn others(&mut self) -> Result<Vec<usize>, Error> {
        required(self.others.take())
    }

    /// Only the root has counts.
    fn root_counts(&mut self) -> Result<Vec<usize>, Error> {
        Ok(self.counts.take().unwrap_or_default())
    }

    /// Whether the group has such a rank is checked with the operation.
    fn rank(&self, role: &str) -> Result<usize, Error> {
        let out_of_range = |_| invalid!("{role} {} is out of range", self.peer);
        usize::try_from(self.peer).map_err(out_of_range)
    }
}

fn required(counts: Option<Vec<usize>>) -> Result<Vec<usize>, Error> {
    counts.ok_or_else(|| invalid!("missing counts: one per rank is required"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> OpArguments {
        OpArguments {
            reduce: ReduceOp::Max,
            peer: 3,
            counts: Some(vec![1, 2]),
            others: Some(vec![3, 4]),
            tag: TransferTag::new(7).unwrap(),
        }
    }

    #[test]
    fn every_name_creates_the_operation_of_that_name() {
        for (name, _) in OPERATIONS {
            assert_eq!(GroupOp::from_name(name, arguments()).unwrap().name(), *name);
        }
        let made = |name| GroupOp::from_name(name, arguments()).unwrap();
        assert_eq!(made("reduce"), GroupOp::Reduce { root: 3, op: ReduceOp::Max });
        assert_eq!(made("all_to_all_v"), GroupOp::AllToAllV { send: vec![1, 2], receive: vec![3, 4] });
        assert_eq!(made("send"), GroupOp::Send { to: 3, tag: TransferTag::new(7).unwrap() });
    }

    #[test]
    fn an_operation_with_a_missing_argument_is_rejected() {
        let lacking = OpArguments { peer: -1, counts: None, others: None, ..arguments() };
        for (name, takes) in OPERATIONS {
            let needs = ["root", "src", "dst", "counts", "others"];
            let result = GroupOp::from_name(name, lacking.clone());
            assert_eq!(result.is_err(), takes.iter().any(|argument| needs.contains(argument)), "{name}");
        }
        assert!(GroupOp::from_name("fly", arguments()).is_err());
    }
}
