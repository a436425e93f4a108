//! The configuration of a master.

use super::etcd::EtcdAddress;
use super::http::{Access, BoundHttp};
use super::{MASTER_PORT, Master};
use crate::Error;
use crate::error::invalid;
use crate::protection;
use core::time::Duration;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::listener::ListenAddress;
use ringfold_fabric::tls::{Security, TlsFiles};
use ringfold_proto::limits::{RELAYS_MAX, WORLD_MAX};
use ringfold_proto::recovery::{Recover, RecoverySettings};
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Configures a [`Master`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MasterBuilder {
    listen: Vec<String>,
    pub(super) token: JoinToken,
    admin_token: JoinToken,
    http: Option<String>,
    http_token: JoinToken,
    pub(super) tls: Option<TlsFiles>,
    pub(super) insecure: Option<bool>,
    pub(super) timing: Timing,
    pub(super) unreachable_after: Option<Duration>,
    pub(super) tuning: Tuning,
    recover: Option<Recover>,
    recover_after: Option<Duration>,
    recover_min: Option<usize>,
    relays: Vec<String>,
    pub(super) masters: Vec<String>,
    pub(super) this_master: Option<usize>,
    lease: Option<String>,
    pub(super) crash_after_commits: Option<u64>,
}

impl MasterBuilder {
    /// An address to listen on, `host:port`. May be repeated. Default: port 48148 of all addresses.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// The join token: only peers that know it are accepted. Empty: no token.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = token.into();
        self
    }

    /// The token of operators, who may evict peers and drain the run. Empty: only certificates with the role `admin` may.
    ///
    /// Default: the token in the file that the environment variable `RINGFOLD_ADMIN_TOKEN_FILE` names, if it is set.
    pub fn admin_token(mut self, token: impl Into<JoinToken>) -> Self {
        self.admin_token = token.into();
        self
    }

    /// Serves metrics, health, the status and a web page over HTTP at this address: `HOST:PORT`, `HOST` (port
    /// [`HTTP_PORT`](crate::HTTP_PORT)) or `PORT` (at 127.0.0.1). It is not encrypted: use it on loopback, on a network that you
    /// trust, or behind a proxy with TLS. Empty: it is off.
    ///
    /// Default: the environment variable `RINGFOLD_HTTP`, or off.
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// The token that is needed to read over HTTP. Empty: everybody who reaches the port may read.
    ///
    /// Default: the token in the file that the environment variable `RINGFOLD_HTTP_TOKEN_FILE` names, if it is set.
    pub fn http_token(mut self, token: impl Into<JoinToken>) -> Self {
        self.http_token = token.into();
        self
    }

    /// The certificates of the run; otherwise `RINGFOLD_TLS_CA`, `RINGFOLD_TLS_CERT` and `RINGFOLD_TLS_KEY` decide. The master and all peers must
    /// have some. All connections are then encrypted, and no token is needed.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Whether connections are not encrypted, for measurements; otherwise `RINGFOLD_INSECURE` decides. All peers must agree.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = Some(insecure);
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
    /// Default: the environment variable `RINGFOLD_RECOVER` (`newest`, `majority` or `manual`), or the newest.
    pub fn recover(mut self, policy: Recover) -> Self {
        self.recover = Some(policy);
        self
    }

    /// How long the first peers that come back after such a loss wait for the others.
    ///
    /// Default: the seconds in the environment variable `RINGFOLD_RECOVER_AFTER`, or 30 s.
    pub fn recover_after(mut self, time: Duration) -> Self {
        self.recover_after = Some(time);
        self
    }

    /// How many peers must be back for the run to continue earlier, and must hold a revision for it to win over older ones.
    ///
    /// Default: the environment variable `RINGFOLD_RECOVER_MIN`; otherwise all lost peers must be back, and one holder is
    /// enough. A new master waits for that many peers, too.
    pub fn recover_min(mut self, peers: usize) -> Self {
        self.recover_min = Some(peers);
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

    /// Where the lease is, if there is one.
    pub(super) fn etcd(&self) -> Result<Option<EtcdAddress>, Error> {
        match &self.lease {
            Some(_) if self.masters.is_empty() => Err(invalid!("a lease needs the list of all masters")),
            lease => lease.as_deref().map(EtcdAddress::parse).transpose(),
        }
    }

    /// Creates the master. It does not listen yet.
    pub fn build(mut self) -> Master {
        // What is wrong with the environment is reported when the master listens.
        self.tls = self.tls.or_else(|| TlsFiles::by_default().ok().flatten());
        Master::new(self)
    }

    /// The addresses to listen on; names are resolved.
    pub(super) fn addresses(&self) -> Result<Vec<ListenAddress>, Error> {
        listen_addresses(&self.listen, MASTER_PORT)
    }

    /// The token of operators, by this configuration or by the environment.
    pub(super) fn operator_token(&self) -> Result<JoinToken, Error> {
        token_or_file(&self.admin_token, "RINGFOLD_ADMIN_TOKEN_FILE")
    }

    /// The HTTP server, if there is to be one: its ports are bound.
    pub(super) fn bind_http(&self) -> Result<Option<(BoundHttp, Access)>, Error> {
        let variable = |name: &str| std::env::var(name).ok();
        let address =
            setting(self.http.clone(), "RINGFOLD_HTTP", variable, |text| Ok::<_, String>(text.into()))?;
        let Some(address) = address.filter(|text| !text.is_empty()) else { return Ok(None) };
        let read = token_or_file(&self.http_token, "RINGFOLD_HTTP_TOKEN_FILE")?;
        let access = Access { admin: self.operator_token()?, read };
        let bound = BoundHttp::bind(&address)?;
        let open = bound.addresses().into_iter().find(|address| protection::is_off_loopback(address.ip()));
        if let Some(address) = open {
            for (token, what) in
                [(&access.admin, "admin token"), (&access.read, "token of --http-token-file")]
            {
                protection::check_length(token, what)?;
            }
            if access.read.is_none() {
                protection::check_unauthenticated(&format!("HTTP on {address}"))?;
            }
            tracing::warn!(
                target: "ringfold::master",
                "HTTP listens on {address} without encryption: {}. Use a loopback address and an SSH tunnel, or a proxy with TLS",
                match (access.read.is_none(), access.admin.is_none()) {
                    (true, _) => "anyone who can reach this address can see the names and addresses of the peers",
                    (false, true) => "anyone on the path can read the token and the status",
                    (false, false) => "anyone on the path can read the tokens, and use them to evict peers",
                }
            );
        }
        Ok(Some((bound, access)))
    }

    /// The relays; names are resolved.
    pub(super) fn relays(&self) -> Result<Vec<SocketAddr>, Error> {
        let mut relays = Vec::new();
        for text in &self.relays {
            let found =
                text.to_socket_addrs().map_err(|e| invalid!("invalid relay address {text:?}: {e}"))?;
            let usable = found.filter(|at| !at.ip().is_unspecified() && at.port() != 0);
            let before = relays.len();
            relays.extend(usable);
            if relays.len() == before {
                return Err(invalid!("invalid relay address {text:?}: peers cannot dial it"));
            }
        }
        if relays.len() > RELAYS_MAX {
            return Err(invalid!(
                "too many relay addresses: {} exceed the limit of {RELAYS_MAX}",
                relays.len()
            ));
        }
        Ok(relays)
    }

    /// How to recover, by this configuration or by the environment.
    pub(super) fn recovery(&self) -> Result<RecoverySettings, Error> {
        self.recovery_in(|name| std::env::var(name).ok())
    }

    fn recovery_in(&self, variable: impl Fn(&str) -> Option<String>) -> Result<RecoverySettings, Error> {
        let default = RecoverySettings::default();
        let policy = setting(self.recover, "RINGFOLD_RECOVER", &variable, |text| text.parse::<Recover>())?;
        let after = setting(self.recover_after, "RINGFOLD_RECOVER_AFTER", &variable, |text| {
            let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
            seconds.ok_or_else(|| format!("invalid time {text:?}: must be seconds >= 0"))
        })?;
        let min = setting(self.recover_min, "RINGFOLD_RECOVER_MIN", &variable, |text| {
            text.parse().map_err(|_| format!("invalid number of peers {text:?}"))
        })?;
        if let Some(min) = min.filter(|min| !(1..=WORLD_MAX).contains(min)) {
            return Err(invalid!("invalid number of peers to recover with {min}: must be 1..={WORLD_MAX}"));
        }
        let after = after.unwrap_or(default.after).min(RECOVER_AFTER_MAX);
        Ok(RecoverySettings { policy: policy.unwrap_or(default.policy), after, min })
    }

    /// Warns if the master listens on a non-loopback address without authentication, or fails if that is not allowed.
    pub(super) fn check_token(&self, security: &Security, addresses: &[SocketAddr]) -> Result<(), Error> {
        let open = addresses.iter().find(|address| protection::is_off_loopback(address.ip()));
        let is_open = self.token.is_none() && !security.has_certificates();
        if let (true, Some(address)) = (is_open, open) {
            protection::check_unauthenticated(&format!("listening on {address}"))?;
            tracing::warn!(
                target: "ringfold::master",
                "the master listens on {address} without a join token or certificates: anyone who can reach this address can join \
                 the run, read its data and change its results. Make a token with `ringfold keys token`, and give it to the \
                 master and all peers, or listen on a loopback address"
            );
        }
        Ok(())
    }
}

/// A token, or else that of the file that an environment variable names.
fn token_or_file(token: &JoinToken, variable: &str) -> Result<JoinToken, Error> {
    match std::env::var_os(variable).filter(|path| token.is_none() && !path.is_empty()) {
        Some(path) => JoinToken::from_file(path).map_err(|error| invalid!("invalid {variable}: {error}")),
        None => Ok(token.clone()),
    }
}

/// The longest time that peers wait for others to come back.
const RECOVER_AFTER_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A setting by configuration, or by a variable that is set and not empty.
fn setting<T>(
    configured: Option<T>,
    name: &str,
    variable: impl Fn(&str) -> Option<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Error> {
    if configured.is_some() {
        return Ok(configured);
    }
    let text = variable(name).filter(|text| !text.is_empty());
    text.map(|text| parse(&text)).transpose().map_err(|why| invalid!("invalid variable {name}: {why}"))
}

/// The addresses to listen on, by default all; names are resolved.
pub(crate) fn listen_addresses(listen: &[String], port: u16) -> Result<Vec<ListenAddress>, Error> {
    if listen.is_empty() {
        return Ok(vec![
            ListenAddress { address: (Ipv6Addr::UNSPECIFIED, port).into(), optional: true },
            ListenAddress { address: (Ipv4Addr::UNSPECIFIED, port).into(), optional: false },
        ]);
    }
    let mut addresses = Vec::new();
    for text in listen {
        let found = text.to_socket_addrs().map_err(|e| invalid!("invalid listen address {text:?}: {e}"))?;
        let found: Vec<_> = found.collect();
        // A name may resolve to an address family that this host lacks.
        let optional = found.len() > 1;
        addresses.extend(found.into_iter().map(|address| ListenAddress { address, optional }));
    }
    Ok(addresses)
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
    fn a_relay_that_peers_cannot_dial_is_an_error() {
        let relays = |texts: &[&str]| texts.iter().fold(Master::builder(), |b, text| b.relay(*text)).relays();
        assert_eq!(relays(&["192.0.2.1:5", "[2001:db8::1]:6"]).unwrap().len(), 2);
        for wrong in ["0.0.0.0:5", "192.0.2.1:0", "nonsense"] {
            let error = relays(&[wrong]).unwrap_err();
            assert!(matches!(&error, Error::BadArgument(why) if why.contains(wrong)), "{error}");
        }
        assert!(relays(&["192.0.2.1:5"; RELAYS_MAX + 1]).is_err());
    }

    #[test]
    fn recovery_is_set_by_the_builder_before_the_environment_and_errors_name_the_variable() {
        let given = |name: &str, text: &'static str| {
            let name = name.to_owned();
            move |asked: &str| (asked == name).then(|| text.to_owned())
        };
        let builder = Master::builder();
        assert_eq!(builder.recovery_in(|_| None).unwrap(), RecoverySettings::default());
        assert_eq!(builder.recovery_in(|_| Some(String::new())).unwrap(), RecoverySettings::default());
        let settings = builder.recovery_in(given("RINGFOLD_RECOVER", "majority")).unwrap();
        assert_eq!(settings.policy, Recover::Majority);
        let settings = builder.recovery_in(given("RINGFOLD_RECOVER_AFTER", "1.5")).unwrap();
        assert_eq!(settings.after, Duration::from_millis(1500));
        assert_eq!(builder.recovery_in(given("RINGFOLD_RECOVER_MIN", "3")).unwrap().min, Some(3));
        let builder = builder.recover(Recover::Manual).recover_after(Duration::from_secs(2)).recover_min(4);
        let settings = builder.recovery_in(given("RINGFOLD_RECOVER", "majority")).unwrap();
        let want = RecoverySettings { policy: Recover::Manual, after: Duration::from_secs(2), min: Some(4) };
        assert_eq!(settings, want);
        for (name, text) in
            [("", "oldest"), ("_AFTER", "-1"), ("_AFTER", "nan"), ("_MIN", "few"), ("_MIN", "0")]
        {
            let name = format!("RINGFOLD_RECOVER{name}");
            let error = Master::builder().recovery_in(given(&name, text)).unwrap_err();
            let names_it = |why: &str| why.contains(&name) || why.contains("must be 1..=");
            assert!(matches!(&error, Error::BadArgument(why) if names_it(why)), "{error}");
        }
    }

    #[test]
    fn the_default_is_all_addresses_of_both_families() {
        let addresses = MasterBuilder::default().addresses().unwrap();
        assert_eq!(addresses.iter().map(|l| l.address.port()).collect::<Vec<_>>(), [48148, 48148]);
        assert!(addresses.iter().all(|l| l.address.ip().is_unspecified()));
    }
}
