//! Plots as small SVGs that are readable on light and dark pages: lines over a logarithmic axis, and ranges. Makes text,
//! writes no file. [`crate::bars`] has bars, drawn alike.

use daemon::axis::{self, COLOURS, WORDS, dress, from_zero, short};
use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

pub(crate) const WIDTH: u32 = 720;
/// Of the space right of a plot.
pub(crate) const RIGHT: u32 = 24;
const LEFT: u32 = 76;
/// Of the part that lines are drawn in, with its axes.
const PLOT_HEIGHT: u32 = 336;
/// Powers of ten that a logarithmic axis shows marks between.
const LOG_POWERS_MAX: usize = 4;
/// Of one range.
const ROW_HEIGHT: u32 = 34;
/// Room for the names of ranges.
const NAMES: u32 = 236;
/// Of the title and the subtitle, and of one line of a legend.
const HEADING: i32 = 58;
const LEGEND_LINE: i32 = 18;
/// Room for the marks and the name of the axis below.
pub(crate) const BELOW: u32 = 52;
/// The part of the x axis that stays free on either side of lines.
const PADDING: f64 = 0.03;

/// The first of the colours of what others are compared with; those before it are the others'.
const BASELINE_COLOUR: usize = 4;
const BASELINE_COLOURS: usize = 2;

pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A coordinate with marks of our own. It may go backwards.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    start: f64,
    end: f64,
    marks: Vec<f64>,
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.start) / (self.end - self.start);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        // Marks are bold ones; there are no others.
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.start..self.end
    }
}

pub(crate) fn rgb((red, green, blue): axis::Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

/// One of the colours of lines, bars and dots.
pub(crate) fn colour(number: usize) -> RGBColor {
    rgb(COLOURS[number % COLOURS.len()])
}

pub(crate) fn words(size: i32) -> TextStyle<'static> {
    ("system-ui, sans-serif", size).into_font().color(&rgb(WORDS))
}

/// The colour of each of several things that are baselines or are not, in turn.
pub(crate) fn colours(are_baselines: impl IntoIterator<Item = bool>) -> Vec<usize> {
    let (mut others, mut baselines) =
        ((0..BASELINE_COLOUR).cycle(), (BASELINE_COLOUR..BASELINE_COLOUR + BASELINE_COLOURS).cycle());
    let next = |is_baseline| if is_baseline { baselines.next() } else { others.next() };
    are_baselines.into_iter().map(next).map(|colour| colour.unwrap_or(0)).collect()
}

/// The positions of a legend's names. A long legend continues on further lines.
fn legend_places<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(i32, i32)> {
    let (mut x, mut y) = (16, HEADING);
    let place = |name: &str| {
        let width = 36 + 8 * i32::try_from(name.chars().count()).unwrap_or(i32::MAX / 16);
        if x > 16 && x + width > WIDTH as i32 {
            (x, y) = (16, y + LEGEND_LINE);
        }
        let at = (x, y);
        x += width;
        at
    };
    names.map(place).collect()
}

/// How high title, subtitle and legend are together.
pub(crate) fn heading_height(legend: &[(&str, usize)]) -> u32 {
    let lowest =
        legend_places(legend.iter().map(|(name, _)| *name)).last().map_or(HEADING, |at| at.1 + LEGEND_LINE);
    lowest.unsigned_abs()
}

/// Draws title, subtitle and legend, names with the numbers of their colours. Returns the area below them.
pub(crate) fn heading<'a>(
    area: &Area<'a>,
    title: &str,
    subtitle: &str,
    legend: &[(&str, usize)],
) -> Result<Area<'a>, DrawingAreaErrorKind<std::io::Error>> {
    area.draw_text(title, &words(18), (16, 12))?;
    area.draw_text(subtitle, &words(15), (16, 34))?;
    for ((name, number), (x, y)) in legend.iter().zip(legend_places(legend.iter().map(|(name, _)| *name))) {
        area.draw(&Rectangle::new([(x, y + 3), (x + 14, y + 12)], colour(*number).filled()))?;
        area.draw_text(name, &words(15), (x + 20, y))?;
    }
    Ok(area.split_vertically(heading_height(legend)).1)
}

/// What all plots have in common in their axes.
pub(crate) fn plain(mesh: &mut MeshStyle<'_, '_, Marked, Marked, SVGBackend<'_>>) -> Drawn {
    mesh.light_line_style(TRANSPARENT)
        .bold_line_style(rgb(axis::AXIS).mix(0.3))
        .axis_style(rgb(axis::AXIS))
        .label_style(words(15))
        .draw()
}

