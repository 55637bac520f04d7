//! A plot of groups of bars, one bar a subject: for what has names and no order. Makes text, writes no file.

use crate::plot::{self, Axis};
use daemon::axis::{escape, short};
use std::fmt::Write as _;

/// Bars from zero, below one another, in groups.
#[derive(Debug, Clone)]
pub(crate) struct Bars<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) x_label: &'a str,
    /// What each bar of a group is; the others' baselines last.
    pub(crate) subjects: Vec<(String, bool)>,
    pub(crate) groups: Vec<Group>,
}

/// What is said of one thing by all subjects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// One a subject; what is missing or no number gets no bar.
    pub(crate) values: Vec<Option<f64>>,
}

const BAR_HEIGHT: f64 = 11.0;
const GROUP_GAP: f64 = 12.0;
/// Room for the names of groups.
const NAMES: f64 = 170.0;
/// Of the title, and of one line of the legend.
const TITLE_HEIGHT: f64 = 60.0;
const LEGEND_HEIGHT: f64 = 22.0;
const LEGEND_WIDTH: f64 = 170.0;
const LEGEND_COLUMNS: usize = 4;
const BOTTOM: f64 = 50.0;

impl Bars<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> String {
        let top = TITLE_HEIGHT + LEGEND_HEIGHT * self.subjects.len().div_ceil(LEGEND_COLUMNS) as f64;
        let group_height = BAR_HEIGHT * self.subjects.len() as f64 + GROUP_GAP;
        let floor = top + group_height * self.groups.len() as f64;
        let values = self.groups.iter().flat_map(|group| group.values.iter().copied().flatten());
        let right = plot::WIDTH - plot::RIGHT - 40.0;
        let x = Axis::linear(values.filter(|value| value.is_finite()), NAMES, right);
        let mut svg = plot::start(floor + BOTTOM, self.title, self.subtitle);
        let colours = plot::colours(self.subjects.iter().map(|(_, is_baseline)| *is_baseline));
        self.legend(&mut svg, &colours);
        for mark in &x.marks {
            let at = x.at(*mark);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {top}V{floor}\"/>");
            let y = floor + 18.0;
            let _ =
                writeln!(svg, "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", short(*mark));
        }
        for (number, group) in self.groups.iter().enumerate() {
            let start = top + group_height * number as f64 + GROUP_GAP / 2.0;
            let middle = start + (group_height - GROUP_GAP) / 2.0 + 4.5;
            let (name, name_x) = (escape(&group.name), NAMES - 12.0);
            let _ = writeln!(svg, "<text x=\"{name_x}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>");
            for ((place, value), colour) in group.values.iter().enumerate().zip(&colours) {
                let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) else { continue };
                let (y, width) = (start + BAR_HEIGHT * place as f64, (x.at(value) - NAMES).max(0.5));
                let height = BAR_HEIGHT - 2.0;
                let _ = writeln!(
                    svg,
                    "<rect class=\"c{colour}\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\"/>"
                );
                let (text_x, text_y) = (NAMES + width + 4.0, y + height);
                let _ = writeln!(
                    svg,
                    "<text class=\"small\" x=\"{text_x:.1}\" y=\"{text_y:.1}\">{}</text>",
                    three_digits(value)
                );
            }
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{NAMES} {top}V{floor}H{right}\"/>");
        let (middle, y) = ((NAMES + right) / 2.0, floor + 40.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            escape(self.x_label)
        );
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self, svg: &mut String, colours: &[usize]) {
        for (place, ((name, _), colour)) in self.subjects.iter().zip(colours).enumerate() {
            let x = 16.0 + LEGEND_WIDTH * (place % LEGEND_COLUMNS) as f64;
            let y = TITLE_HEIGHT + LEGEND_HEIGHT * (place / LEGEND_COLUMNS) as f64;
            let _ =
                writeln!(svg, "<rect class=\"c{colour}\" x=\"{x}\" y=\"{y}\" width=\"14\" height=\"9\"/>");
            let (text_x, text_y) = (x + 20.0, y + 9.0);
            let _ = writeln!(svg, "<text x=\"{text_x}\" y=\"{text_y}\">{}</text>", escape(name));
        }
    }
}

fn three_digits(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_bar_and_its_number_and_odd_ones_have_none() {
        let group = |name: &str, values: &[Option<f64>]| Group { name: name.into(), values: values.to_vec() };
        let bars = Bars {
            title: "a < b",
            subtitle: "a machine",
            x_label: "GB/s",
            subjects: vec![("ours".into(), false), ("theirs".into(), true)],
            groups: vec![group("vgg16", &[Some(4.0), Some(2.0)]), group("odd", &[None, Some(f64::NAN)])],
        };
        let svg = bars.svg();
        // Two of the legend, two bars.
        assert_eq!(svg.matches("<rect").count(), 4, "{svg}");
        for word in ["a &lt; b", ">vgg16<", ">odd<", ">ours<", ">4.00<", ">2.00<", "class=\"c4\"", ">GB/s<"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let width = |at: usize| {
            let bar = svg.lines().filter(|line| line.starts_with("<rect")).nth(at).expect("a bar");
            let width = bar.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
            width.and_then(|width| width.parse::<f64>().ok()).expect("a width")
        };
        assert!((width(2) / width(3) - 2.0).abs() < 0.01, "from zero");
    }
}
