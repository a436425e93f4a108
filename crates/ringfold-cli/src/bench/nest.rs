//! A folder for what the processes of one measurement share. Nobody else may look into it, and it goes with us.

use anyhow::{Context, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Nest {
    folder: PathBuf,
    /// How many names were given.
    names: AtomicU32,
}

impl Nest {
    pub(crate) fn new() -> Result<Self> {
        static NESTS: AtomicU32 = AtomicU32::new(0);
        let number = NESTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringfold-bench-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // A folder of this name can only be left over from a process that was killed.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("can't make {}", folder.display()))?;
        Ok(Self { folder, names: AtomicU32::new(0) })
    }

    /// Where a file of this name may be made; another one each time.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{number}-{name}"))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        // What can't be removed is a few small files in the folder for such.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_nest_is_ours_alone_and_goes_with_us() {
        let nest = Nest::new().unwrap();
        let folder = nest.folder().to_owned();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(nest.path("a"), nest.path("a"));
        std::fs::write(nest.path("a"), "x").unwrap();
        drop(nest);
        assert!(!folder.exists());
    }
}
