//! Networks by name and by file.

use super::link::{AccessLink, Firewall, PathSettings};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// The links of a network, for any number of hosts.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it resembles.
    #[serde(default)]
    pub description: String,
    /// The largest packet in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: usize,
    /// The paths of all pairs that are not listed below.
    #[serde(default)]
    path: PathSpec,
    #[serde(default)]
    pairs: Vec<PairSpec>,
    #[serde(default)]
    hosts: Vec<HostSpec>,
    /// Hosts beyond this number have the links of host (number modulo this).
    #[serde(default)]
    repeats_after: Option<usize>,
}

/// A path between two hosts. What is missing is taken from the path of all pairs.
#[derive(Clone, Copy, PartialEq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathSpec {
    rate_mbit: Option<f64>,
    rtt_ms: Option<f64>,
    jitter_ms: Option<f64>,
    queue_ms: Option<f64>,
    loss_percent: Option<f64>,
    loss_burst: Option<f64>,
    duplicates_percent: Option<f64>,
    drops_udp: Option<bool>,
    drops_above_bytes: Option<usize>,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
struct PairSpec {
    hosts: [usize; 2],
    /// Only from the first host to the second.
    #[serde(default)]
    one_way: bool,
    #[serde(flatten)]
    path: PathSpec,
}

/// The link of a host to the network.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostSpec {
    /// All hosts without an entry of their own if it is missing.
    host: Option<usize>,
    up_mbit: Option<f64>,
    down_mbit: Option<f64>,
    queue_ms: Option<f64>,
    /// The host is behind a NAT that forgets a connection after this time without packets.
    nat_forgets_after_s: Option<f64>,
}

/// A profile is invalid, or there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileError(String);

impl std::fmt::Display for ProfileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProfileError {}

/// The profiles with names.
const NAMED: [(&str, &str); 10] = [
    ("lan", include_str!("profiles/lan.json")),
    ("metro", include_str!("profiles/metro.json")),
    ("continent", include_str!("profiles/continent.json")),
    ("ocean", include_str!("profiles/ocean.json")),
    ("lossy", include_str!("profiles/lossy.json")),
    ("bad", include_str!("profiles/bad.json")),
    ("home", include_str!("profiles/home.json")),
    ("mixed", include_str!("profiles/mixed.json")),
    ("backbone", include_str!("profiles/backbone.json")),
    ("newcomer", include_str!("profiles/newcomer.json")),
];

impl Profile {
    /// The profile with a name, or of a JSON file.
    pub fn load(name_or_file: &str) -> Result<Self, ProfileError> {
        Self::parse(name_or_file, &Self::text(name_or_file)?)
    }

    /// The JSON of a profile.
    pub fn text(name_or_file: &str) -> Result<String, ProfileError> {
        if let Some((_, text)) = NAMED.iter().find(|(name, _)| *name == name_or_file) {
            return Ok((*text).to_owned());
        }
        if !Path::new(name_or_file).exists() {
            let names = NAMED.map(|(name, _)| name).join(", ");
            return Err(ProfileError(format!(
                "unknown profile {name_or_file:?}: neither a file nor one of {names}"
            )));
        }
        std::fs::read_to_string(name_or_file)
            .map_err(|error| ProfileError(format!("cannot read {name_or_file}: {error}")))
    }

