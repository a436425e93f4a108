//! Which connections give way to another one where there are too many.

use crate::limits;
use crate::poller::Token;
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A connection that may give way to another one.
#[derive(Clone, Copy, Debug)]
pub struct Occupant {
    /// Its token.
    pub token: Token,
    /// The address of its other end.
    pub from: SocketAddr,
    /// When it was accepted, or was last used.
    pub since: Time,
    /// Whether it is used: others give way first.
    pub has_begun: bool,
}

/// The host or the network of a connection. Hosts have many addresses of IPv6 that begin alike.
pub fn source(of: SocketAddr) -> IpAddr {
    match of.ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Which of at least `max` connections give way to another one at once: see `crowding`.
pub fn crowd(occupants: impl Iterator<Item = Occupant> + Clone, max: usize) -> Vec<Token> {
    let is_full = occupants.clone().count() >= max;
    is_full.then(|| crowding(occupants, max)).flatten().map_or(Vec::new(), |(_, crowd)| crowd)
}

/// What gives way if there are too many, of the address that has most of them, and when: those that have not begun at
/// once, or else others after a moment. A peer that has begun needs a few round trips. The oldest give way, and several
/// together, because this search takes longer than dropping them.
pub(super) fn crowding(
    occupants: impl Iterator<Item = Occupant> + Clone,
    max: usize,
) -> Option<(Time, Vec<Token>)> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for occupant in occupants.clone() {
        *counts.entry(source(occupant.from)).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count)?.0;
    let mut crowd: Vec<_> = occupants.filter(|occupant| source(occupant.from) == most).collect();
    crowd.sort_unstable_by_key(|occupant| (occupant.has_begun, occupant.since));
    let silent = crowd.partition_point(|occupant| !occupant.has_begun);
    match silent {
        0 => crowd.truncate((max / limits::CROWD_SHARE_BEGUN).max(1)),
        _ => crowd.truncate(silent.min((max / limits::CROWD_SHARE).max(1))),
    }
    let last = crowd.last()?;
    let at = if last.has_begun { last.since + limits::CROWDING_MAX } else { Time::ZERO };
    Some((at, crowd.into_iter().map(|occupant| occupant.token).collect()))
}
