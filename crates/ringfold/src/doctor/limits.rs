//! All limits of the doctor.

use core::time::Duration;

/// Connections that one process answers at the same time.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// How long it answers one connection.
pub(super) const VISIT_MAX: Duration = Duration::from_secs(180);

/// How long a connection may ask nothing.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);

/// Connections that it dials back at the same time.
pub(super) const DIAL_BACKS_MAX: usize = 4;

/// How long each of the two stages of a dial back may take.
pub(super) const DIAL_BACK_MAX: Duration = Duration::from_secs(2);

/// How long a TCP connection may take to be made.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(3);

/// How long the handshake may take.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(3);

/// How long an answer may take.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long an echo may take, in addition to eight round trips. Lost segments are sent again three times meanwhile.
pub(super) const ECHO_MAX: Duration = Duration::from_secs(2);

/// How long to wait for the other end's measurements before giving up.
pub(super) const BANDWIDTH_WAIT_MAX: Duration = Duration::from_secs(30);

/// The pause between two questions whether it is free.
pub(super) const BANDWIDTH_PAUSE: Duration = Duration::from_millis(100);

/// How long a doctor that is done waits for the others.
pub(super) const FINISH_MAX: Duration = Duration::from_secs(60);

/// A doctor that nobody has asked anything for this long may end.
pub(super) const IDLE_MIN: Duration = Duration::from_millis(400);

/// How long a peer that has dialled this host may be unreachable before it is given up.
pub(super) const ONE_WAY_AFTER: Duration = Duration::from_secs(2);

/// The pause between two attempts to reach a doctor.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Datagrams that are answered.
pub(super) const DATAGRAMS_MAX: usize = 64;

/// Attempts to get a datagram back, and how long each waits.
pub(super) const DATAGRAM_ATTEMPTS: usize = 4;
/// See [`DATAGRAM_ATTEMPTS`].
pub(super) const DATAGRAM_PAUSE: Duration = Duration::from_millis(300);

/// Hosts that are remembered because they have dialled this one.
pub(super) const VISITORS_MAX: usize = 1024;

/// Peers that are examined.
pub(super) const PEERS_MAX: usize = 64;

/// How long the CUDA driver may take.
pub(super) const CUDA_MAX: Duration = Duration::from_secs(30);

/// How long the peers of a run may take to examine themselves.
pub(crate) const EXAMINATION_MAX: Duration = Duration::from_secs(20);

/// Examinations of a run at the same time.
pub(crate) const EXAMINATIONS_MAX: usize = 4;