    /// The names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let invalid = |why: String| ProfileError(format!("invalid profile {name}: {why}"));
        let profile: Self = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        profile.check().map_err(invalid)?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        if !(1280..=65_535).contains(&self.mtu) {
            return Err(format!("invalid mtu {}: must be 1280..=65535", self.mtu));
        }
        if self.repeats_after == Some(0) {
            return Err("invalid repeats_after 0: must be > 0".into());
        }
        for path in std::iter::once(&self.path).chain(self.pairs.iter().map(|pair| &pair.path)) {
            path.check()?;
        }
        for host in &self.hosts {
            for rate in [host.up_mbit, host.down_mbit].into_iter().flatten() {
                check_rate(rate)?;
            }
            for time in [host.queue_ms, host.nat_forgets_after_s].into_iter().flatten() {
                check_time(time)?;
            }
        }
        Ok(())
    }

    /// One direction of the path between two hosts.
    pub fn path(&self, from: usize, to: usize) -> PathSettings {
        let (from, to) = (self.pattern_host(from), self.pattern_host(to));
        let of_pair = self
            .pairs
            .iter()
            .rev()
            .find(|pair| pair.hosts == [from, to] || (!pair.one_way && pair.hosts == [to, from]));
        of_pair.map_or(self.path, |pair| pair.path.or(self.path)).settings()
    }

    /// The link of a host to the network.
    pub fn access(&self, host: usize) -> AccessLink {
        let Some(spec) = self.host(host) else { return AccessLink::default() };
        let usual = AccessLink::default();
        AccessLink {
            up: spec.up_mbit.map(bits),
            down: spec.down_mbit.map(bits),
            queue: spec.queue_ms.map_or(usual.queue, millis),
        }
    }

    /// The firewall in front of a host.
    pub fn firewall(&self, host: usize) -> Option<Firewall> {
        let forgets_after = self.host(host)?.nat_forgets_after_s?;
        Some(Firewall { forgets_after: Duration::from_secs_f64(forgets_after) })
    }

    fn host(&self, host: usize) -> Option<&HostSpec> {
        let host = self.pattern_host(host);
        let own = self.hosts.iter().find(|spec| spec.host == Some(host));
        own.or_else(|| self.hosts.iter().find(|spec| spec.host.is_none()))
    }

    fn pattern_host(&self, host: usize) -> usize {
        self.repeats_after.map_or(host, |period| host % period)
    }
}

impl PathSpec {
    fn or(self, usual: Self) -> Self {
        Self {
            rate_mbit: self.rate_mbit.or(usual.rate_mbit),
            rtt_ms: self.rtt_ms.or(usual.rtt_ms),
            jitter_ms: self.jitter_ms.or(usual.jitter_ms),
            queue_ms: self.queue_ms.or(usual.queue_ms),
            loss_percent: self.loss_percent.or(usual.loss_percent),
            loss_burst: self.loss_burst.or(usual.loss_burst),
            duplicates_percent: self.duplicates_percent.or(usual.duplicates_percent),
            drops_udp: self.drops_udp.or(usual.drops_udp),
            drops_above_bytes: self.drops_above_bytes.or(usual.drops_above_bytes),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.rate_mbit.map_or(Ok(()), check_rate)?;
        for time in [self.rtt_ms, self.jitter_ms, self.queue_ms].into_iter().flatten() {
            check_time(time)?;
        }
        for share in [self.loss_percent, self.duplicates_percent].into_iter().flatten() {
            if !(0.0..=100.0).contains(&share) {
                return Err(format!("invalid share {share}: must be 0..=100 percent"));
            }
        }
        match self.loss_burst {
            Some(burst) if !(1.0..=1e6).contains(&burst) => {
                Err(format!("invalid loss_burst {burst}: must be 1..=1000000 packets"))
            }
            _ => Ok(()),
        }
    }

    fn settings(self) -> PathSettings {
        let usual = PathSettings::default();
        PathSettings {
            delay: self.rtt_ms.map_or(usual.delay, |rtt| millis(rtt / 2.0)),
            jitter: self.jitter_ms.map_or(usual.jitter, millis),
            rate: self.rate_mbit.map(bits),
            queue: self.queue_ms.map_or(usual.queue, millis),
            loss: self.loss_percent.map_or(usual.loss, |percent| percent / 100.0),
            loss_burst: self.loss_burst.unwrap_or(usual.loss_burst),
            drops_udp: self.drops_udp.unwrap_or(usual.drops_udp),
            drops_above: self.drops_above_bytes.or(usual.drops_above),
            duplicates: self.duplicates_percent.map_or(usual.duplicates, |percent| percent / 100.0),
        }
    }
}

fn default_mtu() -> usize {
    super::MTU
}

fn bits(mbit: f64) -> u64 {
    (mbit * 1e6) as u64
}

fn millis(millis: f64) -> Duration {
    Duration::from_secs_f64(millis / 1e3)
}

fn check_rate(mbit: f64) -> Result<(), String> {
    if (0.001..=1e6).contains(&mbit) {
        Ok(())
    } else {
        Err(format!("invalid rate {mbit}: must be 0.001..=1000000 Mbit/s"))
    }
}

fn check_time(time: f64) -> Result<(), String> {
    if (0.0..=1e6).contains(&time) {
        Ok(())
    } else {
        Err(format!("invalid time {time}: must be 0..=1000000"))
    }
}

#[cfg(test)]
mod tests;
