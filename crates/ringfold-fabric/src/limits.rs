//! Every bound of this crate in one place.

use core::time::Duration;

/// How long a handshake may take, from the first byte to the last.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// How long a TCP connection to one address may take to be made.
pub const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Connections that may be in their handshake at once, at one listener.
pub const KNOCKS_MAX: usize = 256;

/// Connections that are taken from a listener in one turn.
pub const ACCEPTS_PER_TURN: usize = 32;

/// Streams that a link may have.
pub const STREAMS_MAX: u16 = 64;

/// Frames of a link that may be ahead of their turn, per stream.
pub const EARLY_FRAMES_PER_STREAM_MAX: usize = 64;

/// Bytes that may wait to be sent on one socket. Data is bounded by credit and stays far below this; whoever
/// falls so far behind with anything else is given up.
pub const QUEUED_BYTES_MAX: usize = 256 << 20;

/// Pieces that one write takes at most.
pub const PIECES_PER_WRITE: usize = 32;

/// Arrivals of one link that are handed over before others get their turn.
pub const ARRIVALS_PER_TURN: usize = 64;

/// Bytes of unused slot memory that are kept.
pub const SPARE_SLOT_BYTES_MAX: usize = 64 << 20;

/// How long the last words of a connection may take.
pub const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The pause between two attempts to make a link.
pub const REDIAL_PAUSE: Duration = Duration::from_millis(25);

/// How long the side that is to dial has, before the other side tries too.
pub const DIAL_HEAD_START: Duration = Duration::from_millis(300);
