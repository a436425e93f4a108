//! Faults of an emulated network: paths that are cut for a while, and connections that are reset.

use super::rng::Rng;
use crate::network::{Host, Network, Profile};
use std::time::{Duration, Instant};

/// The emulated hosts. The master is on the first.
const HOSTS: usize = 4;
/// The shortest cut, and the longest between hosts without the master. Nobody is evicted for a link that is down for so long.
const CUT_MIN: Duration = Duration::from_millis(200);
const CUT_MAX: Duration = Duration::from_secs(6);
/// The longest cut between the master and another host, all of whose peers it does not hear then.
const CUT_MAX_MASTER: Duration = Duration::from_secs(1);

/// The shortest time between two resets. A peer whose connections to the master and to all neighbours are reset at about the
/// same time looks dead, and is evicted.
const RESET_PAUSE: Duration = Duration::from_secs(2);

/// How long after a cut a new peer may report that it was evicted because of it: it dials for some seconds.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

/// A network, and what is broken in it.
#[derive(Debug)]
pub(super) struct Faults {
    network: Network,
    /// Pairs of hosts that are cut, and until when.
    cut: Vec<(usize, usize, Instant)>,
    /// When a path of each host was last cut or mended.
    last_cut: [Option<Instant>; HOSTS],
    last_reset: Option<Instant>,
    pub cuts: u64,
    pub resets: u64,
}

impl Faults {
    pub fn new(profile: &Profile) -> Result<Self, String> {
        let network = Network::with_profile(profile, HOSTS)?;
        Ok(Self { network, cut: Vec::new(), last_cut: [None; HOSTS], last_reset: None, cuts: 0, resets: 0 })
    }

    /// The host of the master.
    pub fn master_host(&self) -> &Host {
        self.network.host(0)
    }

    /// The host of the peer with this number.
    pub fn host(&self, number: u32) -> &Host {
        self.network.host(number as usize % HOSTS)
    }

    /// Cuts a path, or resets all connections between two hosts, or those of a host to the master.
    pub fn event(&mut self, rng: &mut Rng, master_port: u16) {
        let one = rng.below(HOSTS);
        let other = (one + 1 + rng.below(HOSTS - 1)) % HOSTS;
        let (one, other) = (one.min(other), one.max(other));
        let may_reset = self.last_reset.is_none_or(|last| last.elapsed() >= RESET_PAUSE);
        if rng.once_in(2) || !may_reset {
            let most = if one == 0 { CUT_MAX_MASTER } else { CUT_MAX };
            let more = rng.below((most - CUT_MIN).as_millis() as usize) as u64;
            let until = Instant::now() + CUT_MIN + Duration::from_millis(more);
            // A path that is cut already stays so for as long as was said first.
            if !self.cut.iter().any(|(a, b, _)| (*a, *b) == (one, other)) {
                self.network.cut(self.network.host(one), self.network.host(other));
                self.cut.push((one, other, until));
                self.cuts += 1;
                self.note_cut(one, other);
            }
        } else {
            let port = (one == 0).then_some(master_port);
            self.last_reset = Some(Instant::now());
            self.network.reset_connections(self.network.host(one), self.network.host(other), port);
            self.resets += 1;
        }
    }

    /// Whether a path of the host of the peer with this number is cut, or was a moment ago.
    pub fn was_cut(&self, number: u32) -> bool {
        let host = number as usize % HOSTS;
        let lately = self.last_cut[host].is_some_and(|at| at.elapsed() < REFUSED_WITHIN);
        lately || self.cut.iter().any(|(one, other, _)| *one == host || *other == host)
    }

    fn note_cut(&mut self, one: usize, other: usize) {
        for host in [one, other] {
            self.last_cut[host] = Some(Instant::now());
        }
    }

    /// Mends paths whose time is over.
    pub fn mend(&mut self, now: Instant) {
        let due: Vec<_> = self.cut.extract_if(.., |(.., until)| *until <= now).collect();
        for (one, other, _) in due {
            self.network.mend(self.network.host(one), self.network.host(other));
            self.note_cut(one, other);
        }
    }

    /// Mends everything.
    pub fn mend_all(&mut self) {
        for (one, other, _) in self.cut.drain(..) {
            self.network.mend(self.network.host(one), self.network.host(other));
        }
    }
}
