//! How the announcement of rank 0 reaches the other ranks.

use super::bootstrap_listener::ANNOUNCEMENT_BYTES_MAX;
use ringfold_fabric::host;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where rank 0 publishes its address for the other ranks: a file, a key of a store, or similar.
///
/// Rank 0 posts one line with its addresses and a secret; anyone who can read it can join the group. The other ranks
/// read it until they reach rank 0. A line of an earlier run does no harm: dialling it fails, and it is read again.
pub trait AddressExchange: Send + Sync {
    /// Publishes the announcement of rank 0, and replaces an earlier one.
    fn post(&self, text: &str) -> io::Result<()>;

    /// Reads the announcement, if there is one. Called repeatedly, also after errors.
    fn read(&self) -> io::Result<Option<String>>;

    /// Removes the announcement: all ranks are connected, or rank 0 failed.
    fn withdraw(&self);

    /// The name of the exchange in errors.
    fn describe(&self) -> String;
}

/// Exchanges the announcement through a file.
pub(super) struct FileExchange {
    path: PathBuf,
}

impl FileExchange {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl AddressExchange for FileExchange {
    fn post(&self, text: &str) -> io::Result<()> {
        // The rename makes the whole text visible at once.
        let mut draft = self.path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        // Only this user may read the secret, and no existing file or link is written.
        let _ = fs::remove_file(&draft);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        fs::rename(&draft, &self.path)
    }

    fn read(&self) -> io::Result<Option<String>> {
        let file = match host::open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(ANNOUNCEMENT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    fn withdraw(&self) {
        // A file that stays does no harm.
        let _ = fs::remove_file(&self.path);
    }

    fn describe(&self) -> String {
        format!("the file {}", self.path.display())
    }
}

/// A published announcement, withdrawn when dropped.
pub(super) struct PublishedAddress<'a> {
    exchange: &'a dyn AddressExchange,
}

impl<'a> PublishedAddress<'a> {
    pub(super) fn new(exchange: &'a dyn AddressExchange, text: &str) -> io::Result<Self> {
        exchange.post(text)?;
        Ok(Self { exchange })
    }
}

impl Drop for PublishedAddress<'_> {
    fn drop(&mut self) {
        self.exchange.withdraw();
    }
}
