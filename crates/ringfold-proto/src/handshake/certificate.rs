//! What the certificates of a run say.

use core::fmt;
use core::str::FromStr;

/// What the holder of a certificate may do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Joins runs and groups.
    Peer,
    /// Reads the status of a run, and examines it (`ringfold doctor`).
    Observer,
    /// Reads the status of a run, evicts peers and drains it.
    Admin,
    /// Is dialled as a master. It makes the keys of all epochs, so it may also act as a peer.
    Master,
    /// Relays the traffic of peers that cannot reach each other, and does nothing else.
    Relay,
}

impl Role {
    pub const ALL: [Self; 5] = [Self::Peer, Self::Observer, Self::Admin, Self::Master, Self::Relay];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Observer => "observer",
            Self::Admin => "admin",
            Self::Master => "master",
            Self::Relay => "relay",
        }
    }

    /// Whether it may do what needs another role.
    pub fn may_act_as(self, needed: Self) -> bool {
        match needed {
            // Who takes part in a run may also look at it.
            Self::Observer => self != Self::Relay,
            Self::Peer => matches!(self, Self::Peer | Self::Master),
            // Peers may volunteer as relays.
            Self::Relay => matches!(self, Self::Relay | Self::Peer | Self::Master),
            Self::Admin | Self::Master => self == needed,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| format!("invalid role {text:?}: must be peer, observer, admin, master or relay"))
    }
}

/// What is wrong with a certificate. The text follows "the certificate of …".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CertificateProblem {
    /// The other end uses keys without a certificate of a run.
    #[error("is missing: it uses no certificate of the run")]
    Missing,
    #[error("was not signed by a CA of this run")]
    WrongCa,
    #[error("has expired: issue a new one with `ringfold keys issue`")]
    Expired,
    #[error("is not valid yet: compare the clocks of the machines")]
    NotYetValid,
    #[error("was revoked")]
    Revoked,
    #[error("has a role that does not allow this")]
    WrongRole,
    #[error("is invalid")]
    Invalid,
}

impl CertificateProblem {
    pub const ALL: [Self; 7] = [
        Self::Missing,
        Self::WrongCa,
        Self::Expired,
        Self::NotYetValid,
        Self::Revoked,
        Self::WrongRole,
        Self::Invalid,
    ];
}
