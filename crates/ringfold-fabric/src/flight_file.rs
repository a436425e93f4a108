//! A bounded file of lines that can be read after the process was killed.
//!
//! The file is a ring: when it is full, the oldest lines are overwritten. A line is in the page cache as soon as it is
//! written, which outlives the process. It is written by `pwrite`, not through a mapping: a mapped page whose block cannot
//! be had (a full disk that copies on write, a file that was truncated, a server that is gone) kills the process.

use crate::host;
use ringfold_proto::limits;
use rustix::fs::FallocateFlags;
use rustix::process::geteuid;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How the names of such files end.
pub const EXTENSION: &str = "flight";

/// The first bytes hold the header, which is not overwritten.
pub const HEADER_BYTES: usize = 1024;

/// The longest line, with its end.
pub const LINE_BYTES_MAX: usize = limits::FLIGHT_LINE_BYTES_MAX;

/// The smallest and the largest file.
pub const BYTES_MIN: u64 = 64 << 10;
/// See [`BYTES_MIN`].
pub const BYTES_MAX: u64 = limits::FLIGHT_BYTES_MAX;

/// How many names are tried for a file.
const NAMES_MAX: u32 = 100;

/// A file that this process writes. It is locked while it is open.
#[derive(Debug)]
pub struct FlightFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    at: u64,
}

impl FlightFile {
    /// Creates a file, with all its blocks, and writes the header. If the name is taken, a number is added.
    ///
    /// # Errors
    /// If the directory cannot be written, the disk is full, or the header is too long.
    pub fn create(directory: &Path, stem: &str, bytes: u64, header: &str) -> io::Result<Self> {
        let bytes = bytes.clamp(BYTES_MIN, BYTES_MAX);
        std::fs::create_dir_all(directory)?;
        let (file, path) = open_new(directory, stem)?;
        let made = Self { file, path, bytes, at: HEADER_BYTES as u64 };
        made.fill(header).inspect_err(|_| drop(std::fs::remove_file(&made.path)))?;
        Ok(made)
    }

    fn fill(&self, header: &str) -> io::Result<()> {
        self.file.try_lock().map_err(io::Error::from)?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.bytes) {
            Ok(()) => {}
            // Not all file systems can allocate.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {
                let zeros = vec![0; BYTES_MIN as usize];
                let mut at = 0;
                while at < self.bytes {
                    let count = (self.bytes - at).min(BYTES_MIN);
                    self.file.write_all_at(&zeros[..count as usize], at)?;
                    at += count;
                }
            }
            Err(error) => return Err(error.into()),
        }
        if header.len() >= HEADER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the header is too long"));
        }
        let mut first = vec![b' '; HEADER_BYTES];
        first[..header.len()].copy_from_slice(header.as_bytes());
        first[HEADER_BYTES - 1] = b'\n';
        self.file.write_all_at(&first, 0)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line, which ends with a line feed. Longer ones than [`LINE_BYTES_MAX`] are left out.
    ///
    /// # Errors
    /// If the file cannot be written any more.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if line.len() > LINE_BYTES_MAX {
            return Ok(());
        }
        let end = self.at + line.len() as u64;
        if end > self.bytes {
            // Lines are not split, so that each can be read by itself.
            let rest = vec![b'\n'; (self.bytes - self.at) as usize];
            self.file.write_all_at(&rest, self.at)?;
            self.at = HEADER_BYTES as u64;
        }
        self.file.write_all_at(line, self.at)?;
        self.at += line.len() as u64;
        Ok(())
    }
}

