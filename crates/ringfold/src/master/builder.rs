//! The configuration of a master.

use super::{MASTER_PORT, Master};
use crate::Error;
use crate::error::invalid;
use crate::token::Token;
use core::time::Duration;
use ringfold_fabric::listener::ListenAddress;
use ringfold_proto::handshake::Secret;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Configures a [`Master`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MasterBuilder {
    listen: Vec<String>,
    token: Token,
    pub(super) timing: Timing,
    pub(super) unreachable_after: Option<Duration>,
    pub(super) tuning: Tuning,
    pub(super) crash_after_commits: Option<u64>,
}

impl MasterBuilder {
    /// An address to listen on, `host:port`. May be repeated. Default: port 48148 of all addresses.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// The join token: only peers that know it are accepted. Empty: no token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Token(token.into());
        self
    }

    /// Deadlines and intervals.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// How long the host of a peer may acknowledge nothing before it counts as lost; at least 3 s.
    ///
    /// Default: the seconds in the environment variable `RINGFOLD_UNREACHABLE_AFTER`, or 15 s.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// Parameters of the plans of all peers.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// For tests: aborts the process when exactly one peer has received the commit of the n-th operation.
    #[doc(hidden)]
    pub fn crash_after_commits(mut self, n: u64) -> Self {
        self.crash_after_commits = Some(n);
        self
    }

    /// Creates the master. It does not listen yet.
    pub fn build(self) -> Master {
        Master::new(self)
    }

    /// The addresses to listen on; names are resolved.
    pub(super) fn addresses(&self) -> Result<Vec<ListenAddress>, Error> {
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
                .map_err(|e| invalid!("invalid listen address {text:?}: {e}"))?
                .collect();
            // A name may resolve to an address family that this host lacks.
            let optional = found.len() > 1;
            addresses.extend(found.into_iter().map(|address| ListenAddress { address, optional }));
        }
        Ok(addresses)
    }

    pub(super) fn secret(&self) -> Secret {
        Secret::token(&self.token)
    }

    /// Warns if the master listens on a non-loopback address without a token.
    pub(super) fn warn_without_token(&self, addresses: &[SocketAddr]) {
        let open = addresses.iter().find(|a| !a.ip().to_canonical().is_loopback());
        if let (true, Some(address)) = (self.token.is_empty(), open) {
            tracing::warn!(
                target: "ringfold::master",
                "the master listens on {address} without a join token: anyone who can reach this address can join \
                 the run, read its data and change its results. Set the same token for the master and all peers, \
                 or listen on a loopback address"
            );
        }
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
    fn an_invalid_address_is_named_in_the_error() {
        let builder = Master::builder().listen("127.0.0.1:1").listen("nonsense");
        let error = builder.addresses().unwrap_err();
        assert!(matches!(&error, Error::BadArgument(why) if why.contains("\"nonsense\"")), "{error}");
    }

    #[test]
    fn the_default_is_all_addresses_of_both_families() {
        let addresses = MasterBuilder::default().addresses().unwrap();
        assert_eq!(addresses.iter().map(|l| l.address.port()).collect::<Vec<_>>(), [48148, 48148]);
        assert!(addresses.iter().all(|l| l.address.ip().is_unspecified()));
    }
}
