//! Parses the commands of `lab-peer`.

use ringfold::{AllReduce, DType, Quantization, QuantizationAlgorithm, ReduceOp, SyncStrategy};
use ringfold_lab::contributions::Contributions;
use std::str::FromStr;
use std::time::Duration;

/// A command.
pub enum Command {
    Connect,
    Topology,
    Pending,
    Optimize,
    World,
    Traffic,
    Leave,
    Exit,
    Sleep(Duration),
    Reduce(Reduce),
    Launch(Reduce),
    Await { tag: u64 },
    Sync(Sync),
    Loop(Training),
}

/// An all-reduce.
#[derive(Clone, Copy)]
pub struct Reduce {
    pub tag: u64,
    pub step: u64,
    pub count: usize,
    pub op: ReduceOp,
    pub dtype: DType,
    pub in_place: bool,
    pub quantization: Option<Quantization>,
    pub deadline: Option<Duration>,
    pub reproducible: bool,
}

/// A synchronisation of the shared state.
pub struct Sync {
    pub revision: u64,
    pub bytes: usize,
    pub keys: usize,
    /// The seed to fill the state with first; none leaves it unchanged.
    pub fill: Option<u64>,
    pub strategy: SyncStrategy,
    /// Whether the contents may differ between peers.
    pub unequal: bool,
}

/// A training loop.
pub struct Training {
    /// The loop ends when the state has this revision.
    pub until: u64,
    /// The loop ends after this many steps.
    pub steps: u64,
    pub count: usize,
    pub bytes: usize,
    pub keys: usize,
    /// The first tag of each step.
    pub tag: u64,
    /// The number of concurrent operations.
    pub tags: u64,
    pub pause: Duration,
    /// The number of steps between optimisations of the ring; 0 for none.
    pub optimize: u64,
}

impl Command {
    pub fn parse(line: &str) -> Result<Self, String> {
        let mut words = Words::new(line);
        let command = match words.next("a command")? {
            "connect" => Self::Connect,
            "topology" => Self::Topology,
            "pending" => Self::Pending,
            "optimize" => Self::Optimize,
            "world" => Self::World,
            "traffic" => Self::Traffic,
            "leave" => Self::Leave,
            "exit" => Self::Exit,
            "sleep" => Self::Sleep(Duration::from_millis(words.number("milliseconds")?)),
            "reduce" => Self::Reduce(Reduce::parse(&mut words)?),
            "launch" => Self::Launch(Reduce::parse(&mut words)?),
            "await" => Self::Await { tag: words.number("a tag")? },
            "sync" => Self::Sync(Sync::parse(&mut words)?),
            "loop" => Self::Loop(Training::parse(&mut words)?),
            other => return Err(format!("unknown command {other:?}")),
        };
        words.end()?;
        Ok(command)
    }
}

impl Reduce {
    /// A sum of floats in place.
    pub fn plain(tag: u64, step: u64, count: usize) -> Self {
        Self {
            tag,
            step,
            count,
            op: ReduceOp::Sum,
            dtype: DType::F32,
            in_place: true,
            quantization: None,
            deadline: None,
            reproducible: false,
        }
    }

    fn parse(words: &mut Words<'_>) -> Result<Self, String> {
        let mut reduce = Self::plain(words.number("a tag")?, 0, words.number("a count")?);
        while let Some((name, value)) = words.option() {
            match (name, value) {
                ("op", _) => {
                    reduce.op = *known(ReduceOp::ALL, value, |op| op.name())?;
                }
                ("dtype", _) => reduce.dtype = dtype(value)?,
                ("out", "") => reduce.in_place = false,
                ("inplace", "") => reduce.in_place = true,
                ("quant", _) => reduce.quantization = Some(quantization(value)?),
                ("deadline", _) => reduce.deadline = Some(Duration::from_millis(number(value)?)),
                ("step", _) => reduce.step = number(value)?,
                ("reproducible", "") => reduce.reproducible = true,
                _ => return Err(format!("unknown option {name:?} of reduce")),
            }
        }
        Ok(reduce)
    }

