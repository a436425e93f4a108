//! TOML files with settings.

use crate::nearest;
use crate::{Kind, Setting, SettingError, Source, USERS, User, table};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file of which all keys are known and all values are valid.
///
/// Keys of the top level are for all; those of the tables `[master]`, `[peer]`, `[group]` and `[relay]` for one kind.
#[derive(Debug)]
pub struct SettingsFile {
    path: PathBuf,
    entries: Vec<Entry>,
}

struct Entry {
    user: Option<User>,
    setting: &'static Setting,
    text: String,
    line: usize,
}

/// Without secrets.
impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {} = {:?}", self.line, self.setting.name, self.setting.shown(&self.text))
    }
}

impl SettingsFile {
    /// Reads a file. The error has a line for each problem.
    pub fn read(path: &Path) -> Result<Self, SettingError> {
        let failed =
            |why: String| SettingError(format!("cannot read the settings file {}: {why}", path.display()));
        let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(failed(format!("it is larger than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(path, &text)
    }

    /// As [`SettingsFile::read`], from its text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SettingError> {
        let line_of =
            |span: Range<usize>| text.as_bytes()[..span.start].iter().filter(|b| **b == b'\n').count() + 1;
        let at = |span, why: String| format!("{}:{}: {why}", path.display(), line_of(span));
        let table = DeTable::parse(text)
            .map_err(|error| SettingError(at(error.span().unwrap_or(0..0), error.message().to_owned())))?;
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        let mut add = |user: Option<User>, table: &DeTable<'_>, is_top: bool| {
            for (key, value) in table {
                let name: &str = key.get_ref();
                if is_top && User::find(name).is_some() {
                    if value.get_ref().as_table().is_none() {
                        problems.push((key.span(), format!("invalid {name}: must be a table, [{name}]")));
                    }
                    continue;
                }
                match read_entry(user, name, value.get_ref()) {
                    Ok((setting, text)) => {
                        entries.push(Entry { user, setting, text, line: line_of(key.span()) });
                    }
                    Err(why) => problems.push((key.span(), why)),
                }
            }
        };
        add(None, table.get_ref(), true);
        for user in USERS {
            if let Some(of_user) =
                table.get_ref().get(user.name()).and_then(|value| value.get_ref().as_table())
            {
                add(Some(user), of_user, false);
            }
        }
        if problems.is_empty() {
            return Ok(Self { path: path.to_owned(), entries });
        }
        problems.sort_by_key(|(span, _)| span.start);
        let lines: Vec<_> = problems.into_iter().map(|(span, why)| at(span, why)).collect();
        Err(SettingError(lines.join("\n")))
    }

    /// The number of settings in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it sets nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn find(&self, setting: &Setting, user: User) -> Option<(String, Source)> {
        let of = |user| self.entries.iter().find(move |e| e.user == user && e.setting.name == setting.name);
        let entry = of(Some(user)).or_else(|| of(None))?;
        Some((entry.text.clone(), Source::File(self.path.clone(), entry.line)))
    }
}

/// The setting of a key, and its value as a text.
fn read_entry(
    user: Option<User>,
    name: &str,
    value: &DeValue<'_>,
) -> Result<(&'static Setting, String), String> {
    let Some(setting) = Setting::find(name) else {
        let users = USERS.iter().map(|user| user.name()).filter(|_| user.is_none());
        let hint = nearest::hint(name, table::ALL.iter().map(|setting| setting.name).chain(users));
        return Err(format!("unknown key {name:?}{hint}"));
    };
    if let Some(user) = user.filter(|user| !setting.users.contains(user)) {
        let users = setting.user_names();
        return Err(format!("unknown key {name:?} of [{user}]: it is one of {users}"));
    }
    let text = text_of(value, &setting.kind).ok_or_else(|| {
        format!("invalid {name}: must be a {}, but is a TOML {}", setting.kind.name(), value.type_str())
    })?;
    setting.kind.check(&text).map_err(|why| format!("invalid {name} {:?}: {why}", setting.shown(&text)))?;
    Ok((setting, text))
}

