//! Messages to the service manager that started this process: systemd units with `Type=notify`.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The shortest time between two messages of the watchdog.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The service manager. Without one, messages go nowhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<Arc<NotifySocket>>,
    /// A process that says nothing for this long is killed.
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
    has_warned: AtomicBool,
}

impl ServiceManager {
    /// The one that `NOTIFY_SOCKET` names. A socket that cannot be used is logged.
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        match open(&name) {
            Ok(socket) => Self { socket: Some(Arc::new(socket)), watchdog: watchdog_interval() },
            Err(error) => {
                tracing::warn!("cannot notify the service manager: {error:#}");
                Self::default()
            }
        }
    }

    /// The process serves.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The process ends.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Says twice per interval of the watchdog that the process is well, if it is. `is_well` may take the given time.
    pub(crate) fn watch(&self, is_well: impl Fn(Duration) -> bool + Send + 'static) -> Result<()> {
        let Some(interval) = self.watchdog else {
            return Ok(());
        };
        let manager = self.clone();
        let body = move || {
            loop {
                if is_well(interval / 4) {
                    manager.send("WATCHDOG=1");
                }
                thread::sleep((interval / 2).max(PAUSE_MIN));
            }
        };
        thread::Builder::new().name("watchdog".into()).spawn(body)?;
        Ok(())
    }

    fn send(&self, text: &str) {
        let Some(NotifySocket { socket, address, has_warned }) = self.socket.as_deref() else {
            return;
        };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), address)
            && !has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("cannot notify the service manager: {error}");
        }
    }
}

fn open(name: &OsStr) -> Result<NotifySocket> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(name),
    };
    let address = address.with_context(|| format!("invalid NOTIFY_SOCKET {}", name.display()))?;
    let socket = UnixDatagram::unbound().context("cannot create a socket")?;
    // A manager that does not read must not block the process.
    socket.set_nonblocking(true).context("cannot create a socket")?;
    Ok(NotifySocket { socket, address, has_warned: AtomicBool::new(false) })
}

/// The interval of the watchdog, if there is one and it is for this process.
fn watchdog_interval() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0).map(Duration::from_micros)
}