    /// The options for the library.
    pub fn options(&self) -> AllReduce {
        let mut options = AllReduce::new(self.op).tag(self.tag);
        if let Some(quantization) = self.quantization {
            options = options.quantized(quantization);
        }
        if let Some(deadline) = self.deadline {
            options = options.deadline(deadline);
        }
        if self.reproducible { options.reproducible() } else { options }
    }

    /// The contributions, which check the result.
    pub fn contributions(&self, peers_max: u32) -> Contributions {
        let quantized = self.quantization.is_some();
        Contributions { op: self.op, quantized, tag: self.tag, step: self.step, peers_max }
    }
}

impl Sync {
    fn parse(words: &mut Words<'_>) -> Result<Self, String> {
        let mut sync = Self {
            revision: words.number("a revision")?,
            bytes: words.number("bytes")?,
            keys: words.number("keys")?,
            fill: None,
            strategy: SyncStrategy::EnforcePopular,
            unequal: false,
        };
        while let Some((name, value)) = words.option() {
            match (name, value) {
                ("fill", _) => sync.fill = Some(number(value)?),
                ("strategy", "popular") => sync.strategy = SyncStrategy::EnforcePopular,
                ("strategy", "receive") => sync.strategy = SyncStrategy::ReceiveOnly,
                ("strategy", "send") => sync.strategy = SyncStrategy::SendOnly,
                ("unequal", "") => sync.unequal = true,
                _ => return Err(format!("unknown option {name}={value} of sync")),
            }
        }
        if sync.keys == 0 { Err("invalid number of keys 0: must be at least 1".into()) } else { Ok(sync) }
    }
}

impl Training {
    fn parse(words: &mut Words<'_>) -> Result<Self, String> {
        let mut training = Self {
            until: u64::MAX,
            steps: u64::MAX,
            count: 1000,
            bytes: 1024,
            keys: 2,
            tag: 0,
            tags: 1,
            pause: Duration::ZERO,
            optimize: 0,
        };
        while let Some((name, value)) = words.option() {
            match name {
                "until" => training.until = number(value)?,
                "steps" => training.steps = number(value)?,
                "count" => training.count = number(value)?,
                "bytes" => training.bytes = number(value)?,
                "keys" => training.keys = number::<usize>(value)?.max(1),
                "tag" => training.tag = number(value)?,
                "tags" => training.tags = number::<u64>(value)?.max(1),
                "pause" => training.pause = Duration::from_millis(number(value)?),
                "optimize" => training.optimize = number(value)?,
                _ => return Err(format!("unknown option {name:?} of loop")),
            }
        }
        Ok(training)
    }
}

struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        Self(line.split_whitespace())
    }

    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        number(self.next(what)?)
    }

    fn option(&mut self) -> Option<(&'a str, &'a str)> {
        self.0.next().map(|word| word.split_once('=').unwrap_or((word, "")))
    }

    fn end(&mut self) -> Result<(), String> {
        self.0.next().map_or(Ok(()), |word| Err(format!("unexpected word {word:?}")))
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid number {text:?}"))
}

fn known<'a, T>(all: &'a [T], name: &str, name_of: impl Fn(&T) -> &'static str) -> Result<&'a T, String> {
    all.iter().find(|one| name_of(one) == name).ok_or_else(|| format!("unknown name {name:?}"))
}

fn dtype(name: &str) -> Result<DType, String> {
    known(DType::ALL, name, |dtype| dtype.name()).copied()
}

fn quantization(text: &str) -> Result<Quantization, String> {
    let (algorithm, name) = text.split_once(':').ok_or("invalid quantisation: must be ALGORITHM:DTYPE")?;
    let algorithm = match algorithm {
        "minmax" => QuantizationAlgorithm::MinMax,
        "zps" => QuantizationAlgorithm::ZeroPointScale,
        other => return Err(format!("unknown quantisation {other:?}")),
    };
    Ok(Quantization { algorithm, dtype: dtype(name)? })
}
