//! The word that ends every wait of a port, also of kernels that spin on a device, and what such a kernel left behind.
//!
//! A port has one page, and the process has one for waits that belong to no port. Kernels see a page in mapped memory,
//! which needs a device, so it is only made when a kernel is to see it.
//!
//! ```text
//!  0 u64 flag       0 go on, 1 the host ends all waits, 2 a kernel gave up
//!  8 u64 spin_ns    how long a kernel waits before it gives up
//! 16 u64 told       what that kernel waited for (8 bits), the line of an assertion (24), and for whom, or -1 (32)
//! 24 u64 waited_ns  how long it has
//! ```
//!
//! A device's reads of one line of the host's memory come one after the other, a microsecond each. So the page has many
//! lines, each with a flag and a time, and warps look at different ones. What was told is in the first.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host_words::HostWords;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// How many lines a page has, and the words of each.
const LINES: usize = 32;
const LINE_WORDS: usize = 16;

/// The size of a page.
pub const ABORT_PAGE_BYTES: usize = LINES * LINE_WORDS * 8;

/// How long a kernel waits if nothing else is said.
pub const SPIN_DEFAULT: Duration = Duration::from_secs(300);

/// Words of a line.
const FLAG: usize = 0;
const SPIN_NS: usize = 1;
const TOLD: usize = 2;
const WAITED_NS: usize = 3;

const FLAG_BY_HOST: u64 = 1;

/// The page of a port. All kernels that wait for something of that port look at it.
pub struct AbortPage {
    /// Whether the host has ended all waits: what threads of the host look at.
    is_set: AtomicBool,
    reason: Mutex<Option<String>>,
    spin_ns: AtomicU64,
    /// What kernels look at, once there are some.
    mapped: OnceLock<HostWords>,
    /// Held by whoever makes `mapped`. That may take until a kernel has ended, which `set` must not wait for.
    making: Mutex<()>,
    /// Held by whoever shows `mapped`, or writes what it must show.
    change: Mutex<()>,
    /// Whether it counts as a port's page in the process's own.
    is_of_port: bool,
}

/// What a kernel waited for in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceError {
    /// What it waited for.
    pub what: DeviceWait,
    /// The rank that it waited for, if it was one.
    pub peer: Option<i32>,
    /// The line of the source, if the kernel told it.
    pub line: u32,
    /// How long it waited.
    pub waited: Duration,
}

/// What kernels wait for, and what else they may find wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceWait {
    /// A semaphore.
    Signal,
    /// A place for one more trigger.
    Room,
    /// The proxy.
    Flush,
    /// A packet.
    Packet,
    /// The other blocks of the kernel.
    Blocks,
    /// Not a wait: an offset, a size or a number that no trigger can say.
    Argument,
    /// Not a wait: an assertion did not hold.
    Assertion,
    /// A number that this version does not know.
    Unknown(u32),
}

/// What the process's page stands for.
struct Process {
    page: OnceLock<AbortPage>,
    ports: Mutex<Ports>,
}

#[derive(Default)]
struct Ports {
    open: usize,
    aborted: usize,
}

static PROCESS: Process = Process { page: OnceLock::new(), ports: Mutex::new(Ports { open: 0, aborted: 0 }) };

/// Where kernels find the process's page, for spins that have no port. None where no device can be used.
pub fn process_page_address() -> Option<u64> {
    process_page().device_address().ok()
}

fn process_page() -> &'static AbortPage {
    PROCESS.page.get_or_init(|| AbortPage::new(false))
}

impl AbortPage {
    /// A new page of a port.
    pub fn open() -> Arc<Self> {
        let mut ports = PROCESS.ports.lock();
        if ports.open == 0 {
            // What a kernel of an earlier port left behind is none of this one's business.
            process_page().clear();
        }
        ports.open += 1;
        Arc::new(Self::new(true))
    }

