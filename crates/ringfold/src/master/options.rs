//! The configuration of a master from all sources.

use super::etcd::EtcdAddress;
use super::http::{Access, BoundHttp};
use super::{MASTER_PORT, MasterBuilder, limits};
use crate::doctor::memory_bytes;
use crate::error::invalid;
use crate::relay::RELAY_PORT;
use crate::settings::{self, Settings, User, table, with_port};
use crate::{Error, protection};
use core::time::Duration;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::listener::ListenAddress;
use ringfold_fabric::tls::{Security, TlsFiles};
use ringfold_proto::limits::{RELAYS_MAX, WORLD_MAX};
use ringfold_proto::recovery::RecoverySettings;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The configuration of a master: what its builder has, and else the settings.
#[derive(Clone, Debug)]
pub(super) struct MasterOptions {
    pub(super) settings: Settings,
    listen: Vec<String>,
    pub(super) token: JoinToken,
    pub(super) admin_token: JoinToken,
    http: Option<String>,
    http_token: JoinToken,
    pub(super) tls: Option<TlsFiles>,
    pub(super) is_insecure: bool,
    pub(super) timing: Timing,
    pub(super) unreachable_after: Option<Duration>,
    pub(super) tuning: Tuning,
    pub(super) recovery: RecoverySettings,
    relays: Vec<String>,
    pub(super) masters: Vec<String>,
    pub(super) this_master: Option<usize>,
    lease: Option<String>,
    pub(super) crash_after_commits: Option<u64>,
    pub(super) held_bytes_max: usize,
}

/// The longest time that peers wait for others to come back.
const RECOVER_AFTER_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The bytes that peers may make the master keep, all together.
fn held_bytes_max() -> usize {
    let (least, most) = limits::HELD_BYTES;
    memory_bytes().map_or(most, |bytes| (bytes / limits::MEMORY_SHARE).clamp(least, most)) as usize
}

impl MasterOptions {
    pub(super) fn new(builder: MasterBuilder) -> Result<Self, Error> {
        let settings = Settings::start(User::Master, &builder.given)?;
        // Addresses in a program name their port.
        let list = |own: Vec<String>, setting, port| match own.is_empty() {
            true => settings.list(setting).map(|text| with_port(text, port)).collect(),
            false => own,
        };
        let mut position = settings.number(&table::THIS_MASTER);
        let recovery = RecoverySettings {
            policy: match (builder.recover, settings.text(&table::RECOVER)) {
                (Some(policy), _) => policy,
                (None, Some(text)) => text.parse().map_err(|why| invalid!("invalid recover: {why}"))?,
                (None, None) => Default::default(),
            },
            after: (builder.recover_after.or(settings.time(&table::RECOVER_AFTER)))
                .map_or(RecoverySettings::default().after, |after| after.min(RECOVER_AFTER_MAX)),
            min: builder.recover_min.or(settings.number(&table::RECOVER_MIN)),
        };
        if let Some(min) = recovery.min.filter(|min| !(1..=WORLD_MAX).contains(min)) {
            return Err(invalid!("invalid number of peers to recover with {min}: must be 1..={WORLD_MAX}"));
        }
        let by_program = !builder.masters.is_empty() || settings.is_argument(&table::MASTERS);
        let mut masters = list(builder.masters, &table::MASTERS, MASTER_PORT);
        if masters.len() == 1 && !by_program {
            // It is where peers find a master that is alone, as in a container, and may be the address of a service.
            masters.clear();
            position = position.filter(|position| *position > 1);
        }
        Ok(Self {
            listen: list(builder.listen, &table::LISTEN, MASTER_PORT),
            token: settings::token(&settings, builder.token)?,
            admin_token: settings::token_of_file(&settings, &table::ADMIN_TOKEN_FILE, builder.admin_token)?,
            http: builder.http.or_else(|| settings.text(&table::HTTP).map(Into::into)),
            http_token: settings::token_of_file(&settings, &table::HTTP_TOKEN_FILE, builder.http_token)?,
            tls: settings::tls(&settings, builder.tls)?,
            is_insecure: builder.insecure.unwrap_or_else(|| settings.is_on(&table::INSECURE)),
            timing: settings::timing(&settings, builder.timing),
            unreachable_after: builder.unreachable_after,
            tuning: settings::tuning(&settings, builder.tuning)?,
            recovery,
            relays: list(builder.relays, &table::RELAYS, RELAY_PORT),
            masters,
            this_master: builder.this_master.or(position.and_then(|position| position.checked_sub(1))),
            lease: builder.lease.or_else(|| settings.text(&table::LEASE).map(Into::into)),
            crash_after_commits: builder.crash_after_commits,
            held_bytes_max: builder.held_bytes_max.unwrap_or_else(held_bytes_max),
            settings,
        })
    }

    /// The largest number of peers.
    pub(super) fn peers_max(&self) -> usize {
        self.settings.number(&table::PEERS_MAX).unwrap_or(WORLD_MAX)
    }

