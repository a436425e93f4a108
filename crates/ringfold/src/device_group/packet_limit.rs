//! Up to which size a device group sends data in packets, and why.

use crate::settings::{Settings, Source, table};
use crate::{Error, TuningFile};
use core::fmt;
use ringfold_cuda::device_arena::{packet_capacity, shipped_packet_limit};
use std::path::{Path, PathBuf};

/// The most bytes of a rank's data that go in packets. Larger data is read and written in place, or goes through staging areas if
/// its memory is not registered. The smallest limit of all ranks counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketLimit {
    /// The limit, which is not more than what fits.
    pub bytes: u64,
    /// Where it is from.
    pub origin: PacketLimitOrigin,
    is_reduced: bool,
}

/// Where a limit is from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PacketLimitOrigin {
    /// The setting `cuda_packet_bytes`.
    Setting(Source),
    /// A tuning.
    File(PathBuf),
    /// The table for a compute capability.
    Table {
        /// Major and minor number.
        capability: (i32, i32),
        /// Whether it was measured on such a device; otherwise it is the default.
        is_measured: bool,
    },
}

impl PacketLimit {
    /// The limit for a compute capability and a number of ranks.
    ///
    /// It is the setting `cuda_packet_bytes`; or that of a tuning for this number of ranks: of `tuning`, or else of the file
    /// that the setting `cuda_tuning` names; or that of the table.
    pub fn of(capability: (i32, i32), world: usize, tuning: Option<&Path>) -> Result<Self, Error> {
        let settings = Settings::without_builder()?;
        let bytes = settings.number(&table::CUDA_PACKET_BYTES).map(|bytes| bytes as u64);
        let bytes = bytes.map(|bytes| (bytes, settings.source(&table::CUDA_PACKET_BYTES).clone()));
        Self::from_sources(capability, world, bytes, tuning.or_else(|| settings.path(&table::CUDA_TUNING)))
    }

    fn from_sources(
        capability: (i32, i32),
        world: usize,
        bytes: Option<(u64, Source)>,
        tuning: Option<&Path>,
    ) -> Result<Self, Error> {
        let (wanted, origin) = if let Some((bytes, source)) = bytes {
            (bytes, PacketLimitOrigin::Setting(source))
        } else if let Some(path) = tuning
            && let Some(bytes) = TuningFile::read(path)?.cuda_packet_bytes.get(&world)
        {
            (*bytes, PacketLimitOrigin::File(path.to_owned()))
        } else {
            let (bytes, is_measured) = shipped_packet_limit(capability, world);
            (bytes, PacketLimitOrigin::Table { capability, is_measured })
        };
        let bytes = wanted.min(packet_capacity(world));
        Ok(Self { bytes, origin, is_reduced: bytes < wanted })
    }
}

/// For example "1048576, from the table for compute capability 9.0".
impl fmt::Display for PacketLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.bytes)?;
        match &self.origin {
            PacketLimitOrigin::Setting(source) => write!(f, "from {source}")?,
            PacketLimitOrigin::File(path) => write!(f, "from {}", path.display())?,
            PacketLimitOrigin::Table { capability: (major, minor), is_measured: true } => {
                write!(f, "from the table for compute capability {major}.{minor}")?;
            }
            PacketLimitOrigin::Table { capability: (major, minor), .. } => {
                write!(f, "the default, since compute capability {major}.{minor} was not measured")?;
            }
        }
        if self.is_reduced { f.write_str(", reduced to what fits into the packets") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_overrides_a_file_and_a_file_the_table() {
        let path = std::env::temp_dir().join(format!("ringfold-packet-limit-{}", std::process::id()));
        std::fs::write(&path, r#"{"cuda_packet_bytes": {"2": 0, "4": 4096, "8": 99999999}}"#).unwrap();
        let limit = |world, bytes: Option<u64>, path| {
            let bytes = bytes.map(|bytes| (bytes, Source::Variable("RINGFOLD_CUDA_PACKET_BYTES")));
            PacketLimit::from_sources((9, 0), world, bytes, path)
                .map(|limit| limit.to_string())
                .map_err(|error| error.to_string())
        };
        let file = Some(path.as_path());
        let from = |bytes: &str| Ok(format!("{bytes}, from {}", path.display()));
        assert_eq!(limit(2, None, file), from("0"));
        assert_eq!(limit(4, None, file), from("4096"));
        let reduced = limit(8, None, file).unwrap();
        assert!(reduced.starts_with("65536, ") && reduced.ends_with("reduced to what fits into the packets"));
        let table = Ok("16384, from the table for compute capability 9.0".to_owned());
        assert_eq!(limit(16, None, file), table);
        assert_eq!(limit(4, Some(77), file), Ok("77, from RINGFOLD_CUDA_PACKET_BYTES".into()));
        std::fs::remove_file(&path).unwrap();
        assert!(limit(4, None, file).unwrap_err().contains("ringfold-packet-limit"));
    }

    #[test]
    fn devices_that_were_not_measured_are_named() {
        let limit = PacketLimit::from_sources((8, 6), 2, None, None).unwrap().to_string();
        assert_eq!(limit, "1048576, the default, since compute capability 8.6 was not measured");
    }
}
