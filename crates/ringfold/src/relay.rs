//! Relays for peers that cannot reach each other.

use crate::Error;
use crate::error::invalid;
use crate::journal::{Source, SourceKind};
use crate::master::{guarded, listen_addresses};
use crate::process_name::process_name;
use crate::protection;
use crate::settings::{self, Given, Settings, User, table, with_port};
use core::time::Duration;
use parking_lot::Mutex;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::relay::{RelayHandle, RelayServer};
use ringfold_fabric::tls::{Security, TlsFiles};
use ringfold_proto::id::PeerId;
use ringfold_proto::limits::NAME_BYTES_MAX;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The default port of a relay.
pub const RELAY_PORT: u16 = 48149;

/// A relay: carries the traffic of peers that cannot reach each other, because both are behind a NAT or a firewall.
///
/// All peers of the run must reach it. The master tells them of it (`MasterBuilder::relay`). It joins two peers that prove
/// the join token or show certificates of the run, and name each other; it never connects to anything. Peers authenticate each other
/// through it with a key that it does not know, and encrypt what it copies.
///
/// ```
/// let relay = ringfold::Relay::builder().listen("127.0.0.1:0").token("secret").start()?;
/// assert_ne!(relay.addresses()[0].port(), 0);
/// relay.interrupt();
/// relay.wait()?;
/// # Ok::<(), ringfold::Error>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    addresses: Vec<SocketAddr>,
    handle: RelayHandle,
    thread: Mutex<Option<JoinHandle<Result<(), Error>>>>,
}

/// Configures a [`Relay`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RelayBuilder {
    listen: Vec<String>,
    token: Option<JoinToken>,
    unreachable_after: Option<Duration>,
    given: Given,
}

/// What a relay has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayStatistics {
    /// Pairs of connections that were joined.
    pub pairs: u64,
    /// Pairs that are joined now.
    pub open_pairs: u64,
    /// Bytes that were copied, in both directions.
    pub bytes: u64,
    /// Connections that were never joined.
    pub unmatched: u64,
}

impl RelayBuilder {
    /// An address to listen on, `host:port`. May be repeated. Default: port 48149 of all addresses.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// The join token of the run. Default: the settings `join_token` and `join_token_file`.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long the host of a peer may acknowledge nothing before it counts as lost; at least 3 s.
    ///
    /// Default: the setting `unreachable_after`, or 15 s.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// Sets a [setting](crate::settings) by its name. A method for the same thing has priority.
    pub fn setting(mut self, name: &str, value: impl core::fmt::Display) -> Self {
        self.given.set(name, value);
        self
    }

    /// Sets all [settings](crate::settings) by argument.
    pub fn settings(mut self, given: Given) -> Self {
        self.given = given;
        self
    }

    /// Listens, and serves on a background thread.
    pub fn start(self) -> Result<Relay, Error> {
        let system = |error: io::Error| Error::system("starting the relay failed", &error);
        let settings = Settings::start(User::Relay, &self.given)?;
        let token = settings::token(&settings, self.token)?;
        let tls = TlsFiles::of(&settings).map_err(|error| invalid!("{error}"))?;
        let security = protection::keys(&token, tls.as_ref(), settings.is_on(&table::INSECURE))?;
        let poller = Poller::with_settings(&settings).map_err(system)?.with_security(security.clone());
        self.unreachable_after.inspect(|limit| poller.set_unreachable_after(*limit));
        let poller = Arc::new(poller);
        let listen = if self.listen.is_empty() {
            settings.list(&table::LISTEN).map(|text| with_port(text, RELAY_PORT)).collect()
        } else {
            self.listen
        };
        let listener = Listener::bind(&listen_addresses(&listen, RELAY_PORT)?, &poller);
        let listener = listener.map_err(|error| Error::Bind(error.to_string()))?;
        let addresses: Vec<_> = listener.addresses().collect();
        check_open(&token, &security, &addresses, &settings)?;
        // The log of the relay goes to the flight recorder, if there is one.
        Source::new(SourceKind::Relay, process_name(NAME_BYTES_MAX), &settings);
        let (server, handle) = RelayServer::new(poller, Some(listener), token);
        let thread = spawn(server).map_err(system)?;
        tracing::info!(?addresses, "the relay is listening");
        Ok(Relay { addresses, handle, thread: Mutex::new(Some(thread)) })
    }
}

