//! `ringfold top`: the status of a run, live in a terminal.

use super::UNREACHABLE;
use super::text::{bytes, span};
use crate::client::{ClientArguments, RunArguments};
use crate::exit_code::SUCCESS;
use anyhow::{Context, Result, bail};
use clap::Args;
use ratatui::Frame;
use ratatui::backend::TermionBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use ratatui::{Terminal, termion};
use ringfold::{Health, Membership, Observer, ObserverOptions, PeerStatus, Status};
use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};
use termion::event::Key;
use termion::input::TermRead;
use termion::raw::IntoRawMode;
use termion::screen::IntoAlternateScreen;

/// How often keys are read.
const KEYS_EVERY: Duration = Duration::from_millis(50);

/// The rows of the events.
const EVENT_ROWS: u16 = 8;

/// `ringfold top`
#[derive(Args, Debug)]
pub struct TopArguments {
    #[command(flatten)]
    run: RunArguments,
    /// The seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    interval: f64,
    #[command(flatten)]
    client: ClientArguments,
}

/// What is on the screen.
struct View {
    masters: String,
    status: Option<Status>,
    /// Why there is no newer status.
    problem: Option<String>,
    peers: TableState,
}

impl TopArguments {
    /// Shows the status until q, Esc or Ctrl-C.
    pub fn run(&self) -> Result<i32> {
        let (options, masters) = (self.client.options(), self.client.masters(&self.run)?);
        if !std::io::stdout().is_terminal() {
            bail!("standard output is not a terminal: use `ringfold status --watch`");
        }
        let interval = Duration::try_from_secs_f64(self.interval).context("invalid --interval")?;
        let screen = std::io::stdout().into_raw_mode()?.into_alternate_screen()?;
        let mut terminal = Terminal::new(TermionBackend::new(screen))?;
        let mut keys = termion::async_stdin().keys();
        let mut view = View { masters, status: None, problem: None, peers: TableState::default() };
        let mut observer = None;
        let mut next = Instant::now();
        loop {
            if next <= Instant::now() {
                view.update(&options, &mut observer);
                next = Instant::now() + interval;
            }
            terminal.draw(|frame| view.draw(frame))?;
            if view.is_ended_by(&mut keys) {
                terminal.show_cursor()?;
                return Ok(if view.problem.is_some() { UNREACHABLE } else { SUCCESS });
            }
            std::thread::sleep(KEYS_EVERY);
        }
    }
}

impl View {
    fn update(&mut self, options: &ObserverOptions, observer: &mut Option<Observer>) {
        let asked = match observer {
            Some(observer) => observer.status(),
            None => options.connect(&self.masters).and_then(|connected| observer.insert(connected).status()),
        };
        match asked {
            Ok(status) => (self.status, self.problem) = (Some(status), None),
            Err(error) => (*observer, self.problem) = (None, Some(format!("unreachable: {error}"))),
        }
    }

