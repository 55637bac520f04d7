//! Two drawings as small SVGs, readable on light and dark pages: how long recoveries took, and what processes used over time.
//! Makes text, writes no file.

use super::report::Times;
use super::soak::Soak;
use daemon::axis::{AXIS, COLOURS, Colour, WORDS, dress, from_zero, short};
use plotters::coord::Shift;
use plotters::prelude::*;
use proto_common::ids::Role;

const WIDTH: u32 = 720;
const RIGHT: u32 = 24;
/// Of the title and the words below it.
const HEADING: u32 = 60;
/// Of a row of recoveries.
const ROW: u32 = 34;
/// Room for the names of rows.
const NAMES: u32 = 290;
/// Of one panel of a soak.
const PANEL: u32 = 190;
/// Points of all lines of a panel, about: more show nothing.
const LINE_POINTS_MAX: usize = 4_000;

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn rgb((red, green, blue): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

fn colour(role: Role) -> RGBColor {
    rgb(match role {
        Role::Worker => COLOURS[0],
        Role::Server => COLOURS[1],
        Role::Scheduler => COLOURS[2],
    })
}

fn words(size: i32) -> TextStyle<'static> {
    ("system-ui, sans-serif", size).into_font().color(&rgb(WORDS))
}

/// Draws a title and words about it. Returns the area below them.
fn heading<'a>(
    area: &Area<'a>,
    title: &str,
    about: &str,
) -> Result<Area<'a>, DrawingAreaErrorKind<std::io::Error>> {
    area.draw_text(title, &words(18), (16, 12))?;
    area.draw_text(about, &words(15), (16, 34))?;
    Ok(area.split_vertically(HEADING).1)
}

/// A row a fault and role: a dot for each recovery, a stroke at the median.
pub(super) fn recoveries(title: &str, times: &[Times]) -> String {
    let mut svg = String::new();
    let drawn = draw_recoveries(&mut svg, title, times);
    dress(&svg, drawn, title)
}

