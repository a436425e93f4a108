//! Deadlines that suit processes on one machine, and a cutting that makes many frames of few megabytes.

use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::time::Duration;

/// A link on which an operation waits is reported after so long without a sign of life.
pub const STALL_AFTER: Duration = Duration::from_secs(10);

/// A link that could not be made for so long is given up.
pub const LINK_MAX: Duration = Duration::from_secs(4);

/// The pause between two attempts to make a link.
pub const LINK_AGAIN: Duration = Duration::from_millis(20);

/// How long things may take. Processes on a busy machine may be still for seconds without being dead; a
/// dead one is noticed by its connections, not by its silence.
pub fn timing() -> Timing {
    Timing {
        silence_max: Duration::from_secs(10),
        master_silence_max: Duration::from_secs(15),
        master_return_max: Duration::from_secs(20),
        establish_max: Duration::from_secs(20),
        wait_max: Duration::from_secs(30),
        answer_grace: Duration::from_secs(30),
        ..Timing::default()
    }
}

/// Small frames and a narrow window, so that credit is needed.
pub fn tuning() -> Tuning {
    Tuning { chunk_bytes: 32 * 1024, window_slots: 6, eager_slots: 2, ..Tuning::default() }
}
