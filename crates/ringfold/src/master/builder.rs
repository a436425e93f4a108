//! What a master is told before it runs.

use super::{MASTER_PORT, Master};
use crate::Error;
use core::fmt;
use core::time::Duration;
use ringfold_fabric::listener::ListenAddress;
use ringfold_proto::handshake::Secret;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Makes a [`Master`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MasterBuilder {
    plan: Plan,
}

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    listen: Vec<String>,
    pub token: Token,
    pub timing: Timing,
    pub unreachable_after: Option<Duration>,
    pub tuning: Tuning,
    pub crash_after_commits: Option<u64>,
}

/// The join token; never printed.
#[derive(Clone, Default)]
pub(super) struct Token(String);

impl MasterBuilder {
    /// Listens here, `host:port`. Said several times, it listens on all of them; said never, on port 48148 of
    /// every address of the machine.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.plan.listen.push(address.into());
        self
    }

    /// Lets in only peers that prove that they know this. An empty one is none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.plan.token = Token(token.into());
        self
    }

    /// Deadlines and intervals.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.plan.timing = timing;
        self
    }

    /// How long the host of a peer may acknowledge nothing before it counts as lost: 15 s if nothing is said, or as
    /// many seconds as the environment variable `RINGFOLD_UNREACHABLE_AFTER` says; 3 s at least. Systems answer for
    /// processes that are busy, so no long computation is mistaken for a loss.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.plan.unreachable_after = Some(time);
        self
    }

    /// What steers the plans of every peer.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.plan.tuning = tuning;
        self
    }

    /// For tests of recovery: the process aborts when the first peer, and only that one, has been told of the
    /// commit of the n-th operation.
    #[doc(hidden)]
    pub fn crash_after_commits(mut self, n: u64) -> Self {
        self.plan.crash_after_commits = Some(n);
        self
    }

    /// The master. It does not listen before it is run.
    pub fn build(self) -> Master {
        Master::new(self.plan)
    }
}

impl Plan {
    /// All addresses to listen on; names are looked up.
    pub fn addresses(&self) -> Result<Vec<ListenAddress>, Error> {
        if self.listen.is_empty() {
            return Ok(vec![
                ListenAddress { address: (Ipv6Addr::UNSPECIFIED, MASTER_PORT).into(), optional: true },
                ListenAddress { address: (Ipv4Addr::UNSPECIFIED, MASTER_PORT).into(), optional: false },
            ]);
        }
        let mut addresses = Vec::new();
        for text in &self.listen {
            let found: Vec<_> = text
                .to_socket_addrs()
                .map_err(|e| Error::BadArgument(format!("{text:?} is no address to listen on: {e}")))?
                .collect();
            // A name may have addresses of a family that the machine does not have.
            let optional = found.len() > 1;
            addresses.extend(found.into_iter().map(|address| ListenAddress { address, optional }));
        }
        Ok(addresses)
    }

    /// The secret that guards the master.
    pub fn secret(&self) -> Secret {
        Secret::token(&self.token.0)
    }

    /// Says loudly what it means to listen to the world without a token.
    pub fn warn_if_unguarded(&self, addresses: &[SocketAddr]) {
        let open = addresses.iter().find(|a| !a.ip().to_canonical().is_loopback());
        if let (true, Some(address)) = (self.token.0.is_empty(), open) {
            tracing::warn!(
                target: "ringfold::master",
                "the master listens on {address} without a join token: whoever can reach that address can join \
                 the run, read its data and change its results. Give the master and all peers the same token, \
                 or listen on a loopback address"
            );
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { ".." })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_printed() {
        let builder = Master::builder().token("sesame");
        assert!(!format!("{builder:?} {:?}", builder.clone().build()).contains("sesame"));
    }

    #[test]
    fn what_is_no_address_is_named_in_the_error() {
        let plan = Master::builder().listen("127.0.0.1:1").listen("nonsense").plan;
        let error = plan.addresses().unwrap_err();
        assert!(matches!(&error, Error::BadArgument(why) if why.contains("\"nonsense\"")), "{error}");
    }

    #[test]
    fn by_default_all_addresses_of_both_families_are_listened_on() {
        let addresses = Plan::default().addresses().unwrap();
        assert_eq!(addresses.iter().map(|l| l.address.port()).collect::<Vec<_>>(), [48148, 48148]);
        assert!(addresses.iter().all(|l| l.address.ip().is_unspecified()));
    }
}
