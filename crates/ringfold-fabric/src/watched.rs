//! Values that are read from files, and read again when the files change.

use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often files are looked at, at most.
const CHECK_AFTER: Duration = Duration::from_secs(1);
/// Values are read again after this time, also if no file has changed.
const RENEW_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A value made from files. Nothing watches them: they are looked at when the value is used.
pub(crate) struct Watched<T> {
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// The files that the value was made of.
    stamps: Vec<Option<Stamp>>,
    loaded: Instant,
    /// How often it was read again.
    version: u64,
    checked: Instant,
    /// Why the last attempt failed, if it did.
    failure: Option<String>,
}

/// Changes when a file is replaced or written: time in seconds and nanoseconds, size, inode.
type Stamp = (i64, i64, u64, u64);

impl<T> core::fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watched").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T> Watched<T> {
    /// Reads the value. `load` reads these files.
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let (stamps, now) = (stamps(&paths), Instant::now());
        let value = Arc::new(load()?);
        let state = State { value, stamps, loaded: now, version: 0, checked: now, failure: None };
        Ok(Self { paths, load: Box::new(load), state: Mutex::new(state) })
    }

    /// The value. If the files have changed it is read again; if that fails the old one is kept.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if now.duration_since(state.checked) >= CHECK_AFTER {
            state.checked = now;
            let stamps = stamps(&self.paths);
            if stamps != state.stamps || now.duration_since(state.loaded) >= RENEW_AFTER {
                self.reload(&mut state, stamps, now);
            }
        }
        state.value.clone()
    }

    /// How often the value was read again so far.
    pub(crate) fn version(&self) -> u64 {
        self.current();
        self.state.lock().version
    }

    fn reload(&self, state: &mut State<T>, stamps: Vec<Option<Stamp>>, now: Instant) {
        match (self.load)() {
            Ok(value) => {
                tracing::info!("read {} again: new connections use the new contents", self.names());
                (state.value, state.stamps) = (Arc::new(value), stamps);
                (state.loaded, state.failure) = (now, None);
                state.version += 1;
            }
            // Half of the files may be replaced: it is tried again.
            Err(error) => {
                if state.failure.as_ref() != Some(&error) {
                    tracing::warn!("{} changed, but the old contents stay in use: {error}", self.names());
                    state.failure = Some(error);
                }
            }
        }
    }

    fn names(&self) -> String {
        self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
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
