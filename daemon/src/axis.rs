//! What drawings have in common (loss curves, benchmarks, chaos): round numbers for axes and text for them, and how those of
//! benchmarks and chaos begin. It knows nothing of what is drawn.

/// About how many marks an axis gets.
pub const MARKS: f64 = 6.0;

/// Of words, axes and grids, readable on light and dark pages.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#6b7078}.title{font-size:15px;font-weight:600}\
.small{font-size:12px}.grid{stroke:#8884;stroke-width:1}.axis{stroke:#777;stroke-width:1;fill:none}\
@media(prefers-color-scheme:dark){text{fill:#ccc}.axis{stroke:#999}}";

/// An SVG's beginning: how large it is, its style (after what all have: `style`), and its two lines of text.
#[must_use]
pub fn start((width, height): (f64, f64), title: &str, subtitle: &str, style: &str) -> String {
    let (title, subtitle) = (escape(title), escape(subtitle));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{title}: {subtitle}</title>\n<style>{STYLE}{style}</style>\n\
         <text class=\"title\" x=\"16\" y=\"26\">{title}</text>\n\
         <text class=\"small\" x=\"16\" y=\"46\">{subtitle}</text>\n"
    )
}

/// Marks from 0 to a round number at or above the highest value that is one, and that number.
#[must_use]
pub fn from_zero(values: impl Iterator<Item = f64>) -> (Vec<f64>, f64) {
    let highest = values.filter(|value| value.is_finite()).fold(0.0, f64::max).max(1e-9);
    let step = nice_step(highest / MARKS);
    let count = (highest / step).ceil().max(1.0);
    ((0..=count as u32).map(|k| f64::from(k) * step).collect(), count * step)
}

/// 1, 2 or 5 times a power of ten, not below `rough`.
#[must_use]
pub fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.max(1e-12).log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|k| k * power).find(|step| *step >= rough).unwrap_or(10.0 * power)
}

/// Up to four significant digits, without trailing zeros.
#[must_use]
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// Text as it stands in SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_labels_are_round() {
        assert_eq!((nice_step(0.3), nice_step(4.0), nice_step(7.0)), (0.5, 5.0, 10.0));
        assert_eq!([0.25, 0.0, 20.0].map(short), ["0.25", "0", "20"]);
    }

    #[test]
    fn a_drawing_begins_with_its_words() {
        let svg = start((720.0, 90.5), "a < b", "c", ".x{fill:red}");
        assert!(svg.contains("viewBox=\"0 0 720 90.5\"") && svg.contains(".x{fill:red}</style>"), "{svg}");
        assert!(svg.contains("<title>a &lt; b: c</title>"), "{svg}");
    }

    #[test]
    fn an_axis_from_zero_holds_all_values_that_are_numbers() {
        let (marks, end) = from_zero([10.0, f64::NAN, 80.0].into_iter());
        assert_eq!((marks.first(), marks.last(), end), (Some(&0.0), Some(&80.0), 80.0));
        assert!(from_zero(std::iter::empty()).1 > 0.0);
    }
}
