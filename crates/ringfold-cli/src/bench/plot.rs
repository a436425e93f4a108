//! The plot as SVG: time against size, both logarithmic, a curve per system, a panel per series.

use super::report::{BenchReport, PointReport, by_series};
use crate::size::ByteSize;
use std::fmt::Write;

/// The width of two panels side by side.
const WIDTH: f64 = 800.0;
const PANEL_HEIGHT: f64 = 300.0;
const LEGEND_HEIGHT: f64 = 34.0;
/// The margins of a panel, for labels.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
/// Distinct also for colour-blind readers, on white and on black.
const COLOURS: [&str; 4] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7"];
/// The colour of text and axes; readable on white and on black.
const INK: &str = "#808080";

/// The plot of a report.
pub(crate) fn svg(report: &BenchReport) -> String {
    let groups: Vec<_> = by_series(&report.points)
        .into_iter()
        .filter_map(|(series, points)| Panel::of(series.title(), &points))
        .collect();
    let mut names: Vec<String> = Vec::new();
    for curve in groups.iter().flat_map(|panel| &panel.curves) {
        if !names.contains(&curve.name) {
            names.push(curve.name.clone());
        }
    }
    let columns = if groups.len() > 1 { 2.0 } else { 1.0 };
    let rows = (groups.len() as f64 / columns).ceil();
    let height = LEGEND_HEIGHT + rows.max(1.0) * PANEL_HEIGHT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n",
        escaped(&format!("Time of collectives, measured on {}", report.machine))
    );
    legend(&mut out, &names);
    for (index, panel) in groups.iter().enumerate() {
        let width = WIDTH / columns;
        let x = (index as f64 % columns) * width;
        let y = LEGEND_HEIGHT + (index as f64 / columns).floor() * PANEL_HEIGHT;
        panel.draw(&mut out, PanelFrame { x, y, width }, &names);
    }
    out + "</svg>\n"
}

fn legend(out: &mut String, names: &[String]) {
    let mut x = LEFT;
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"18\" x2=\"{}\" y2=\"18\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\
             <circle cx=\"{}\" cy=\"18\" r=\"3.5\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"22\" fill=\"{INK}\">{}</text>",
            x + 26.0,
            x + 13.0,
            x + 32.0,
            escaped(name)
        );
        x += 32.0 + 8.0 * name.len() as f64 + 24.0;
    }
}

/// The position and width of a panel.
#[derive(Clone, Copy)]
struct PanelFrame {
    x: f64,
    y: f64,
    width: f64,
}

struct Panel {
    title: String,
    curves: Vec<Curve>,
    sizes: Axis,
    times: Axis,
}

struct Curve {
    name: String,
    /// Bytes, and the median, minimum and maximum time in microseconds.
    points: Vec<(f64, [f64; 3])>,
}

/// A logarithmic axis between two powers of the base.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Axis {
    base: f64,
    first: i32,
    last: i32,
}

impl Axis {
    fn around(base: f64, values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values
            .filter(|value| *value > 0.0 && value.is_finite())
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if high == 0.0 {
            return None;
        }
        let first = (low.log(base) + 1e-9).floor() as i32;
        let last = (high.log(base) - 1e-9).ceil() as i32;
        Some(Self { base, first, last: last.max(first + 1) })
    }

    /// The position of a value, between 0 and 1.
    fn position(self, value: f64) -> f64 {
        (value.log(self.base) - f64::from(self.first)) / f64::from(self.last - self.first)
    }

    /// About ten ticks at most.
    fn ticks(self) -> impl Iterator<Item = f64> {
        let step = ((self.last - self.first) / 8 + 1) as usize;
        (self.first..=self.last).step_by(step).map(move |power| self.base.powi(power))
    }
}

impl Panel {
    /// None without data. Points without bytes are left out.
    fn of(title: String, points: &[&PointReport]) -> Option<Self> {
        let mut curves: Vec<Curve> = Vec::new();
        for point in points.iter().filter(|point| point.bytes > 0) {
            for result in &point.results {
                let Some(figures) = &result.figures else { continue };
                let curve = match curves.iter_mut().position(|curve| curve.name == result.system) {
                    Some(index) => &mut curves[index],
                    None => {
                        curves.push(Curve { name: result.system.to_owned(), points: Vec::new() });
                        curves.last_mut()?
                    }
                };
                let times = [figures.median_us, figures.min_us, figures.max_us];
                curve.points.push((point.bytes as f64, times));
            }
        }
        let all = || curves.iter().flat_map(|curve| &curve.points);
        let sizes = Axis::around(2.0, all().map(|(bytes, _)| *bytes))?;
        let times = Axis::around(10.0, all().flat_map(|(_, times)| *times))?;
        Some(Self { title, curves, sizes, times })
    }

