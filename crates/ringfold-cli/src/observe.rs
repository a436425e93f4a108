//! The commands that ask a master, or tell it something: `ringfold status`, `top`, `evict` and `drain`.

mod text;
mod top;

pub use top::TopArguments;

use crate::client::{ClientArguments, RunArguments};
use crate::exit_code::{FAILURE, SUCCESS, USAGE};
use crate::serving;
use crate::signals::Signals;
use anyhow::Result;
use clap::Args;
use ringfold::settings::table;
use ringfold::{Health, Observer, ObserverOptions, Status};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The exit code if no master answers.
const UNREACHABLE: i32 = 2;

/// The shortest interval of `--watch`.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// `ringfold status`
#[derive(Args, Debug)]
pub struct StatusArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Print an object of JSON
    #[arg(long)]
    json: bool,
    /// Print again every second, until Ctrl-C; the exit code is that of the last print
    #[arg(long)]
    watch: bool,
    /// The seconds between two prints with --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// How many events to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    events: usize,
    #[command(flatten)]
    client: ClientArguments,
}

impl StatusArguments {
    /// Prints the status, and returns the exit code: 0 healthy, 1 degraded, 2 unreachable, or invalid arguments or settings.
    pub fn run(&self) -> Result<i32> {
        // Code 1 is that of a degraded run.
        self.show().or_else(|error| match is_invalid(&error) {
            true => {
                eprintln!("ringfold status: {error:#}");
                Ok(USAGE)
            }
            false => Err(error),
        })
    }

    fn show(&self) -> Result<i32> {
        let invalid = |error: anyhow::Error| ringfold::Error::BadArgument(format!("{error:#}"));
        let masters = self.client.masters(&self.run).map_err(invalid)?;
        let options = self.client.options();
        if !self.watch {
            return match connect(&options, &masters).and_then(|mut observer| ask(&mut observer)) {
                Ok(answer) => self.print(&answer),
                Err(error @ ringfold::Error::BadArgument(_)) => Err(error.into()),
                Err(error) => self.print_unreachable(&error),
            };
        }
        let interval = Duration::try_from_secs_f64(self.interval)
            .map_err(|error| ringfold::Error::BadArgument(format!("invalid --interval: {error}")))?;
        let interrupted = interrupt_flag()?;
        let mut code = UNREACHABLE;
        let mut observer: Option<Observer> = None;
        while !interrupted.load(Ordering::Acquire) {
            let next = Instant::now() + interval.max(INTERVAL_MIN);
            if std::io::stdout().is_terminal() && !self.json {
                // Clears the screen, and begins at its top.
                print!("\x1b[2J\x1b[H");
            }
            let answer = match &mut observer {
                Some(observer) => ask(observer),
                None => connect(&options, &masters).and_then(|connected| ask(observer.insert(connected))),
            };
            code = match answer {
                Ok(answer) => self.print(&answer)?,
                Err(error @ ringfold::Error::BadArgument(_)) => return Err(error.into()),
                Err(error) => {
                    observer = None;
                    self.print_unreachable(&error)?
                }
            };
            while Instant::now() < next && !interrupted.load(Ordering::Acquire) {
                std::thread::sleep(next.saturating_duration_since(Instant::now()).min(INTERVAL_MIN));
            }
        }
        Ok(code)
    }

    fn print(&self, Answer { status, json, from }: &Answer) -> Result<i32> {
        match self.json {
            true => serving::print_line(json)?,
            false => serving::print_line(text::render(status, *from, self.events).trim_end_matches('\n'))?,
        }
        Ok(match status.run.health {
            Health::Healthy => SUCCESS,
            Health::Degraded => FAILURE,
        })
    }

    fn print_unreachable(&self, error: &impl std::fmt::Display) -> Result<i32> {
        if self.json {
            let verdict = format!("unreachable: {error}");
            let none: [(); 0] = [];
            let object = serde_json::json!({ "verdict": verdict, "health": "unreachable", "epoch": null,
                "draining": null, "masters": none, "peers": none, "ring": none, "waits": none, "groups": none, "master": null,
                "throughput": null, "history": none, "events": none, "time": null });
            serving::print_line(&object.to_string())?;
        } else {
            serving::print_line(&format!("unreachable: {error}"))?;
        }
        Ok(UNREACHABLE)
    }
}

/// What a master says.
struct Answer {
    status: Status,
    json: String,
    from: SocketAddr,
}

fn ask(observer: &mut Observer) -> Result<Answer, ringfold::Error> {
    let json = observer.status_json()?;
    let unknown = |error| ringfold::Error::System(format!("the master sent an unknown status: {error}"));
    Ok(Answer { status: serde_json::from_str(&json).map_err(unknown)?, json, from: observer.address() })
}

/// Whether an argument or a setting is invalid.
fn is_invalid(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ringfold::Error::BadArgument(_)))
}

fn connect(options: &ObserverOptions, masters: &str) -> Result<Observer, ringfold::Error> {
    options.connect(masters)
}

/// Set when SIGINT or SIGTERM arrives.
fn interrupt_flag() -> Result<Arc<AtomicBool>> {
    let mut signals = Signals::catch()?;
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        set.store(true, Ordering::Release);
    })?;
    Ok(flag)
}

/// What operators have to show.
#[derive(Args, Debug)]
pub struct AdminArguments {
    #[command(flatten)]
    run: RunArguments,
    /// The file with the token of operators, as given to the master [default: RINGFOLD_ADMIN_TOKEN_FILE; with certificates
    /// the role admin is enough]
    #[arg(long, value_name = "PATH")]
    admin_token_file: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArguments,
}

impl AdminArguments {
    fn connect(&self) -> Result<Observer> {
        let mut given = self.client.given();
        let token_file = self.admin_token_file.as_ref().map(|path| path.display());
        serving::add_flag(&mut given, &table::ADMIN_TOKEN_FILE, token_file);
        let options = ObserverOptions::default().settings(given).commands(true);
        Ok(options.connect(&self.client.masters(&self.run)?)?)
    }
}

/// `ringfold evict`
#[derive(Args, Debug)]
pub struct EvictArguments {
    /// The peer: its id or its name, as `ringfold status` shows them, or the beginning of one if no other begins so
    peer: String,
    /// Why; the peer and the log are told
    #[arg(long, default_value = "an operator evicted it")]
    reason: String,
    #[command(flatten)]
    admin: AdminArguments,
}

impl EvictArguments {
    /// Evicts the peer.
    pub fn run(&self) -> Result<i32> {
        println!("{}", self.admin.connect()?.evict(&self.peer, &self.reason)?);
        Ok(SUCCESS)
    }
}

/// `ringfold drain`
#[derive(Args, Debug)]
pub struct DrainArguments {
    /// Let new peers join again
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    admin: AdminArguments,
}

impl DrainArguments {
    /// Refuses new peers, or lets them join again.
    pub fn run(&self) -> Result<i32> {
        println!("{}", self.admin.connect()?.drain(!self.off)?);
        Ok(SUCCESS)
    }
}
