//! The messages of bootstrap, between rank 0 and the other ranks.

use ringfold_proto::bounded::{Bounded, LimitExceeded, check_description, check_member, check_text};
use ringfold_proto::epoch::{EpochDescription, Member};
use serde::{Deserialize, Serialize};

/// The first message of a rank.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) group: String,
    pub(crate) rank: u16,
    pub(crate) world: u16,
    pub(crate) member: Member,
    pub(crate) may_share: bool,
    /// The bits of [`Integrity`](ringfold_proto::integrity::Integrity).
    pub(crate) integrity: u8,
}

impl Bounded for Join {
    /// Small, because rank 0 does not know the sender yet.
    const BYTES_MAX: usize = 16 << 10;
    const DECODED_BYTES_MAX: usize = 4 * Self::BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        check_text(&self.group)?;
        check_member(&self.member)
    }
}

/// A message of rank 0.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// All ranks have joined.
    Welcome { description: Box<EpochDescription>, arena: Option<ArenaOffer> },
    /// The group begins, with or without an arena.
    Begin { shares: bool },
    /// The rank can't join, now or at all.
    Rejected { why: String, retryable: bool },
    /// The rank has joined, and others are missing.
    Joined,
}

impl Bounded for Reply {
    const BYTES_MAX: usize = 4 << 20;
    const DECODED_BYTES_MAX: usize = 4 * Self::BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::Welcome { description, .. } => check_description(description),
            Self::Rejected { why, .. } => check_text(why),
            Self::Begin { .. } | Self::Joined => Ok(()),
        }
    }
}

/// Whether a rank has mapped the arena that rank 0 offers.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Mapped(pub(crate) bool);

impl Bounded for Mapped {
    const BYTES_MAX: usize = 16;
    const DECODED_BYTES_MAX: usize = 16;

    fn check(&self) -> Result<(), LimitExceeded> {
        Ok(())
    }
}

/// An arena that all ranks may map.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ArenaOffer {
    pub(crate) ticket: Vec<u8>,
    pub(crate) slot_bytes: u32,
    pub(crate) depth: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::frame::{ControlDecoder, FrameError};
    use ringfold_proto::id::PeerId;
    use ringfold_proto::limits::NAME_ON_WIRE_BYTES_MAX;

    /// Decodes a message that was encoded without its limits.
    fn decode(join: &Join) -> Result<Option<Join>, FrameError> {
        let body = postcard::to_allocvec(join).unwrap();
        let bytes = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
        ControlDecoder::default().next_message(&mut &bytes[..])
    }

    #[test]
    fn a_member_with_a_too_long_name_is_rejected_by_the_decoder() {
        let member = |bytes| Member {
            peer: PeerId(1),
            name: "n".repeat(bytes),
            host: 0,
            site: 0,
            cores: Default::default(),
            addresses: Vec::new(),
        };
        let join = |bytes| Join {
            group: String::new(),
            rank: 1,
            world: 2,
            member: member(bytes),
            may_share: false,
            integrity: 0,
        };
        assert!(decode(&join(NAME_ON_WIRE_BYTES_MAX)).unwrap().is_some());
        assert!(matches!(decode(&join(NAME_ON_WIRE_BYTES_MAX + 1)), Err(FrameError::Limit(_))));
        assert!(decode(&join(Join::BYTES_MAX)).is_err());
    }
}