/// Rows below one another, with a mark in the middle of each.
pub(crate) fn rows(count: usize) -> Marked {
    let marks = (0..count).map(|row| row as f64 + 0.5).collect();
    // The y axis of a plot starts at the bottom; rows start at the top.
    Marked { start: count.max(1) as f64, end: 0.0, marks }
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

/// How values of one axis are placed.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    is_log: bool,
    low: f64,
    high: f64,
    marks: Vec<f64>,
}

impl Axis {
    /// Where a value lies on the coordinate.
    pub(crate) fn place(&self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value }
    }

    /// The value at a place.
    pub(crate) fn value(&self, place: f64) -> f64 {
        if self.is_log { 10f64.powf(place) } else { place }
    }

    /// As a coordinate, with `padding` of its length free at both ends.
    pub(crate) fn range(&self, padding: f64) -> Marked {
        let (low, high) = (self.place(self.low), self.place(self.high));
        let free = (high - low) * padding;
        let marks = self.marks.iter().map(|mark| self.place(*mark)).collect();
        Marked { start: low - free, end: high + free, marks }
    }

    /// From 0 to a round number that holds all values.
    pub(crate) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let (marks, high) = from_zero(values);
        Self { is_log: false, low: 0.0, high, marks }
    }

    /// From a mark to a mark that hold all values: 1, 2 and 5 times powers of ten, or powers only where those are many.
    fn log(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extent(values);
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let factors: &[f64] = if powers.clone().count() > LOG_POWERS_MAX { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all: Vec<f64> =
            powers.flat_map(|power| factors.iter().map(move |k| k * 10f64.powi(power))).collect();
        let low = all.iter().copied().rev().find(|mark| *mark <= low).unwrap_or(low);
        let high = all.iter().copied().find(|mark| *mark >= high && *mark > low).unwrap_or(low * 10.0);
        let marks = all.into_iter().filter(|mark| (low..=high).contains(mark)).collect();
        Self { is_log: true, low, high, marks }
    }

    /// With marks at the values themselves.
    fn of_values(values: &[f64]) -> Self {
        let (low, high) = extent(values.iter().copied());
        let (low, high) = if low < high { (low, high) } else { (low / 2.0, high * 2.0) };
        let mut marks = values.to_vec();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        Self { is_log: true, low, high, marks }
    }
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, 0.0), |(low, high), value| (value.min(low), value.max(high)));
    if low <= high { (low, high) } else { (1.0, 10.0) }
}

impl Chart<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> String {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg);
        dress(&svg, drawn, &format!("{}: {}", self.title, self.subtitle))
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let lines: Vec<Vec<(f64, f64)>> = self.lines.iter().map(|line| self.kept(line)).collect();
        let xs: Vec<f64> = lines.iter().flatten().map(|point| point.0).collect();
        let ys = lines.iter().flatten().map(|point| point.1);
        let x = Axis::of_values(&xs);
        let y = if self.has_log_y { Axis::log(ys) } else { Axis::linear(ys) };
        let colours = colours(self.lines.iter().map(|line| line.is_baseline));
        let names = self.lines.iter().map(|line| line.name.as_str()).zip(colours.iter().copied());
        let legend: Vec<(&str, usize)> = names.filter(|(name, _)| !name.is_empty()).collect();
        let size = (WIDTH, heading_height(&legend) + PLOT_HEIGHT);
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        let below = heading(&area, self.title, self.subtitle, &legend)?;
        let mut chart = ChartBuilder::on(&below)
            .margin_top(8)
            .margin_right(RIGHT)
            .x_label_area_size(BELOW)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x.range(PADDING), y.range(0.0))?;
        let x_mark = |place: &f64| {
            let value = x.value(*place);
            if self.x_is_bytes { bytes(value.round()) } else { short(value) }
        };
        let y_mark = |place: &f64| short(y.value(*place));
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().x_desc(self.x_label).y_desc(self.y_label);
        plain(mesh.x_label_formatter(&x_mark).y_label_formatter(&y_mark))?;
        for ((line, points), number) in self.lines.iter().zip(&lines).zip(colours) {
            let places: Vec<(f64, f64)> =
                points.iter().map(|(px, py)| (x.place(*px), y.place(*py))).collect();
            // A baseline is a thin line with open dots.
            let width = if line.is_baseline { 1 } else { 2 };
            chart.draw_series(LineSeries::new(places.iter().copied(), colour(number).stroke_width(width)))?;
            let dot = if line.is_baseline { colour(number).stroke_width(1) } else { colour(number).filled() };
            chart.draw_series(places.into_iter().map(|place| Circle::new(place, 4, dot)))?;
        }
        area.present()
    }

    fn kept(&self, line: &Line) -> Vec<(f64, f64)> {
        let is_drawn =
            |(x, y): &(f64, f64)| x.is_finite() && *x > 0.0 && y.is_finite() && (*y > 0.0 || !self.has_log_y);
        line.points.iter().copied().filter(is_drawn).collect()
    }
}

