//! Plots as small SVGs that are readable on light and dark pages: lines over a logarithmic axis, and ranges. Makes text,
//! writes no file. [`crate::bars`] has bars, drawn alike.

use daemon::axis::{self, escape, from_zero, short};
use std::fmt::Write as _;

pub(crate) const WIDTH: f64 = 720.0;
const LEFT: f64 = 76.0;
pub(crate) const RIGHT: f64 = 24.0;
const TOP: f64 = 92.0;
/// Of the part that lines are drawn in.
const PLOT_HEIGHT: f64 = 280.0;
const BOTTOM: f64 = 56.0;
/// Powers of ten that a logarithmic axis shows marks between.
const LOG_POWERS_MAX: usize = 4;
/// Of one range.
const ROW_HEIGHT: f64 = 34.0;
/// Room for the names of ranges.
const NAMES: f64 = 236.0;

const STYLE: &str = ".line{fill:none;stroke-width:2;stroke-linejoin:round}.base{stroke-dasharray:6 4}\
.c0{stroke:#0b62c4;fill:#0b62c4}.c1{stroke:#c8501e;fill:#c8501e}.c2{stroke:#2a8f4f;fill:#2a8f4f}\
.c3{stroke:#8a4fc0;fill:#8a4fc0}.c4{stroke:#777;fill:#777}.c5{stroke:#a8861c;fill:#a8861c}.line{fill:none}.open{fill:none;stroke-width:2}\
@media(prefers-color-scheme:dark){\
.c0{stroke:#6cb2ff;fill:#6cb2ff}.c1{stroke:#ff9966;fill:#ff9966}.c2{stroke:#5fcf8a;fill:#5fcf8a}\
.c3{stroke:#c59bf0;fill:#c59bf0}.c4{stroke:#aaa;fill:#aaa}.c5{stroke:#d9bb5a;fill:#d9bb5a}.line,.open{fill:none}}";

/// The first of the colours of what others are compared with; those before it are the others'.
const BASELINE_COLOUR: usize = 4;
const BASELINE_COLOURS: usize = 2;

/// The colour of each of several things that are baselines or are not, in turn.
pub(crate) fn colours(are_baselines: impl IntoIterator<Item = bool>) -> Vec<usize> {
    let (mut others, mut baselines) =
        ((0..BASELINE_COLOUR).cycle(), (BASELINE_COLOUR..BASELINE_COLOUR + BASELINE_COLOURS).cycle());
    let next = |is_baseline| if is_baseline { baselines.next() } else { others.next() };
    are_baselines.into_iter().map(next).map(|colour| colour.unwrap_or(0)).collect()
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    /// Empty: it goes with the one before, without a name of its own.
    pub(crate) name: String,
    /// In the order in which they are joined; those that are not finite, or not above zero where the axis is
    /// logarithmic, are left out.
    pub(crate) points: Vec<(f64, f64)>,
    /// Others are compared with it.
    pub(crate) is_baseline: bool,
}

/// Lines over a logarithmic x axis.
#[derive(Debug, Clone)]
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    pub(crate) has_log_y: bool,
    /// Else they are counts.
    pub(crate) x_is_bytes: bool,
    pub(crate) lines: Vec<Line>,
}

/// One range of [`Ranges`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Range {
    pub(crate) name: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Others are compared with it.
    pub(crate) is_baseline: bool,
}

/// Ranges below one another, over a logarithmic axis.
#[derive(Debug, Clone)]
pub(crate) struct Ranges<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) ranges: Vec<Range>,
}

/// Where values lie between two places of the drawing.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    is_log: bool,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    pub(crate) marks: Vec<f64>,
}

impl Axis {
    pub(crate) fn at(&self, value: f64) -> f64 {
        let place = |value: f64| if self.is_log { value.log10() } else { value };
        let share = (place(value) - place(self.low)) / (place(self.high) - place(self.low));
        self.start + share * (self.end - self.start)
    }

    /// From 0 to a round number that holds all values.
    pub(crate) fn linear(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (marks, high) = from_zero(values);
        Self { is_log: false, low: 0.0, high, start, end, marks }
    }

    /// From a mark to a mark that hold all values: 1, 2 and 5 times powers of ten, or powers only where those are many.
    fn log(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) = extent(values);
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let factors: &[f64] = if powers.clone().count() > LOG_POWERS_MAX { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all: Vec<f64> =
            powers.flat_map(|power| factors.iter().map(move |k| k * 10f64.powi(power))).collect();
        let low = all.iter().copied().rev().find(|mark| *mark <= low).unwrap_or(low);
        let high = all.iter().copied().find(|mark| *mark >= high && *mark > low).unwrap_or(low * 10.0);
        let marks = all.into_iter().filter(|mark| (low..=high).contains(mark)).collect();
        Self { is_log: true, low, high, start, end, marks }
    }