    /// Handles the keys that were pressed. Returns whether to end.
    fn is_ended_by(&mut self, keys: &mut termion::input::Keys<impl Read>) -> bool {
        let peers = self.status.as_ref().map_or(0, |status| status.run.peers.len());
        let last = peers.saturating_sub(1);
        while let Some(Ok(key)) = keys.next() {
            let at = self.peers.selected().unwrap_or(0);
            match key {
                Key::Char('q') | Key::Esc | Key::Ctrl('c') => return true,
                Key::Down | Key::Char('j') => self.peers.select(Some((at + 1).min(last))),
                Key::Up | Key::Char('k') => self.peers.select(Some(at.saturating_sub(1))),
                Key::PageDown => self.peers.select(Some((at + 10).min(last))),
                Key::PageUp => self.peers.select(Some(at.saturating_sub(10))),
                _ => {}
            }
        }
        false
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let waits = self.status.as_ref().map_or(0, |status| status.run.waits.len().min(4)) as u16;
        let [verdict, head, graph, peers, waiting, events, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(2),
            Constraint::Length(if frame.area().height >= 24 { 4 } else { 0 }),
            Constraint::Min(4),
            Constraint::Length(if waits > 0 { 2 * waits + 2 } else { 0 }),
            Constraint::Length(EVENT_ROWS + 2),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_verdict(frame, verdict);
        frame.render_widget(
            Paragraph::new("q: end   \u{2191}\u{2193}: peers").style(Style::new().dim()),
            foot,
        );
        let Some(status) = &self.status else { return };
        frame.render_widget(Paragraph::new(headline(status)), head);
        draw_graph(frame, graph, status);
        let count = status.run.peers.len();
        let rows = status.run.peers.iter().map(peer_row);
        let widths = [
            Constraint::Fill(2),
            Constraint::Fill(2),
            Constraint::Length(6),
            Constraint::Length(9),
            Constraint::Fill(3),
            Constraint::Length(10),
        ];
        let head = Row::new(["peer", "address", "group", "revision", "state", "heard"]);
        let table = Table::new(rows, widths)
            .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
            .block(Block::bordered().title(format!(" {count} peers ")))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, peers, &mut self.peers);
        let lines: Vec<_> =
            status.run.waits.iter().take(4).map(|wait| Line::from(wait.text.clone())).collect();
        let text = Paragraph::new(lines).wrap(Wrap { trim: true });
        frame.render_widget(text.block(Block::bordered().title(" who waits for whom ")), waiting);
        let shown = status.events.iter().rev().take(usize::from(EVENT_ROWS)).rev();
        let line = |event: &ringfold::EventEntry| {
            let time = event.time.get(11..19).unwrap_or(&event.time);
            let style = if event.level == "info" { Style::new() } else { Style::new().fg(Color::Yellow) };
            Line::styled(format!("{time} {}", event.text), style)
        };
        let lines: Vec<_> = shown.map(line).collect();
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" events ")), events);
    }

    fn draw_verdict(&self, frame: &mut Frame<'_>, area: Rect) {
        let health = self.status.as_ref().map(|status| status.run.health);
        let (text, colour) = match (&self.problem, health, &self.status) {
            (Some(problem), ..) => (problem.clone(), Color::Red),
            (None, Some(Health::Degraded), Some(status)) => (status.run.verdict.clone(), Color::Yellow),
            (None, _, Some(status)) => (status.run.verdict.clone(), Color::Green),
            (None, _, None) => (format!("connecting to {}", self.masters), Color::Gray),
        };
        let style = Style::new().fg(colour).add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(text).style(style).wrap(Wrap { trim: true }), area);
    }
}

fn headline(status: &Status) -> Vec<Line<'static>> {
    let (rates, master) = (&status.throughput, &status.master);
    let epoch = status.run.epoch.map_or_else(|| "no open epoch".to_owned(), |epoch| format!("epoch {epoch}"));
    let step = rates.step_s.map_or_else(String::new, |step| format!(", a step takes {}", span(step)));
    vec![
        Line::from(format!(
            "master {}, up {}, {epoch}",
            master.addresses.first().cloned().unwrap_or_default(),
            span(master.uptime_s)
        )),
        Line::from(format!(
            "{:.1} operations/s, {}/s{step}; {} committed, {} failed",
            rates.operations_per_s,
            bytes(rates.bytes_per_s),
            rates.operations_total,
            rates.aborted_total
        )),
    ]
}

fn draw_graph(frame: &mut Frame<'_>, area: Rect, status: &Status) {
    let width = usize::from(area.width.saturating_sub(2));
    let skip = status.history.len().saturating_sub(width);
    let data: Vec<u64> = status.history.iter().skip(skip).map(|second| second.bytes).collect();
    let most = data.iter().copied().max().unwrap_or(0);
    let title = format!(" bytes per second, at most {} ", bytes(most as f64));
    frame.render_widget(Sparkline::default().data(data).block(Block::bordered().title(title)), area);
}

fn peer_row(peer: &PeerStatus) -> Row<'static> {
    let colour = match (peer.membership, peer.connected) {
        (_, false) => Color::Red,
        (Membership::Member, _) if peer.call.is_some() => Color::Cyan,
        (Membership::Member, _) => Color::Green,
        _ => Color::Yellow,
    };
    let since =
        peer.call_s.filter(|seconds| *seconds >= 1.0).map(|seconds| format!(" for {}", span(seconds)));
    Row::new([
        peer.name.clone(),
        peer.address.clone().unwrap_or_default(),
        peer.group.to_string(),
        peer.revision.map_or_else(|| "-".into(), |revision| revision.to_string()),
        format!("{}{}", peer.state, since.unwrap_or_default()),
        format!("{:.1} s ago", peer.heard_s),
    ])
    .style(Style::new().fg(colour))
}
