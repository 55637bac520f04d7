//! Two drawings as small SVGs, readable on light and dark pages: how long recoveries took, and what processes used over time.
//! Makes text, writes no file.

use super::report::Times;
use super::soak::Soak;
use daemon::axis::{MARKS, escape, from_zero, nice_step, short, start};
use proto_common::ids::Role;
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
/// Of a row of recoveries.
const ROW: f64 = 34.0;
/// Room for the names of rows.
const NAMES: f64 = 290.0;
/// Of one panel of a soak.
const PANEL: f64 = 170.0;
/// Points of all lines of a panel, about: more show nothing.
const LINE_POINTS_MAX: usize = 4_000;

const STYLE: &str = ".scheduler{stroke:#2a8f4f;fill:#2a8f4f}.server{stroke:#c8501e;fill:#c8501e}\
.worker{stroke:#0b62c4;fill:#0b62c4}.dot{fill-opacity:.35;stroke:none}\
.line{fill:none;stroke-width:1.5;stroke-linejoin:round}";

/// A row a fault and role: a dot for each recovery, a stroke at the median.
pub(super) fn recoveries(title: &str, times: &[Times]) -> String {
    let (top, rows) = (64.0, times.len() as f64);
    let floor = top + ROW * rows;
    let (marks, high) = from_zero(times.iter().map(|times| times.worst_ms));
    let x = |ms: f64| NAMES + ms / high * (WIDTH - RIGHT - NAMES);
    let words = "each dot one fault; the stroke is the median";
    let mut svg = start((WIDTH, floor + 56.0), title, words, STYLE);
    // Writing to a String cannot fail.
    for mark in &marks {
        let (at, label) = (x(*mark), short(*mark));
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {top}V{floor}\"/>");
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", floor + 18.0);
    }
    for (row, times) in times.iter().enumerate() {
        let (y, role) = (top + ROW * (row as f64 + 0.5), times.role);
        let name = escape(&format!("{role}: {} ({})", times.fault, times.count));
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>", NAMES - 12.0, y + 4.5);
        for ms in &times.all_ms {
            let _ = writeln!(svg, "<circle class=\"{role} dot\" cx=\"{:.1}\" cy=\"{y}\" r=\"4\"/>", x(*ms));
        }
        let (at, from) = (x(times.median_ms), y - 10.0);
        let _ = writeln!(svg, "<path class=\"{role} line\" d=\"M{at:.1} {from}v20\"/>");
    }
    let _ = writeln!(svg, "<path class=\"axis\" d=\"M{NAMES} {top}V{floor}H{}\"/>", WIDTH - RIGHT);
    let middle = (NAMES + WIDTH - RIGHT) / 2.0;
    let label = "milliseconds until training had gone on";
    let _ =
        writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", floor + 42.0);
    svg.push_str("</svg>\n");
    svg
}

/// A panel for each quantity, a line for each seat.
pub(super) fn soak(title: &str, soak: &Soak) -> String {
    const PANELS: [(&str, f64); 3] =
        [("resident memory, MiB", 1_048_576.0), ("open files", 1.0), ("registered, MiB", 1_048_576.0)];
    let words = "a line a life; orange: servers; blue: workers; green: scheduler; strokes above: faults";
    let mut svg = start((WIDTH, 64.0 + PANEL * 3.0 + 40.0), title, words, STYLE);
    let end = soak.samples.last().map_or(1.0, |sample| sample.seconds).max(1.0);
    for (column, (name, unit)) in PANELS.into_iter().enumerate() {
        let top = 84.0 + PANEL * column as f64;
        panel(&mut svg, soak, column, name, unit, (top, top + PANEL - 50.0), end);
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let y = 64.0 + PANEL * 3.0 + 22.0;
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">minutes</text>");
    svg.push_str("</svg>\n");
    svg
}

fn panel(
    svg: &mut String,
    soak: &Soak,
    column: usize,
    name: &str,
    unit: f64,
    (top, floor): (f64, f64),
    end: f64,
) {
    let value = |values: &[f64; 3]| values.get(column).copied().unwrap_or(f64::NAN) / unit;
    let (marks, high) = from_zero(soak.samples.iter().map(|sample| value(&sample.values)));
    let y = |value: f64| floor - value / high * (floor - top);
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - RIGHT - LEFT);
    let right = WIDTH - RIGHT;
    let _ = writeln!(svg, "<text class=\"small\" x=\"{LEFT}\" y=\"{}\">{name}</text>", top - 8.0);
    for mark in marks.iter().step_by(2) {
        let (at, label) = (y(*mark), short(*mark));
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.5
        );
    }
    let step = nice_step(end / 60.0 / MARKS);
    for mark in (0..=(end / 60.0 / step) as u32).map(|k| f64::from(k) * step) {
        let (at, label) = (x(mark * 60.0), short(mark));
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", floor + 18.0);
    }
    for role in [Role::Scheduler, Role::Server, Role::Worker] {
        let faults = soak.faults.iter().filter(|(_, struck)| *struck == role);
        let marks: String = faults.map(|(seconds, _)| format!("M{:.1} {top}v-6", x(*seconds))).collect();
        if !marks.is_empty() {
            let _ = writeln!(svg, "<path class=\"{role} line\" d=\"{marks}\"/>");
        }
    }
    let every = (soak.samples.len() / LINE_POINTS_MAX).max(1);
    for ((seat, _), samples) in soak.lives() {
        let pid = samples.first().map_or(0, |sample| sample.pid);
        let known = samples.iter().filter(|sample| value(&sample.values).is_finite());
        let points: Vec<String> = known
            .step_by(every)
            .map(|sample| format!("{:.1},{:.1}", x(sample.seconds), y(value(&sample.values))))
            .collect();
        let (role, points) = (seat.role, points.join(" "));
        let _ = writeln!(
            svg,
            "<polyline class=\"{role} line\" points=\"{points}\"><title>{seat}, process {pid}</title></polyline>"
        );
    }
    let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {top}V{floor}H{right}\"/>");
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
        assert_eq!((svg.matches("<circle").count(), svg.matches("server line").count()), (4, 2));
        assert!(svg.contains("a &lt; b") && svg.contains("server: kill (3)"), "{svg}");
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
        assert_eq!((svg.matches("<polyline").count(), svg.matches("v-6").count()), (6, 3), "{svg}");
        assert!(svg.contains("<title>worker 2, process 5</title>") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn no_samples_draw_no_lines() {
        let svg = soak("t", &Soak::new());
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<polyline"), "{svg}");
    }
}
