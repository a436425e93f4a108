//! A tuning as text: what `ringfold bench --tune` writes, and what masters and groups are given.

use anyhow::{Context, Result};
use ringfold::Tuning;
use std::path::Path;

/// What the file says; what it leaves out has its default. Numbers out of bounds are brought within them.
pub fn read(path: &Path) -> Result<Tuning> {
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let tuning: Tuning =
        serde_json::from_str(&text).with_context(|| format!("{} is no tuning", path.display()))?;
    Ok(tuning.bounded())
}

/// Writes all of it.
pub fn write(path: &Path, tuning: &Tuning) -> Result<()> {
    let text = format!("{}\n", serde_json::to_string_pretty(tuning)?);
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_wrong_is_named() {
        let path = std::env::temp_dir().join(format!("ringfold-tuning-{}", std::process::id()));
        let tuning = Tuning { chunk_bytes: 65536, ..Tuning::default() };
        write(&path, &tuning).unwrap();
        assert_eq!(read(&path).unwrap(), tuning);
        std::fs::write(&path, "{\"chunk_bites\": 1}").unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("chunk_bites") && error.contains("ringfold-tuning"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path).is_err());
    }
}
