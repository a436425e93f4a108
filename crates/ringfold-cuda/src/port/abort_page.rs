//! Abort pages: they end all waits of a port, also in kernels, and receive the error of a kernel that timed out.
//!
//! A port has one page, and the process has one for waits that belong to no port. Kernels access a page in mapped
//! memory, which needs a device, so it is mapped only when a kernel needs it.
//!
//! ```text
//!  0 u64 flag       0 none, 1 the host ends all waits, 2 a kernel timed out
//!  8 u64 spin_ns    the time limit of a kernel's wait
//! 16 u64 error      what the kernel waited for (8 bits), the line of an assertion (24), and the peer, or -1 (32)
//! 24 u64 waited_ns  how long it waited
//! ```
//!
//! A device's reads of one line of host memory are serialised, at about a microsecond each. So the page has many lines,
//! each with a flag and a time limit, and warps read different ones. Only the first has the error.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host_words::HostWords;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

const LINES: usize = 32;
const LINE_WORDS: usize = 16;

/// The size of a page.
pub const ABORT_PAGE_BYTES: usize = LINES * LINE_WORDS * 8;

/// The default time limit of a kernel's wait.
pub const SPIN_DEFAULT: Duration = Duration::from_secs(300);

const FLAG: usize = 0;
const SPIN_NS: usize = 1;
const ERROR_WORD: usize = 2;
const WAITED_NS: usize = 3;

const FLAG_BY_HOST: u64 = 1;

/// The abort page of a port or of the process.
pub struct AbortPage {
    /// Whether the host has ended all waits: read by threads of the host.
    is_set: AtomicBool,
    reason: Mutex<Option<String>>,
    spin_ns: AtomicU64,
    /// Read by kernels; mapped on first use.
    mapped: OnceLock<HostWords>,
    /// Held while `mapped` is created, which may block until a kernel has ended; `set` must not wait for it.
    mapping: Mutex<()>,
    /// Held while `mapped` is published or written.
    change: Mutex<()>,
    /// Whether it is counted in [`PortCounts`].
    belongs_to_port: bool,
}

/// A wait of a kernel that timed out, or another error of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceError {
    /// What the kernel waited for.
    pub what: DeviceWait,
    /// The peer that it waited for, if any.
    pub peer: Option<i32>,
    /// The source line; 0 if unknown.
    pub line: u32,
    /// How long it waited.
    pub waited: Duration,
}

/// What kernels wait for, and the other errors that they report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceWait {
    /// A semaphore.
    Signal,
    /// Room in a FIFO.
    FifoSpace,
    /// The proxy.
    Flush,
    /// A packet.
    Packet,
    /// The other blocks of the kernel.
    Blocks,
    /// Not a wait: an offset, a size or a number that a trigger cannot represent.
    Argument,
    /// Not a wait: an assertion did not hold.
    Assertion,
    /// A bulk copy.
    Bulk,
    /// Not a wait: memory outside of a window, or of an unknown rank.
    Bounds,
    /// An unknown code.
    Unknown(u32),
}

/// The process's page, and the ports that it represents.
struct ProcessState {
    page: OnceLock<AbortPage>,
    ports: Mutex<PortCounts>,
}

#[derive(Default)]
struct PortCounts {
    open: usize,
    aborted: usize,
}

static PROCESS: ProcessState =
    ProcessState { page: OnceLock::new(), ports: Mutex::new(PortCounts { open: 0, aborted: 0 }) };

/// The device address of the process's page, for waits without a port. None without a usable device.
pub fn process_page_address() -> Option<u64> {
    process_page().device_address().ok()
}

fn process_page() -> &'static AbortPage {
    PROCESS.page.get_or_init(|| AbortPage::new(false))
}

impl AbortPage {
    /// Creates the page of a port.
    pub fn open() -> Arc<Self> {
        let mut ports = PROCESS.ports.lock();
        if ports.open == 0 {
            // Discard the errors of earlier ports.
            process_page().clear();
        }
        ports.open += 1;
        Arc::new(Self::new(true))
    }

    /// Creates a page that is independent of the process's page.
    pub fn standalone() -> Arc<Self> {
        Arc::new(Self::new(false))
    }

    fn new(belongs_to_port: bool) -> Self {
        Self {
            is_set: AtomicBool::new(false),
            reason: Mutex::new(None),
            spin_ns: AtomicU64::new(nanoseconds(SPIN_DEFAULT)),
            mapped: OnceLock::new(),
            mapping: Mutex::new(()),
            change: Mutex::new(()),
            belongs_to_port,
        }
    }

    /// The device address. Needs a device.
    pub fn device_address(&self) -> Result<u64, CudaError> {
        if let Some(mapped) = self.mapped.get() {
            return Ok(mapped.device_address());
        }
        let _mapping = self.mapping.lock();
        if let Some(mapped) = self.mapped.get() {
            return Ok(mapped.device_address());
        }
        let page = Gpu::current()?.map_host_words(ABORT_PAGE_BYTES)?;
        let _change = self.change.lock();
        write_all(&page, SPIN_NS, self.spin_ns.load(Ordering::Relaxed));
        write_all(&page, FLAG, self.is_set.load(Ordering::Acquire).into());
        Ok(self.mapped.get_or_init(|| page).device_address())
    }

