//! The types of values, and how they are written.

use crate::bandwidth::Bandwidth;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::net::IpAddr;

/// The values of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A time within these bounds, such as `500ms`, `2.5s`, `10min`; a number alone is seconds.
    Time(Duration, Duration),
    /// A number of bytes within these bounds, such as `64MiB`; a number alone is bytes.
    Bytes(u64, u64),
    /// A number within these bounds.
    Count(u64, u64),
    /// A cap on a bandwidth, such as `50mbit` or `10MiB/s`, or `none`.
    Bandwidth,
    /// `true`, `yes`, `on`, `1`, or `false`, `no`, `off`, `0`.
    Bool,
    /// A port or a range such as `50000-50099`; 0 is any free port.
    Ports,
    /// An IP address without a port.
    Ip,
    /// An address, `HOST:PORT`.
    Address,
    /// Addresses, `HOST:PORT` or `HOST`, separated by commas; in a TOML file also a list.
    Addresses,
    /// The path of a file or folder.
    Path,
    /// Any text.
    Text,
    /// A text that is not shown.
    Secret,
    /// One of these words.
    Choice(&'static [&'static str]),
}

const TIMES: [(&str, f64); 6] =
    [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0)];

const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1000),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl Kind {
    /// Its name in the reference.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Time(..) => "time",
            Self::Bytes(..) => "bytes",
            Self::Count(..) => "number",
            Self::Bandwidth => "bandwidth",
            Self::Bool => "bool",
            Self::Ports => "ports",
            Self::Ip => "IP address",
            Self::Address => "address",
            Self::Addresses => "addresses",
            Self::Path => "path",
            Self::Text => "text",
            Self::Secret => "secret",
            Self::Choice(_) => "word",
        }
    }

    /// Its bounds or words, for the reference; empty if there are none.
    pub fn bounds(&self) -> String {
        match self {
            Self::Time(min, max) => format!("{} to {}", show_time(*min), show_time(*max)),
            Self::Bytes(min, max) => format!("{} to {}", show_bytes(*min), show_bytes(*max)),
            Self::Count(min, max) if *max == u64::from(u32::MAX) => format!("{min} or more"),
            Self::Count(min, max) => format!("{min} to {max}"),
            Self::Choice(words) => words.join(", "),
            _ => String::new(),
        }
    }

    /// Why a text is not such a value: `must be ...`.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let between = |what: &str, example: &str| format!("must be {what} from {}{example}", self.bounds());
        let is_valid = match self {
            Self::Time(min, max) => {
                let found = parse_time(text).filter(|time| (min..=max).contains(&time));
                found.map(drop).ok_or_else(|| between("a time", ", such as 500ms, 2.5s or 10min"))
            }
            Self::Bytes(min, max) => {
                let found = parse_bytes(text).filter(|bytes| (min..=max).contains(&bytes));
                found.map(drop).ok_or_else(|| between("a number of bytes", ", such as 65536 or 64MiB"))
            }
            Self::Count(min, max) => {
                let found = text.trim().parse().ok().filter(|count| (min..=max).contains(&count));
                found.map(drop).ok_or_else(|| format!("must be a number, {}", self.bounds()))
            }
            Self::Bandwidth => Bandwidth::parse_cap(text).map(drop).map_err(|error| error.to_string()),
            Self::Bool => {
                let words = "must be true, yes, on or 1; or false, no, off or 0";
                parse_bool(text).map(drop).ok_or_else(|| words.into())
            }
            Self::Ports => parse_ports(text)
                .map(drop)
                .ok_or_else(|| "must be a port, or a range such as 50000-50099".into()),
            Self::Ip => text
                .trim()
                .parse::<IpAddr>()
                .map(drop)
                .map_err(|_| "must be an IP address without a port".into()),
            Self::Address if is_address(text.trim()) && text.contains(':') => Ok(()),
            Self::Address => Err("must be HOST:PORT".into()),
            Self::Addresses if split_list(text).all(is_address) => Ok(()),
            Self::Addresses => Err("must be HOST:PORT or HOST, or several separated by commas".into()),
            Self::Path | Self::Text | Self::Secret => Ok(()),
            Self::Choice(words) if words.contains(&text.trim()) => Ok(()),
            Self::Choice(words) => Err(format!("must be one of {}", words.join(", "))),
        };
        if text.trim().is_empty() { Err("must not be empty".into()) } else { is_valid }
    }
}

/// A number with a unit; without one it is seconds.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = if unit.is_empty() { "s" } else { unit };
    let (_, seconds) = TIMES.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.trim().parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// A time as it would be written.
