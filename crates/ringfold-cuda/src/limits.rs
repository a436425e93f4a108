//! Every bound of this crate in one place.

use core::time::Duration;

/// Page-locked memory that is kept for the next one who needs some: a sixteenth of the host's, from 2 to 8 GiB. What is
/// in use has no bound but the host's. Locking a GiB takes longer than reducing it over a fast network, so that a large
/// gradient should find the memory of the one before.
pub(crate) fn pinned_kept_bytes_max() -> usize {
    let kib = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        total.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    });
    kib.map_or(0, |kib| kib.saturating_mul(1024) / 16).clamp(2 << 30, 8 << 30)
}

/// The smallest block of page-locked memory.
pub(crate) const PINNED_BYTES_MIN: usize = 64 << 10;

/// Someone who waits for the beginning of a download is woken after so many bytes.
pub(crate) const PIECE_BYTES: usize = 8 << 20;

/// Where each source of a download begins: at a multiple of this, so that vector loads are fast.
pub(crate) const SOURCE_ALIGN: usize = 128;

/// How long a wait for the device looks again and again before it sleeps: a small copy is faster than waking up.
pub(crate) const SPIN: Duration = Duration::from_micros(30);

/// Someone who waits longer sleeps for so long between two looks, and for twice as long each time, up to the other.
pub(crate) const WAIT_STEP_MIN: Duration = Duration::from_micros(5);
pub(crate) const WAIT_STEP_MAX: Duration = Duration::from_micros(200);

/// How long zeroing new memory may take. It waits for nobody, unless a kernel leaves no room on the device.
pub(crate) const ZEROING_MAX: Duration = Duration::from_secs(120);

/// Words that may be on their way from a ring, and how long the oldest of them may take.
pub(crate) const WORD_RING_WORDS: usize = 2048;
pub(crate) const WORD_RING_WAIT_MAX: Duration = Duration::from_secs(60);

/// What the driver's compiler may say about an image that can't be loaded.
pub(crate) const IMAGE_LOG_BYTES: usize = 16 << 10;

/// No kernel has more parameters.
pub(crate) const PARAMETERS_MAX: usize = 4096;

/// Up to which size copies within devices go by a graph, whose change takes the longer the larger the copy is.
pub(crate) const GRAPH_COPY_MAX: usize = 64 << 10;
