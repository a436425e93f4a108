//! Relays: two members that cannot reach each other meet at a third process, which joins their connections.
//!
//! ```text
//!  member A                      relay                      member B
//!     │ TLS, handshake ─────────→│←───────── TLS, handshake │
//!     │ request: dial B ────────→│←─────── request: await A │
//!     │←──────────────── joined  │  joined ────────────────→│
//!     │ handshake with the key of the epoch, and all that follows: copied, not understood
//! ```
//!
//! Only two members that name each other are joined. Their legs are authenticated as all connections are: by the join token, by
//! certificates, and by ids that belong to keys. A leg's TLS ends when it is joined: what follows is TLS between the two members. The
//! relay never connects to anything. It does not know the key of the epoch, so it cannot pretend to be a member.

mod hub;
mod leg;
mod pair;
mod pairing;
mod server;
mod stand_by;

pub use hub::{RelayCounters, RelayHub};
pub(crate) use leg::RelayLeg;
pub use server::{RelayHandle, RelayServer};
pub(crate) use stand_by::StandBy;

use crate::join_token::JoinToken;
use ringfold_proto::epoch::RelayAddress;
use ringfold_proto::id::PeerId;
use std::net::SocketAddr;
use zerocopy::byteorder::little_endian::U128;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The relays of an epoch, and the join token that they require.
#[derive(Clone, Debug, Default)]
pub struct Relays {
    /// In the order of preference.
    pub addresses: Vec<RelayAddress>,
    /// The join token.
    pub token: JoinToken,
}

impl Relays {
    /// Where two members can meet. A member that volunteers is no relay for its own links.
    pub fn between(&self, one: PeerId, other: PeerId) -> impl Iterator<Item = SocketAddr> + '_ {
        let usable = self.addresses.iter().filter(move |relay| relay.peer != one && relay.peer != other);
        usable.map(|relay| relay.address)
    }
}

/// What a member asks a relay for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RelayRequest {
    /// What it does.
    pub role: RelayRole,
    /// The member at the other end.
    pub other: PeerId,
}

/// What a member does at a relay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum RelayRole {
    /// It connects to the other member.
    Dial = 1,
    /// It accepts a connection of the other member.
    Await = 2,
}

impl RelayRole {
    fn opposite(self) -> Self {
        match self {
            Self::Dial => Self::Await,
            Self::Await => Self::Dial,
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestLayout {
    magic: [u8; 8],
    role: u8,
    reserved: [u8; 7],
    other: U128,
}

impl RelayRequest {
    /// Bytes of a request.
    pub const BYTES: usize = size_of::<RequestLayout>();
    const MAGIC: [u8; 8] = *b"RFRELAY1";

    /// Its bytes on the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let Self { role, other } = *self;
        let layout =
            RequestLayout { magic: Self::MAGIC, role: role as u8, reserved: [0; 7], other: other.0.into() };
        zerocopy::transmute!(layout)
    }

    /// Takes a request off the front of `input`, if it is complete.
    pub fn take(input: &mut &[u8]) -> Option<Result<Self, &'static str>> {
        let (layout, rest) = RequestLayout::read_from_prefix(input).ok()?;
        *input = rest;
        let role = [RelayRole::Dial, RelayRole::Await].into_iter().find(|role| *role as u8 == layout.role);
        Some(match role.filter(|_| layout.magic == Self::MAGIC) {
            Some(role) => Ok(Self { role, other: PeerId(layout.other.get()) }),
            None => Err("invalid request to a relay"),
        })
    }
}

/// The answer of a relay. Its first byte on the wire, seven zeros follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
pub enum RelayAnswer {
    /// What follows comes from the other member.
    #[error("joined")]
    Joined = 0,
    /// The other member did not come.
    #[error("the other member did not come to the relay in time")]
    Absent = 1,
    /// Too many connections wait, or too many pairs are joined.
    #[error("the relay is full")]
    Full = 2,
}

impl RelayAnswer {
    /// Bytes of an answer.
    pub const BYTES: usize = 8;

    /// Its bytes on the wire.
    pub fn encode(self) -> [u8; Self::BYTES] {
        [self as u8, 0, 0, 0, 0, 0, 0, 0]
    }

    /// Takes an answer off the front of `input`, if it is complete.
    pub fn take(input: &mut &[u8]) -> Option<Result<Self, &'static str>> {
        let (bytes, rest) = input.split_first_chunk::<{ Self::BYTES }>()?;
        *input = rest;
        let known = [Self::Joined, Self::Absent, Self::Full].into_iter();
        Some(known.into_iter().find(|answer| *answer as u8 == bytes[0]).ok_or("invalid answer of a relay"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_decoded_and_invalid_ones_rejected() {
        for role in [RelayRole::Dial, RelayRole::Await] {
            let request = RelayRequest { role, other: PeerId(7 << 100) };
            let bytes = request.encode();
            for length in 0..bytes.len() {
                assert!(RelayRequest::take(&mut &bytes[..length]).is_none(), "{length}");
            }
            let followed = [&bytes[..], &[9]].concat();
            let mut input = &followed[..];
            assert_eq!((RelayRequest::take(&mut input), input), (Some(Ok(request)), &[9][..]));
            for (at, value) in [(0, b'X'), (8, 0), (8, 3)] {
                let mut wrong = bytes;
                wrong[at] = value;
                assert!(RelayRequest::take(&mut &wrong[..]).unwrap().is_err(), "{at}");
            }
        }
        for answer in [RelayAnswer::Joined, RelayAnswer::Absent, RelayAnswer::Full] {
            assert_eq!(RelayAnswer::take(&mut &answer.encode()[..]), Some(Ok(answer)));
            assert_eq!(RelayAnswer::take(&mut &answer.encode()[..7]), None);
        }
        assert!(RelayAnswer::take(&mut &[9; 8][..]).unwrap().is_err());
    }

    #[test]
    fn a_volunteer_is_no_relay_for_its_own_links() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let relay = |peer, port| RelayAddress { peer: PeerId(peer), address: at(port) };
        let relays = Relays { addresses: vec![relay(0, 1), relay(7, 2)], token: JoinToken::default() };
        let found = |one, other| relays.between(PeerId(one), PeerId(other)).collect::<Vec<_>>();
        assert_eq!(found(5, 6), [at(1), at(2)]);
        assert_eq!(found(7, 6), [at(1)]);
        assert_eq!(found(6, 7), [at(1)]);
    }
}
