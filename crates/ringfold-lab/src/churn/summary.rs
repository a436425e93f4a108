//! The figures of a churn test.

use std::fmt;

/// The figures of a successful churn test.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub seed: u64,
    pub seconds: f64,
    pub steps: u64,
    /// Steps of single peers.
    pub reports: u64,
    pub joins: u64,
    pub kills: u64,
    /// New peers that were evicted because a path to them was cut.
    pub refused: u64,
    /// Paths that were cut for a while.
    pub cuts: u64,
    /// Pairs of hosts whose connections were reset.
    pub resets: u64,
    /// Aborted and retried reduces of all peers.
    pub aborts: u64,
    /// Other retried calls of all peers.
    pub retries: u64,
    pub slowest_step_us: u64,
    /// Steps of single peers in which a kill aborted a reduce.
    pub interrupted_steps: u64,
    /// The median time from a kill to the error of a survivor's reduce.
    pub from_kill_to_error_us: u64,
    /// The median time from a kill to the end of the retried step.
    pub from_kill_to_result_us: u64,
    /// The master's memory at the first and the last measurement.
    pub master_bytes: (u64, u64),
    /// The greatest growth of the memory of a peer between two measurements.
    pub peer_growth_bytes: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us as f64 / 1000.0;
        writeln!(f, "churn with seed {} for {:.0} s:", self.seed, self.seconds)?;
        let rate = self.steps as f64 / self.seconds.max(1.0);
        writeln!(f, "  steps {} ({rate:.1}/s), of single peers {}", self.steps, self.reports)?;
        writeln!(
            f,
            "  joins {}, of which {} were refused behind a cut path, kills {}, cut paths {}, resets {}",
            self.joins, self.refused, self.kills, self.cuts, self.resets
        )?;
        writeln!(f, "  retried reduces {}, other retried calls {}", self.aborts, self.retries)?;
        writeln!(f, "  slowest step {:.1} ms", ms(self.slowest_step_us))?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "  memory of the master {:.1} MiB, then {:.1} MiB; growth of a surviving peer at most {:.1} MiB",
            mib(self.master_bytes.0),
            mib(self.master_bytes.1),
            mib(self.peer_growth_bytes)
        )?;
        write!(
            f,
            "  kill to error {:.1} ms, kill to the retried result {:.1} ms (medians of {} steps)",
            ms(self.from_kill_to_error_us),
            ms(self.from_kill_to_result_us),
            self.interrupted_steps
        )
    }
}
