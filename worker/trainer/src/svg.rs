//! The loss curve as a small SVG, readable on light and dark pages. Makes text, writes no file.

use daemon::axis::{MARKS, escape, from_zero, nice_step, short};
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#333}.title{font-size:15px;font-weight:600}\
.grid{stroke:#8886;stroke-width:1}.axis{stroke:#666;stroke-width:1}\
.curve{fill:none;stroke:#0b62c4;stroke-width:2;stroke-linejoin:round}.dot{fill:#0b62c4}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#aaa}.curve{stroke:#6cb2ff}.dot{fill:#6cb2ff}}";

/// Draws `losses`, the mean training loss of epochs `first_epoch`, `first_epoch + 1`, …
pub fn loss_curve(title: &str, first_epoch: u32, losses: &[f64]) -> String {
    let (x_marks, x_low, x_high) = epoch_axis(first_epoch, losses.len());
    let (y_marks, y_high) = from_zero(losses.iter().copied());
    let x = |epoch: f64| LEFT + (epoch - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y = |loss: f64| HEIGHT - BOTTOM - loss / y_high * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>{0}</title>\n<style>{STYLE}</style>\n<text class=\"title\" x=\"{LEFT}\" y=\"26\">{0}</text>\n",
        escape(title)
    );
    // Writing to a String cannot fail.
    for mark in &y_marks {
        let (at, right) = (y(*mark), WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>"
        );
        let (text_x, text_y, label) = (LEFT - 8.0, at + 4.5, short(*mark));
        let _ = writeln!(svg, "<text x=\"{text_x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{label}</text>");
    }
    let floor = HEIGHT - BOTTOM;
    for mark in &x_marks {
        let at = x(*mark);
        let end = floor + 5.0;
        let _ =
            writeln!(svg, "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{floor}\" x2=\"{at:.1}\" y2=\"{end}\"/>");
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{mark}</text>", floor + 20.0);
    }
    let right = WIDTH - RIGHT;
    let _ = writeln!(svg, "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{floor}H{right}\"/>");
    let (middle_x, middle_y) = ((LEFT + right) / 2.0, (TOP + floor) / 2.0);
    let _ =
        writeln!(svg, "<text x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\">epoch</text>", HEIGHT - 12.0);
    let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 18 {middle_y})\"");
    let _ = writeln!(svg, "<text x=\"18\" y=\"{middle_y}\" {turned}>training loss</text>");
    let point =
        |(i, loss): (usize, &f64)| format!("{:.1},{:.1}", x(f64::from(first_epoch) + i as f64), y(*loss));
    let points: Vec<String> = losses.iter().enumerate().map(point).collect();
    let _ = writeln!(svg, "<polyline class=\"curve\" points=\"{}\"/>", points.join(" "));
    if let Some((last_x, last_y)) = points.last().and_then(|p| p.split_once(',')) {
        let _ = writeln!(svg, "<circle class=\"dot\" cx=\"{last_x}\" cy=\"{last_y}\" r=\"3.5\"/>");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Marks on whole epochs, and the axis's ends.
fn epoch_axis(first: u32, count: usize) -> (Vec<f64>, f64, f64) {
    let low = f64::from(first);
    let high = low + count.saturating_sub(1).max(1) as f64;
    let step = nice_step((high - low) / MARKS).max(1.0);
    let mut marks = Vec::new();
    let mut mark = (low / step).ceil() * step;
    while mark <= high {
        marks.push(mark);
        mark += step;
    }
    (marks, low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_one_point_per_epoch_and_labels() {
        let svg = loss_curve("a < b", 1, &[2.0, 1.0, 0.5]);
        assert_eq!(svg.matches("<polyline").count(), 1);
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points.split(' ').count(), 3);
        assert!(svg.contains("a &lt; b") && svg.contains(">epoch<") && svg.contains(">training loss<"));
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn odd_inputs_stay_finite() {
        for losses in [&[][..], &[0.0][..], &[1e-30, 1e-30][..], &[f64::NAN, 1.0][..], &[1e12][..]] {
            let svg = loss_curve("t", 5, losses);
            assert!(svg.len() < 20_000 && !svg.contains("inf"), "{svg}");
        }
    }
}