    /// Ends all waits, of host threads and of kernels. The first reason is kept.
    pub fn set(&self, reason: &str) {
        {
            let mut first = self.reason.lock();
            if first.is_some() {
                return;
            }
            *first = Some(reason.to_owned());
        }
        {
            let _change = self.change.lock();
            self.is_set.store(true, Ordering::Release);
            if let Some(mapped) = self.mapped.get() {
                write_all(mapped, FLAG, FLAG_BY_HOST);
            }
        }
        if self.belongs_to_port {
            let mut ports = PROCESS.ports.lock();
            ports.aborted += 1;
            process_page().set(reason);
        }
    }

    /// Whether the host has ended all waits.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// The reason given to [`Self::set`].
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// The error that a kernel reported on this page, or on the process's.
    pub fn error(&self) -> Option<DeviceError> {
        self.read_report().or_else(|| if self.belongs_to_port { process_page().read_report() } else { None })
    }

    /// Sets the time limit of kernels' waits; zero means the default.
    pub fn set_spin_timeout(&self, spin: Duration) {
        {
            let _change = self.change.lock();
            self.spin_ns.store(nanoseconds(spin), Ordering::Relaxed);
            if let Some(mapped) = self.mapped.get() {
                write_all(mapped, SPIN_NS, nanoseconds(spin));
            }
        }
        if self.belongs_to_port {
            // Waits without a port use the last limit that was set for any port.
            process_page().set_spin_timeout(spin);
        }
    }

    /// The time limit of kernels' waits.
    pub fn spin_timeout(&self) -> Duration {
        match self.spin_ns.load(Ordering::Relaxed) {
            0 => SPIN_DEFAULT,
            spin_ns => Duration::from_nanos(spin_ns),
        }
    }

    fn read_report(&self) -> Option<DeviceError> {
        self.mapped.get().and_then(read_error)
    }

    /// Resets the page: waits are possible again.
    fn clear(&self) {
        let _change = self.change.lock();
        *self.reason.lock() = None;
        self.is_set.store(false, Ordering::Release);
        if let Some(mapped) = self.mapped.get() {
            mapped.word(ERROR_WORD).store(0, Ordering::Relaxed);
            mapped.word(WAITED_NS).store(0, Ordering::Relaxed);
            write_all(mapped, FLAG, 0);
        }
    }
}

impl Drop for AbortPage {
    fn drop(&mut self) {
        if !self.belongs_to_port {
            return;
        }
        let mut ports = PROCESS.ports.lock();
        ports.open -= 1;
        if self.is_set() {
            ports.aborted -= 1;
            if ports.aborted == 0 {
                process_page().clear();
            }
        }
    }
}

debug_as!(AbortPage, self => "AbortPage(reason {:?}, error {:?})", self.reason(), self.error());

impl DeviceWait {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Signal,
            2 => Self::FifoSpace,
            3 => Self::Flush,
            4 => Self::Packet,
            5 => Self::Blocks,
            6 => Self::Argument,
            7 => Self::Assertion,
            8 => Self::Bulk,
            9 => Self::Bounds,
            number => Self::Unknown(number),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = SourceLine(self.line);
        let what = match self.what {
            DeviceWait::Argument => {
                return write!(
                    out,
                    "a kernel requested a put with an invalid size, offset or memory id{line}"
                );
            }
            DeviceWait::Assertion => return write!(out, "an assertion in a kernel failed{line}"),
            DeviceWait::Bounds => {
                let rank = self.peer.unwrap_or(-1);
                return write!(out, "a kernel accessed memory outside of the window of rank {rank}");
            }
            DeviceWait::Signal => "a signal",
            DeviceWait::FifoSpace => "room in the FIFO of a proxy",
            DeviceWait::Flush => "a proxy to complete its requests",
            DeviceWait::Packet => "a packet",
            DeviceWait::Blocks => "the other blocks of its grid",
            DeviceWait::Bulk => "a bulk copy",
            DeviceWait::Unknown(_) => "an unknown condition",
        };
        write!(out, "a kernel timed out after {} waiting for {what}", Seconds(self.waited))?;
        match self.peer {
            Some(peer) if matches!(self.what, DeviceWait::Signal | DeviceWait::Packet) => {
                write!(out, " from rank {peer}")?;
            }
            Some(peer) => write!(out, " (peer: rank {peer})")?,
            None => {}
        }
        write!(out, "{line}")
    }
}

struct SourceLine(u32);

impl fmt::Display for SourceLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(out, " (line {})", self.0) }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds >= 10.0 { write!(out, "{seconds:.0} s") } else { write!(out, "{seconds:.3} s") }
    }
}

fn write_all(page: &HostWords, word: usize, value: u64) {
    for line in 0..LINES {
        page.word(line * LINE_WORDS + word).store(value, Ordering::Release);
    }
}

fn read_error(page: &HostWords) -> Option<DeviceError> {
    if page.word(FLAG).load(Ordering::Acquire) == 0 {
        return None;
    }
    let report = page.word(ERROR_WORD).load(Ordering::Acquire);
    if report == 0 {
        return None;
    }
    let peer = (report >> 32) as i32;
    Some(DeviceError {
        what: DeviceWait::of(report as u32 & 0xff),
        peer: (peer >= 0).then_some(peer),
        line: report as u32 >> 8,
        waited: Duration::from_nanos(page.word(WAITED_NS).load(Ordering::Relaxed)),
    })
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
