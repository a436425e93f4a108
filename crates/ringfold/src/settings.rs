//! What builders take from settings.

pub use ringfold_settings::{
    CONFIG_VARIABLE, Given, Kind, Setting, SettingError, Settings, SettingsFile, Source, USERS, User,
    reference, set_for_process, table,
};

use crate::error::invalid;
use crate::{Error, TuningFile};
use core::time::Duration;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::tls::TlsFiles;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::net::{IpAddr, SocketAddr};
use table::*;

/// TCP connections per pair on different hosts.
const STREAMS_DEFAULT: u16 = 4;

impl From<SettingError> for Error {
    fn from(error: SettingError) -> Self {
        invalid!("{error}")
    }
}

/// The deadlines and intervals: those of the program, or else those of the settings. A setting by argument has priority.
pub(crate) fn timing(settings: &Settings, given: Option<Timing>) -> Timing {
    let mut timing = given.unwrap_or_default();
    for (setting, time) in times_of(&mut timing) {
        if (given.is_none() || settings.is_argument(setting))
            && let Some(found) = settings.time(setting)
        {
            *time = found;
        }
    }
    timing
}

fn times_of(timing: &mut Timing) -> [(&'static Setting, &mut Duration); 18] {
    // All fields are named, so that none is forgotten.
    let Timing {
        heartbeat,
        silence_max,
        suspect_max,
        master_silence_max,
        master_return_max,
        redial,
        restore_grace,
        restore_window,
        establish_max,
        wait_max,
        answer_grace,
        announce_after,
        probe_max,
        tour_max,
        appraise_every,
        edge_distrust,
        relink_max,
        warn_after,
    } = timing;
    [
        (&HEARTBEAT, heartbeat),
        (&SILENCE_MAX, silence_max),
        (&SUSPECT_MAX, suspect_max),
        (&MASTER_SILENCE_MAX, master_silence_max),
        (&MASTER_RETURN_MAX, master_return_max),
        (&REDIAL, redial),
        (&RESTORE_GRACE, restore_grace),
        (&RESTORE_WINDOW, restore_window),
        (&ESTABLISH_MAX, establish_max),
        (&WAIT_MAX, wait_max),
        (&ANSWER_GRACE, answer_grace),
        (&ANNOUNCE_AFTER, announce_after),
        (&PROBE_MAX, probe_max),
        (&TOUR_MAX, tour_max),
        (&APPRAISE_EVERY, appraise_every),
        (&EDGE_DISTRUST, edge_distrust),
        (&RELINK_MAX, relink_max),
        (&WARN_AFTER, warn_after),
    ]
}

/// The join token: that of the program, or else that of the settings.
pub(crate) fn token(settings: &Settings, given: Option<JoinToken>) -> Result<JoinToken, Error> {
    if let Some(token) = given {
        return Ok(token);
    }
    let (token, file) = (settings.source(&JOIN_TOKEN), settings.source(&JOIN_TOKEN_FILE));
    if token.rank() >= file.rank() && settings.is_set(&JOIN_TOKEN) {
        return Ok(settings.text(&JOIN_TOKEN).map(JoinToken::from).unwrap_or_default());
    }
    match settings.path(&JOIN_TOKEN_FILE) {
        Some(path) => JoinToken::from_file(path).map_err(|error| invalid!("invalid {file}: {error}")),
        None => Ok(JoinToken::default()),
    }
}

/// Another token: that of the program, or else that of the file that a setting names.
pub(crate) fn token_of_file(
    settings: &Settings,
    setting: &'static Setting,
    given: Option<JoinToken>,
) -> Result<JoinToken, Error> {
    match (given, settings.path(setting)) {
        (Some(token), _) => Ok(token),
        (None, Some(path)) => JoinToken::from_file(path)
            .map_err(|error| invalid!("invalid {}: {error}", settings.source(setting))),
        (None, None) => Ok(JoinToken::default()),
    }
}

/// The join token of settings; none if there is no such setting.
pub fn join_token(settings: &Settings) -> Result<JoinToken, Error> {
    token(settings, None)
}

/// The certificates: those of the program, or else those of the settings.
pub(crate) fn tls(settings: &Settings, given: Option<TlsFiles>) -> Result<Option<TlsFiles>, Error> {
    match given {
        Some(files) => Ok(Some(files)),
        None => TlsFiles::of(settings).map_err(|error| invalid!("{error}")),
    }
}

/// The tuning: that of the program, or else that of the file that a setting names.
pub(crate) fn tuning(settings: &Settings, given: Option<Tuning>) -> Result<Tuning, Error> {
    match (given, settings.path(&TUNING)) {
        (Some(tuning), _) => Ok(tuning),
        (None, Some(path)) => Ok(TuningFile::read(path)?.tuning),
        (None, None) => Ok(Tuning::default()),
    }
}

/// What operations check, by the settings.
pub(crate) fn integrity(settings: &Settings) -> Result<Integrity, Error> {
    let integrity = settings.text(&INTEGRITY).map_or(Ok(Integrity::NONE), str::parse);
    integrity.map_err(|error| invalid!("{error}"))
}

/// The number of streams: that of the program, or else that of the settings.
pub(crate) fn streams(settings: &Settings, given: Option<u16>) -> u16 {
    let setting = || settings.number(&STREAMS).and_then(|streams| streams.try_into().ok());
    given.or_else(setting).unwrap_or(STREAMS_DEFAULT)
}

/// The addresses at which others dial this process, which listens at one: those of the program, or else those of the settings.
pub(crate) fn advertised(
    settings: &Settings,
    given: &[SocketAddr],
    listens: SocketAddr,
) -> Result<Vec<SocketAddr>, Error> {
    let mut advertised = given.to_vec();
    if advertised.is_empty() {
        advertised = advertised_by(settings)?;
    }
    if advertised.is_empty() {
        return Ok(vec![listens]);
    }
    for address in advertised.iter_mut().filter(|address| address.port() == 0) {
        address.set_port(listens.port());
    }
    Ok(advertised)
}

/// The addresses that a setting names; port 0 is the one that this process listens on.
pub(crate) fn advertised_by(settings: &Settings) -> Result<Vec<SocketAddr>, Error> {
    let parse = |text: &str| {
        let ip = text.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
        ip.or_else(|_| text.parse()).map_err(|_| {
            let source = settings.source(&ADVERTISE);
            invalid!("invalid {source} {text:?}: must be an IP address, with or without a port")
        })
    };
    settings.list(&ADVERTISE).map(parse).collect()
}

/// The masters of the run that settings name, separated by commas, for a communicator.
pub fn master_addresses(settings: &Settings) -> Option<String> {
    let masters: Vec<_> = settings.list(&MASTERS).map(|text| with_port(text, crate::MASTER_PORT)).collect();
    (!masters.is_empty()).then(|| masters.join(","))
}

/// Adds the default port to an address without one.
pub fn with_port(text: &str, port: u16) -> String {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) if !text.is_empty() && !text.contains([':', ' ', '/']) => format!("{text}:{port}"),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(user: User, values: &[(&str, &str)]) -> Settings {
        let mut given = Given::default();
        values.iter().for_each(|(name, value)| given.set(name, value));
        Settings::load(user, &given).unwrap()
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_the_code() {
        for user in [User::Master, User::Peer] {
            assert_eq!(timing(&settings(user, &[]), None), Timing::default());
        }
        let group = settings(User::Group, &[]);
        assert_eq!(group.time(&OPERATION_TIMEOUT), Some(crate::limits::OPERATION_MAX));
        assert_eq!(group.time(&BOOTSTRAP_TIMEOUT), Some(crate::limits::BOOTSTRAP_MAX));
        assert_eq!(group.time(&STALL_AFTER), Some(crate::limits::STALL_AFTER));
        assert_eq!(group.number(&SPARE_BACKUP_BYTES), Some(crate::limits::SPARE_BYTES_MAX));
        let peer = settings(User::Peer, &[]);
        assert_eq!(peer.time(&LINK_MAX), Some(crate::limits::LINK_MAX));
        let master = settings(User::Master, &[]);
        assert_eq!(master.number(&PEERS_MAX), Some(ringfold_proto::limits::WORLD_MAX));
        let recovery = ringfold_proto::recovery::RecoverySettings::default();
        assert_eq!(master.time(&RECOVER_AFTER), Some(recovery.after));
        assert_eq!(master.text(&RECOVER).unwrap().parse(), Ok(recovery.policy));
    }

    #[test]
    fn arguments_precede_the_timing_of_the_program() {
        let own = Timing { redial: Duration::from_secs(9), ..Timing::default() };
        let peer = settings(User::Peer, &[("heartbeat", "1s")]);
        let both = timing(&peer, Some(own));
        assert_eq!((both.heartbeat, both.redial), (Duration::from_secs(1), own.redial));
    }

    #[test]
    fn the_token_of_the_better_source_is_used() {
        let length =
            |values: &[(&str, &str)]| token(&settings(User::Peer, values), None).map(|t| t.shortest());
        assert_eq!(length(&[("join_token", "sesame"), ("join_token_file", "/nonexistent")]), Ok(6));
        let error = length(&[("join_token_file", "/nonexistent")]).unwrap_err().to_string();
        assert!(error.contains("invalid setting join_token_file: "), "{error}");
        let own = token(&settings(User::Peer, &[("join_token", "sesame")]), Some("".into()));
        assert!(own.unwrap().is_none());
    }

    #[test]
    fn an_address_without_a_port_gets_the_default_port() {
        assert_eq!(with_port("10.0.0.1", 48148), "10.0.0.1:48148");
        assert_eq!(with_port("::1", 48148), "[::1]:48148");
        assert_eq!(with_port("[::1]", 48148), "[::1]:48148");
        assert_eq!(with_port("[::1]:0", 48148), "[::1]:0");
        assert_eq!(with_port("localhost:99", 48148), "localhost:99");
        assert_eq!(with_port("localhost", 48148), "localhost:48148");
    }
}
