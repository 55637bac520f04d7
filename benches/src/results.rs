//! The files of a run: its rows as JSON, its table with the machine, and a plot of each part that something was measured
//! of. It must not measure.

use crate::bars::{Bars, Group};
use crate::models;
use crate::plot::{Chart, Line};
use crate::report::{self, Row};
use anyhow::Context as _;
use std::path::Path;

/// Subjects that others are compared with.
const BASELINES: [&str; 4] = ["store_and_forward", "grpc", "plain_receive", "peer"];

/// What one run showed.
pub(crate) struct Results<'a> {
    /// The machine, and whatever has to be said of the run, a line each; never empty.
    pub(crate) notes: &'a [String],
    pub(crate) rows: &'a [Row],
}

impl Results<'_> {
    /// For people: the notes and the table.
    pub(crate) fn text(&self) -> String {
        format!("{}\n\n{}", self.notes.join("\n"), report::table(self.rows))
    }

    /// Writes the table and the plots into a folder, which is made where it is missing.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        report::write_json(&folder.join("bench.json"), self.rows)?;
        let files = self.plots().into_iter().map(|(name, svg)| (format!("bench-{name}.svg"), svg));
        for (name, text) in files.chain([("bench.txt".to_owned(), self.text())]) {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        report::progress(&format!("results: {}", folder.display()));
        Ok(())
    }

    /// Every plot that something was measured for, by name.
    fn plots(&self) -> Vec<(&'static str, String)> {
        let all = [
            (
                "throughput",
                self.by_size("Throughput of push_pull by size", "GB/s, both directions", |row| row.gb_per_s),
            ),
            (
                "latency",
                self.by_size("Time of one push_pull by size", "microseconds, median", |row| row.p50_us),
            ),
            ("models", self.models()),
            ("shapes", self.shapes()),
        ];
        all.into_iter().filter_map(|(name, svg)| Some((name, svg?))).collect()
    }

    fn machine(&self) -> &str {
        self.notes.first().map_or("", String::as_str)
    }

    fn by_size(&self, title: &str, y_label: &str, figure: fn(&Row) -> Option<f64>) -> Option<String> {
        let mut lines: Vec<Line> = Vec::new();
        let is_sweep =
            |row: &&Row| row.name == "push_pull" && row.workers == Some(1) && row.servers == Some(1);
        for row in self.rows.iter().filter(is_sweep) {
            let (Some(name), Some(bytes), Some(figure)) = (&row.transport, row.bytes, figure(row)) else {
                continue;
            };
            let point = (bytes as f64, figure);
            match lines.iter_mut().find(|line| line.name == *name) {
                Some(line) => line.points.push(point),
                None => {
                    let is_baseline = BASELINES.contains(&name.as_str());
                    lines.push(Line { name: name.clone(), points: vec![point], is_baseline });
                }
            }
        }
        let subtitle = self.machine();
        let x_label = "bytes of a tensor; 1 worker, 1 server";
        let chart = Chart { title, subtitle, x_label, y_label, has_log_y: true, x_is_bytes: true, lines };
        (!chart.lines.is_empty()).then(|| chart.svg())
    }

    fn models(&self) -> Option<String> {
        let is_model = |row: &&Row| models::is_one(&row.name);
        let name = |row: &Row| {
            let shape = match (row.workers, row.servers) {
                (Some(1), Some(1)) | (None, _) | (_, None) => String::new(),
                (Some(workers), Some(servers)) => format!(", {workers}+{servers}"),
            };
            format!("{}{shape}", row.name)
        };
        self.bars("Whole models, push_pull", self.rows.iter().filter(is_model), name)
    }

    fn shapes(&self) -> Option<String> {
        let is_shape = |row: &&Row| row.name == "shapes";
        let name = |row: &Row| {
            format!("{} worker(s), {} server(s)", row.workers.unwrap_or(0), row.servers.unwrap_or(0))
        };
        self.bars("Workers and servers, push_pull of 1 MiB", self.rows.iter().filter(is_shape), name)
    }

    fn bars<'r>(
        &self,
        title: &str,
        rows: impl Iterator<Item = &'r Row>,
        group_name: impl Fn(&Row) -> String,
    ) -> Option<String> {
        let mut subjects: Vec<(String, bool)> = Vec::new();
        let mut groups: Vec<Group> = Vec::new();
        for row in rows {
            let (Some(subject), name) = (&row.transport, group_name(row)) else { continue };
            let place = subjects.iter().position(|(known, _)| known == subject).unwrap_or_else(|| {
                subjects.push((subject.clone(), BASELINES.contains(&subject.as_str())));
                subjects.len() - 1
            });
            let at = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
                groups.push(Group { name, values: Vec::new() });
                groups.len() - 1
            });
            let values = &mut groups[at].values;
            values.resize(values.len().max(place + 1), None);
            values[place] = row.gb_per_s;
        }
        let subtitle = self.machine();
        let x_label = "GB/s, both directions of all workers";
        let bars = Bars { title, subtitle, x_label, subjects, groups };
        (!bars.groups.is_empty()).then(|| bars.svg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, transport: &str, bytes: u64, shape: (u32, u32)) -> Row {
        Row {
            name: name.to_owned(),
            transport: Some(transport.to_owned()),
            bytes: Some(bytes),
            workers: Some(shape.0),
            servers: Some(shape.1),
            gb_per_s: Some(3.0),
            p50_us: Some(7.0),
            ..Row::default()
        }
    }

    #[test]
    fn every_part_has_its_plot_and_names_the_machine() {
        let rows = vec![
            row("push_pull", "shm", 64, (1, 1)),
            row("push_pull", "shm", 1024, (1, 1)),
            row("push_pull", "grpc", 64, (1, 1)),
            row("push_pull", "shm", 64, (2, 1)),
            row("vgg16", "shm", 64, (1, 1)),
            row("vgg16", "grpc", 64, (1, 1)),
            row("shapes", "tcp", 1024, (4, 2)),
        ];
        let notes = vec!["a machine".to_owned(), "it was busy".to_owned()];
        let results = Results { notes: &notes, rows: &rows };
        let plots = results.plots();
        let names: Vec<&str> = plots.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["throughput", "latency", "models", "shapes"]);
        assert!(plots.iter().all(|(_, svg)| svg.contains("a machine")));
        assert_eq!(plots[0].1.matches("<circle").count(), 3, "of one worker and one server only");
        assert!(plots[3].1.contains("4 worker(s), 2 server(s)"));
        assert!(results.text().starts_with("a machine\nit was busy\n\nname"));
    }

    #[test]
    fn the_files_of_a_run_lie_in_one_folder() {
        let folder = std::env::temp_dir().join(format!("gradwire-bench-results-{}", std::process::id()));
        let rows = vec![row("push_pull", "shm", 64, (1, 1))];
        let notes = vec!["a machine".to_owned()];
        Results { notes: &notes, rows: &rows }.write(&folder).expect("writes");
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .expect("is there")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        std::fs::remove_dir_all(&folder).expect("removes");
        assert_eq!(names, ["bench-latency.svg", "bench-throughput.svg", "bench.json", "bench.txt"]);
    }
}
