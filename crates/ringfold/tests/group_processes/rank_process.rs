//! Ranks as processes, from the outside.

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

/// Far more than anything here takes on a machine that has much else to do.
pub const LONG: Duration = Duration::from_secs(60);

/// What a rank may take to hear of another's end. The aim is a tenth of a second.
pub const SOON: Duration = Duration::from_secs(5);

/// Elements of four bytes that make 64 MiB.
pub const MANY: usize = 16 << 20;

/// The media that every promise is tried on.
pub const MEDIA: [&str; 2] = ["tcp", "auto"];

/// The time, by a clock that all processes share.
pub fn now_ns() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos()
}

/// A process that is a rank, or will be.
pub struct Rank {
    process: Process,
}

/// What a rank answered.
#[derive(Debug)]
pub struct Answer {
    pub is_ok: bool,
    pub at_ns: u128,
    pub text: String,
}

impl Answer {
    /// The error that was to come.
    #[track_caller]
    pub fn error(self) -> String {
        assert!(!self.is_ok, "it went well: {}", self.text);
        self.text
    }

    /// What it told.
    #[track_caller]
    pub fn told(self) -> String {
        assert!(self.is_ok, "it failed: {}", self.text);
        self.text
    }
}

impl Rank {
    /// Starts a process that waits for commands.
    pub fn start(name: impl Into<String>) -> Self {
        Self::start_in(name, &[])
    }

    /// As [`Rank::start`], with variables in its environment.
    pub fn start_in(name: impl Into<String>, variables: &[(&str, String)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["group_processes::rank_process_main", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(IS_RANK, "1").envs(variables.iter().map(|(key, value)| (key, value)));
        Self { process: Process::spawn(name, command).expect("a process") }
    }

    /// Gives a command.
    #[track_caller]
    pub fn tell(&mut self, command: impl AsRef<str>) {
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

    /// Gives a command and waits for what comes of it.
    #[track_caller]
    pub fn ask(&mut self, command: impl AsRef<str>) -> Answer {
        self.tell(command);
        self.answer()
    }

    /// Waits until an endless operation is under way.
    #[track_caller]
    pub fn has_begun(&mut self) {
        self.process.wait_for_line("begun", LONG).unwrap();
    }

    /// Waits until it listens at an address.
    #[track_caller]
    pub fn await_listener(&self, at: &str) {
        let until = Instant::now() + LONG;
        let address: SocketAddr = at.parse().expect("an address");
        while !listening_ports(self.pid()).unwrap().contains(&address.port()) {
            assert!(Instant::now() < until, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many ranks have connected to this one, and it has read what they sent. It has then registered
    /// them, or does so in a moment.
    #[track_caller]
    pub fn await_visitors(&self, count: usize) {
        let until = Instant::now() + LONG;
        let is_there = |socket: &Socket| !socket.listens && socket.unread_bytes == 0;
        while sockets(self.pid()).unwrap().iter().filter(|socket| is_there(socket)).count() < count {
            assert!(Instant::now() < until, "fewer than {count} ranks have connected");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(200));
    }

    /// It has nothing more to do, and ends by itself.
    #[track_caller]
    pub fn ends(mut self) {
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

/// Processes that have met and are a group.
#[track_caller]
pub fn group(world: usize, media: &str, more: &str) -> Vec<Rank> {
    let place = Place::new();
    let mut ranks: Vec<_> = (0..world).map(|rank| Rank::start(format!("rank {rank}"))).collect();
    for (index, rank) in ranks.iter_mut().enumerate() {
        rank.tell(format!("connect rank={index} world={world} media={media} at={} {more}", place.file()));
    }
    for rank in &mut ranks {
        assert_eq!(rank.answer().told(), format!("shared={}", media == "auto"));
    }
    ranks
}

/// A folder of its own for a meeting, gone with this.
pub struct Place {
    folder: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        static PLACES: AtomicUsize = AtomicUsize::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("ringfold-meeting-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { folder }
    }

    /// The file to meet at, as a setting.
    pub fn file(&self) -> String {
        format!("file:{}", self.path().display())
    }

    /// The file to meet at.
    pub fn path(&self) -> PathBuf {
        self.folder.join("meet")
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An address of this host that nobody listens at.
pub fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}
