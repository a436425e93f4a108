//! Deadlines and intervals. The defaults suit peers across the internet; tests shorten them.

use core::time::Duration;

/// The deadlines and intervals of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// The interval of heartbeats between peers and master.
    pub heartbeat: Duration,
    /// A peer is evicted if neither the master nor a neighbour received a byte from it for this long (R9).
    pub silence_max: Duration,
    /// How long a peer whose connection to the master ended may take to resume if no neighbour can tell whether it lives.
    /// If a neighbour hears it, it has [`Timing::restore_grace`].
    pub suspect_max: Duration,
    /// A peer treats its master as lost after this long without a byte.
    pub master_silence_max: Duration,
    /// How long a peer dials a lost master before it gives up.
    pub master_return_max: Duration,
    /// The pause between two attempts to dial the master.
    pub redial: Duration,
    /// How long a restarted master waits for members after the first has returned (R8), and a master for a member whose
    /// connection ended while its neighbours hear it.
    pub restore_grace: Duration,
    /// How long after its start a master accepts members of an earlier incarnation.
    pub restore_window: Duration,
    /// How long members may take to connect when an epoch is proposed.
    pub establish_max: Duration,
    /// The default timeout of votes and collectives. Minutes of computing between calls are normal.
    pub wait_max: Duration,
    /// How long after the deadline of a call a peer waits for the master's answer before it treats the master as lost.
    /// Probes and new epochs may take that long.
    pub answer_grace: Duration,
    /// An operation that takes longer than this is announced to the master.
    pub announce_after: Duration,
    /// How long one bandwidth probe may take.
    pub probe_max: Duration,
    /// How long the master waits for a ring from the solver.
    pub tour_max: Duration,
    /// How often new measurements of the network are compared with those that plans were chosen for.
    pub appraise_every: Duration,
    /// How long a pair whose link failed is not used.
    pub edge_distrust: Duration,
    /// How long a broken link may take to reconnect before it is reported.
    pub relink_max: Duration,
    /// Logs warn about calls that wait longer than this. A peer whose shared state was rejected and that makes no call
    /// for this long is evicted if others wait for it.
    pub warn_after: Duration,
}

impl Timing {
    /// The timeout of a call whose message has this deadline; 0 is the default.
    pub(crate) fn timeout(&self, deadline_ms: u32) -> Duration {
        if deadline_ms == 0 { self.wait_max } else { Duration::from_millis(u64::from(deadline_ms)) }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            silence_max: Duration::from_millis(2_500),
            suspect_max: Duration::from_secs(1),
            master_silence_max: Duration::from_secs(6),
            master_return_max: Duration::from_secs(60),
            redial: Duration::from_millis(200),
            restore_grace: Duration::from_secs(8),
            restore_window: Duration::from_secs(120),
            establish_max: Duration::from_secs(20),
            wait_max: Duration::from_secs(30 * 60),
            answer_grace: Duration::from_secs(300),
            announce_after: Duration::from_millis(1),
            probe_max: Duration::from_secs(7),
            tour_max: Duration::from_secs(3),
            appraise_every: Duration::from_secs(1),
            edge_distrust: Duration::from_secs(60),
            relink_max: Duration::from_secs(5),
            warn_after: Duration::from_secs(5),
        }
    }
}
