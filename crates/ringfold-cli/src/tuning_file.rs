//! Tunings as JSON files: `ringfold bench --tune` writes them, masters and groups read them.

use anyhow::{Context, Result};
use ringfold::Tuning;
use std::path::Path;

/// Reads a tuning. Missing fields have their defaults; numbers are clamped to their bounds.
pub fn read(path: &Path) -> Result<Tuning> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let tuning: Tuning =
        serde_json::from_str(&text).with_context(|| format!("invalid tuning in {}", path.display()))?;
    Ok(tuning.bounded())
}

/// Writes all fields of a tuning.
pub fn write(path: &Path, tuning: &Tuning) -> Result<()> {
    let text = format!("{}\n", serde_json::to_string_pretty(tuning)?);
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuning_survives_a_round_trip_and_an_unknown_field_is_named() {
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
