//! Values that are read from files, and read again when the files change.

use parking_lot::Mutex;
use rustix::process::{getegid, geteuid, getgroups};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

/// How often files are looked at.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Values are read again after this time, also if no file has changed.
const RENEW_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The same if the clock was set back by this much: what was signed before may not be valid yet.
const SET_BACK_MAX: Duration = Duration::from_secs(600);

/// A value made from files. A thread of its own looks at them, so that a file system that stalls delays nobody else: until it
/// answers, the value stays as it was. A process that was forked keeps the value of that time.
pub(crate) struct Watched<T>(Arc<Shared<T>>);

struct Shared<T> {
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    /// The value, and how often it was read again.
    current: Mutex<(Arc<T>, u64)>,
}

/// What the thread knows.
struct Watcher<T> {
    shared: Weak<Shared<T>>,
    /// The files that the value was made of.
    stamps: Vec<Option<Stamp>>,
    /// By the clock that dates of certificates are compared with. It goes on while the host is suspended, and may be set.
    loaded: SystemTime,
    /// Why the last attempt failed, if it did.
    failure: Option<String>,
}

/// Changes when a file is replaced or written: time in seconds and nanoseconds, size, inode.
type Stamp = (i64, i64, u64, u64);

impl<T> core::fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watched").field("paths", &self.0.paths).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads the value. `load` reads these files.
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let (stamps, loaded) = (stamps(&paths), SystemTime::now());
        let current = Mutex::new((Arc::new(load()?), 0));
        let shared = Arc::new(Shared { paths, load: Box::new(load), current });
        let mut watcher = Watcher { shared: Arc::downgrade(&shared), stamps, loaded, failure: None };
        let watch = move || {
            while watcher.check(SystemTime::now()) {
                thread::sleep(CHECK_EVERY);
            }
        };
        let started = thread::Builder::new().name("ringfold-files".into()).spawn(watch);
        started.map_err(|error| format!("cannot start the thread that reads files again: {error}"))?;
        Ok(Self(shared))
    }

    /// The value, of at most [`CHECK_EVERY`] ago if the file system answers. If reading fails the old one is kept.
    pub(crate) fn current(&self) -> Arc<T> {
        self.0.current.lock().0.clone()
    }

    /// How often the value was read again so far.
    pub(crate) fn version(&self) -> u64 {
        self.0.current.lock().1
    }
}

impl<T> Watcher<T> {
    /// Reads the value again if its files have changed. Returns whether anybody uses it.
    fn check(&mut self, now: SystemTime) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let stamps = stamps(&shared.paths);
        if stamps == self.stamps && !is_stale(self.loaded, now) {
            return true;
        }
        let names: Vec<_> = shared.paths.iter().map(|path| path.display().to_string()).collect();
        let names = names.join(", ");
        match (shared.load)() {
            Ok(value) => {
                tracing::info!("read {names} again: new connections use the new contents");
                let mut current = shared.current.lock();
                *current = (Arc::new(value), current.1 + 1);
                (self.stamps, self.loaded, self.failure) = (stamps, now, None);
            }
            // Half of the files may be replaced: it is tried again.
            Err(error) => {
                if self.failure.as_ref() != Some(&error) {
                    tracing::warn!("{names} changed, but the old contents stay in use: {error}");
                    self.failure = Some(error);
                }
            }
        }
        true
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.mtime(), meta.mtime_nsec(), meta.size(), meta.ino()))
    };
    paths.iter().map(stamp).collect()
}

/// Whether a value that was made at one time has to be made again at another.
fn is_stale(loaded: SystemTime, time: SystemTime) -> bool {
    let age = time.duration_since(loaded);
    age.map_or_else(|set_back| set_back.duration() >= SET_BACK_MAX, |age| age >= RENEW_AFTER)
}

/// Warns if others may read a file with a secret.
pub(crate) fn warn_if_readable_by_others(what: &str, path: &std::path::Path) {
    let Ok(meta) = std::fs::metadata(path) else { return };
    let is_own = meta.uid() == geteuid().as_raw();
    let groups = getgroups().unwrap_or_default();
    let is_shared = groups.iter().any(|group| group.as_raw() == meta.gid());
    let is_granted = is_shared && (!is_own || meta.gid() != getegid().as_raw());
    if let (true, Some(advice)) = (meta.is_file(), exposure(meta.mode(), is_own, is_granted)) {
        tracing::warn!("other users of this machine can read the {what} in {}: {advice}", path.display());
    }
}

/// What is to be done about the mode of a secret; none if it is right. A group may read it that the file was given for this process:
/// one of its supplementary groups, or any of its groups if the file belongs to another user. So Kubernetes mounts secrets for a pod with
/// `fsGroup`: mode 0440, owned by root.
fn exposure(mode: u32, is_own: bool, is_granted: bool) -> Option<&'static str> {
    let allowed = if is_granted { 0o040 } else { 0 };
    match (mode & 0o077 & !allowed, is_own, is_granted) {
        (0, ..) => None,
        (_, true, false) => Some("run chmod 600"),
        (_, _, true) => Some("run chmod 640"),
        (_, false, false) => Some("give it to the user of this process, with mode 600"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn values_are_read_again_by_the_clock_that_dates_are_compared_with() {
        let load = {
            let loads = AtomicU32::new(0);
            move || Ok(loads.fetch_add(1, Ordering::Relaxed))
        };
        let made = SystemTime::now();
        let current = Mutex::new((Arc::new(load().unwrap()), 0));
        let shared = Arc::new(Shared { paths: Vec::new(), load: Box::new(load), current });
        let watched = Watched(shared.clone());
        let mut watcher =
            Watcher { shared: Arc::downgrade(&shared), stamps: Vec::new(), loaded: made, failure: None };
        drop(shared);
        // The host was suspended for days, of which the time since its start knows nothing; then its clock is set back.
        for (expected, time) in [(0, made), (1, made + Duration::from_secs(8 * 86_400)), (2, made)] {
            assert!(watcher.check(time));
            assert_eq!((*watched.current(), watched.version()), (expected, u64::from(expected)));
        }
        drop(watched);
        assert!(!watcher.check(made), "nobody uses it any more");
        let hour = Duration::from_secs(3600);
        for (time, expected) in [
            (made, false),
            (made + 23 * hour, false),
            (made + 24 * hour, true),
            (made - hour / 60, false),
            (made - hour / 2, true),
        ] {
            assert_eq!(is_stale(made, time), expected);
        }
    }

    #[test]
    fn a_secret_may_be_readable_by_a_group_that_was_meant() {
        let warns = |mode, is_own, is_granted| exposure(mode, is_own, is_granted).is_some();
        // Private files, and a secret of Kubernetes with `fsGroup`.
        for (mode, is_own, is_granted) in [
            (0o100_600, true, false),
            (0o100_400, true, true),
            (0o100_440, false, true),
            (0o100_640, true, true),
        ] {
            assert!(!warns(mode, is_own, is_granted), "{mode:o}");
        }
        for mode in [0o100_440, 0o100_640, 0o100_660, 0o100_604] {
            assert_eq!(exposure(mode, true, false), Some("run chmod 600"), "{mode:o}");
        }
        assert_eq!(exposure(0o100_444, true, true), Some("run chmod 640"));
        assert!(warns(0o100_444, false, true) && warns(0o100_440, false, false));
    }
}
