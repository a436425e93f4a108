//! How long each stage of a wait lasts.

use core::time::Duration;

/// The settings of a [`Waiter`](super::Waiter).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Checks before the clock is read for the first time.
    pub checks: u32,
    /// Checks between two readings of the clock while it spins.
    pub checks_per_clock: u32,
    /// The longest spin; a waiter begins with it. Zero: no spin.
    pub spin_max: Duration,
    /// The shortest spin that a waiter learns; if it is equal to the longest, nothing is learnt.
    pub spin_min: Duration,
    /// How often it yields before it blocks.
    pub yields: u32,
    /// For how long it yields.
    pub yield_for: Duration,
    /// If a yield takes longer, another program uses the core, and the next waits do not yield.
    pub yield_max: Duration,
    /// The shortest time to block.
    pub block_min: Duration,
    /// The longest time to block.
    pub block_max: Duration,
    /// In between, it blocks for the time waited so far divided by this.
    pub block_divisor: u32,
}

/// How often a thread that can be woken checks by itself: the process that has to wake it may have been killed.
const WOKEN_BLOCK: Duration = Duration::from_millis(500);

impl Policy {
    /// Ranks of one host on the shared-memory board. A small collective takes less than a microsecond, so 200 checks come
    /// before the clock is read; waking a thread takes about as long as the longest spin.
    pub const BOARD: Self = Self {
        checks: 200,
        checks_per_clock: 16,
        spin_max: Duration::from_micros(50),
        spin_min: Duration::from_micros(1),
        yields: 8,
        yield_for: Duration::MAX,
        yield_max: Duration::from_millis(1),
        block_min: WOKEN_BLOCK,
        block_max: WOKEN_BLOCK,
        block_divisor: 1,
    };

    /// A signal of a window. It may come at any time, so the wait spins less than on the board, and does not learn.
    pub const SIGNAL: Self = Self {
        checks: 64,
        checks_per_clock: 64,
        spin_max: Duration::from_micros(20),
        spin_min: Duration::from_micros(20),
        yields: 4,
        yield_max: Duration::MAX,
        ..Self::BOARD
    };

    /// A driver that polls its shared memory before it blocks in the poller.
    pub const DRIVER: Self = Self {
        checks: 16,
        checks_per_clock: 16,
        spin_max: Duration::from_micros(60),
        // A shorter spin would save nothing.
        spin_min: Duration::from_micros(2),
        yields: 0,
        ..Self::BOARD
    };

    /// A driver that polls sockets: each check is a call to the system, which takes longer than reading the clock.
    pub const DRIVER_OF_SOCKETS: Self = Self { checks: 0, checks_per_clock: 0, ..Self::DRIVER };

    /// A driver of a rank that shares its core with others, one of which it waits for. It lets them run, and looks at its sockets in
    /// between, until the others wait too: to be woken by each message takes longer.
    pub const DRIVER_ON_SHARED_CORES: Self = Self {
        checks: 0,
        checks_per_clock: 0,
        spin_max: Duration::ZERO,
        spin_min: Duration::ZERO,
        yields: 64,
        yield_for: Duration::from_micros(200),
        ..Self::DRIVER
    };

    /// Words that a kernel or a proxy writes without waking the thread. It blocks for an eighth of the time waited so far,
    /// so a wait ends late by an eighth at most.
    pub const POLLED: Self = Self {
        checks: 31,
        checks_per_clock: 31,
        spin_max: Duration::from_micros(50),
        spin_min: Duration::from_micros(50),
        yields: u32::MAX,
        yield_for: Duration::from_micros(450),
        yield_max: Duration::MAX,
        block_min: Duration::from_micros(50),
        block_max: Duration::from_millis(1),
        block_divisor: 8,
    };

    /// The thread of a proxy to which kernels push. They cannot wake it and wait for it, so it yields for long, and blocks
    /// for a millisecond only if nothing was pushed for seconds.
    pub const PROXY_OF_KERNELS: Self = Self {
        checks: 63,
        checks_per_clock: 63,
        spin_max: Duration::from_micros(200),
        spin_min: Duration::from_micros(200),
        yield_for: Duration::from_millis(20),
        block_divisor: 20_000,
        ..Self::POLLED
    };

    /// The thread of a proxy that only the host pushes to, and wakes.
    pub const PROXY_OF_HOST: Self = Self {
        spin_max: Duration::from_micros(20),
        spin_min: Duration::from_micros(20),
        yield_for: Duration::from_micros(100),
        block_min: Duration::from_millis(50),
        block_max: Duration::from_millis(50),
        block_divisor: 1,
        ..Self::PROXY_OF_KERNELS
    };

    /// The policy for ranks of one host that have a core each, or not. If they share cores, a spin would delay the awaited rank.
    #[must_use]
    pub const fn for_cores(self, each_has_one: bool) -> Self {
        if each_has_one { self } else { self.without_spin() }
    }

    /// The policy without a spin.
    #[must_use]
    pub const fn without_spin(self) -> Self {
        Self { checks: 1, spin_max: Duration::ZERO, spin_min: Duration::ZERO, ..self }
    }
}