fn open_new(directory: &Path, stem: &str) -> io::Result<(File, PathBuf)> {
    for number in 1..=NAMES_MAX {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = directory.join(format!("{stem}{suffix}.{EXTENSION}"));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{NAMES_MAX} files of the name {stem:?} exist")))
}

/// Whether the process that writes a file still runs, as far as this host knows. A file that cannot be opened counts as in use.
pub fn is_in_use(path: &Path) -> bool {
    // Locks of other processes, and of other hosts on network file systems. The kernel releases them with the process.
    let locked = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    host::open_regular(path).map_or(true, locked)
}

/// Deletes the oldest files of ended processes of this user in a directory, so that at most `kept` are left.
pub fn prune(directory: &Path, kept: usize) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let flights = paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let is_own = |about: Metadata| about.is_file() && about.uid() == geteuid().as_raw();
    let own = flights.filter(|path| path.symlink_metadata().is_ok_and(is_own));
    let ended = own.filter(|path| !is_in_use(path));
    let aged = ended.filter_map(|path| Some((path.symlink_metadata().ok()?.modified().ok()?, path)));
    let mut aged: Vec<_> = aged.collect();
    aged.sort();
    let excess = aged.len().saturating_sub(kept);
    for (_, path) in aged.into_iter().take(excess) {
        // Another process may have deleted it.
        let _ = std::fs::remove_file(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ringfold-flight-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let text = String::from_utf8(std::fs::read(path).unwrap()).unwrap();
        let mut numbers: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn the_newest_lines_and_the_header_remain_and_the_file_does_not_grow() {
        let scratch = Scratch::new("ring");
        let mut flight = FlightFile::create(&scratch.0.join("new"), "a-1", 1, "header").unwrap();
        let path = flight.path().to_owned();
        let count = 3 * BYTES_MIN / 100;
        for number in 0..count {
            flight.write(format!("{number:099}\n").as_bytes()).unwrap();
        }
        flight.write(&vec![b'x'; LINE_BYTES_MAX + 1]).unwrap();
        assert_eq!(path.metadata().unwrap().len(), BYTES_MIN);
        let found = numbers(&path);
        assert_eq!(found.last(), Some(&(count - 1)));
        assert!(found.len() as u64 >= (BYTES_MIN - 2 * HEADER_BYTES as u64) / 100, "{}", found.len());
        assert!(found.windows(2).all(|pair| pair[1] == pair[0] + 1), "no gaps");
        assert!(std::fs::read(&path).unwrap().starts_with(b"header "));
    }

    #[test]
    fn files_of_running_processes_are_kept_and_a_taken_name_gets_a_number() {
        let scratch = Scratch::new("prune");
        let make = || FlightFile::create(&scratch.0, "peer-7", BYTES_MIN, "{}").unwrap();
        let all: Vec<_> = (0..4).map(|_| make()).collect();
        let paths: Vec<_> = all.iter().map(|flight| flight.path().to_owned()).collect();
        assert!(paths[3].ends_with("peer-7-4.flight"), "{paths:?}");
        prune(&scratch.0, 0);
        assert!(paths.iter().all(|path| is_in_use(path)), "all are in use");
        let kept = all.into_iter().next().unwrap();
        // The process may have forked elsewhere in the tests: the lock ends with the last copy.
        let free = || paths[1..].iter().all(|path| !is_in_use(path));
        for _ in 0..500 {
            if free() {
                break;
            }
            std::thread::sleep(core::time::Duration::from_millis(10));
        }
        prune(&scratch.0, 1);
        let left: Vec<_> = paths.iter().filter(|path| path.exists()).collect();
        assert_eq!(left, [&paths[0], &paths[3]], "the oldest were deleted");
        drop(kept);
    }

    #[test]
    fn what_others_have_put_into_the_directory_delays_nothing() {
        let scratch = Scratch::new("shared");
        let path = |name: &str| scratch.0.join(format!("{name}.{EXTENSION}"));
        let made = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
        std::os::unix::fs::symlink(path("fifo"), path("link")).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        assert!(made.success() && ["fifo", "link", "folder"].iter().all(|name| is_in_use(&path(name))));
        prune(&scratch.0, 0);
        assert!(path("fifo").exists() && path("link").is_symlink() && !path("file").exists());
        std::fs::remove_dir(path("folder")).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        assert!(FlightFile::create(Path::new("/proc/nowhere"), "a", BYTES_MIN, "{}").is_err());
    }
}
