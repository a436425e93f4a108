//! Where rank 0's announcement is left for the others to read.

use super::place::ANNOUNCEMENT_BYTES_MAX;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A notice board: a file, a key of a store, whatever all ranks can get at.
///
/// Rank 0 posts one line that says where it listens, with a secret in it: whoever can read it can take part. The others
/// read until they find a line that leads them to rank 0. What an earlier run has left does no harm: it is dialled in
/// vain, and read again.
pub trait Notice: Send + Sync {
    /// Rank 0 leaves its announcement, and replaces what was there.
    fn post(&self, text: &str) -> io::Result<()>;

    /// What is there now, if anything. Asked again and again; an error is tried again too, until time is up.
    fn read(&self) -> io::Result<Option<String>>;

    /// All have come, or rank 0 gave up: nobody needs it any more.
    fn withdraw(&self);

    /// What errors call it.
    fn describe(&self) -> String;
}

/// A file as a notice board.
pub(super) struct FileNotice {
    path: PathBuf,
}

impl FileNotice {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Notice for FileNotice {
    fn post(&self, text: &str) -> io::Result<()> {
        // Whoever reads it shall see all of it, or nothing.
        let mut draft = self.path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        // Whoever reads the secret can take part. Nobody else's file or link is written through.
        let _ = fs::remove_file(&draft);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        fs::rename(&draft, &self.path)
    }

    fn read(&self) -> io::Result<Option<String>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(ANNOUNCEMENT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    fn withdraw(&self) {
        // One that stays misleads nobody.
        let _ = fs::remove_file(&self.path);
    }

    fn describe(&self) -> String {
        format!("the file {}", self.path.display())
    }
}

/// An announcement that hangs; it is taken down when this is dropped.
pub(super) struct Posted<'a> {
    notice: &'a dyn Notice,
}

impl<'a> Posted<'a> {
    pub(super) fn new(notice: &'a dyn Notice, text: &str) -> io::Result<Self> {
        notice.post(text)?;
        Ok(Self { notice })
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.notice.withdraw();
    }
}
