//! Rank processes, as the tests control them.

use crate::blocked::await_blocked;
use ringfold_lab::Process;
use ringfold_lab::socket::{Socket, free_port, listening_ports, sockets};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Set for processes that are ranks.
pub const IS_RANK: &str = "RINGFOLD_TEST_IS_RANK";

/// Much longer than anything here takes, also on a loaded machine.
pub const LONG: Duration = Duration::from_secs(60);

/// How long a rank may take to notice the end of another. The goal is a tenth of a second.
pub const SOON: Duration = Duration::from_secs(5);

/// Elements of four bytes in 64 MiB.
pub const MANY: usize = 16 << 20;

/// The media that every test uses.
pub const MEDIA: [&str; 2] = ["tcp", "auto"];

/// The time, by a clock shared by all processes.
pub fn now_ns() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos()
}

/// The process of a rank.
pub struct Rank {
    process: Process,
}

/// The answer of a rank.
#[derive(Debug)]
pub struct Answer {
    pub is_ok: bool,
    pub at_ns: u128,
    pub text: String,
}

impl Answer {
    /// The error; panics if the command succeeded.
    #[track_caller]
    pub fn error(self) -> String {
        assert!(!self.is_ok, "unexpected success: {}", self.text);
        self.text
    }

    /// The reply; panics if the command failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.is_ok, "the command failed: {}", self.text);
        self.text
    }
}

impl Rank {
    /// Starts a process that waits for commands.
    pub fn start(name: impl Into<String>) -> Self {
        Self::start_in(name, &[])
    }

    /// As [`Rank::start`], with environment variables.
    pub fn start_in(name: impl Into<String>, variables: &[(&str, String)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["group_processes::rank_process_main", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(IS_RANK, "1").envs(variables.iter().map(|(key, value)| (key, value)));
        Self { process: Process::spawn(name, command).expect("a process") }
    }

    /// Sends a command.
    #[track_caller]
    pub fn send_command(&mut self, command: impl AsRef<str>) {
        self.process.send(command.as_ref()).unwrap();
    }

    /// Waits for the next answer.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let is_answer = |line: &str| line.starts_with("ok ") || line.starts_with("failed ");
        let line = self.process.wait_for("an answer", LONG, is_answer).unwrap();
        let mut words = line.splitn(4, ' ');
        let (outcome, _, at) = (words.next(), words.next(), words.next());
        let at_ns = at.and_then(|at| at.parse().ok()).expect("a time");
        Answer { is_ok: outcome == Some("ok"), at_ns, text: words.next().unwrap_or_default().into() }
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub fn ask(&mut self, command: impl AsRef<str>) -> Answer {
        self.send_command(command);
        self.answer()
    }

    /// Waits until an endless operation has succeeded once.
    #[track_caller]
    pub fn wait_begun(&mut self) {
        self.process.wait_for_line("begun", LONG).unwrap();
    }

    /// Waits until it listens at an address.
    #[track_caller]
    pub fn await_listener(&self, at: &str) {
        let until = Instant::now() + LONG;
        let address: SocketAddr = at.parse().expect("an address");
        while !listening_ports(self.pid()).unwrap().contains(&address.port()) {
            assert!(Instant::now() < until, "the rank does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Closes standard input, and waits until the process exits.
    #[track_caller]
    pub fn exit(mut self) {
        self.process.close_stdin();
        let status = self.process.wait_exit(SOON).unwrap();
        assert!(status.success(), "{}", self.process.error("ended badly"));
    }
}

impl Deref for Rank {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Rank {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Waits until the last commands of ranks wait for others: no rank runs any more.
#[track_caller]
pub fn await_waiting(ranks: &mut [Rank]) {
    let thread = |rank: &mut Rank| {
        let line = rank.process.wait_for("a call", LONG, |line| line.starts_with("calls ")).unwrap();
        line.rsplit_once(' ').expect("a thread").1.to_owned()
    };
    await_blocked(&ranks.iter_mut().map(thread).collect::<Vec<_>>());
}

/// Waits until ranks have registered with the first one.
#[track_caller]
pub fn await_registered(ranks: &mut [Rank]) {
    let until = Instant::now() + LONG;
    let is_there = |socket: &Socket| !socket.listens && socket.unread_bytes == 0;
    while sockets(ranks[0].pid()).unwrap().iter().filter(|socket| is_there(socket)).count() < ranks.len() - 1
    {
        assert!(Instant::now() < until, "not all ranks have connected");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A rank that has connected waits only for its registration and for ranks that have not connected.
    await_waiting(ranks);
}

/// Starts processes that form a group.
#[track_caller]
pub fn group(world: usize, media: &str, more: &str) -> Vec<Rank> {
    let dir = BootstrapDir::new();
    let mut ranks: Vec<_> = (0..world).map(|rank| Rank::start(format!("rank {rank}"))).collect();
    for (index, rank) in ranks.iter_mut().enumerate() {
        rank.send_command(format!(
            "connect rank={index} world={world} media={media} at={} {more}",
            dir.file()
        ));
    }
    for rank in &mut ranks {
        assert_eq!(rank.answer().ok(), format!("shared={}", media == "auto"));
    }
    ranks
}

/// A temporary directory for a bootstrap file, removed on drop.
pub struct BootstrapDir {
    folder: PathBuf,
}

impl BootstrapDir {
    pub fn new() -> Self {
        static DIRS: AtomicUsize = AtomicUsize::new(0);
        let number = DIRS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("ringfold-bootstrap-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { folder }
    }

    /// The bootstrap file, as a setting.
    pub fn file(&self) -> String {
        format!("file:{}", self.path().display())
    }

    /// The bootstrap file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("bootstrap")
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for BootstrapDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A free address of this host.
pub fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}
