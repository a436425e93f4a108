//! Bandwidths with units, such as 50mbit or 10MiB/s.

use core::fmt;
use core::str::FromStr;

/// A number of bytes per second.
///
/// ```
/// use ringfold_settings::bandwidth::Bandwidth;
///
/// assert_eq!("50mbit".parse(), Ok(Bandwidth::bits(50_000_000)));
/// assert_eq!("10MiB/s".parse(), Ok(Bandwidth::bytes(10 << 20)));
/// assert!("fast".parse::<Bandwidth>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bandwidth(u64);

/// The least bandwidth of a cap. With less, a link would look stalled to its other end.
pub const CAP_MIN: Bandwidth = Bandwidth::bits(1_000_000);

/// Units, longer ones before their suffixes, and how many of them are a bit or a byte per second.
const UNITS: [(&str, Unit, u64); 11] = [
    ("gbit", Unit::Bits, 1_000_000_000),
    ("mbit", Unit::Bits, 1_000_000),
    ("kbit", Unit::Bits, 1_000),
    ("bit", Unit::Bits, 1),
    ("gib", Unit::Bytes, 1 << 30),
    ("mib", Unit::Bytes, 1 << 20),
    ("kib", Unit::Bytes, 1 << 10),
    ("gb", Unit::Bytes, 1_000_000_000),
    ("mb", Unit::Bytes, 1_000_000),
    ("kb", Unit::Bytes, 1_000),
    ("b", Unit::Bytes, 1),
];

#[derive(Clone, Copy)]
enum Unit {
    Bits,
    Bytes,
}

/// Why a text is not a bandwidth.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid bandwidth {text:?}: {why}")]
pub struct InvalidBandwidth {
    text: String,
    why: String,
}

impl Bandwidth {
    /// So many bytes per second.
    pub const fn bytes(per_second: u64) -> Self {
        Self(per_second)
    }

    /// So many bits per second.
    pub const fn bits(per_second: u64) -> Self {
        Self(per_second / 8)
    }

    /// Bytes per second.
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }

    /// A cap: `"none"` or an empty text for no cap, else a bandwidth of at least [`CAP_MIN`].
    pub fn parse_cap(text: &str) -> Result<Option<Self>, InvalidBandwidth> {
        match text.trim() {
            "" | "none" => Ok(None),
            text => {
                let found: Self = text.parse()?;
                if found < CAP_MIN {
                    return Err(invalid(text, format!("a cap must be at least {CAP_MIN}, or \"none\"")));
                }
                Ok(Some(found))
            }
        }
    }
}

fn invalid(text: &str, why: String) -> InvalidBandwidth {
    InvalidBandwidth { text: text.into(), why }
}

impl FromStr for Bandwidth {
    type Err = InvalidBandwidth;

    fn from_str(text: &str) -> Result<Self, InvalidBandwidth> {
        let lower = text.trim().to_ascii_lowercase();
        let amount = lower.strip_suffix("/s").unwrap_or(&lower);
        let found = UNITS.iter().find_map(|(name, unit, factor)| {
            amount.strip_suffix(name).map(|number| (number.trim(), *unit, *factor))
        });
        let form = "must be a number and a unit, such as 50mbit, 1.5gbit, 10MiB/s, 10MB/s";
        let (number, unit, factor) = found.ok_or_else(|| invalid(text, form.into()))?;
        let number: f64 = number.parse().map_err(|_| invalid(text, form.into()))?;
        let per_second = match unit {
            Unit::Bits => number * factor as f64 / 8.0,
            Unit::Bytes => number * factor as f64,
        };
        if !(1.0..=1e15).contains(&per_second) {
            return Err(invalid(text, "must be between 1 B/s and 1 PB/s".into()));
        }
        Ok(Self(per_second as u64))
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.saturating_mul(8);
        match bits {
            1_000_000_000.. => write!(f, "{} Gbit/s", bits as f64 / 1e9),
            1_000_000.. => write!(f, "{} Mbit/s", bits as f64 / 1e6),
            _ => write!(f, "{} kbit/s", bits as f64 / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_parsed_in_bits_and_bytes() {
        for (text, bytes) in [
            ("50mbit", 6_250_000),
            ("50 Mbit/s", 6_250_000),
            ("1.5gbit", 187_500_000),
            ("10MiB/s", 10 << 20),
            ("10 MB/s", 10_000_000),
            ("512kib", 512 << 10),
            ("800bit", 100),
            ("17B/s", 17),
        ] {
            assert_eq!(text.parse(), Ok(Bandwidth(bytes)), "{text}");
        }
        for text in
            ["", "50", "mbit", "-5mbit", "0mbit", "nanmbit", "infmbit", "1e30gbit", "5 pounds", "5m", "5mbps"]
        {
            let error = text.parse::<Bandwidth>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid bandwidth {text:?}: must be")), "{error}");
        }
    }

    #[test]
    fn a_cap_may_be_absent_but_not_tiny() {
        assert_eq!(Bandwidth::parse_cap("none"), Ok(None));
        assert_eq!(Bandwidth::parse_cap(" "), Ok(None));
        assert_eq!(Bandwidth::parse_cap("1mbit"), Ok(Some(CAP_MIN)));
        let error = Bandwidth::parse_cap("10kbit").unwrap_err().to_string();
        assert!(error.ends_with("a cap must be at least 1 Mbit/s, or \"none\""), "{error}");
    }
}