    /// With marks at the values themselves.
    fn of_values(values: &[f64], start: f64, end: f64) -> Self {
        let (low, high) = extent(values.iter().copied());
        let (low, high) = if low < high { (low, high) } else { (low / 2.0, high * 2.0) };
        let mut marks = values.to_vec();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        Self { is_log: true, low, high, start, end, marks }
    }
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, 0.0), |(low, high), value| (value.min(low), value.max(high)));
    if low <= high { (low, high) } else { (1.0, 10.0) }
}

pub(crate) fn start(height: f64, title: &str, subtitle: &str) -> String {
    axis::start((WIDTH, height), title, subtitle, STYLE)
}

impl Chart<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> String {
        let lines: Vec<(&Line, Vec<(f64, f64)>)> =
            self.lines.iter().map(|line| (line, self.kept(line))).collect();
        let xs: Vec<f64> = lines.iter().flat_map(|(_, points)| points).map(|point| point.0).collect();
        let ys = lines.iter().flat_map(|(_, points)| points).map(|point| point.1);
        let (floor, right) = (TOP + PLOT_HEIGHT, WIDTH - RIGHT);
        let x = Axis::of_values(&xs, LEFT + 16.0, right - 16.0);
        let y = if self.has_log_y { Axis::log(ys, floor, TOP) } else { Axis::linear(ys, floor, TOP) };
        let mut svg = start(floor + BOTTOM, self.title, self.subtitle);
        self.axes(&mut svg, &x, &y);
        let (mut legend_x, mut legend_y) = (LEFT, 66.0);
        let colours = colours(lines.iter().map(|(line, _)| line.is_baseline));
        for ((line, points), colour) in lines.iter().zip(colours) {
            let class =
                if line.is_baseline { format!("c{colour} line base") } else { format!("c{colour} line") };
            if !line.name.is_empty() {
                let width = 60.0 + 7.2 * line.name.chars().count() as f64;
                if legend_x > LEFT && legend_x + width > WIDTH {
                    (legend_x, legend_y) = (LEFT, legend_y + 17.0);
                }
                let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{legend_x} {legend_y}h26\"/>");
                let (text_x, text_y) = (legend_x + 32.0, legend_y + 4.5);
                let _ = writeln!(svg, "<text x=\"{text_x}\" y=\"{text_y}\">{}</text>", escape(&line.name));
                legend_x += width;
            }
            let places: Vec<String> =
                points.iter().map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1))).collect();
            let _ = writeln!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", places.join(" "));
            for (cx, cy) in places.iter().filter_map(|place| place.split_once(',')) {
                let _ = writeln!(svg, "<circle class=\"c{colour}\" cx=\"{cx}\" cy=\"{cy}\" r=\"3.5\"/>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn kept(&self, line: &Line) -> Vec<(f64, f64)> {
        let is_drawn =
            |(x, y): &(f64, f64)| x.is_finite() && *x > 0.0 && y.is_finite() && (*y > 0.0 || !self.has_log_y);
        line.points.iter().copied().filter(is_drawn).collect()
    }

    fn axes(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let (floor, right) = (TOP + PLOT_HEIGHT, WIDTH - RIGHT);
        for mark in &y.marks {
            let at = y.at(*mark);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>");
            let (text_x, text_y) = (LEFT - 8.0, at + 4.5);
            let _ = writeln!(
                svg,
                "<text x=\"{text_x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{}</text>",
                short(*mark)
            );
        }
        for mark in &x.marks {
            let at = x.at(*mark);
            let label = if self.x_is_bytes { bytes(*mark) } else { short(*mark) };
            let _ = writeln!(svg, "<path class=\"axis\" d=\"M{at:.1} {floor}v5\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                floor + 20.0
            );
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{floor}H{right}\"/>");
        let (middle_x, middle_y) = ((LEFT + right) / 2.0, (TOP + floor) / 2.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            floor + 43.0,
            escape(self.x_label)
        );
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 22 {middle_y})\"");
        let _ = writeln!(svg, "<text x=\"22\" y=\"{middle_y}\" {turned}>{}</text>", escape(self.y_label));
    }
}

