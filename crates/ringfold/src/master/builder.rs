//! The configuration of a master.

use super::Master;
use super::options::MasterOptions;
use crate::Error;
use crate::settings::Given;
use core::time::Duration;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::tls::TlsFiles;
use ringfold_proto::recovery::Recover;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;

/// Configures a [`Master`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MasterBuilder {
    pub(super) listen: Vec<String>,
    pub(super) token: Option<JoinToken>,
    pub(super) admin_token: Option<JoinToken>,
    pub(super) http: Option<String>,
    pub(super) http_token: Option<JoinToken>,
    pub(super) tls: Option<TlsFiles>,
    pub(super) insecure: Option<bool>,
    pub(super) timing: Option<Timing>,
    pub(super) unreachable_after: Option<Duration>,
    pub(super) tuning: Option<Tuning>,
    pub(super) recover: Option<Recover>,
    pub(super) recover_after: Option<Duration>,
    pub(super) recover_min: Option<usize>,
    pub(super) relays: Vec<String>,
    pub(super) masters: Vec<String>,
    pub(super) this_master: Option<usize>,
    pub(super) lease: Option<String>,
    pub(super) crash_after_commits: Option<u64>,
    pub(super) held_bytes_max: Option<usize>,
    pub(super) given: Given,
}

impl MasterBuilder {
    /// An address to listen on, `host:port`. May be repeated. Default: the setting `listen`, or port 48148 of all addresses.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// The join token: only peers that know it are accepted. Empty: no token. Default: the settings `join_token` and
    /// `join_token_file`.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The token of operators, who may evict peers and drain the run. Without one: the file that the
    /// setting `admin_token_file` names, or only certificates with the role `admin`.
    pub fn admin_token(mut self, token: impl Into<JoinToken>) -> Self {
        self.admin_token = Some(token.into());
        self
    }

    /// Serves metrics, health, the status and a web page over HTTP at this address: `HOST:PORT`, `HOST` (port
    /// [`HTTP_PORT`](crate::HTTP_PORT)) or `PORT` (at 127.0.0.1). It is not encrypted: use it on loopback, on a network that you
    /// trust, or behind a proxy with TLS. Empty: it is off.
    ///
    /// Default: the setting `http`, or off.
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// The token that is needed to read over HTTP. Empty: everybody who reaches the port may read.
    ///
    /// Default: the token in the file that the setting `http_token_file` names.
    pub fn http_token(mut self, token: impl Into<JoinToken>) -> Self {
        self.http_token = Some(token.into());
        self
    }

    /// The certificates of the run; otherwise the settings `tls_ca`, `tls_cert` and `tls_key` decide. The master and all peers must
    /// have some. All connections are then encrypted, and no token is needed.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Whether connections are not encrypted, for measurements; otherwise the setting `insecure` decides. All peers must agree.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = Some(insecure);
        self
    }

    /// Deadlines and intervals. Default: the settings of their names.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = Some(timing);
        self
    }

    /// How long the host of a peer may acknowledge nothing before it counts as lost; at least 3 s.
    ///
    /// Default: the setting `unreachable_after`, or 15 s.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// The address of a [relay](crate::Relay), `host:port`, for peers that cannot reach each other. May be repeated: up to 4
    /// are used, in this order. All peers of the run must reach it at this address.
    pub fn relay(mut self, address: impl Into<String>) -> Self {
        self.relays.push(address.into());
        self
    }

    /// All masters of the run, `host:port` each, this one included; the same list, in the same order, for all masters and
    /// peers. Up to 9. One of them is active, and the others stand by. Default: this one is the only master.
    pub fn masters(mut self, addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.masters = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// A lease in etcd that decides which master is active, instead of votes of members and masters:
    /// `etcd://HOST:PORT/PATH`, with another path for each run. Needs [`MasterBuilder::masters`].
    pub fn lease(mut self, address: impl Into<String>) -> Self {
        self.lease = Some(address.into());
        self
    }

    /// The position of this master in the list, from 0. Default: the one whose address it listens on.
    pub fn this_master(mut self, index: usize) -> Self {
        self.this_master = Some(index);
        self
    }

    /// Which state the run continues from when all peers that held it were lost, and come back from checkpoints of different
    /// age.
    ///
    /// Default: the setting `recover`, or the newest.
    pub fn recover(mut self, policy: Recover) -> Self {
        self.recover = Some(policy);
        self
    }

    /// How long the first peers that come back after such a loss wait for the others.
    ///
    /// Default: the setting `recover_after`, or 30 s.
    pub fn recover_after(mut self, time: Duration) -> Self {
        self.recover_after = Some(time);
        self
    }

    /// How many peers must be back for the run to continue earlier, and must hold a revision for it to win over older ones.
    ///
    /// Default: the setting `recover_min`; otherwise all lost peers must be back, and one holder is
    /// enough. A new master waits for that many peers, too.
    pub fn recover_min(mut self, peers: usize) -> Self {
        self.recover_min = Some(peers);
        self
    }

    /// Parameters of the plans of all peers.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(tuning);
        self
    }

    /// For tests: aborts the process when exactly one peer has received the commit of the n-th operation.
    #[doc(hidden)]
    pub fn crash_after_commits(mut self, n: u64) -> Self {
        self.crash_after_commits = Some(n);
        self
    }

    /// For tests: the bytes that peers may make the master keep. Default: a quarter of its memory.
    #[doc(hidden)]
    pub fn held_bytes_max(mut self, bytes: usize) -> Self {
        self.held_bytes_max = Some(bytes);
        self
    }

    /// Sets a [setting](crate::settings) by its name. A method for the same thing has priority.
    ///
    /// ```
    /// let master = ringfold::Master::builder().setting("silence_max", "1s").try_build()?;
    /// assert!(ringfold::Master::builder().setting("silence_maxx", "1s").try_build().is_err());
    /// # Ok::<(), ringfold::Error>(())
    /// ```
    pub fn setting(mut self, name: &str, value: impl core::fmt::Display) -> Self {
        self.given.set(name, value);
        self
    }

    /// Sets all [settings](crate::settings) by argument.
    pub fn settings(mut self, given: Given) -> Self {
        self.given = given;
        self
    }

    /// Creates the master. It does not listen yet. What is wrong with its settings is reported when it listens.
    pub fn build(self) -> Master {
        Master::new(MasterOptions::new(self))
    }

    /// Creates the master, and checks its settings. It does not listen yet.
    pub fn try_build(self) -> Result<Master, Error> {
        Ok(Master::new(Ok(MasterOptions::new(self)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_printed() {
        let builder = Master::builder().token("sesame");
        assert!(!format!("{builder:?} {:?}", builder.clone().build()).contains("sesame"));
        let builder = Master::builder().setting("join_token", "sesame");
        assert!(!format!("{builder:?} {:?}", builder.clone().build()).contains("sesame"));
    }
}
