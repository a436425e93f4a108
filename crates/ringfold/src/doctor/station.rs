//! The listener of a running doctor: it answers others, by TCP and by UDP.

use super::service::DoctorService;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::host;
use ringfold_fabric::listener::{Listener, Outcome};
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_proto::handshake::Identity;
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::RunId;
use rustix::net::SocketType;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long its threads sleep if nothing happens.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Listens until it is dropped.
pub(super) struct Station {
    address: SocketAddr,
    /// Whether datagrams are answered, too.
    pub has_udp: bool,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Station {
    /// Listens on a port, or any free one.
    pub fn start(service: &DoctorService, bind: Option<IpAddr>, port: u16) -> io::Result<Self> {
        let poller = Arc::new(Poller::new()?.with_security(service.security().clone()));
        let listener = Listener::bind_in(bind, port..=port, &poller)?;
        let address = listener.address();
        let ends = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let udp = host::bound_socket(address, SocketType::DGRAM).map(UdpSocket::from);
        let has_udp = udp.is_ok();
        if let Ok(udp) = udp {
            let (service, ends) = (service.clone(), ends.clone());
            let echo = move || echo(&udp, &service, &ends);
            threads.push(std::thread::Builder::new().name("doctor-udp".into()).spawn(echo)?);
        }
        let (service, ends_too) = (service.clone(), ends.clone());
        let accept = move || accept(listener, &poller, &service, &ends_too);
        threads.push(std::thread::Builder::new().name("doctor-tcp".into()).spawn(accept)?);
        Ok(Self { address, has_udp, ends, threads })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn accept(mut listener: Listener, poller: &Poller, service: &DoctorService, ends: &AtomicBool) {
    let (clock, mut ready) = (Clock::start(), Readiness::default());
    let identity = Identity::new(service.security().peer(), RunId(0));
    let secrets = |hello: &Hello| match hello.purpose {
        Purpose::Doctor if service.has_room() => Ok(service.token().secret()),
        Purpose::Doctor => Err(ConnectionRejection::Full),
        _ => Err(ConnectionRejection::WrongPurpose),
    };
    while !ends.load(Ordering::Acquire) {
        if let Err(error) = poller.wait(&mut ready, SLEEP_MAX) {
            tracing::warn!(%error, "the doctor cannot listen any more");
            return;
        }
        let now = clock.now();
        for token in ready.tokens() {
            listener.handle_ready(now, token, identity, &secrets);
        }
        listener.handle_timeout(now);
        while let Some(outcome) = listener.poll_outcome() {
            match outcome {
                Outcome::Established(_, connection, from) => match connection.into_blocking() {
                    Ok(connection) => service.serve(connection, from),
                    Err(error) => tracing::debug!(%from, %error, "cannot answer a doctor"),
                },
                Outcome::Rejected(from, rejection) => {
                    tracing::debug!(%from, %rejection, "rejected connection");
                }
            }
        }
    }
}

/// Returns datagrams that were announced on an authenticated connection.
fn echo(socket: &UdpSocket, service: &DoctorService, ends: &AtomicBool) {
    if let Err(error) = socket.set_read_timeout(Some(SLEEP_MAX)) {
        tracing::warn!(%error, "the doctor cannot receive datagrams");
        return;
    }
    let mut buffer = [0; 64];
    while !ends.load(Ordering::Acquire) {
        // A timeout, or an error that an earlier answer has caused.
        let Ok((bytes, from)) = socket.recv_from(&mut buffer) else { continue };
        if service.expects_datagram(&buffer[..bytes]) {
            let _ = socket.send_to(&buffer[..bytes], from);
        }
    }
}
