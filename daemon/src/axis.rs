//! What drawings have in common (loss curves, benchmarks, chaos): round numbers for axes and text for them, and the
//! colours of both. It knows nothing of what is drawn.

/// About how many marks an axis gets.
pub const MARKS: f64 = 6.0;

/// Red, green and blue.
pub type Colour = (u8, u8, u8);

/// Of words.
pub const WORDS: Colour = (0x6b, 0x70, 0x78);
/// Of axes.
pub const AXIS: Colour = (0x77, 0x77, 0x77);
/// Of lines, bars and dots. The last two are those of baselines.
pub const COLOURS: [Colour; 6] = [
    (0x0b, 0x62, 0xc4),
    (0xc8, 0x50, 0x1e),
    (0x2a, 0x8f, 0x4f),
    (0x8a, 0x4f, 0xc0),
    (0x70, 0x70, 0x70),
    (0xa8, 0x86, 0x1c),
];

/// The same colours on a dark page.
const ON_DARK: [(Colour, &str); 8] = [
    (WORDS, "#ccc"),
    (AXIS, "#999"),
    (COLOURS[0], "#6cb2ff"),
    (COLOURS[1], "#ff9966"),
    (COLOURS[2], "#5fcf8a"),
    (COLOURS[3], "#c59bf0"),
    (COLOURS[4], "#aaa"),
    (COLOURS[5], "#d9bb5a"),
];

/// What the plotting library has drawn, with a title for screen readers, and with colours that suit light and dark pages. If the
/// drawing failed, the text says why.
pub fn dress(svg: &str, drawn: Result<(), impl std::fmt::Display>, title: &str) -> String {
    if let Err(error) = drawn {
        return format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\"><title>cannot draw: {}</title></svg>\n",
            escape(&error.to_string())
        );
    }
    let Some((head, body)) = svg.split_once('>') else { return svg.to_owned() };
    let dark = |((red, green, blue), dark): &(Colour, &str)| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        format!("[stroke=\"{light}\"]{{stroke:{dark}}}[fill=\"{light}\"]{{fill:{dark}}}")
    };
    let dark: String = ON_DARK.iter().map(dark).collect();
    let style = format!("@media(prefers-color-scheme:dark){{{dark}}}");
    format!("{head} role=\"img\">\n<title>{}</title>\n<style>{style}</style>{body}", escape(title))
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
    fn a_drawing_gets_a_title_and_dark_colours_or_says_why_there_is_none() {
        let fine: Result<(), String> = Ok(());
        let svg = dress("<svg width=\"7\">\n<path/></svg>", fine, "a < b");
        assert!(svg.starts_with("<svg width=\"7\" role=\"img\">\n<title>a &lt; b</title>"), "{svg}");
        assert!(svg.contains("[fill=\"#0B62C4\"]{fill:#6cb2ff}") && svg.ends_with("<path/></svg>"), "{svg}");
        assert!(dress("", Err("disk"), "t").contains("cannot draw: disk"));
    }

    #[test]
    fn an_axis_from_zero_holds_all_values_that_are_numbers() {
        let (marks, end) = from_zero([10.0, f64::NAN, 80.0].into_iter());
        assert_eq!((marks.first(), marks.last(), end), (Some(&0.0), Some(&80.0), 80.0));
        assert!(from_zero(std::iter::empty()).1 > 0.0);
    }
}