    /// Where the lease is, if there is one.
    pub(super) fn etcd(&self) -> Result<Option<EtcdAddress>, Error> {
        match &self.lease {
            Some(_) if self.masters.is_empty() => Err(invalid!("a lease needs the list of all masters")),
            lease => lease.as_deref().map(EtcdAddress::parse).transpose(),
        }
    }

    /// The HTTP server, if there is to be one: its ports are bound.
    pub(super) fn bind_http(&self) -> Result<Option<(BoundHttp, Access)>, Error> {
        let Some(address) = self.http.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let mut hosts: Vec<_> = self.settings.list(&table::HTTP_HOSTS).map(str::to_owned).collect();
        hosts.push(address.to_owned());
        let access = Access { admin: self.admin_token.clone(), read: self.http_token.clone(), hosts };
        let bound = BoundHttp::bind(address)?;
        let open = bound.addresses().into_iter().find(|address| protection::is_off_loopback(address.ip()));
        if let Some(address) = open {
            for (token, what) in
                [(&access.admin, "admin token"), (&access.read, "token of --http-token-file")]
            {
                protection::check_length(token, what)?;
            }
            if access.read.is_none() {
                protection::check_unauthenticated(&format!("HTTP on {address}"), &self.settings)?;
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

    /// The addresses to listen on; names are resolved.
    pub(super) fn addresses(&self) -> Result<Vec<ListenAddress>, Error> {
        listen_addresses(&self.listen, MASTER_PORT)
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

    /// Warns if the master listens on a non-loopback address without authentication, or fails if that is not allowed.
    pub(super) fn check_token(&self, security: &Security, addresses: &[SocketAddr]) -> Result<(), Error> {
        let open = addresses.iter().find(|address| protection::is_off_loopback(address.ip()));
        if let Some(address) = open.filter(|_| !security.has_certificates()) {
            for (token, what) in [(&self.token, "join token"), (&self.admin_token, "admin token")] {
                if let Err(error) = protection::check_length(token, what) {
                    tracing::warn!(
                        target: "ringfold::master",
                        "the master listens on {address}, where nobody can use its {what}: {error}"
                    );
                }
            }
        }
        let is_open = self.token.is_none() && !security.has_certificates();
        if let (true, Some(address)) = (is_open, open) {
            protection::check_unauthenticated(&format!("listening on {address}"), &self.settings)?;
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
    use crate::Master;
    use ringfold_proto::recovery::Recover;

    fn options(builder: MasterBuilder) -> MasterOptions {
        MasterOptions::new(builder).unwrap()
    }

    #[test]
    fn a_token_is_never_printed() {
        let builder = Master::builder().token("sesame");
        assert!(!format!("{builder:?} {:?}", builder.clone().build()).contains("sesame"));
    }

    #[test]
    fn an_invalid_address_is_named_in_the_error() {
        let builder = Master::builder().listen("127.0.0.1:1").listen("nonsense:x");
        let error = options(builder).addresses().unwrap_err();
        assert!(matches!(&error, Error::BadArgument(why) if why.contains("\"nonsense:x\"")), "{error}");
    }

    #[test]
    fn a_relay_that_peers_cannot_dial_is_an_error() {
        let relays =
            |texts: &[&str]| options(texts.iter().fold(Master::builder(), |b, text| b.relay(*text))).relays();
        assert_eq!(relays(&["192.0.2.1:5", "[2001:db8::1]:6"]).unwrap().len(), 2);
        for wrong in ["0.0.0.0:5", "192.0.2.1:0", "nonsense."] {
            let error = relays(&[wrong]).unwrap_err();
            assert!(matches!(&error, Error::BadArgument(why) if why.contains(wrong)), "{error}");
        }
        assert!(relays(&["192.0.2.1:5"; RELAYS_MAX + 1]).is_err());
    }

    #[test]
    fn recovery_is_set_by_methods_before_settings() {
        let recovery = |builder: MasterBuilder| MasterOptions::new(builder).map(|options| options.recovery);
        assert_eq!(recovery(Master::builder()).unwrap(), RecoverySettings::default());
        let given = [("recover", "majority"), ("recover_after", "1.5"), ("recover_min", "3")];
        let builder =
            given.iter().fold(Master::builder(), |builder, (name, text)| builder.setting(name, text));
        let after = Duration::from_millis(1500);
        let want = RecoverySettings { policy: Recover::Majority, after, min: Some(3) };
        assert_eq!(recovery(builder.clone()).unwrap(), want);
        let builder = builder.recover(Recover::Manual).recover_after(Duration::from_secs(2)).recover_min(4);
        let want = RecoverySettings { policy: Recover::Manual, after: Duration::from_secs(2), min: Some(4) };
        assert_eq!(recovery(builder.clone()).unwrap(), want);
        assert!(recovery(builder.recover_min(0)).is_err());
    }

    #[test]
    fn the_default_is_all_addresses_of_both_families() {
        let addresses = options(Master::builder()).addresses().unwrap();
        assert_eq!(addresses.iter().map(|l| l.address.port()).collect::<Vec<_>>(), [48148, 48148]);
        assert!(addresses.iter().all(|l| l.address.ip().is_unspecified()));
    }
}
