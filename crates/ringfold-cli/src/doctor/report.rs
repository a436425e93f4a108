//! The findings of a doctor, for people and for programs.

use ringfold::doctor::{Finding, Judgement, worst};
use serde::Serialize;
use std::fmt::Write;

/// The order and the titles of the families.
const FAMILIES: [(&str, &str); 7] = [
    ("host", "this host"),
    ("names", "names and routes"),
    ("network", "network of this host"),
    ("master", "the master"),
    ("peer", "other hosts"),
    ("cuda", "CUDA"),
    ("python", "Python"),
];
/// The column where texts begin.
const TEXT_COLUMN: usize = 28;

/// The findings of one host.
#[derive(Clone, Debug)]
pub(super) struct HostFindings {
    /// The name of the host, or of a peer.
    pub host: String,
    pub findings: Vec<Finding>,
}

/// How a report looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub colours: bool,
    /// Lines are broken at this column; never if there is none.
    pub width: Option<usize>,
    /// Leaves out what is ok.
    pub only_trouble: bool,
    /// Says whose findings they are.
    pub names_hosts: bool,
}

#[derive(Serialize)]
struct JsonReport<'r> {
    verdict: &'static str,
    findings: Vec<JsonFinding<'r>>,
}

#[derive(Serialize)]
struct JsonFinding<'r> {
    host: &'r str,
    check: &'r str,
    verdict: &'static str,
    text: &'r str,
    remedy: &'r str,
}

/// The worst of all findings.
pub(super) fn verdict(hosts: &[HostFindings]) -> Judgement {
    worst(hosts.iter().flat_map(|host| &host.findings))
}

/// The report as JSON.
pub(super) fn json(hosts: &[HostFindings]) -> serde_json::Result<String> {
    let findings = hosts.iter().flat_map(|of| {
        of.findings.iter().map(|finding| JsonFinding {
            host: &of.host,
            check: &finding.check,
            verdict: finding.judgement.as_str(),
            text: &finding.text,
            remedy: &finding.remedy,
        })
    });
    let report = JsonReport { verdict: verdict(hosts).as_str(), findings: findings.collect() };
    serde_json::to_string_pretty(&report)
}

/// The report as a table, with a summary.
pub(super) fn table(hosts: &[HostFindings], style: Style) -> String {
    let mut out = String::new();
    for of in hosts {
        let is_shown = |finding: &&Finding| !style.only_trouble || finding.judgement != Judgement::Ok;
        let shown: Vec<_> = of.findings.iter().filter(is_shown).collect();
        if shown.is_empty() && style.only_trouble {
            continue;
        }
        if style.names_hosts {
            let _ = writeln!(out, "{}", paint(style, "1", &of.host));
        }
        for (family, title) in FAMILIES {
            let lines: Vec<_> = shown.iter().filter(|finding| finding.family() == family).collect();
            if lines.is_empty() {
                continue;
            }
            if !style.only_trouble {
                let _ = writeln!(out, "{}", paint(style, "1", title));
            }
            lines.into_iter().for_each(|finding| line(&mut out, finding, style));
        }
    }
    out + &summary(hosts)
}

fn line(out: &mut String, finding: &Finding, style: Style) {
    let colour = match finding.judgement {
        Judgement::Ok => "32",
        Judgement::Warn => "33",
        Judgement::Fail => "1;31",
    };
    // Without titles the family is in the name.
    let name = finding.check.split_once('.').filter(|_| !style.only_trouble);
    let name = name.map_or(&*finding.check, |(_, name)| name);
    let word = paint(style, colour, &format!("{:4}", finding.judgement.as_str()));
    let head = format!("  {word}  {name:19} ");
    let _ = writeln!(out, "{head}{}", wrap(&finding.text, style.width));
    if !finding.remedy.is_empty() && finding.judgement != Judgement::Ok {
        let remedy = wrap(&format!("→ {}", finding.remedy), style.width);
        let _ = writeln!(out, "{:TEXT_COLUMN$}{}", "", paint(style, "36", &remedy));
    }
}

fn paint(style: Style, code: &str, text: &str) -> String {
    if style.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Breaks a text into lines that begin at the column of texts.
fn wrap(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let room = width.saturating_sub(TEXT_COLUMN).max(30);
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > room {
            let _ = write!(out, "\n{:TEXT_COLUMN$}", "");
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

/// One line that says how it is.
fn summary(hosts: &[HostFindings]) -> String {
    let count = |judgement| {
        hosts.iter().flat_map(|of| &of.findings).filter(|finding| finding.judgement == judgement).count()
    };
    let (warnings, failures, good) = (count(Judgement::Warn), count(Judgement::Fail), count(Judgement::Ok));
    let number = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let counts = format!("{good} ok, {}, {}", number(warnings, "warning"), number(failures, "failure"));
    match failures {
        0 => format!("{counts}\n"),
        _ => format!("{counts}: repair what failed before you start the run\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<HostFindings> {
        let findings = vec![
            Finding::fail(
                "master.port",
                "nobody listens at head:48148 and the text is long enough to be broken",
                "start it",
            ),
            Finding::ok("host.clock", "the clock is synchronised"),
            Finding::warn("host.dev-shm", "small", "more"),
        ];
        vec![HostFindings { host: "a".into(), findings }]
    }

    #[test]
    fn a_table_is_grouped_and_has_remedies_and_a_summary() {
        let style = Style { colours: false, width: Some(60), only_trouble: false, names_hosts: false };
        let text = table(&hosts(), style);
        let want = "\
this host
  ok    clock               the clock is synchronised
  warn  dev-shm             small
                            → more
the master
  fail  port                nobody listens at head:48148 and
                            the text is long enough to be
                            broken
                            → start it
1 ok, 1 warning, 1 failure: repair what failed before you start the run
";
        assert_eq!(text, want);
        assert!(table(&hosts(), Style { colours: true, ..style }).contains("\x1b[1;31mfail\x1b[0m"));
        let trouble = table(&hosts(), Style { only_trouble: true, names_hosts: true, ..style });
        assert!(!trouble.contains("synchronised") && trouble.starts_with("a\n"), "{trouble}");
        assert!(trouble.contains("  fail  master.port         nobody"), "{trouble}");
    }

    #[test]
    fn json_has_the_verdict_and_all_findings() {
        let value: serde_json::Value = serde_json::from_str(&json(&hosts()).unwrap()).unwrap();
        assert_eq!(value["verdict"], "fail");
        assert_eq!(value["findings"][1]["check"], "host.clock");
        assert_eq!(value["findings"][0]["host"], "a");
        assert_eq!(value["findings"][0]["remedy"], "start it");
        assert_eq!(verdict(&[]), Judgement::Ok);
    }
}
