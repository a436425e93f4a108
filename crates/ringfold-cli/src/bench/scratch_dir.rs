//! A private directory for the files of one measurement. It is removed at the end.

use anyhow::{Context, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct ScratchDir {
    folder: PathBuf,
    /// The number of paths returned so far.
    names: AtomicU32,
}

impl ScratchDir {
    pub(crate) fn new() -> Result<Self> {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringfold-bench-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // A directory of this name is left over from a killed process.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, names: AtomicU32::new(0) })
    }

    /// A new path for a file with this name in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{number}-{name}"))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // On failure a few small files stay in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_directory_is_private_and_is_removed() {
        let scratch = ScratchDir::new().unwrap();
        let folder = scratch.folder().to_owned();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(scratch.path("a"), scratch.path("a"));
        std::fs::write(scratch.path("a"), "x").unwrap();
        drop(scratch);
        assert!(!folder.exists());
    }
}