fn draw_recoveries(svg: &mut String, title: &str, times: &[Times]) -> Drawn {
    let height = HEADING + ROW * times.len() as u32 + 52;
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    let below = heading(&area, title, "each dot is one fault; the stroke is the median")?;
    let (_, high) = from_zero(times.iter().map(|times| times.worst_ms));
    // Rows start at the top, the axis at the bottom.
    let last = times.len().saturating_sub(1);
    let mut chart = ChartBuilder::on(&below)
        .margin_right(RIGHT)
        .x_label_area_size(52)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(0.0..high, (0..last).into_segmented())?;
    let name = |segment: &SegmentValue<usize>| match segment {
        SegmentValue::CenterOf(row) => times
            .get(last - (*row).min(last))
            .map_or_else(String::new, |times| format!("{}: {} ({})", times.role, times.fault, times.count)),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(rgb(AXIS).mix(0.3))
        .axis_style(rgb(AXIS))
        .label_style(words(15))
        .x_desc("milliseconds until training had gone on")
        .x_label_formatter(&|ms| short(*ms))
        .y_labels(times.len())
        .y_label_formatter(&name)
        .draw()?;
    for (row, times) in times.iter().rev().enumerate() {
        let (row, shade) = (SegmentValue::CenterOf(row), colour(times.role));
        let dots = times.all_ms.iter().map(|ms| Circle::new((*ms, row.clone()), 4, shade.mix(0.35).filled()));
        chart.draw_series(dots)?;
        let stroke = PathElement::new([(0, -10), (0, 10)], shade.stroke_width(2));
        chart.draw_series([EmptyElement::at((times.median_ms, row)) + stroke])?;
    }
    area.present()
}

/// A panel for each quantity, a line for each seat.
pub(super) fn soak(title: &str, soak: &Soak) -> String {
    let mut svg = String::new();
    let drawn = draw_soak(&mut svg, title, soak);
    dress(&svg, drawn, title)
}

fn draw_soak(svg: &mut String, title: &str, soak: &Soak) -> Drawn {
    const PANELS: [(&str, f64); 3] =
        [("resident memory, MiB", 1_048_576.0), ("open files", 1.0), ("registered, MiB", 1_048_576.0)];
    let about =
        "a line is a process; orange: servers; blue: workers; green: scheduler; strokes above: faults";
    let area = SVGBackend::with_string(svg, (WIDTH, HEADING + PANEL * 3)).into_drawing_area();
    let below = heading(&area, title, about)?;
    for (column, (panel, (name, unit))) in below.split_evenly((3, 1)).iter().zip(PANELS).enumerate() {
        draw_panel(panel, soak, column, name, unit)?;
    }
    area.present()
}

fn draw_panel(panel: &Area<'_>, soak: &Soak, column: usize, name: &str, unit: f64) -> Drawn {
    let value = |values: &[f64; 3]| values.get(column).copied().unwrap_or(f64::NAN) / unit;
    let (_, high) = from_zero(soak.samples.iter().map(|sample| value(&sample.values)));
    let minutes = soak.samples.last().map_or(1.0, |sample| sample.seconds).max(1.0) / 60.0;
    let mut chart = ChartBuilder::on(panel)
        .margin_top(10)
        .margin_right(RIGHT)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..minutes, 0.0..high)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(rgb(AXIS).mix(0.3))
        .axis_style(rgb(AXIS))
        .label_style(words(15))
        .x_desc("minutes")
        .y_desc(name)
        .y_labels(4)
        .x_label_formatter(&|at| short(*at))
        .y_label_formatter(&|at| short(*at))
        .draw()?;
    let strokes = soak.faults.iter().map(|(seconds, role)| {
        let stroke = PathElement::new([(0, -6), (0, 0)], colour(*role).stroke_width(2));
        EmptyElement::at((seconds / 60.0, high)) + stroke
    });
    chart.draw_series(strokes)?;
    let every = (soak.samples.len() / LINE_POINTS_MAX).max(1);
    for ((seat, _), samples) in soak.lives() {
        let known = samples.iter().filter(|sample| value(&sample.values).is_finite()).step_by(every);
        let points = known.map(|sample| (sample.seconds / 60.0, value(&sample.values)));
        chart.draw_series(LineSeries::new(points, colour(seat.role).stroke_width(2)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::soak::Sample;
    use proto_common::ids::{MemberId, Rank};
    use tokio::time::Instant;

    #[test]
    fn a_dot_a_recovery_and_a_stroke_a_row() {
        let times = |all_ms: Vec<f64>| Times {
            fault: "kill".into(),
            role: Role::Server,
            count: all_ms.len(),
            median_ms: 20.0,
            worst_ms: 90.0,
            own_median_ms: 20.0,
            own_worst_ms: 90.0,
            all_ms,
        };
        let svg = recoveries("a < b", &[times(vec![10.0, 20.0, 90.0]), times(vec![20.0])]);
        let strokes =
            svg.lines().filter(|line| line.starts_with("<polyline") && line.contains("#C8501E")).count();
        assert_eq!((svg.matches("<circle").count(), strokes), (4, 2), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("\nserver: kill (3)\n"), "{svg}");
        assert!(!recoveries("t", &[]).contains("NaN"));
    }

    #[test]
    fn a_line_a_life_and_a_stroke_a_fault() {
        let mut drawn = Soak::new();
        let seat = MemberId { role: Role::Worker, rank: Rank(2) };
        for (seconds, pid, registered) in [(0.0, 1, 3.0), (1.0, 1, f64::NAN), (2.0, 5, 4.0)] {
            drawn.samples.push(Sample { seconds, seat, pid, values: [1e6, 9.0, registered] });
        }
        drawn.strike(Instant::now(), Role::Worker);
        let svg = soak("t", &drawn);
        // Two processes and one fault on each of three panels; a process has at least one point on each but the first on none.
        let of_workers = svg.lines().filter(|line| line.starts_with("<polyline") && line.contains("#0B62C4"));
        assert_eq!(of_workers.count(), 9, "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn no_samples_draw_no_lines() {
        let svg = soak("t", &Soak::new());
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("#0B62C4\" stroke"), "{svg}");
    }
}
