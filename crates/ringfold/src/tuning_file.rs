//! Tunings as JSON files: `ringfold bench --tune` writes them, masters and groups read them.

use crate::Error;
use crate::error::invalid;
use ringfold_proto::tuning::Tuning;
use serde::de::Error as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// The field of the limits for CUDA devices; all others are those of the tuning.
const CUDA_PACKET_BYTES: &str = "cuda_packet_bytes";

/// The content of a tuning file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TuningFile {
    /// The tuning of plans.
    pub tuning: Tuning,
    /// By number of ranks: the most bytes of a rank's data that ranks on CUDA devices send in packets. Empty: not measured.
    pub cuda_packet_bytes: BTreeMap<usize, u64>,
}

impl TuningFile {
    /// Reads a file. Missing fields have their defaults; numbers of the tuning are clamped to their bounds.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::system(&format!("cannot read {}", path.display()), &error))?;
        Self::parse(&text).map_err(|error| invalid!("invalid tuning in {}: {error}", path.display()))
    }

    /// As [`read`](Self::read); the defaults if the file does not exist or is empty.
    pub fn read_or_default(path: &Path) -> Result<Self, Error> {
        match std::fs::metadata(path) {
            Ok(about) if about.len() == 0 => Ok(Self::default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            _ => Self::read(path),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut fields: Value = serde_json::from_str(text)?;
        let limits = fields.as_object_mut().and_then(|fields| fields.remove(CUDA_PACKET_BYTES));
        let cuda_packet_bytes = limits.map(serde_json::from_value).transpose();
        let cuda_packet_bytes = cuda_packet_bytes
            .map_err(|error| serde_json::Error::custom(format!("{CUDA_PACKET_BYTES}: {error}")))?
            .unwrap_or_default();
        let tuning: Tuning = serde_json::from_value(fields)?;
        Ok(Self { tuning: tuning.bounded(), cuda_packet_bytes })
    }

    /// Writes all fields.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = self.format().map_err(|error| Error::Internal(error.to_string()))?;
        std::fs::write(path, text)
            .map_err(|error| Error::system(&format!("cannot write {}", path.display()), &error))
    }

    pub(crate) fn format(&self) -> Result<String, serde_json::Error> {
        let mut fields = serde_json::to_value(self.tuning)?;
        if let Some(fields) = fields.as_object_mut().filter(|_| !self.cuda_packet_bytes.is_empty()) {
            fields.insert(CUDA_PACKET_BYTES.into(), serde_json::to_value(&self.cuda_packet_bytes)?);
        }
        Ok(format!("{}\n", serde_json::to_string_pretty(&fields)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_survives_a_round_trip_and_an_unknown_field_is_named() {
        let path = std::env::temp_dir().join(format!("ringfold-tuning-{}", std::process::id()));
        assert_eq!(TuningFile::read_or_default(&path).unwrap(), TuningFile::default());
        let tuning = Tuning { chunk_bytes: 65536, ..Tuning::default() };
        let file = TuningFile { tuning, cuda_packet_bytes: [(2, 1 << 20), (16, 0)].into() };
        file.write(&path).unwrap();
        assert_eq!(TuningFile::read(&path).unwrap(), file);
        for (wrong, what) in [
            (r#"{"chunk_bites": 1}"#, "chunk_bites"),
            (r#"{"cuda_packet_bytes": {"two": 1}}"#, "cuda_packet_bytes"),
            (r#"{"cuda_packet_bytes": {"2": -1}}"#, "-1"),
            ("{", "EOF"),
        ] {
            std::fs::write(&path, wrong).unwrap();
            let error = TuningFile::read_or_default(&path).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("ringfold-tuning"), "{error}");
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!(TuningFile::read_or_default(&path).unwrap(), TuningFile::default());
        std::fs::remove_file(&path).unwrap();
        assert!(TuningFile::read(&path).is_err());
    }

    #[test]
    fn files_without_limits_are_as_before() {
        let text = TuningFile::default().format().unwrap();
        assert!(!text.contains("cuda"), "{text}");
        assert_eq!(serde_json::from_str::<Tuning>(&text).unwrap(), Tuning::default());
        let old = TuningFile::parse(&serde_json::to_string(&Tuning::default()).unwrap()).unwrap();
        assert_eq!(old, TuningFile::default());
    }
}
