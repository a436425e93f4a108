//! Settings that depend on each other.

use crate::kind::show_time;
use crate::table::*;
use crate::{Setting, SettingError, Settings};

/// The first is at least so many times the second.
const AT_LEAST: [(&Setting, u32, &Setting); 5] = [
    (&SILENCE_MAX, 2, &HEARTBEAT),
    (&MASTER_SILENCE_MAX, 2, &HEARTBEAT),
    (&STALL_AFTER, 1, &SILENCE_MAX),
    (&RESTORE_WINDOW, 1, &RESTORE_GRACE),
    (&RESTORE_GRACE, 1, &SUSPECT_MAX),
];

/// Checks the settings that a user has; the defaults are valid.
pub(crate) fn check(settings: &Settings) -> Result<(), SettingError> {
    for (greater, times, less) in AT_LEAST {
        if let (Some(most), Some(least)) = (settings.time(greater), settings.time(less))
            && most < least * times
        {
            let factor = if times == 1 { String::new() } else { format!("{times} x ") };
            let of = |setting| {
                let time = settings.time(setting).map(show_time).unwrap_or_default();
                format!("{} {time} ({})", setting.name, settings.source(setting))
            };
            return Err(SettingError(format!(
                "invalid {}: must be at least {factor}{}",
                of(greater),
                of(less)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Given, USERS, User};

    #[test]
    fn the_defaults_are_valid_and_contradictions_are_named() {
        for user in USERS {
            Settings::resolve(user, &Given::default(), &Given::default(), |_| None).unwrap();
        }
        let mut given = Given::default();
        given.set("silence_max", "600ms");
        let error =
            |user| Settings::resolve(user, &given, &Given::default(), |_| None).unwrap_err().to_string();
        assert_eq!(
            error(User::Master),
            "invalid silence_max 600ms (setting silence_max): must be at least 2 x heartbeat 500ms (default)"
        );
    }
}