impl Ranges<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> String {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg);
        dress(&svg, drawn, &format!("{}: {}", self.title, self.subtitle))
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let is_drawn = |end: &f64| end.is_finite() && *end > 0.0;
        let x = Axis::log(self.ranges.iter().flat_map(|range| [range.from, range.to]).filter(is_drawn));
        let height = heading_height(&[]) + ROW_HEIGHT * self.ranges.len() as u32 + BELOW;
        let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        let below = heading(&area, self.title, self.subtitle, &[])?;
        let mut chart = ChartBuilder::on(&below)
            .margin_right(RIGHT)
            .x_label_area_size(BELOW)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(x.range(0.0), rows(self.ranges.len()))?;
        let x_mark = |place: &f64| short(x.value(*place));
        let name =
            |row: &f64| self.ranges.get(*row as usize).map_or_else(String::new, |range| range.name.clone());
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().x_desc(self.x_label);
        plain(mesh.x_label_formatter(&x_mark).y_label_formatter(&name))?;
        for (row, range) in self.ranges.iter().enumerate() {
            if !(is_drawn(&range.from) && is_drawn(&range.to)) {
                continue;
            }
            let row = row as f64 + 0.5;
            let (from, to) = ((x.place(range.from), row), (x.place(range.to), row));
            let shade = colour(if range.is_baseline { BASELINE_COLOUR } else { 0 });
            chart.draw_series([PathElement::new([from, to], shade.stroke_width(2))])?;
            chart.draw_series([
                Circle::new(from, 5, shade.filled()),
                Circle::new(to, 5, shade.stroke_width(2)),
            ])?;
        }
        area.present()
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

    /// Lines of data: those that have a colour of data.
    fn lines(svg: &str) -> usize {
        let is_data = |line: &&str| {
            line.starts_with("<polyline") && (line.contains("#0B62C4") || line.contains("#707070"))
        };
        svg.lines().filter(is_data).count()
    }

    #[test]
    fn a_chart_has_its_lines_points_and_words() {
        let svg = chart(false, &[(4096.0, 50.0), (1_048_576.0, 80.0)]);
        assert_eq!((lines(&svg), svg.matches("<circle").count()), (2, 4), "{svg}");
        for word in ["a &lt; b", "software", "\nours\n", "\ntheirs\n", "\n4 KiB\n", "\n1 MiB\n", "\nMB/s\n"] {
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
    fn axes_hold_their_values_and_have_round_marks() {
        let y = Axis::linear([10.0, 80.0].into_iter());
        assert_eq!((y.place(80.0), y.low, y.high), (80.0, 0.0, 80.0));
        let x = Axis::of_values(&[1.0, 10.0, 100.0]);
        assert!(
            (x.place(10.0) - 1.0).abs() < 1e-9 && (x.value(2.0) - 100.0).abs() < 1e-9 && x.marks.len() == 3
        );
        assert_eq!(Axis::log([1.2, 9.0].into_iter()).marks, [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(Axis::log([3.0, 2e4].into_iter()).marks, [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(Axis::log([5.0, 5.0].into_iter()).marks, [5.0, 10.0]);
    }

    #[test]
    fn ranges_have_two_ends_each() {
        let range = |name: &str, from, to| Range { name: name.into(), from, to, is_baseline: false };
        let ranges = vec![range("push", 10.0, 40.0), range("odd", f64::NAN, 1.0)];
        let svg = Ranges { title: "t", subtitle: "s", x_label: "us", ranges }.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("\npush\n") && svg.contains("\nodd\n") && !svg.contains("NaN"));
    }

    #[test]
    fn a_long_legend_goes_on_in_a_second_line_and_baselines_differ() {
        let names = [
            "shm",
            "shm_plain",
            "unix",
            "tcp",
            "store_and_forward_over_two_hops",
            "grpc_with_copies",
            "grpc",
        ];
        let places = legend_places(names.into_iter());
        assert_eq!((places[0], places[6]), ((16, HEADING), (16 + 36 + 8 * 16, HEADING + LEGEND_LINE)));
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
