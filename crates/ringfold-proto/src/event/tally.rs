//! Many short operations as one event.

use crate::id::OpId;
use core::fmt;
use core::time::Duration;

/// Operations that were committed, each within about a millisecond, with nothing else between them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub struct OpTally {
    pub first: OpId,
    pub last: OpId,
    pub count: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// From the beginning of the first one to the end of the last one.
    pub span: Duration,
    /// The longest of them; zero where that is not known.
    pub longest: Duration,
}

impl OpTally {
    /// The stable name of this kind of event.
    pub const NAME: &'static str = "ops_committed";
}

impl fmt::Display for OpTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last, count, span, .. } = self;
        write!(f, "{count} short operations are committed in {span:?}, the last one is {last}")
    }
}
