//! The results as they leave the guest (a table and one line of JSON on its console) and what the host makes of them: a
//! file, plots. All of them say what device was measured.
//!
//! It must not measure.

use super::device;
use crate::plot::{Chart, Line, Range, Ranges};
use crate::report::{self, Row};
use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What the line of results begins with.
const MARK: &str = "json: ";

/// Everything that one run found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Document {
    device: String,
    machine: String,
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<Row>,
}

/// Arguments of the host's side.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// What the guest printed.
    log: PathBuf,
    /// Also write the results as a JSON array to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw them, as files in this folder.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

impl Document {
    pub(super) fn new(machine: String) -> Self {
        Self { device: device().to_owned(), machine, ..Self::default() }
    }

    fn table(&self) -> String {
        let notes = self.notes.iter().map(|note| format!("{note}\n")).collect::<String>();
        format!("{}\n{}\n{notes}\n{}", self.device, self.machine, report::table(&self.rows))
    }

    /// As the guest says it.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        report::print(&format!("{}\n{MARK}{}", self.table(), serde_json::to_string(self)?))
    }

    /// Out of what a guest printed.
    fn find(log: &str) -> anyhow::Result<Self> {
        let line = log.lines().rev().find_map(|line| line.strip_prefix(MARK));
        let line = line.context("no results in what the guest printed: see what it ended with")?;
        serde_json::from_str(line).context("the guest's results are torn")
    }
}

/// Reports what a guest printed.
///
/// # Errors
/// There are no results in it, or a file cannot be written.
pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<()> {
    let log =
        std::fs::read_to_string(&args.log).with_context(|| format!("cannot read {}", args.log.display()))?;
    let document = Document::find(&log)?;
    if let Some(path) = &args.json {
        report::write_json(path, &document.rows)?;
        report::progress(&format!("results: {}", path.display()));
    }
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder)?;
        for (name, svg) in plots(&document.device, &document.rows) {
            write(&folder.join(format!("rdma-{name}.svg")), &svg)?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    report::progress(&format!("plot: {}", path.display()));
    Ok(())
}

/// Decimal megabytes per second over the bytes of a tensor, a line for each label.
fn throughput(rows: &[Row], label: impl Fn(&Row) -> Option<String>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let (Some(label), Some(bytes), Some(speed)) = (label(row), row.bytes, row.gb_per_s) else { continue };
        let point = (bytes as f64, speed * 1e3);
        match lines.iter_mut().find(|line| line.name == label) {
            Some(line) => line.points.push(point),
            None => {
                lines.push(Line { is_baseline: label == "ib_write_bw", name: label, points: vec![point] });
            }
        }
    }
    lines
}

/// Every comparison that something was measured of, by name.
fn plots(device: &str, rows: &[Row]) -> Vec<(&'static str, String)> {
    let until = |last: &str| rows.iter().rposition(|row| row.name == last).map_or(0, |at| at + 1);
    // perftest is measured once with the raw channel and once with pushes; each belongs to what it was interleaved with.
    let (bare, pushed) =
        rows.split_at(rows.iter().position(|row| row.name == "push_assign").unwrap_or(until("ib_write_bw")));
    let named = |row: &Row, names: &[&str]| names.contains(&row.name.as_str()).then(|| row.name.clone());
    let of = |name: &'static str, label: fn(&Row) -> Option<String>| {
        move |row: &Row| if row.name == name { label(row) } else { None }
    };
    let sized = [
        (
            "raw-write",
            "Writes over a raw channel",
            throughput(bare, |row| named(row, &["raw_write", "ib_write_bw"])),
        ),
        (
            "push",
            "Pushes through a cluster (1 worker, 1 server)",
            throughput(pushed, |row| named(row, &["push_assign", "push_sum", "ib_write_bw"])),
        ),
        (
            "transports",
            "push_pull over each driver, both directions counted",
            throughput(rows, of("push_pull", |row| row.transport.clone().filter(|_| row.gb_per_s.is_some()))),
        ),
        (
            "zero-copy",
            "Pushes with and without a copy by the sender",
            throughput(rows, of("zero_copy", |row| row.buffers.clone())),
        ),
        ("placement", "push_pull by placement, 1 worker", throughput(rows, |row| placed(row, 1))),
        ("placement-2-workers", "push_pull by placement, 2 workers", throughput(rows, |row| placed(row, 2))),
    ];
    let mut all: Vec<(&str, String)> = Vec::new();
    for (name, title, lines) in sized.into_iter().filter(|(_, _, lines)| !lines.is_empty()) {
        let chart = Chart {
            title,
            subtitle: device,
            x_label: "bytes of a write or a tensor",
            y_label: "MB/s",
            has_log_y: name == "transports",
            x_is_bytes: true,
            lines,
        };
        all.push((name, chart.svg()));
    }
    all.extend(latency(device, rows).map(|svg| ("latency", svg)));
    all.extend(registered(device, rows).map(|svg| ("registered", svg)));
    all
}

