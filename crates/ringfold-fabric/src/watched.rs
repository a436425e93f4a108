//! Values that are read from files, and read again when the files change.

use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

/// How often files are looked at.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Values are read again after this time, also if no file has changed.
const RENEW_AFTER: Duration = Duration::from_secs(24 * 3600);

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
    /// By the clock that certificates are valid by.
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
            while watcher.check() {
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
    fn check(&mut self) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let (stamps, now) = (stamps(&shared.paths), SystemTime::now());
        // The clock may have been set back.
        let is_fresh = now.duration_since(self.loaded).is_ok_and(|age| age < RENEW_AFTER);
        if stamps == self.stamps && is_fresh {
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

/// Warns if others may read a file with a secret.
pub(crate) fn warn_if_readable_by_others(what: &str, path: &std::path::Path) {
    if std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o077 != 0) {
        tracing::warn!(
            "other users of this machine can read the {what} in {}: run chmod 600",
            path.display()
        );
    }
}
