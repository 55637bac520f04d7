//! A plot of groups of bars, one bar a subject: for what has names and no order. Makes text, writes no file.

use crate::plot::{self, Axis, Drawn};
use daemon::axis::{dress, short};
use plotters::prelude::*;

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

const BAR_HEIGHT: u32 = 11;
const GROUP_GAP: u32 = 12;
/// Room for the names of groups.
const NAMES: u32 = 170;
/// Room for the number behind the longest bar.
const NUMBERS: u32 = 40;

impl Bars<'_> {
    /// As SVG.
    pub(crate) fn svg(&self) -> String {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg);
        dress(&svg, drawn, &format!("{}: {}", self.title, self.subtitle))
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let values = self.groups.iter().flat_map(|group| group.values.iter().copied().flatten());
        let x = Axis::linear(values.filter(|value| value.is_finite()));
        let colours = plot::colours(self.subjects.iter().map(|(_, is_baseline)| *is_baseline));
        let names = self.subjects.iter().map(|(name, _)| name.as_str());
        let legend: Vec<(&str, usize)> = names.zip(colours.iter().copied()).collect();
        let group_height = BAR_HEIGHT * self.subjects.len() as u32 + GROUP_GAP;
        let height = plot::heading_height(&legend) + group_height * self.groups.len() as u32 + plot::BELOW;
        let area = SVGBackend::with_string(svg, (plot::WIDTH, height)).into_drawing_area();
        let below = plot::heading(&area, self.title, self.subtitle, &legend)?;
        let mut chart = ChartBuilder::on(&below)
            .margin_right(plot::RIGHT + NUMBERS)
            .x_label_area_size(plot::BELOW)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(x.range(0.0), plot::rows(self.groups.len()))?;
        let name =
            |row: &f64| self.groups.get(*row as usize).map_or_else(String::new, |group| group.name.clone());
        let x_mark = |place: &f64| short(*place);
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().x_desc(self.x_label);
        plot::plain(mesh.x_label_formatter(&x_mark).y_label_formatter(&name))?;
        let bar = f64::from(BAR_HEIGHT) / f64::from(group_height);
        let gap = f64::from(GROUP_GAP) / f64::from(group_height) / 2.0;
        for (row, group) in self.groups.iter().enumerate() {
            for ((place, value), number) in group.values.iter().enumerate().zip(&colours) {
                let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) else { continue };
                let top = row as f64 + gap + bar * place as f64;
                let corners = [(0.0, top), (value, top + bar * 0.8)];
                chart.draw_series([Rectangle::new(corners, plot::colour(*number).filled())])?;
                let text = Text::new(three_digits(value), (4, -1), plot::words(13));
                chart.draw_series([EmptyElement::at((value, top)) + text])?;
            }
        }
        area.present()
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
        for word in
            ["a &lt; b", "\nvgg16\n", "\nodd\n", "\nours\n", "\n4.00\n", "\n2.00\n", "#707070", "\nGB/s\n"]
        {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let width = |at: usize| {
            let bar = svg.lines().filter(|line| line.starts_with("<rect")).nth(at).expect("a bar");
            let width = bar.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
            width.and_then(|width| width.parse::<f64>().ok()).expect("a width")
        };
        assert!((width(2) / width(3) - 2.0).abs() < 0.02, "from zero");
    }
}
