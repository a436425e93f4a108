//! The systems that can be measured, and how their ranks are started.

use super::interrupt::Interrupt;
use super::nest::Nest;
use super::team::Team;
use super::{Bind, Medium, Setting};
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

const GLOO_PEER: &str = include_str!("../../peers/gloo_peer.py");
const OPENMPI_PEER: &str = include_str!("../../peers/openmpi_peer.c");
const OPENMPI_PACKAGES: &str = "apt-get install openmpi-bin libopenmpi-dev";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum System {
    Ringfold,
    /// Gloo, by way of torch.distributed.
    Gloo,
    OpenMpi,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ringfold => "ringfold",
            Self::Gloo => "gloo",
            Self::OpenMpi => "openmpi",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Those that ours is held against.
impl FromStr for System {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "gloo" => Ok(Self::Gloo),
            "openmpi" | "open-mpi" | "mpi" => Ok(Self::OpenMpi),
            _ => Err(format!("{text:?} is neither gloo nor openmpi")),
        }
    }
}

/// A system whose ranks can be started here.
#[derive(Debug)]
pub(crate) enum Rival {
    Gloo {
        python: PathBuf,
        /// The file of the program.
        program: PathBuf,
    },
    OpenMpi {
        mpirun: PathBuf,
        program: PathBuf,
        /// From 5 on the shared memory has another name.
        major: u32,
    },
}

impl Rival {
    /// Looks for what a system needs; the error says what is lacking and how to get it.
    pub(crate) fn find(system: System, python: Option<&Path>, nest: &Nest) -> Result<Self> {
        match system {
            System::Ringfold => bail!("that is us"),
            System::Gloo => find_gloo(python, nest),
            System::OpenMpi => find_openmpi(nest),
        }
    }

    pub(crate) fn system(&self) -> System {
        match self {
            Self::Gloo { .. } => System::Gloo,
            Self::OpenMpi { .. } => System::OpenMpi,
        }
    }

    /// Starts its ranks.
    pub(crate) fn start(&self, setting: Setting, nest: &Nest, interrupt: &Interrupt) -> Result<Team> {
        let world = setting.world;
        Team::start(nest, world, interrupt, |socket| match self {
            Self::Gloo { python, program } => {
                let store = nest.path("store");
                let of_rank = |rank: usize| {
                    let mut command = Command::new(python);
                    command.arg(program).arg("--socket").arg(socket).arg("--store").arg(&store);
                    command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
                    if let Some(core) = setting.core(rank) {
                        command.args(["--core", &core.to_string()]);
                    }
                    command
                };
                Ok((0..world).map(of_rank).collect())
            }
            Self::OpenMpi { mpirun, program, major } => {
                let mut command = Command::new(mpirun);
                // Leave to run as root is asked for where that is a mistake; here it is none.
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", &world.to_string()]);
                command.args(["--mca", "pml", "ob1", "--mca", "btl"]);
                match setting.medium {
                    Medium::Tcp => command.args(["self,tcp", "--mca", "btl_tcp_if_include", "lo"]),
                    Medium::Shm | Medium::Elastic if *major < 5 => command.arg("self,vader"),
                    Medium::Shm | Medium::Elastic => command.arg("self,sm"),
                };
                match setting.bind {
                    Bind::Own => {}
                    Bind::None => drop(command.args(["--bind-to", "none"])),
                    Bind::Core => drop(command.args(["--bind-to", "core:overload-allowed"])),
                }
                command.arg(program).arg(socket);
                Ok(vec![command])
            }
        })
    }
}

fn find_gloo(python: Option<&Path>, nest: &Nest) -> Result<Rival> {
    let candidates: Vec<PathBuf> = match python {
        Some(python) => vec![python.to_owned()],
        None => vec![cache().join("venv/bin/python"), "python3".into()],
    };
    let has_torch = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)";
    let found = candidates.iter().find(|python| runs(Command::new(python).args(["-c", has_torch])));
    let Some(python) = found else {
        let names: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "no Python with torch ({}); scripts/python-env {} makes one, --python names another",
            names.join(", "),
            cache().join("venv").display()
        );
    };
    let program = nest.path("gloo_peer.py");
    std::fs::write(&program, GLOO_PEER).context("can't write the program for Gloo")?;
    Ok(Rival::Gloo { python: python.clone(), program })
}

fn find_openmpi(nest: &Nest) -> Result<Rival> {
    let Some(mpirun) = in_path("mpirun") else { bail!("mpirun not found; {OPENMPI_PACKAGES}") };
    let version = Command::new(&mpirun).arg("--version").output().context("mpirun does not run")?;
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
    if !version.contains("Open MPI") {
        bail!("mpirun is not Open MPI's but {version:?}; {OPENMPI_PACKAGES}");
    }
    let number = version.rsplit(' ').next().unwrap_or_default();
    let major = number.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(4);
    let mut hasher = DefaultHasher::new();
    (OPENMPI_PEER, &version, &mpirun).hash(&mut hasher);
    let name = format!("openmpi_peer-{:016x}", hasher.finish());
    let kept = cache().join("bench");
    // Where nothing can be kept it is compiled each time.
    let folder = if std::fs::create_dir_all(&kept).is_ok() { kept } else { nest.folder().to_owned() };
    let program = folder.join(name);
    if !program.exists() {
        compile(&program, nest)?;
    }
    Ok(Rival::OpenMpi { mpirun, program, major })
}

fn compile(program: &Path, nest: &Nest) -> Result<()> {
    let Some(mpicc) = in_path("mpicc") else { bail!("mpicc not found; {OPENMPI_PACKAGES}") };
    let source = nest.path("openmpi_peer.c");
    std::fs::write(&source, OPENMPI_PEER).context("can't write the program for Open MPI")?;
    // Under another name first: whoever finds the file finds all of it.
    let unfinished = program.with_extension(std::process::id().to_string());
    let output = Command::new(mpicc)
        .args(["-O2", "-o"])
        .args([&unfinished, &source])
        .stdin(Stdio::null())
        .output()
        .context("mpicc does not run")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(anyhow!("mpicc can't compile crates/ringfold-cli/peers/openmpi_peer.c:\n{}", why.trim()));
    }
    std::fs::rename(&unfinished, program).context("can't keep the program for Open MPI")
}

/// Where things are kept that take long to make.
fn cache() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("RINGFOLD_CACHE")
        .or_else(|| folder("HOME").map(|home| home.join(".cache/ringfold")))
        .unwrap_or_else(|| std::env::temp_dir().join("ringfold"))
}

fn in_path(program: &str) -> Option<PathBuf> {
    let folders: OsString = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn runs(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
