//! Measures collectives on this machine in the style of nccl-tests, optionally against other libraries.

mod arguments;
mod bench_op;
mod children;
mod coordinator;
mod cuda;
mod cuda_ranks;
mod elastic;
mod fixed;
mod floor;
mod interrupt;
mod lab;
mod loss;
mod machine;
mod measure;
mod measured_group;
mod output;
mod pattern;
mod plan;
mod plot;
mod point;
mod quantize;
mod rank;
mod rank_protocol;
mod report;
mod scratch_dir;
mod session;
mod setting;
mod state;
mod statistics;
mod system;
mod system_ranks;
mod table;
mod tune;
mod usage;
mod variant;

pub use arguments::Bench;
pub use cuda_ranks::CudaArguments;
pub use loss::LossRankArguments;
pub use measured_group::RankArguments;
pub use state::StateRankArguments;

use crate::exit_code::{FAILURE, SUCCESS};
use crate::invocation::Invocation;
use anyhow::Result;
use interrupt::{Interrupt, Interrupted};
use output::{print, write};
use report::{BenchOptions, BenchReport};
use ringfold::TuningFile;

impl Bench {
    /// Measures, prints, and returns the exit code: 0 only if all results were right.
    ///
    /// `invocation` starts this program again, as a rank.
    pub fn run(&self, invocation: &Invocation) -> Result<i32> {
        let interrupt = Interrupt::by_signals()?;
        match self.measure(invocation, &interrupt) {
            Err(error) if error.is::<Interrupted>() => Ok(crate::signals::exit_code()),
            Err(error) => Err(error),
            Ok(good) => Ok(if good { SUCCESS } else { FAILURE }),
        }
    }

    fn measure(&self, invocation: &Invocation, interrupt: &Interrupt) -> Result<bool> {
        if self.cuda {
            return cuda::run(self, invocation, interrupt).map(|()| true);
        }
        if self.master {
            let other = self.master_program.iter().map(|path| path.clone().into_os_string());
            let master = if self.master_program.is_some() { &Invocation::of(other) } else { invocation };
            if let Some(count) = self.silent {
                return coordinator::run_crowded(count, self.rounds, master, interrupt).map(|()| true);
            }
            return coordinator::run(&self.peers, self.rounds, master, interrupt).map(|()| true);
        }
        let (kinds, effort) = (self.kinds()?, self.effort());
        if let Some(path) = &self.tune {
            let world = self.world.first().map_or(2, |world| *world as usize);
            let mut file = TuningFile::read_or_default(path)?;
            file.tuning = tune::tune((world.max(2), self.bind), effort, invocation, interrupt)?;
            file.write(path)?;
            return Ok(true);
        }
        if let Some(bytes) = self.state {
            return state::run(self, bytes, invocation, interrupt).map(|()| true);
        }
        if let Some(kill_at) = self.kill_at {
            return loss::run(self, kill_at, invocation, interrupt).map(|()| true);
        }
        let options = BenchOptions {
            runs: effort.runs,
            time_ms: self.time_ms,
            warmup: effort.warmup,
            check: effort.check,
            bind: self.bind.name(),
        };
        let mut report = BenchReport::new(options);
        let mut good = true;
        if self.floor {
            let floor = floor::Floor::measure(interrupt, |what| eprintln!("{what}"))?;
            if !self.is_quiet() {
                print(&format!("# {}\n{floor}", report.machine))?;
            }
            report.floor = Some(floor);
        }
        if !self.floor || self.sizes.is_some() {
            good = session::run(self, &kinds, invocation, interrupt, &mut report)?;
        }
        good &= report.is_good();
        if let Some(path) = &self.json {
            write(path, &format!("{}\n", serde_json::to_string_pretty(&report)?))?;
        }
        if let Some(path) = &self.markdown {
            write(path, &table::markdown(&report))?;
        }
        if let Some(path) = &self.plot {
            write(path, &plot::svg(&report))?;
        }
        Ok(good)
    }
}