    /// A new page that belongs to no port: neither do waits without a page of their own end with it, nor does what they
    /// leave behind concern it.
    pub fn alone() -> Arc<Self> {
        Arc::new(Self::new(false))
    }

    fn new(is_of_port: bool) -> Self {
        Self {
            is_set: AtomicBool::new(false),
            reason: Mutex::new(None),
            spin_ns: AtomicU64::new(nanoseconds(SPIN_DEFAULT)),
            mapped: OnceLock::new(),
            making: Mutex::new(()),
            change: Mutex::new(()),
            is_of_port,
        }
    }

    /// Where kernels find it. Needs a device.
    pub fn device_address(&self) -> Result<u64, CudaError> {
        if let Some(mapped) = self.mapped.get() {
            return Ok(mapped.device_address());
        }
        let _making = self.making.lock();
        if let Some(mapped) = self.mapped.get() {
            return Ok(mapped.device_address());
        }
        let page = Gpu::current()?.map_host_words(ABORT_PAGE_BYTES)?;
        let _change = self.change.lock();
        write_all(&page, SPIN_NS, self.spin_ns.load(Ordering::Relaxed));
        write_all(&page, FLAG, self.is_set.load(Ordering::Acquire).into());
        Ok(self.mapped.get_or_init(|| page).device_address())
    }

    /// Ends all waits, of the host's threads and of kernels. The first reason stays.
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
        if self.is_of_port {
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

    /// Why it has.
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// What a kernel left behind on this page, or on the process's.
    pub fn error(&self) -> Option<DeviceError> {
        self.left_behind().or_else(|| if self.is_of_port { process_page().left_behind() } else { None })
    }

    /// How long kernels wait from now on; no time at all stands for what is usual.
    pub fn set_spin(&self, spin: Duration) {
        {
            let _change = self.change.lock();
            self.spin_ns.store(nanoseconds(spin), Ordering::Relaxed);
            if let Some(mapped) = self.mapped.get() {
                write_all(mapped, SPIN_NS, nanoseconds(spin));
            }
        }
        if self.is_of_port {
            // Waits that belong to no port are as long as those of the port that was told last.
            process_page().set_spin(spin);
        }
    }

    /// How long kernels wait.
    pub fn spin(&self) -> Duration {
        match self.spin_ns.load(Ordering::Relaxed) {
            0 => SPIN_DEFAULT,
            spin_ns => Duration::from_nanos(spin_ns),
        }
    }

    fn left_behind(&self) -> Option<DeviceError> {
        self.mapped.get().and_then(read_error)
    }

    /// Waits go on again.
    fn clear(&self) {
        let _change = self.change.lock();
        *self.reason.lock() = None;
        self.is_set.store(false, Ordering::Release);
        if let Some(mapped) = self.mapped.get() {
            mapped.word(TOLD).store(0, Ordering::Relaxed);
            mapped.word(WAITED_NS).store(0, Ordering::Relaxed);
            write_all(mapped, FLAG, 0);
        }
    }
}

impl Drop for AbortPage {
    fn drop(&mut self) {
        if !self.is_of_port {
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

impl fmt::Debug for AbortPage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AbortPage").field("reason", &self.reason()).field("error", &self.error()).finish()
    }
}

impl DeviceWait {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Signal,
            2 => Self::Room,
            3 => Self::Flush,
            4 => Self::Packet,
            5 => Self::Blocks,
            6 => Self::Argument,
            7 => Self::Assertion,
            number => Self::Unknown(number),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = Line(self.line);
        let what = match self.what {
            DeviceWait::Argument => {
                return write!(
                    out,
                    "a kernel asked a proxy for a put whose size, offset or number is too large{line}"
                );
            }
            DeviceWait::Assertion => return write!(out, "an assertion of a kernel does not hold{line}"),
            DeviceWait::Signal => "a signal",
            DeviceWait::Room => "room in the FIFO of a proxy",
            DeviceWait::Flush => "a proxy to do what it was asked for",
            DeviceWait::Packet => "a packet",
            DeviceWait::Blocks => "the other blocks of its grid",
            DeviceWait::Unknown(_) => "something",
        };
        write!(out, "a kernel waited {} in vain for {what}", Seconds(self.waited))?;
        match self.peer {
            Some(peer) if matches!(self.what, DeviceWait::Signal | DeviceWait::Packet) => {
                write!(out, " from rank {peer}")?;
            }
            Some(peer) => write!(out, " towards rank {peer}")?,
            None => {}
        }
        write!(out, "{line}")
    }
}

/// A line of the source, if it is known.
struct Line(u32);

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(out, " (line {})", self.0) }
    }
}

