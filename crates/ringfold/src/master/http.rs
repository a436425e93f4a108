//! The master over HTTP/1.1, for people and monitoring: metrics, health, status, a web page.
//!
//! One thread serves all clients, on the listening sockets and connections of the fabric. It asks the thread of the master for a
//! [`Snapshot`](super::snapshot::Snapshot) when somebody needs one, at most ten times a second, and never waits for it.

mod access;
mod assets;
mod client;
mod feed;
mod metrics;
pub(crate) mod request;
mod response;
mod routes;
mod server;

pub(super) use access::Access;

use super::inquiry::Inquiries;
use crate::Error;
use crate::error::invalid;
use core::time::Duration;
use ringfold_fabric::listener::{ListenAddress, ListeningSockets};
use ringfold_fabric::poller::Poller;
use server::HttpServer;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The default port of a master's HTTP server.
pub const HTTP_PORT: u16 = 48180;

/// Limits of the HTTP server.
mod limits {
    use super::Duration;

    /// Bytes of the first line and the headers of a request.
    pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
    pub(super) const HEADERS_MAX: usize = 64;
    /// Bytes of the body of a request.
    pub(super) const BODY_BYTES_MAX: usize = 16 << 10;
    /// Connections; if there are more, those of the address with the most of them give way.
    pub(super) const CONNECTIONS_MAX: usize = 256;
    /// Requests of one connection that are answered before those of others.
    pub(super) const REQUESTS_PER_TURN: usize = 16;
    /// From the first byte of a request to the last.
    pub(super) const REQUEST_MAX: Duration = Duration::from_secs(10);
    /// Between two requests.
    pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);
    /// How long a client may take to read a response, or a message of a stream.
    pub(super) const WRITE_MAX: Duration = Duration::from_secs(10);
    /// How long a connection is kept for the last bytes.
    pub(super) const CLOSE_MAX: Duration = Duration::from_secs(2);
    /// How long the thread of the master may take to answer.
    pub(super) const ANSWER_MAX: Duration = Duration::from_secs(2);
    /// The shortest interval between two questions for the status. Its answer is used for so long, unless members change.
    pub(super) const ASK_EVERY: Duration = Duration::from_millis(100);
    /// The shortest interval between two messages of a stream, unless members change.
    pub(super) const STREAM_EVERY: Duration = Duration::from_millis(500);
    /// A message is sent after this time, also if only times have changed.
    pub(super) const STREAM_REFRESH: Duration = Duration::from_secs(2);
    /// A comment is sent on a stream after this time without a message.
    pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
    /// The longest sleep.
    pub(super) const SLEEP_MAX: Duration = Duration::from_secs(60);
}

/// The thread of the server. It ends when this is dropped, and then its ports are free.
pub(super) struct HttpThread {
    addresses: Vec<SocketAddr>,
    poller: Arc<Poller>,
    interrupted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A server whose ports are bound.
pub(super) struct BoundHttp {
    poller: Arc<Poller>,
    sockets: ListeningSockets,
}

impl BoundHttp {
    /// Binds an address: `HOST:PORT`, `HOST` or `PORT`.
    pub(super) fn bind(text: &str) -> Result<Self, Error> {
        let system = |e: std::io::Error| Error::system("creating the poller of the HTTP server failed", &e);
        let poller = Arc::new(Poller::new().map_err(system)?);
        let sockets = ListeningSockets::bind(&resolve(text)?, &poller);
        Ok(Self { poller, sockets: sockets.map_err(|error| Error::Bind(format!("HTTP: {error}")))? })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.addresses().collect()
    }

    /// Serves, on a thread of its own. `master` is the poller of the master.
    pub(super) fn start(
        self,
        access: Access,
        inquiries: Arc<Inquiries>,
        master: Arc<Poller>,
    ) -> Result<HttpThread, Error> {
        let (addresses, poller) = (self.addresses(), self.poller);
        let interrupted = Arc::new(AtomicBool::new(false));
        inquiries.set_watcher(poller.clone());
        let server = HttpServer::new(poller.clone(), self.sockets, access, inquiries, master);
        let until = interrupted.clone();
        let serve = move || {
            let outcome = super::guarded("HTTP server", || {
                server.serve(&until).map_err(|e| Error::system("the loop of the HTTP server", &e))
            });
            // The run goes on without it.
            if let Err(error) = outcome {
                tracing::error!(target: "ringfold::master", "{error}");
            }
        };
        let thread = std::thread::Builder::new().name("ringfold-http".into()).spawn(serve);
        let thread =
            thread.map_err(|e| Error::system("starting the thread of the HTTP server failed", &e))?;
        for address in &addresses {
            tracing::info!(target: "ringfold::master", "http listening on {address}");
        }
        Ok(HttpThread { addresses, poller, interrupted, thread: Some(thread) })
    }
}

impl HttpThread {
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        self.interrupted.store(true, Ordering::Release);
        self.poller.kick();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics.
            let _ = thread.join();
        }
    }
}

/// The addresses of `HOST:PORT`, `HOST`, or `PORT`, which is one of loopback.
fn resolve(text: &str) -> Result<Vec<ListenAddress>, Error> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    let found: std::io::Result<Vec<SocketAddr>> = if let Ok(port) = port {
        Ok(vec![(Ipv4Addr::LOCALHOST, port).into()])
    } else if let Ok(ip) = bare.parse::<IpAddr>() {
        Ok(vec![(ip, HTTP_PORT).into()])
    } else if text.contains(':') {
        text.to_socket_addrs().map(Iterator::collect)
    } else {
        (text, HTTP_PORT).to_socket_addrs().map(Iterator::collect)
    };
    let found = found.map_err(|error| invalid!("invalid HTTP address {text:?}: {error}"))?;
    // A name may resolve to an address family that this host lacks.
    let optional = found.len() > 1;
    Ok(found.into_iter().map(|address| ListenAddress { address, optional }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_its_host_or_its_port() {
        let first = |text| resolve(text).map(|found| found[0].address.to_string());
        for (text, want) in [
            ("8080", "127.0.0.1:8080"),
            (":8080", "127.0.0.1:8080"),
            ("0.0.0.0", "0.0.0.0:48180"),
            ("[::1]", "[::1]:48180"),
            ("[::1]:9", "[::1]:9"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert_eq!(first(text).unwrap(), want, "{text}");
        }
        let error = first("no such host").unwrap_err().to_string();
        assert!(error.starts_with("invalid HTTP address \"no such host\""), "{error}");
    }
}