pub(crate) fn show_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let is_whole = |unit: f64| seconds >= unit && (seconds / unit).fract() == 0.0;
    match TIMES.iter().rev().find(|(_, unit)| *unit >= 60.0 && is_whole(*unit)) {
        Some((name, unit)) => format!("{}{name}", seconds / unit),
        None if time >= Duration::from_secs(1) || time.is_zero() => format!("{seconds}s"),
        None if time >= Duration::from_millis(1) => format!("{}ms", time.as_micros() as f64 / 1e3),
        None => format!("{}us", time.as_nanos() as f64 / 1e3),
    }
}

/// A number with a unit; without one it is bytes.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if unit.is_empty() {
        return number.trim().parse().ok();
    }
    let (_, factor) = SIZES.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.trim().parse::<f64>().ok()? * *factor as f64;
    (0.0..=u64::MAX as f64 / 2.0).contains(&bytes).then_some(bytes as u64)
}

fn show_bytes(bytes: u64) -> String {
    let unit = SIZES.iter().rev().find(|(name, unit)| {
        (name.ends_with("iB") || *name == "B") && bytes >= *unit && bytes.is_multiple_of(*unit)
    });
    unit.map_or_else(|| "0".into(), |(name, unit)| format!("{}{name}", bytes / unit))
}

pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Some(true),
        "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

pub(crate) fn parse_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| text.trim().parse::<u16>().ok();
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first <= last).then_some(first..=last)
}

/// The entries of a list, without empty ones.
pub(crate) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Whether it may be `HOST:PORT` or `HOST`. Names are not resolved here.
fn is_address(text: &str) -> bool {
    let is_bare = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_bare(text) => (host, Some(port)),
        _ => (text, None),
    };
    let is_host = !host.is_empty() && !host.contains(char::is_whitespace);
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let millis = |text| parse_time(text).map(|time| time.as_millis());
        for (text, expected) in [
            ("500ms", 500),
            ("2.5s", 2500),
            ("2.5", 2500),
            (" 3 s ", 3000),
            ("10min", 600_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0", 0),
        ] {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
        assert_eq!(parse_time("40us"), Some(Duration::from_micros(40)));
        for wrong in ["", "s", "-1", "-1s", "nan", "inf", "1 fortnight", "1m", "1e400"] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
        for text in ["40us", "500ms", "1.5ms", "2.5s", "15s", "10min", "2h", "30d"] {
            assert_eq!(show_time(parse_time(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("65536"), Some(65536));
        assert_eq!(parse_bytes("1.5 KiB"), Some(1536));
        assert_eq!(parse_bytes("64MiB"), Some(64 << 20));
        assert_eq!(parse_bytes("2kB"), Some(2000));
        for wrong in ["", "MiB", "-1", "-1KiB", "1 stone", "1e30GiB"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        assert_eq!([show_bytes(0), show_bytes(1536), show_bytes(64 << 20)], ["0", "1536B", "64MiB"]);
    }

    #[test]
    fn bounds_are_checked_and_named() {
        let time = Kind::Time(Duration::from_millis(10), Duration::from_secs(3600));
        assert!(time.check("10ms").is_ok() && time.check("1h").is_ok());
        let why = "must be a time from 10ms to 1h, such as 500ms, 2.5s or 10min";
        for wrong in ["9ms", "2h", "soon"] {
            assert_eq!(time.check(wrong), Err(why.into()));
        }
        let count = Kind::Count(1, 9);
        assert!(count.check("9").is_ok());
        assert_eq!(count.check("0"), Err("must be a number, 1 to 9".into()));
        let bytes = Kind::Bytes(0, 1 << 20);
        assert!(bytes.check("1MiB").is_ok() && bytes.check("2MiB").is_err());
        let word = Kind::Choice(&["newest", "majority"]);
        assert_eq!(word.check("oldest"), Err("must be one of newest, majority".into()));
        assert_eq!(Kind::Text.check(" "), Err("must not be empty".into()));
    }

    #[test]
    fn ports_addresses_and_bools() {
        assert_eq!(parse_ports("50000-50099"), Some(50000..=50099));
        assert_eq!(parse_ports("0"), Some(0..=0));
        assert_eq!([parse_ports("9-8"), parse_ports("65536"), parse_ports("a-b")], [None, None, None]);
        for right in ["10.0.0.7:48148", "10.0.0.7", "::1", "[::1]", "[::1]:5", "node-3:48148", "a:1, b:2,"] {
            assert!(Kind::Addresses.check(right).is_ok(), "{right}");
        }
        for wrong in ["10.0.0.7:many", ":48148", "two words:1", "a:1,b:x"] {
            assert!(Kind::Addresses.check(wrong).is_err(), "{wrong}");
        }
        assert!(Kind::Address.check("0.0.0.0:9100").is_ok() && Kind::Address.check("localhost").is_err());
        assert_eq!([parse_bool("ON"), parse_bool("0"), parse_bool("maybe")], [Some(true), Some(false), None]);
    }
}
