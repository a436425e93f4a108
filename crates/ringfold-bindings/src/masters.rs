//! The list of masters in the environment.

/// The masters of the run in `RINGFOLD_MASTERS`, separated by commas; none if it is not set or empty.
pub fn listed() -> Option<String> {
    std::env::var(ringfold::MASTERS_VARIABLE).ok().filter(|list| !list.trim().is_empty())
}