/// A duration as one says it.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds >= 10.0 { write!(out, "{seconds:.0} s") } else { write!(out, "{seconds:.3} s") }
    }
}

/// Writes a word of all lines.
fn write_all(page: &HostWords, word: usize, value: u64) {
    for line in 0..LINES {
        page.word(line * LINE_WORDS + word).store(value, Ordering::Release);
    }
}

fn read_error(page: &HostWords) -> Option<DeviceError> {
    if page.word(FLAG).load(Ordering::Acquire) == 0 {
        return None;
    }
    let told = page.word(TOLD).load(Ordering::Acquire);
    if told == 0 {
        return None;
    }
    let peer = (told >> 32) as i32;
    Some(DeviceError {
        what: DeviceWait::of(told as u32 & 0xff),
        peer: (peer >= 0).then_some(peer),
        line: told as u32 >> 8,
        waited: Duration::from_nanos(page.word(WAITED_NS).load(Ordering::Relaxed)),
    })
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel does that gives up.
    fn give_up(page: &HostWords, number: u32, peer: i32, waited: Duration) {
        page.word(WAITED_NS).store(nanoseconds(waited), Ordering::Relaxed);
        page.word(TOLD).store(u64::from(peer as u32) << 32 | u64::from(number), Ordering::Relaxed);
        write_all(page, FLAG, 2);
    }

    #[test]
    fn the_host_reads_what_a_kernel_waited_for() {
        let page = HostWords::plain(ABORT_PAGE_BYTES);
        assert_eq!(read_error(&page), None);
        give_up(&page, 1, 3, Duration::from_secs(300));
        let error = read_error(&page).unwrap();
        assert_eq!(error.to_string(), "a kernel waited 300 s in vain for a signal from rank 3");
        give_up(&page, 2, -1, Duration::from_millis(500));
        let error = read_error(&page).unwrap();
        assert_eq!(error.to_string(), "a kernel waited 0.500 s in vain for room in the FIFO of a proxy");
        give_up(&page, 7 | 1234 << 8, -1, Duration::ZERO);
        let error = read_error(&page).unwrap();
        assert_eq!(error.to_string(), "an assertion of a kernel does not hold (line 1234)");
        give_up(&page, 99, -1, Duration::ZERO);
        assert_eq!(read_error(&page).unwrap().what, DeviceWait::Unknown(99));
    }

    #[test]
    fn the_first_reason_stays_and_the_process_goes_on_when_the_last_aborted_port_is_gone() {
        // The process's page is one for all tests, and this is the only one that sets pages.
        let (one, other, third) = (AbortPage::open(), AbortPage::open(), AbortPage::open());
        one.set("rank 1 was lost");
        one.set("something else");
        other.set("rank 2 was lost");
        assert_eq!(one.reason().as_deref(), Some("rank 1 was lost"));
        assert!(one.is_set() && other.is_set() && !third.is_set());
        assert!(process_page().is_set());
        drop(one);
        assert!(process_page().is_set());
        drop(other);
        assert!(!process_page().is_set());
        assert_eq!((process_page().reason(), third.reason()), (None, None));
        // A page of no port is none of the process's business.
        let alone = AbortPage::alone();
        alone.set("a collective failed");
        assert!(alone.is_set() && !process_page().is_set() && !third.is_set());
    }
}
