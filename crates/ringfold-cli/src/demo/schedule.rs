//! The steps at which the demo kills a peer, adds one, and waits for peers.

use super::arguments::Demo;
use std::fmt;
use std::str::FromStr;

/// At this step the peers wait until the world has this size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorldWait {
    pub(crate) step: u64,
    pub(crate) world: u32,
}

impl fmt::Display for WorldWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.step, self.world)
    }
}

impl FromStr for WorldWait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(step, world)| Some(Self { step: step.parse().ok()?, world: world.parse().ok()? }));
        parsed.ok_or_else(|| format!("invalid wait {text:?}: must be STEP:WORLD"))
    }
}

/// The changes of membership during the demo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FaultSchedule {
    /// A peer is killed during the all-reduce of this step.
    pub(crate) kill_at: u64,
    /// Another peer is started after this step.
    pub(crate) add_at: u64,
    /// The peers wait for the added peer at this step.
    pub(crate) wait_at: u64,
}

impl FaultSchedule {
    /// None with `--no-chaos`, or if the run is too short.
    pub(crate) fn of(demo: &Demo) -> Option<Self> {
        if demo.no_chaos || demo.steps < 3 {
            return None;
        }
        let kill_at = demo.steps / 3;
        let add_at = (demo.steps * 3 / 5).clamp(kill_at + 1, demo.steps - 1);
        Some(Self { kill_at, add_at, wait_at: demo.steps - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::ByteSize;

    fn schedule(steps: u64) -> Option<FaultSchedule> {
        FaultSchedule::of(&Demo { peers: 3, steps, size: ByteSize(4096), compute_ms: 0, no_chaos: false })
    }

    #[test]
    fn a_peer_is_killed_before_one_is_added_and_both_before_the_end() {
        assert_eq!(schedule(2), None);
        for steps in 3..200 {
            let schedule = schedule(steps).unwrap();
            assert!(schedule.kill_at >= 1 && schedule.kill_at < schedule.add_at, "{steps}: {schedule:?}");
            assert!(schedule.add_at <= schedule.wait_at && schedule.wait_at < steps, "{steps}: {schedule:?}");
        }
    }

    #[test]
    fn a_wait_survives_the_command_line() {
        let wait = WorldWait { step: 59, world: 4 };
        assert_eq!(wait.to_string().parse(), Ok(wait));
        assert!("4".parse::<WorldWait>().is_err());
    }
}
