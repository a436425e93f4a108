//! Sizes in bytes with units, such as 16MiB.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("g", 1 << 30),
    ("m", 1 << 20),
    ("k", 1 << 10),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, bytes)| lower.strip_suffix(name).map(|rest| (rest, *bytes)))
            .unwrap_or((lower.strip_suffix('b').unwrap_or(&lower), 1));
        let number: u64 = digits.trim().parse().map_err(|_| {
            format!("invalid size {text:?}: must be a whole number and a unit, such as 16MiB, 512KiB, 1GB")
        })?;
        number.checked_mul(unit).map(Self).ok_or_else(|| format!("invalid size {text:?}: too large"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = match self.0 {
            n if n >= 1 << 30 => ("GiB", 1_u64 << 30),
            n if n >= 1 << 20 => ("MiB", 1 << 20),
            n if n >= 1 << 10 => ("KiB", 1 << 10),
            n => return write!(f, "{n} bytes"),
        };
        if self.0.is_multiple_of(unit) {
            write!(f, "{} {name}", self.0 / unit)
        } else {
            write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_and_without_units() {
        for (text, bytes) in [
            ("16MiB", 16 << 20),
            ("512 kib", 512 << 10),
            ("1g", 1 << 30),
            ("3MB", 3_000_000),
            ("17", 17),
            ("9B", 9),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5MiB", "99999999999GiB", "16 pounds"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_formatted_in_the_largest_unit_that_fits() {
        for (bytes, text) in [(5, "5 bytes"), (16 << 20, "16 MiB"), (1536, "1.5 KiB"), (1 << 30, "1 GiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
