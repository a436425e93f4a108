//! How long things may take. The defaults suit peers across the internet; tests shorten them.

use core::time::Duration;

/// The deadlines and intervals of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// How often a peer tells the master, and the master a peer, that it is alive.
    pub heartbeat: Duration,
    /// A peer of whom neither the master nor a neighbour had a byte for this long is put out (R9).
    pub silence_max: Duration,
    /// A master of whom a peer had no byte for this long is taken for lost.
    pub master_silence_max: Duration,
    /// How long a peer tries to return to a lost master before it gives up.
    pub master_return_max: Duration,
    /// The pause between two attempts to reach the master.
    pub redial: Duration,
    /// How long a restarted master waits for the members of the epochs it hears of (R8).
    pub restore_grace: Duration,
    /// How long after its start a master takes returning members for its own.
    pub restore_window: Duration,
    /// How long members may take to reach each other when an epoch is proposed.
    pub establish_max: Duration,
    /// How long a live peer may keep others waiting in a vote or a collective, unless they say otherwise.
    /// Minutes of computing between votes are normal.
    pub wait_max: Duration,
    /// How much longer than it was asked to a peer waits for the master's word before it takes the
    /// master for lost: probing and reaching neighbours count as progress of a vote.
    pub answer_grace: Duration,
    /// An operation that is done sooner than this is never announced as started.
    pub announce_after: Duration,
    /// How long one bandwidth probe may take.
    pub probe_max: Duration,
    /// How long the solver may take for a ring.
    pub tour_max: Duration,
    /// How long a pair that failed to reach each other is not used as an edge.
    pub edge_distrust: Duration,
    /// How long a broken link may take to be made anew before it is reported.
    pub relink_max: Duration,
    /// Peers that keep others waiting are named in the logs after this long. A peer whose shared state was rejected
    /// and that makes no call for this long is evicted if others wait for it.
    pub warn_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            silence_max: Duration::from_millis(2_500),
            master_silence_max: Duration::from_secs(6),
            master_return_max: Duration::from_secs(60),
            redial: Duration::from_millis(200),
            restore_grace: Duration::from_secs(8),
            restore_window: Duration::from_secs(120),
            establish_max: Duration::from_secs(20),
            wait_max: Duration::from_secs(30 * 60),
            answer_grace: Duration::from_secs(300),
            announce_after: Duration::from_millis(1),
            probe_max: Duration::from_secs(3),
            tour_max: Duration::from_secs(3),
            edge_distrust: Duration::from_secs(60),
            relink_max: Duration::from_secs(5),
            warn_after: Duration::from_secs(5),
        }
    }
}
