//! When the demo kills, when it adds, and where peers wait for each other.

use super::Demo;
use std::fmt;
use std::str::FromStr;

/// At this step peers wait until there are so many of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gathering {
    pub(crate) step: u64,
    pub(crate) world: u32,
}

impl fmt::Display for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.step, self.world)
    }
}

impl FromStr for Gathering {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(step, world)| Some(Self { step: step.parse().ok()?, world: world.parse().ok()? }));
        parsed.ok_or_else(|| format!("{text:?} is not STEP:WORLD"))
    }
}

/// The trouble that the demo makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    /// The reduce of this step loses a peer.
    pub(crate) kill_at: u64,
    /// After this step another peer is started.
    pub(crate) add_at: u64,
    /// The newcomer is waited for at this step, should it be slow.
    pub(crate) gather_at: u64,
}

impl Schedule {
    /// Nothing, if the user wants none or the run is too short for it.
    pub(crate) fn of(demo: &Demo) -> Option<Self> {
        if demo.no_chaos || demo.steps < 3 {
            return None;
        }
        let kill_at = demo.steps / 3;
        let add_at = (demo.steps * 3 / 5).clamp(kill_at + 1, demo.steps - 1);
        Some(Self { kill_at, add_at, gather_at: demo.steps - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::ByteSize;

    fn schedule(steps: u64) -> Option<Schedule> {
        Schedule::of(&Demo { peers: 3, steps, size: ByteSize(4096), compute_ms: 0, no_chaos: false })
    }

    #[test]
    fn the_kill_comes_before_the_birth_and_both_before_the_end() {
        assert_eq!(schedule(2), None);
        for steps in 3..200 {
            let schedule = schedule(steps).unwrap();
            assert!(schedule.kill_at >= 1 && schedule.kill_at < schedule.add_at, "{steps}: {schedule:?}");
            assert!(
                schedule.add_at <= schedule.gather_at && schedule.gather_at < steps,
                "{steps}: {schedule:?}"
            );
        }
    }

    #[test]
    fn a_gathering_survives_the_command_line() {
        let gathering = Gathering { step: 59, world: 4 };
        assert_eq!(gathering.to_string().parse(), Ok(gathering));
        assert!("4".parse::<Gathering>().is_err());
    }
}
