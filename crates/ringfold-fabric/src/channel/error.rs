//! Why something on a channel did not happen.

/// Why something on a channel did not happen, and because of whom.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    /// The time is over. Nothing is broken: it may be waited for again.
    #[error("timed out waiting for {peer} to {awaited}")]
    Deadline {
        /// Who was waited for.
        peer: String,
        /// What it was to do.
        awaited: &'static str,
    },
    /// One of the two ends gave the connection up.
    #[error("aborted by {by}: {why}")]
    Aborted {
        /// Who.
        by: String,
        /// In words.
        why: String,
    },
    /// The other end, or the way to it, is gone.
    #[error("the connection with {peer} is lost: {why}")]
    Lost {
        /// The other end.
        peer: String,
        /// In words.
        why: String,
        /// Whether it took its leave, so that nothing went wrong.
        has_left: bool,
    },
    /// The call is invalid. Nothing was sent.
    #[error("{0}")]
    Misuse(String),
    /// Too many puts wait to be sent. Nothing was sent; flush first.
    #[error("too much is queued for {peer}")]
    Full {
        /// The other end.
        peer: String,
    },
}