impl Ranges<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> String {
        let top = 64.0;
        let floor = top + ROW_HEIGHT * self.ranges.len() as f64;
        let ends = self.ranges.iter().flat_map(|range| [range.from, range.to]);
        let ends = ends.filter(|end| end.is_finite() && *end > 0.0);
        let x = Axis::log(ends, NAMES, WIDTH - RIGHT);
        let mut svg = start(floor + BOTTOM, self.title, self.subtitle);
        for mark in &x.marks {
            let at = x.at(*mark);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {top}V{floor}\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                floor + 18.0,
                short(*mark)
            );
        }
        for (row, range) in self.ranges.iter().enumerate() {
            let at = top + ROW_HEIGHT * (row as f64 + 0.5);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                NAMES - 12.0,
                at + 4.5,
                escape(&range.name)
            );
            if !(range.from > 0.0 && range.to.is_finite() && range.from.is_finite() && range.to > 0.0) {
                continue;
            }
            let (from, to) = (x.at(range.from), x.at(range.to));
            let colour = if range.is_baseline { BASELINE_COLOUR } else { 0 };
            let _ = writeln!(
                svg,
                "<path class=\"c{colour} line\" d=\"M{from:.1} {at}H{:.1}\"/>",
                (to - 4.5).max(from)
            );
            let _ = writeln!(svg, "<circle class=\"c{colour}\" cx=\"{from:.1}\" cy=\"{at}\" r=\"4.5\"/>");
            let _ = writeln!(svg, "<circle class=\"c{colour} open\" cx=\"{to:.1}\" cy=\"{at}\" r=\"4.5\"/>");
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{NAMES} {top}V{floor}H{}\"/>", WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (NAMES + WIDTH - RIGHT) / 2.0,
            floor + 42.0,
            escape(self.x_label)
        );
        svg.push_str("</svg>\n");
        svg
    }
}

/// In the largest unit that leaves no fraction.
pub(crate) fn bytes(value: f64) -> String {
    match value as u64 {
        0 => "0".into(),
        n if n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(has_log_y: bool, points: &[(f64, f64)]) -> String {
        let line = |name: &str, is_baseline| Line { name: name.into(), points: points.to_vec(), is_baseline };
        Chart {
            title: "a < b",
            subtitle: "software",
            x_label: "bytes",
            y_label: "MB/s",
            has_log_y,
            x_is_bytes: true,
            lines: vec![line("ours", false), line("theirs", true)],
        }
        .svg()
    }

    #[test]
    fn a_chart_has_its_lines_points_and_words() {
        let svg = chart(false, &[(4096.0, 50.0), (1_048_576.0, 80.0)]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 4));
        for word in ["a &lt; b", "software", ">ours<", ">theirs<", ">4 KiB<", ">1 MiB<", ">MB/s<", "base"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn odd_values_stay_finite_and_inside() {
        let odd: [&[(f64, f64)]; 5] =
            [&[], &[(1.0, 0.0)], &[(0.0, 1.0)], &[(2.0, f64::NAN), (4.0, 1e12)], &[(3.0, 1e-9)]];
        for points in odd {
            for has_log_y in [false, true] {
                let svg = chart(has_log_y, points);
                assert!(
                    !svg.contains("inf") && !svg.contains("NaN") && svg.len() < 20_000,
                    "{points:?}: {svg}"
                );
            }
        }
    }

    #[test]
    fn higher_is_up_and_larger_is_right() {
        let y = Axis::linear([10.0, 80.0].into_iter(), 300.0, 100.0);
        assert!(y.at(80.0) < y.at(10.0) && y.at(0.0) == 300.0);
        let x = Axis::of_values(&[1.0, 10.0, 100.0], 0.0, 100.0);
        assert!((x.at(10.0) - 50.0).abs() < 1e-9 && x.marks.len() == 3);
        assert_eq!(Axis::log([1.2, 9.0].into_iter(), 0.0, 1.0).marks, [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(Axis::log([3.0, 2e4].into_iter(), 0.0, 1.0).marks, [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(Axis::log([5.0, 5.0].into_iter(), 0.0, 1.0).marks, [5.0, 10.0]);
    }

    #[test]
    fn ranges_have_two_ends_each() {
        let range = |name: &str, from, to| Range { name: name.into(), from, to, is_baseline: false };
        let ranges = vec![range("push", 10.0, 40.0), range("odd", f64::NAN, 1.0)];
        let svg = Ranges { title: "t", subtitle: "s", x_label: "us", ranges }.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(">push<") && svg.contains(">odd<") && !svg.contains("NaN"));
    }

    #[test]
    fn a_long_legend_goes_on_in_a_second_line_and_baselines_differ() {
        let line =
            |name: &str, is_baseline| Line { name: name.into(), points: vec![(1.0, 1.0)], is_baseline };
        let lines = ["shm", "shm_plain", "unix", "tcp"].map(|name| line(name, false)).into_iter();
        let lines = lines.chain(["store_and_forward", "grpc"].map(|name| line(name, true))).collect();
        let (title, subtitle, x_label, y_label) = ("t", "s", "x", "y");
        let chart = Chart { title, subtitle, x_label, y_label, has_log_y: true, x_is_bytes: true, lines };
        let svg = chart.svg();
        assert!(svg.contains(" 66h26") && svg.contains("M76 83h26"), "{svg}");
        assert_eq!(colours([false, true, false, true, true]), [0, 4, 1, 5, 4]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [0.0, 100.0, 4096.0, 3e6, 16_777_216.0].map(bytes),
            ["0", "100 B", "4 KiB", "3000000 B", "16 MiB"]
        );
    }
}
