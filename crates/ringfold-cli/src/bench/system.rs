//! The systems that can be measured, and how to start their ranks.

use super::scratch_dir::ScratchDir;
use super::session::Launch;
use super::setting::{BenchMedium, Bind, Setting};
use super::system_ranks::SystemRanks;
use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use ringfold::settings::{Settings, table};
use std::ffi::OsString;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const GLOO_PEER: &str = include_str!("../../peers/gloo_peer.py");
const OPENMPI_PEER: &str = include_str!("../../peers/openmpi_peer.c");
const OPENMPI_PACKAGES: &str = "apt-get install openmpi-bin libopenmpi-dev";

/// A measured system. Ringfold is always measured, so it is not an argument.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum System {
    #[value(skip)]
    Ringfold,
    /// Gloo, used by torch.distributed
    Gloo,
    /// Open MPI
    #[value(name = "openmpi", aliases = ["open-mpi", "mpi"])]
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

/// Another system that is installed on this machine.
#[derive(Debug)]
pub(crate) enum OtherSystem {
    Gloo {
        python: PathBuf,
        program: PathBuf,
    },
    OpenMpi {
        mpirun: PathBuf,
        program: PathBuf,
        /// The shared-memory transport has another name since version 5.
        major: u32,
    },
}

impl OtherSystem {
    /// Finds the programs of a system; the error says what is missing and how to install it.
    pub(crate) fn find(system: System, python: Option<&Path>, scratch: &ScratchDir) -> Result<Self> {
        match system {
            System::Ringfold => bail!("Ringfold is always measured"),
            System::Gloo => find_gloo(python, scratch),
            System::OpenMpi => find_openmpi(scratch),
        }
    }

    pub(crate) fn system(&self) -> System {
        match self {
            Self::Gloo { .. } => System::Gloo,
            Self::OpenMpi { .. } => System::OpenMpi,
        }
    }

    pub(crate) fn start(
        &self,
        setting: Setting,
        &Launch { scratch, interrupt, lab, .. }: &Launch<'_>,
    ) -> Result<SystemRanks> {
        let world = setting.world;
        if lab.is_some() && self.system() == System::OpenMpi {
            bail!("Open MPI is not measured on emulated hosts");
        }
        SystemRanks::start(scratch, world, interrupt, |socket| match self {
            Self::Gloo { python, program } => {
                let store = scratch.path("store");
                let of_rank = |rank: usize| {
                    let mut command = Command::new(python);
                    command.arg(program).arg("--socket").arg(socket).arg("--store").arg(&store);
                    command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
                    if let Some(core) = setting.core(rank) {
                        command.args(["--core", &core.to_string()]);
                    }
                    lab.map(|lab| lab.enclose(rank, &command)).unwrap_or(command)
                };
                Ok((0..world).map(of_rank).collect())
            }
            Self::OpenMpi { mpirun, program, major } => {
                let mut command = Command::new(mpirun);
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", &world.to_string()]);
                command.args(["--mca", "pml", "ob1", "--mca", "btl"]);
                match setting.medium {
                    BenchMedium::Tcp | BenchMedium::Tls => {
                        command.args(["self,tcp", "--mca", "btl_tcp_if_include", "lo"])
                    }
                    BenchMedium::Shm | BenchMedium::Elastic | BenchMedium::Lab if *major < 5 => {
                        command.arg("self,vader")
                    }
                    BenchMedium::Shm | BenchMedium::Elastic | BenchMedium::Lab => command.arg("self,sm"),
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

fn find_gloo(python: Option<&Path>, scratch: &ScratchDir) -> Result<OtherSystem> {
    let candidates: Vec<PathBuf> = match python {
        Some(python) => vec![python.to_owned()],
        None => vec![cache().join("venv/bin/python"), "python3".into()],
    };
    let has_torch = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)";
    let found = candidates.iter().find(|python| runs(Command::new(python).args(["-c", has_torch])));
    let Some(python) = found else {
        let names: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "no Python with torch ({}); create one with scripts/python-env {}, or pass --python",
            names.join(", "),
            cache().join("venv").display()
        );
    };
    let program = scratch.path("gloo_peer.py");
    std::fs::write(&program, GLOO_PEER).context("cannot write the program for Gloo")?;
    Ok(OtherSystem::Gloo { python: python.clone(), program })
}

fn find_openmpi(scratch: &ScratchDir) -> Result<OtherSystem> {
    let Some(mpirun) = in_path("mpirun") else { bail!("mpirun not found; {OPENMPI_PACKAGES}") };
    let version = Command::new(&mpirun).arg("--version").output().context("cannot run mpirun")?;
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
    if !version.contains("Open MPI") {
        bail!("mpirun is not Open MPI: {version:?}; {OPENMPI_PACKAGES}");
    }
    let number = version.rsplit(' ').next().unwrap_or_default();
    let major = number.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(4);
    let mut hasher = DefaultHasher::new();
    (OPENMPI_PEER, &version, &mpirun).hash(&mut hasher);
    let name = format!("openmpi_peer-{:016x}", hasher.finish());
    let cached = cache().join("bench");
    // Without a writable cache the program is compiled each time.
    let folder = if std::fs::create_dir_all(&cached).is_ok() { cached } else { scratch.folder().to_owned() };
    let program = folder.join(name);
    if !program.exists() {
        compile(&program, scratch)?;
    }
    Ok(OtherSystem::OpenMpi { mpirun, program, major })
}

fn compile(program: &Path, scratch: &ScratchDir) -> Result<()> {
    let Some(mpicc) = in_path("mpicc") else { bail!("mpicc not found; {OPENMPI_PACKAGES}") };
    let source = scratch.path("openmpi_peer.c");
    std::fs::write(&source, OPENMPI_PEER).context("cannot write the program for Open MPI")?;
    // Compile to another name and rename, so that the file is always complete.
    let unfinished = program.with_extension(std::process::id().to_string());
    let output = Command::new(mpicc)
        .args(["-O2", "-o"])
        .args([&unfinished, &source])
        .stdin(Stdio::null())
        .output()
        .context("cannot run mpicc")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(anyhow!(
            "mpicc cannot compile crates/ringfold-cli/peers/openmpi_peer.c:\n{}",
            why.trim()
        ));
    }
    std::fs::rename(&unfinished, program).context("cannot store the program for Open MPI")
}

/// The directory for compiled programs and environments.
fn cache() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let settings = Settings::without_builder().ok();
    let set = settings.as_ref().and_then(|settings| settings.path(&table::CACHE));
    set.map(PathBuf::from)
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
