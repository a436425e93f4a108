//! Join tokens, which may be replaced while a run goes on.

use crate::watched::{Watched, warn_if_readable_by_others};
use core::fmt;
use ringfold_proto::handshake::Secret;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The most bytes of a file with tokens.
const FILE_BYTES_MAX: u64 = 4096;

/// A join token or group token: a text, or the lines of a file. Its `Debug` output does not show it.
///
/// The first line of a file is the token that this end proves; an end that accepts connections accepts all of them. The file is
/// read again when it changes, so a token can be replaced without a restart.
#[derive(Clone, Default)]
pub struct JoinToken(Source);

#[derive(Clone)]
enum Source {
    Text(String),
    File(Arc<Watched<Vec<String>>>),
}

impl Default for Source {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// A file has no token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenFileError(String);

impl JoinToken {
    /// The token in a file, or several, one per line.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenFileError> {
        let path = path.as_ref().to_owned();
        warn_if_readable_by_others("join token", &path);
        let watched = Watched::new(vec![path.clone()], move || read(&path)).map_err(TokenFileError)?;
        Ok(Self(Source::File(Arc::new(watched))))
    }

    /// Whether there is no token.
    pub fn is_none(&self) -> bool {
        self.with(|tokens| tokens.iter().all(|token| token.is_empty()))
    }

    /// The bytes of the shortest token.
    pub fn shortest(&self) -> usize {
        self.with(|tokens| tokens.iter().map(|token| token.len()).min().unwrap_or(0))
    }

    /// The secret of a handshake that begins now.
    pub fn secret(&self) -> Secret {
        self.secret_after("")
    }

    /// The secret, where each token follows another secret.
    pub fn secret_after(&self, prefix: &str) -> Secret {
        let after = |token: &String| format!("{prefix}{token}");
        self.with(|tokens| {
            let all: Vec<_> = tokens.iter().map(after).collect();
            Secret::tokens(all.iter().map(String::as_str))
        })
    }

    /// Whether a text that was shown is one of the tokens. No token accepts nothing.
    pub fn accepts(&self, shown: &str) -> bool {
        self.secret().accepts(shown)
    }

    fn with<T>(&self, use_tokens: impl FnOnce(&[String]) -> T) -> T {
        match &self.0 {
            Source::Text(token) => use_tokens(std::slice::from_ref(token)),
            Source::File(file) => use_tokens(&file.current()),
        }
    }
}

impl From<String> for JoinToken {
    fn from(token: String) -> Self {
        Self(Source::Text(token))
    }
}

impl From<&String> for JoinToken {
    fn from(token: &String) -> Self {
        token.clone().into()
    }
}

impl From<&str> for JoinToken {
    fn from(token: &str) -> Self {
        token.to_owned().into()
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "none" } else { ".." })
    }
}

fn read(path: &Path) -> Result<Vec<String>, String> {
    let failed = |error| format!("cannot read the token in {}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("invalid token in {}: longer than {FILE_BYTES_MAX} bytes", path.display()));
    }
    let tokens: Vec<_> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Into::into).collect();
    // An empty file must not start a run without a token.
    if tokens.is_empty() {
        return Err(format!("no token in {}: the file is empty", path.display()));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_file_has_tokens_and_is_read_again_when_it_changes() {
        let path = std::env::temp_dir().join(format!("ringfold-join-token-{}", std::process::id()));
        for (text, why) in
            [("", "the file is empty"), (" \n\n", "the file is empty"), (&"x".repeat(5000), "longer")]
        {
            std::fs::write(&path, text).unwrap();
            let error = JoinToken::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("ringfold-join-token"), "{error}");
        }
        std::fs::write(&path, " old \n").unwrap();
        let token = JoinToken::from_file(&path).unwrap();
        assert!(token.secret() == Secret::token("old") && format!("{token:?}") == "..");
        std::fs::write(&path, "newer\nold\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while token.secret() != Secret::tokens(["newer", "old"]) {
            assert!(Instant::now() < deadline, "the file was not read again");
            std::thread::sleep(Duration::from_millis(50));
        }
        // What cannot be read changes nothing.
        std::fs::remove_file(&path).unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert!(token.secret_after("x") == Secret::tokens(["xnewer", "xold"]) && token.shortest() == 3);
    }

    #[test]
    fn no_text_is_no_token() {
        assert!(JoinToken::default().is_none() && JoinToken::from("").secret().is_none());
        assert!(JoinToken::from("").secret_after("announced") == Secret::token("announced"));
        assert!(!JoinToken::from("sesame").is_none());
    }

    #[test]
    fn only_a_token_that_is_set_is_accepted_when_it_is_shown() {
        let token = JoinToken::from("sesame");
        assert!(token.accepts("sesame") && JoinToken::from("").secret().accepts("") == token.accepts(""));
        for wrong in ["", "sesam", "sesame ", "Sesame", "sesame\0"] {
            assert!(!token.accepts(wrong), "{wrong:?}");
        }
    }
}
