//! The status of a run as text.

use ringfold::{EdgeStatus, MasterEntry, Membership, Status};
use std::fmt::Write;
use std::net::SocketAddr;

/// The longest name in a column.
const NAME_WIDTH_MAX: usize = 32;

/// Shown digits of an id: enough for `ringfold evict`.
const ID_WIDTH: usize = 8;

/// The whole status, with so many events.
pub(super) fn render(status: &Status, asked: SocketAddr, events: usize) -> String {
    let mut text = format!("{}\n\n", status.run.verdict);
    let _ = writeln!(text, "{}", headline(status, asked));
    let _ = writeln!(text, "{}", throughput(status));
    if status.run.masters.len() > 1 {
        text.push('\n');
        text.push_str(&masters(&status.run.masters));
    }
    if !status.run.peers.is_empty() {
        text.push('\n');
        text.push_str(&peers(status));
    }
    if !status.run.ring.is_empty() {
        text.push_str("\nring\n");
        text.push_str(&ring(&status.run.ring));
    }
    if !status.run.waits.is_empty() {
        text.push_str("\nwaits\n");
        for wait in &status.run.waits {
            let _ = writeln!(text, "  {}", wait.text);
        }
    }
    let skipped = status.events.len().saturating_sub(events);
    if status.events.len() > skipped {
        text.push_str("\nlast events\n");
        for event in status.events.iter().skip(skipped) {
            let to_the_second = event.time.get(..19).unwrap_or(&event.time);
            let _ = writeln!(text, "  {to_the_second}Z  {:5} {}", event.level, event.text);
        }
    }
    text
}

fn headline(status: &Status, asked: SocketAddr) -> String {
    let master = &status.master;
    let mut text = format!("master {asked}, version {}, up {}", master.version, span(master.uptime_s));
    if !master.masters.is_empty() {
        let role = if master.active { "active" } else { "standing by" };
        let _ = write!(text, ", {role}, number {} of {}", master.position, master.masters.len());
    }
    for group in &status.run.groups {
        let _ = write!(text, "\ngroup {}: {} members", group.group, group.members);
        if group.pending > 0 {
            let _ = write!(text, ", {} waiting to join", group.pending);
        }
        match group.epoch {
            Some(epoch) => _ = write!(text, ", epoch {epoch}"),
            None => _ = write!(text, ", no open epoch ({})", group.stage),
        }
        if let Some(revision) = group.revision {
            let _ = write!(text, ", revision {revision}");
        }
    }
    text
}

fn throughput(status: &Status) -> String {
    let rates = &status.throughput;
    let mut text = format!(
        "{:.1} operations/s, {}/s in the last 10 s",
        rates.operations_per_s,
        bytes(rates.bytes_per_s)
    );
    if let Some(step) = rates.step_s {
        let _ = write!(text, ", a step takes {}", span(step));
    }
    let _ = write!(
        text,
        "; {} committed, {} failed since the start",
        rates.operations_total, rates.aborted_total
    );
    text
}

fn masters(masters: &[MasterEntry]) -> String {
    let head = ["master", "address", "role", "term", "heard", "behind"].map(str::to_owned);
    let count = |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
    let row = |master: &MasterEntry| {
        [
            master.position.to_string(),
            master.address.clone().unwrap_or_default(),
            format!("{:?}", master.role).to_lowercase(),
            count(master.term),
            master.heard_s.map_or_else(|| "never".into(), |seconds| format!("{seconds:.1} s ago")),
            count(master.behind),
        ]
    };
    columns(std::iter::once(head).chain(masters.iter().map(row)).collect())
}

fn peers(status: &Status) -> String {
    let head = ["id", "peer", "address", "group", "revision", "state", "heard"].map(str::to_owned);
    let row = |peer: &ringfold::PeerStatus| {
        let since = peer.call_s.filter(|seconds| *seconds >= 1.0 && peer.membership == Membership::Member);
        [
            peer.id.chars().take(ID_WIDTH).collect(),
            shorten(&peer.name),
            peer.address.clone().unwrap_or_default(),
            peer.group.to_string(),
            peer.revision.map_or_else(|| "-".into(), |revision| revision.to_string()),
            since.map_or_else(
                || peer.state.clone(),
                |seconds| format!("{} for {}", peer.state, span(seconds)),
            ),
            format!("{:.1} s ago", peer.heard_s),
        ]
    };
    columns(std::iter::once(head).chain(status.run.peers.iter().map(row)).collect())
}

fn ring(edges: &[EdgeStatus]) -> String {
    let row = |edge: &EdgeStatus| {
        [
            format!("  {} \u{2192} {}", shorten(&edge.from), shorten(&edge.to)),
            edge.bytes_per_s
                .map_or_else(|| "not measured".into(), |rate| format!("{}/s", bytes(rate as f64))),
            edge.round_trip_s.map_or_else(String::new, |time| format!("round trip {}", span(time))),
        ]
    };
    columns(edges.iter().map(row).collect())
}

/// Rows with aligned columns.
fn columns<const N: usize>(rows: Vec<[String; N]>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn shorten(name: &str) -> String {
    match name.char_indices().nth(NAME_WIDTH_MAX) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}\u{2026}", &name[..end]),
    }
}

/// A time in the unit that suits it.
pub(super) fn span(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} \u{b5}s", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A number of bytes in the unit that suits it.
pub(super) fn bytes(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{c:.0} B"),
        c if c < 1e6 => format!("{:.1} kB", c / 1e3),
        c if c < 1e9 => format!("{:.1} MB", c / 1e6),
        c => format!("{:.2} GB", c / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_suit_the_number() {
        assert_eq!(
            [0.00002, 0.25, 42.0, 600.0, 7200.0].map(span),
            ["20 \u{b5}s", "250 ms", "42.0 s", "10 min", "2.0 h"]
        );
        assert_eq!([12.0, 1.5e3, 2e6, 3.25e9].map(bytes), ["12 B", "1.5 kB", "2.0 MB", "3.25 GB"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![["a".into(), "b".into()], ["long".into(), "c".into()]];
        assert_eq!(columns::<2>(rows), "a     b\nlong  c\n");
        assert_eq!(shorten(&"x".repeat(40)).chars().count(), NAME_WIDTH_MAX + 1);
    }
}
