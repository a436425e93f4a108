//! Writes results to standard output and to files.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Prints text and a newline.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Writes to a file, or to standard output if the path is `-`.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
