//! Times of day as RFC 3339 in UTC, with microseconds.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_SECONDS: i64 = 86_400;

/// Appends a time, such as `2026-01-31T08:15:00.000250Z`.
pub fn append_time(out: &mut Vec<u8>, time: SystemTime) {
    let micros = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    };
    append_micros(out, micros);
}

/// A time as text.
pub fn format_time(time: SystemTime) -> String {
    let mut out = Vec::with_capacity(27);
    append_time(&mut out, time);
    String::from_utf8(out).unwrap_or_default()
}

/// Microseconds since 1970 as text. Years are limited to 0 to 9999.
pub fn format_micros(micros: i64) -> String {
    let mut out = Vec::with_capacity(27);
    append_micros(&mut out, micros);
    String::from_utf8(out).unwrap_or_default()
}

fn append_micros(out: &mut Vec<u8>, micros: i64) {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (year, month, day) = civil_from_days(seconds.div_euclid(DAY_SECONDS));
    let time = seconds.rem_euclid(DAY_SECONDS);
    let year = year.clamp(0, 9999);
    let parts = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (time / 3600, 2, b':'),
        (time / 60 % 60, 2, b':'),
        (time % 60, 2, b'.'),
        (fraction, 6, b'Z'),
    ];
    for (value, width, end) in parts {
        let at = out.len();
        out.resize(at + width, b'0');
        let mut rest = value;
        for digit in out[at..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.push(end);
    }
}

/// The microseconds since 1970 of a text of this form.
pub fn parse_micros(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let shape = b"dddd-dd-ddTdd:dd:dd.ddddddZ";
    let fits = |(byte, want): (&u8, &u8)| if *want == b'd' { byte.is_ascii_digit() } else { byte == want };
    if bytes.len() != shape.len() || !bytes.iter().zip(shape).all(fits) {
        return None;
    }
    let number = |at: usize, width: usize| text.get(at..at + width)?.parse::<i64>().ok();
    let (month, day) = (number(5, 2)?, number(8, 2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_from_civil(number(0, 4)?, month, day);
    let seconds = days * DAY_SECONDS + number(11, 2)? * 3600 + number(14, 2)? * 60 + number(17, 2)?;
    Some(seconds * 1_000_000 + number(20, 6)?)
}

/// Year, month and day of a number of days since 1970 (the Gregorian calendar, counted from March).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil_from_days`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_and_read_again() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_827_696_000_001, "2000-02-29T12:34:56.000001Z"),
            (1_767_225_599_999_999, "2025-12-31T23:59:59.999999Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(format_micros(micros), text);
            assert_eq!(parse_micros(text), Some(micros));
        }
        for day in (-300_000..300_000).step_by(37) {
            let micros = day * DAY_SECONDS * 1_000_000 + 5;
            assert_eq!(parse_micros(&format_micros(micros)), Some(micros), "{day}");
        }
        for wrong in ["", "2000-02-29", "2000-13-01T00:00:00.000000Z", "2000-01-01T00:00:00.000000+"] {
            assert_eq!(parse_micros(wrong), None);
        }
    }
}