/// A TOML value as a text of this kind.
fn text_of(value: &DeValue<'_>, kind: &Kind) -> Option<String> {
    let is_number = matches!(kind, Kind::Time(..) | Kind::Bytes(..) | Kind::Count(..) | Kind::Ports);
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if is_number && number.radix() == 10 => Some(number.as_str().into()),
        DeValue::Float(number) if matches!(kind, Kind::Time(..)) => Some(number.as_str().into()),
        DeValue::Boolean(is_on) if *kind == Kind::Bool => Some(is_on.to_string()),
        DeValue::Array(entries) if *kind == Kind::Addresses => {
            let texts: Option<Vec<_>> = entries.iter().map(|entry| entry.get_ref().as_str()).collect();
            Some(texts?.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::*;

    fn problems(text: &str) -> String {
        SettingsFile::parse(Path::new("run.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn values_may_be_numbers_texts_bools_and_lists() {
        let text = "heartbeat = 0.25\nwait_max = \"1h\"\nspare_slot_bytes = 1_048_576\nlisten_ports = \"5000-5001\"\n\
                    quic = false\nmasters = [\"a:1\", \"b:2\"]\n[master]\nlisten = \"0.0.0.0:5\"\n[relay]\nlisten = \"0.0.0.0:6\"\n";
        let file = SettingsFile::parse(Path::new("run.toml"), text).unwrap();
        let found = |setting, user| file.find(setting, user).map(|(text, _)| text);
        assert_eq!(found(&HEARTBEAT, User::Peer).as_deref(), Some("0.25"));
        assert_eq!(found(&SPARE_SLOT_BYTES, User::Peer).as_deref(), Some("1048576"));
        assert_eq!(found(&QUIC, User::Peer).as_deref(), Some("false"));
        assert_eq!(found(&MASTERS, User::Peer).as_deref(), Some("a:1,b:2"));
        assert_eq!(found(&LISTEN, User::Master).as_deref(), Some("0.0.0.0:5"));
        assert_eq!(found(&LISTEN, User::Relay).as_deref(), Some("0.0.0.0:6"));
        assert_eq!(file.len(), 8);
    }

    #[test]
    fn each_problem_is_named_with_file_line_and_key() {
        assert_eq!(
            problems(
                "\nhearbeat = 1\n[master]\nwait_max = \"soon\"\nvolunteer_relay = true\n[relay]\nquic = 7\n"
            ),
            "run.toml:2: unknown key \"hearbeat\": did you mean \"heartbeat\"?\n\
             run.toml:4: invalid wait_max \"soon\": must be a time from 1s to 30d, such as 500ms, 2.5s or 10min\n\
             run.toml:5: unknown key \"volunteer_relay\" of [master]: it is one of peer\n\
             run.toml:7: unknown key \"quic\" of [relay]: it is one of peer, group"
        );
        assert_eq!(problems("[mastr]\n"), "run.toml:1: unknown key \"mastr\": did you mean \"master\"?");
        assert_eq!(problems("master = 5"), "run.toml:1: invalid master: must be a table, [master]");
        assert_eq!(problems("quic = \"perhaps\"").lines().count(), 1);
        assert!(
            problems("quic = 1")
                .starts_with("run.toml:1: invalid quic: must be a bool, but is a TOML integer")
        );
        assert!(
            problems("quic = true\nquic = false").starts_with("run.toml:2: duplicate key"),
            "{}",
            problems("quic = true\nquic = false")
        );
        assert!(problems("quic =").starts_with("run.toml:1: "));
    }

    #[test]
    fn a_secret_is_not_in_errors() {
        assert!(!problems("join_token = [\"sesame\"]").contains("sesame"));
        assert!(
            !format!("{:?}", SettingsFile::parse(Path::new("a"), "join_token = \"sesame\""))
                .contains("sesame")
        );
    }
}
