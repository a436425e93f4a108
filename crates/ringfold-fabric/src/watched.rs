//! Values that are read from files, and read again when the files change.

use parking_lot::Mutex;
use rustix::process::{getegid, geteuid, getgroups};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How often files are looked at, at most.
const CHECK_AFTER: Duration = Duration::from_secs(1);
/// Values are read again after this time, also if no file has changed.
const RENEW_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The same if the clock was set back by this much: what was signed before may not be valid yet.
const SET_BACK_MAX: Duration = Duration::from_secs(600);

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
    /// By the clock that dates of certificates are compared with. It goes on while the host is suspended, and may be set.
    loaded: SystemTime,
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
        let loaded = SystemTime::now();
        let state = State { value, stamps, loaded, version: 0, checked: now, failure: None };
        Ok(Self { paths, load: Box::new(load), state: Mutex::new(state) })
    }

    /// The value. If the files have changed it is read again; if that fails the old one is kept.
    pub(crate) fn current(&self) -> Arc<T> {
        self.current_at(SystemTime::now())
    }

    fn current_at(&self, time: SystemTime) -> Arc<T> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if now.duration_since(state.checked) >= CHECK_AFTER {
            state.checked = now;
            let stamps = stamps(&self.paths);
            if stamps != state.stamps || is_stale(state.loaded, time) {
                self.reload(&mut state, stamps, time);
            }
        }
        state.value.clone()
    }

    /// How often the value was read again so far.
    pub(crate) fn version(&self) -> u64 {
        self.current();
        self.state.lock().version
    }

    fn reload(&self, state: &mut State<T>, stamps: Vec<Option<Stamp>>, time: SystemTime) {
        match (self.load)() {
            Ok(value) => {
                tracing::info!("read {} again: new connections use the new contents", self.names());
                (state.value, state.stamps) = (Arc::new(value), stamps);
                (state.loaded, state.failure) = (time, None);
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
        let loads = Arc::new(AtomicU32::new(0));
        let counted = loads.clone();
        let load = move || Ok(counted.fetch_add(1, Ordering::Relaxed));
        let watched = Watched::new(Vec::new(), load).unwrap();
        let (began, made) = (Instant::now(), SystemTime::now());
        // The host was suspended for days, of which the time since its start knows nothing; then its clock is set back.
        for (round, time) in [made + Duration::from_secs(8 * 86_400), made].into_iter().enumerate() {
            while *watched.current_at(time) <= round as u32 {
                assert!(began.elapsed() < Duration::from_secs(30), "the value was not read again");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert_eq!((loads.load(Ordering::Relaxed), watched.version()), (3, 2));
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
