//! What a master does when all peers that held the shared state were lost (P20).

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// Which of the revisions that peers come back with is the one that the run continues from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recover {
    /// The newest.
    #[default]
    Newest,
    /// One that a majority of the lost peers holds. Without one, as [`Recover::Manual`].
    Majority,
    /// None: the state of all peers is rejected until one syncs with the send-only strategy.
    Manual,
}

impl Recover {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Newest, Self::Majority, Self::Manual];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Majority => "majority",
            Self::Manual => "manual",
        }
    }
}

impl fmt::Display for Recover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Recover {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("invalid policy {text:?}: must be newest, majority or manual"))
    }
}

/// How a run recovers from the loss of its shared state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoverySettings {
    /// Which revision wins.
    pub policy: Recover,
    /// How long the first peers that come back wait for the others.
    pub after: Duration,
    /// How many peers must be back for the run to continue before that, and must hold a revision for it to win; if no
    /// revision is held by that many, the newest wins. Default: all lost peers must be back, and one holder is enough.
    pub min: Option<usize>,
}

impl Default for RecoverySettings {
    fn default() -> Self {
        Self { policy: Recover::Newest, after: Duration::from_secs(30), min: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_policies_are_parsed() {
        for policy in Recover::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("oldest".parse::<Recover>().unwrap_err().contains("\"oldest\""));
    }
}
