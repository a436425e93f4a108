//! The reference in `docs/settings.md`.

use crate::table;

/// The table of all settings in Markdown.
pub fn reference() -> String {
    let mut text = String::from(
        "| setting | variable | flag | type | default | for | meaning |\n|---|---|---|---|---|---|---|\n",
    );
    for setting in table::ALL {
        let variables: Vec<_> = setting.variables().map(|name| format!("`{name}`")).collect();
        let flag = setting.flag.map(|flag| format!("`{flag}`")).unwrap_or_default();
        let bounds = setting.kind.bounds();
        let kind = match bounds.is_empty() {
            true => setting.kind.name().to_owned(),
            false => format!("{}, {bounds}", setting.kind.name()),
        };
        let default =
            if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        let users =
            if setting.users.len() == crate::USERS.len() { "all".into() } else { setting.user_names() };
        let name = format!("`{}`", setting.name);
        let cells = [&name, &variables.join(", "), &flag, &kind, &default, &users, setting.about()];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}