/// The placement of a row that compares placements with so many workers.
fn placed(row: &Row, workers: u32) -> Option<String> {
    row.placement.clone().filter(|_| row.name == "placement" && row.workers == Some(workers))
}

fn latency(device: &str, rows: &[Row]) -> Option<String> {
    let small = |row: &&Row| row.gb_per_s.is_none() && row.pairs.is_some();
    let ranges = rows.iter().filter(small).filter_map(|row| {
        let name = format!("{}, {} bytes", row.name, row.bytes?);
        let is_baseline = row.name == "ib_write_lat";
        Some(Range { name, from: row.p50_us?, to: row.p99_us?, is_baseline })
    });
    let ranges: Vec<Range> = ranges.collect();
    let chart = Ranges {
        title: "Latency, p50 (filled) to p99 (open)",
        subtitle: device,
        x_label: "microseconds; raw_ping_pong and ib_write_lat: half a round trip",
        ranges,
    };
    (!chart.ranges.is_empty()).then(|| chart.svg())
}

fn registered(device: &str, rows: &[Row]) -> Option<String> {
    let line = |name: &str, placement: &str, label: &str| {
        let points = rows
            .iter()
            .filter(|row| row.name == name && row.placement.as_deref() == Some(placement))
            .filter_map(|row| Some((f64::from(row.workers?), row.registered_bytes? as f64 / 1e6)));
        Line { name: label.to_owned(), points: points.collect(), is_baseline: false }
    };
    let lines = vec![
        line("registered_server", "slot", "the server, slots only"),
        line("registered_server", "auto", "the server, as planned"),
        line("registered_worker", "slot", "each worker"),
    ];
    let chart = Chart {
        title: "Memory registered with the device",
        subtitle: device,
        x_label: "workers",
        y_label: "MB",
        has_log_y: false,
        x_is_bytes: false,
        lines,
    };
    (!chart.lines[0].points.is_empty()).then(|| chart.svg())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = "software RDMA (rdma_rxe, emulated CPU)";

    fn row(name: &str, bytes: u64, gb_per_s: f64) -> Row {
        Row {
            name: name.to_owned(),
            device: Some(DEVICE.to_owned()),
            transport: Some("verbs".to_owned()),
            bytes: Some(bytes),
            gb_per_s: Some(gb_per_s),
            pairs: Some(3),
            ..Row::default()
        }
    }

    fn document() -> Document {
        let mut document = Document { device: DEVICE.to_owned(), ..Document::new("a machine".to_owned()) };
        let latency = Row { gb_per_s: None, p50_us: Some(9.0), p99_us: Some(30.0), ..row("push", 16, 0.0) };
        document.rows = vec![
            row("raw_write", 65_536, 0.08),
            row("ib_write_bw", 65_536, 0.09),
            latency,
            row("push_assign", 65_536, 0.07),
            row("ib_write_bw", 65_536, 0.01),
            Row { workers: Some(2), placement: Some("slot".to_owned()), ..row("placement", 65_536, 0.07) },
            Row {
                workers: Some(8),
                registered_bytes: Some(1 << 20),
                placement: Some("slot".to_owned()),
                ..row("registered_server", 0, 0.0)
            },
        ];
        document
    }

    #[test]
    fn what_the_guest_prints_is_found_among_other_lines() {
        let line = serde_json::to_string(&document()).expect("serialises");
        let log = format!("guest: up\n{MARK}old\nnoise\n{MARK}{line}\nguest: exit 0\n");
        assert_eq!(Document::find(&log).expect("found"), document());
        assert!(Document::find("guest: exit 1\n").is_err());
        assert!(Document::find(&log[..log.len() - 30]).is_err(), "torn");
    }

    #[test]
    fn table_and_every_plot_name_the_device() {
        let document = document();
        assert!(document.table().starts_with(DEVICE));
        let plots = plots(DEVICE, &document.rows);
        let names: Vec<&str> = plots.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["raw-write", "push", "placement-2-workers", "latency", "registered"]);
        assert!(plots.iter().all(|(_, svg)| svg.contains(DEVICE)));
    }

    #[test]
    fn perftest_stands_beside_what_it_was_interleaved_with() {
        let rows = document().rows;
        let baseline = |rows: &[Row]| throughput(rows, |row| Some(row.name.clone()))[1].points[0].1;
        assert_eq!((baseline(&rows[..2]), baseline(&rows[3..5])), (90.0, 10.0));
    }
}
