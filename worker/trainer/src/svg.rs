//! The loss curve as a small SVG, readable on light and dark pages. Makes text, writes no file.

use daemon::axis::{AXIS, COLOURS, Colour, WORDS, dress, from_zero, short};
use plotters::prelude::*;

const SIZE: (u32, u32) = (720, 400);
const FONT: &str = "system-ui, sans-serif";

fn rgb((red, green, blue): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

/// Draws `losses`, the mean training loss of epochs `first_epoch`, `first_epoch + 1`, …
pub fn loss_curve(title: &str, first_epoch: u32, losses: &[f64]) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, title, first_epoch, losses);
    dress(&svg, drawn, title)
}

fn draw(
    svg: &mut String,
    title: &str,
    first_epoch: u32,
    losses: &[f64],
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let later = u32::try_from(losses.len()).unwrap_or(u32::MAX).saturating_sub(1);
    let epochs = first_epoch..first_epoch.saturating_add(later.max(1));
    let (_, highest) = from_zero(losses.iter().copied());
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let words = |size: i32| (FONT, size).into_font().color(&rgb(WORDS));
    let mut chart = ChartBuilder::on(&area)
        .caption(title, words(18))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(epochs, 0.0..highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(rgb(AXIS).mix(0.3))
        .axis_style(rgb(AXIS))
        .label_style(words(15))
        .x_desc("epoch")
        .y_desc("training loss")
        .y_label_formatter(&|loss| short(*loss))
        .draw()?;
    let points: Vec<(u32, f64)> =
        (first_epoch..).zip(losses.iter().copied()).filter(|(_, loss)| loss.is_finite()).collect();
    let curve = rgb(COLOURS[0]);
    chart.draw_series(LineSeries::new(points.iter().copied(), curve.stroke_width(2)))?;
    chart.draw_series(points.last().map(|last| Circle::new(*last, 4, curve.filled())))?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_one_point_per_epoch_and_labels() {
        let svg = loss_curve("a < b", 1, &[2.0, 1.0, 0.5]);
        let curve =
            svg.lines().find(|line| line.starts_with("<polyline") && line.contains("#0B62C4")).unwrap();
        let points = curve.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points.split_whitespace().count(), 3);
        for word in ["a &lt; b", "\nepoch\n", "\ntraining loss\n"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
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
