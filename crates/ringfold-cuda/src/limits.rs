//! All limits of this crate's devices and copies.

use core::time::Duration;

/// Page-locked memory kept for reuse, in bytes: a sixteenth of the host's memory, from 2 to 8 GiB.
///
/// Memory in use is not limited. Locking a GiB takes longer than reducing it over a fast network, so a large gradient
/// should find the block of the one before.
pub(crate) fn pinned_kept_bytes_max() -> usize {
    let kib = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        total.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    });
    kib.map_or(0, |kib| kib.saturating_mul(1024) / 16).clamp(2 << 30, 8 << 30)
}

/// The smallest block of page-locked memory or scratch.
pub(crate) const BLOCK_BYTES_MIN: usize = 64 << 10;

/// Scratch memory of a device, in use or kept for reuse. It is never freed: that would wait for all kernels.
pub(crate) const SCRATCH_BYTES_MAX: usize = 2 << 30;

/// The part of a device's free memory that scratch may take, at most: the rest is the user's.
pub(crate) const SCRATCH_FREE_SHARE: usize = 2;

/// Bytes of a download after which waiters are woken.
pub(crate) const PIECE_BYTES: usize = 8 << 20;

/// Alignment of each source of a download, for fast vector loads.
pub(crate) const SOURCE_ALIGN: usize = 128;

/// How long a wait for the device spins before it sleeps: a small copy is faster than a wake-up.
pub(crate) const SPIN: Duration = Duration::from_micros(30);

/// First and longest sleep between two queries of an event; each sleep is twice the one before.
pub(crate) const WAIT_STEP_MIN: Duration = Duration::from_micros(5);
pub(crate) const WAIT_STEP_MAX: Duration = Duration::from_micros(200);

/// Timeout for zeroing new memory, which waits only if running kernels leave no room on the device.
pub(crate) const ZEROING_MAX: Duration = Duration::from_secs(120);

/// Words of a ring that may be in flight, and the timeout for the oldest of them.
pub(crate) const WORD_RING_WORDS: usize = 2048;
pub(crate) const WORD_RING_WAIT_MAX: Duration = Duration::from_secs(60);

/// Size of the driver's log about an image that fails to load.
pub(crate) const IMAGE_LOG_BYTES: usize = 16 << 10;

/// Upper bound on the number of a kernel's parameters.
pub(crate) const PARAMETERS_MAX: usize = 4096;

/// The most elements (of 16, 4 or 1 bytes) of a put by one block; each thread copies so many. For larger puts the
/// driver's copy is faster.
pub(crate) const PUT_ELEMENTS_MAX: usize = 4096;
pub(crate) const PUT_ELEMENTS_PER_THREAD: u32 = 4;

/// The fewest threads of a put's block. The driver reserves 1 KiB of shared memory for as many blocks as would fit on a
/// multiprocessor, and a multiprocessor in use does not change its split of cache and shared memory. With eight blocks
/// the smallest split is enough, so a put starts beside any kernel that leaves room; with more it does not.
pub(crate) const PUT_THREADS_MIN: u32 = 256;

/// The page-locked memory of a connection whose puts go through host memory: a copy of this size to the host and one
/// back alternate on the stream.
pub(crate) const STAGED_PIECE_BYTES: usize = 1 << 20;