/// Warns if anyone can use a relay off loopback, or fails if that is not allowed.
fn check_open(
    token: &JoinToken,
    security: &Security,
    addresses: &[SocketAddr],
    settings: &Settings,
) -> Result<(), Error> {
    let open = addresses.iter().find(|address| protection::is_off_loopback(address.ip()));
    if let (Some(address), false) = (open, security.has_certificates()) {
        protection::check_length(token, "join token")?;
        if token.is_none() {
            protection::check_unauthenticated(&format!("listening on {address}"), settings)?;
            tracing::warn!(
                "the relay listens on {address} without a join token or certificates: anyone who can reach this address can use it. \
                 Give it the token or a certificate of the run, or set max_upload and relay_pair_rate"
            );
        }
    }
    Ok(())
}

impl Relay {
    /// Configures a relay.
    pub fn builder() -> RelayBuilder {
        RelayBuilder::default()
    }

    /// The addresses it listens on, with the ports chosen for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it has done so far.
    pub fn statistics(&self) -> RelayStatistics {
        let counters = self.handle.counters();
        RelayStatistics {
            pairs: counters.pairs.load(Ordering::Relaxed),
            open_pairs: counters.open_pairs.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            unmatched: counters.unmatched.load(Ordering::Relaxed),
        }
    }

    /// Ends the relay soon. Peers lose the links that go through it.
    pub fn interrupt(&self) {
        self.handle.interrupt();
    }

    /// Waits until the relay has ended. Then its ports are free.
    pub fn wait(&self) -> Result<(), Error> {
        let Some(thread) = self.thread.lock().take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(Error::Internal("the relay panicked".into())))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.interrupt();
        // It is reported by `wait`.
        let _ = self.wait();
    }
}

fn spawn(server: RelayServer) -> io::Result<JoinHandle<Result<(), Error>>> {
    let serve =
        || guarded("relay", || server.serve().map_err(|error| Error::system("the relay's loop", &error)));
    std::thread::Builder::new().name("ringfold-relay".into()).spawn(serve)
}

/// The relay of a peer that volunteers. Its thread starts with the first visitor, and ends with the peer.
#[derive(Default)]
pub(crate) struct VolunteerRelay {
    handle: Option<RelayHandle>,
}

impl VolunteerRelay {
    /// A member has connected, to meet another one.
    pub(crate) fn add(&mut self, peer: PeerId, connection: BlockingConnection, owner: &Poller) {
        if self.handle.is_none() {
            let started = Poller::beside(owner).and_then(|poller| {
                let (server, handle) = RelayServer::new(Arc::new(poller), None, JoinToken::default());
                spawn(server).map(|_| handle)
            });
            match started {
                Ok(handle) => self.handle = Some(handle),
                Err(error) => return tracing::warn!("cannot start the relay of this peer: {error}"),
            }
        }
        if let Some(handle) = &self.handle {
            handle.add(peer, connection);
        }
    }
}

impl Drop for VolunteerRelay {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.interrupt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_must_authenticate_does_not_start_open() {
        let start = |token: &str, address: &str| {
            let builder = Relay::builder().listen(address).token(token).setting("require_auth", true);
            builder.start().map(|relay| relay.interrupt()).map_err(|error| error.to_string())
        };
        let error = start("", "0.0.0.0:0").unwrap_err();
        assert!(error.contains("is not authenticated, and setting require_auth is set"), "{error}");
        let error = start("sesame", "0.0.0.0:0").unwrap_err();
        assert!(error.starts_with("invalid join token of 6 bytes: off loopback"), "{error}");
        assert_eq!(start("", "127.0.0.1:0"), Ok(()));
        assert_eq!(start("0123456789abcdef", "0.0.0.0:0"), Ok(()));
    }
}