    fn draw(&self, out: &mut String, frame: PanelFrame, names: &[String]) {
        let (left, right) = (frame.x + LEFT, frame.x + frame.width - RIGHT);
        let (top, bottom) = (frame.y + TOP, frame.y + PANEL_HEIGHT - BOTTOM);
        let x = |bytes: f64| left + self.sizes.position(bytes) * (right - left);
        let y = |us: f64| bottom - self.times.position(us) * (bottom - top);
        let _ = writeln!(
            out,
            "<text x=\"{left}\" y=\"{}\" fill=\"{INK}\" font-weight=\"600\">{}</text>",
            top - 12.0,
            escaped(&self.title)
        );
        for tick in self.times.ticks() {
            let at = y(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"{INK}\" \
                 stroke-opacity=\"0.3\"/><text x=\"{}\" y=\"{:.1}\" fill=\"{INK}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                at + 4.0,
                duration(tick)
            );
        }
        for tick in self.sizes.ticks() {
            let at = x(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"{INK}\" \
                 stroke-opacity=\"0.15\"/><text x=\"{at:.1}\" y=\"{}\" fill=\"{INK}\" font-size=\"10\" \
                 text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                bytes_label(tick)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" fill=\"{INK}\" text-anchor=\"middle\">size</text>\
             <text transform=\"translate({:.1} {:.1}) rotate(-90)\" fill=\"{INK}\" \
             text-anchor=\"middle\">time of a call</text>",
            (left + right) / 2.0,
            bottom + 34.0,
            frame.x + 13.0,
            (top + bottom) / 2.0
        );
        for curve in &self.curves {
            let index = names.iter().position(|name| *name == curve.name).unwrap_or(0);
            curve.draw(out, COLOURS[index % COLOURS.len()], x, y);
        }
    }
}

impl Curve {
    fn draw(&self, out: &mut String, colour: &str, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
        let positions: Vec<_> = self
            .points
            .iter()
            .map(|(bytes, [median, ..])| format!("{:.1},{:.1}", x(*bytes), y(*median)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" \
             stroke-linejoin=\"round\"/>",
            positions.join(" ")
        );
        for (bytes, [median, min, max]) in &self.points {
            // From the fastest run to the slowest.
            let _ = writeln!(
                out,
                "<line x1=\"{0:.1}\" y1=\"{1:.1}\" x2=\"{0:.1}\" y2=\"{2:.1}\" stroke=\"{colour}\" \
                 stroke-opacity=\"0.5\" stroke-width=\"1.5\"/>\
                 <circle cx=\"{0:.1}\" cy=\"{3:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{4}</title></circle>",
                x(*bytes),
                y(*min),
                y(*max),
                y(*median),
                escaped(&format!("{}: {}: {median:.2} µs", self.name, ByteSize(*bytes as u64)))
            );
        }
    }
}

fn duration(us: f64) -> String {
    match us {
        us if us < 0.99 => format!("{:.0} ns", us * 1e3),
        us if us < 0.99e3 => format!("{us:.0} µs"),
        us if us < 0.99e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.0} s", us / 1e6),
    }
}

fn bytes_label(bytes: f64) -> String {
    ByteSize(bytes as u64).to_string().replace(" bytes", " B").replace(' ', "\u{a0}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    /// The names of all elements. Fails if one is not closed or text is not escaped.
    fn elements(xml: &str) -> Vec<String> {
        let mut open: Vec<String> = Vec::new();
        let mut seen = Vec::new();
        let mut rest = xml;
        while let Some(at) = rest.find('<') {
            let text = &rest[..at];
            assert!(!text.contains('>'), "{text}");
            let end = rest[at..].find('>').expect("an end") + at;
            let tag = &rest[at + 1..end];
            assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else {
                seen.push(name.clone());
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
        seen
    }

    #[test]
    fn the_plot_is_well_formed_and_has_a_curve_per_system() {
        let mut report = sample();
        report.machine.processor = "A & B <\"C\">".into();
        let picture = svg(&report);
        let seen = elements(&picture);
        let count = |name: &str| seen.iter().filter(|seen| *seen == name).count();
        // The variant has a panel of its own.
        assert_eq!((seen[0].as_str(), count("polyline")), ("svg", 3));
        for part in
            ["ringfold", "gloo", "all_reduce, 2 ranks", "integrity all", "1\u{a0}MiB", "µs", "time of a call"]
        {
            assert!(picture.contains(part), "{part}");
        }
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn a_report_without_points_is_an_empty_plot() {
        let mut report = sample();
        report.points.clear();
        assert_eq!(elements(&svg(&report)), ["svg", "title"]);
    }

    #[test]
    fn axes_end_at_powers_and_have_few_ticks() {
        let axis = Axis::around(10.0, [3.0, 500.0].into_iter()).unwrap();
        assert_eq!(axis, Axis { base: 10.0, first: 0, last: 3 });
        assert!(axis.position(1.0).abs() < 1e-9 && (axis.position(1000.0) - 1.0).abs() < 1e-9);
        assert_eq!(Axis::around(10.0, [100.0].into_iter()), Some(Axis { base: 10.0, first: 2, last: 3 }));
        assert_eq!(Axis::around(10.0, [0.0].into_iter()), None);
        assert!(Axis { base: 2.0, first: 2, last: 28 }.ticks().count() <= 10);
        assert_eq!([0.1, 1.0, 1e3, 1e6].map(duration), ["100 ns", "1 µs", "1 ms", "1 s"]);
    }
}
