//! The form of the results: rows as flat JSON objects whose names never change, and a table for people.
//!
//! It must not measure or compute ratios.

use crate::counters::Counted;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::Path;

/// One measured thing. A field is absent where it does not apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The benchmark: one of `suite/parts.rs`, a model of `models.rs`, `copy`; those over RDMA are in `rdma/suite.rs`.
    pub(crate) name: String,
    /// The RDMA device it was measured on, where that matters: what kind of device it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    /// `shm`, `tcp`, …, a baseline's name (`grpc`), or the kernel of a `copy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<String>,
    /// Bytes of one tensor, where all are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Tensors of one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tensors: Option<u32>,
    /// Bytes of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_bytes: Option<u64>,
    /// Element type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dtype: Option<String>,
    /// How the tensor travels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<String>,
    /// The trainer's memory: `library`, `registered` or `plain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) buffers: Option<String>,
    /// Worker processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<u32>,
    /// Server processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) servers: Option<u32>,
    /// Payload bytes of both directions over the whole cluster, decimal gigabytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gb_per_s: Option<f64>,
    /// Median time of one operation with one outstanding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// CPU seconds of all processes per gigabyte of payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// Throughput over that of the best single-thread copy of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_copy: Option<f64>,
    /// Throughput over what memory allows: a copy's speed, over the bytes that the work moves for each byte (`suite/bounds.rs`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_bound: Option<f64>,
    /// Throughput over that of the gRPC baseline, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_grpc: Option<f64>,
    /// Throughput over that of the parameter server that stores and forwards over TCP, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_store_and_forward: Option<f64>,
    /// Throughput over that of receiving the same bytes into memory over TCP, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_plain_receive: Option<f64>,
    /// Throughput over that of the same bytes in one tensor, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_one_tensor: Option<f64>,
    /// Throughput over that of the outside program, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_peer: Option<f64>,
    /// Median time over that of the outside program, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ratio_to_peer: Option<f64>,
    /// Median time over that of a bare exchange between two processes that wait in the same way on the same cores, pair
    /// by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ratio_to_ping_pong: Option<f64>,
    /// Time that the other workers lose, over the time that one of them is late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_per_late: Option<f64>,
    /// Throughput over that of perftest's `ib_write_bw` at the same size on the same device, pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_ib_write_bw: Option<f64>,
    /// Median time over that of perftest's `ib_write_lat` (half a round trip of 64 bytes), pair by pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_ib_write_lat: Option<f64>,
    /// Bytes that one process has registered with the RDMA device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) registered_bytes: Option<u64>,
    /// How often something was repeated before what the row tells was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repeats: Option<u64>,
    /// System calls of all processes per megabyte of payload, counted in a run of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) syscalls_per_mb: Option<f64>,
    /// The same per operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) syscalls_per_op: Option<f64>,
    /// Context switches of all processes per operation, from the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches_per_op: Option<f64>,
    /// Allocations per round of one worker's process, in the measured runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocations_per_round: Option<f64>,
    /// Share of one CPU that all processes of a cluster take while nothing is asked of it, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_cpu_percent: Option<f64>,
    /// Share of the time in which some process waited for a CPU, in percent: the median of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_pressure_percent: Option<f64>,
    /// Why an outside program has no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    /// Interleaved pairs measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pairs: Option<u32>,
    /// Interquartile range over the median (of throughput; of latency where only that was measured).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<f64>,
}

impl Row {
    /// Adds what was asked of the kernel.
    pub(crate) fn tell(&mut self, counted: &Counted) {
        let per = |count: u64, of: f64| Some(count as f64 / of);
        self.syscalls_per_mb = per(counted.counts.syscalls, counted.payload_bytes as f64 / 1e6);
        self.syscalls_per_op = per(counted.counts.syscalls, counted.operations as f64);
        self.switches_per_op = per(counted.counts.switches, counted.operations as f64);
    }

    /// The row with every figure rounded to four significant digits: more would be noise.
    pub(crate) fn rounded(mut self) -> Self {
        let figures = [
            &mut self.gb_per_s,
            &mut self.p50_us,
            &mut self.p99_us,
            &mut self.cpu_s_per_gb,
            &mut self.ratio_to_copy,
            &mut self.ratio_to_bound,
            &mut self.ratio_to_grpc,
            &mut self.ratio_to_store_and_forward,
            &mut self.ratio_to_plain_receive,
            &mut self.ratio_to_one_tensor,
            &mut self.ratio_to_peer,
            &mut self.p50_ratio_to_peer,
            &mut self.p50_ratio_to_ping_pong,
            &mut self.lost_per_late,
            &mut self.ratio_to_ib_write_bw,
            &mut self.ratio_to_ib_write_lat,
            &mut self.syscalls_per_mb,
            &mut self.syscalls_per_op,
            &mut self.switches_per_op,
            &mut self.allocations_per_round,
            &mut self.idle_cpu_percent,
            &mut self.cpu_pressure_percent,
            &mut self.spread,
        ];
        for figure in figures {
            *figure = figure.filter(|value| value.is_finite()).map(four_digits);
        }
        self
    }
}

fn four_digits(value: f64) -> f64 {
    // Through text, so that the number prints as short as it was rounded.
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Writes the rows as a JSON array of flat objects, a line each.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_json(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let mut text = String::from("[");
    for (index, row) in rows.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(row)?);
    }
    text.push_str("\n]\n");
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

const HEADINGS: [&str; 34] = [
    "name",
    "transport",
    "bytes",
    "tensors",
    "MB",
    "placement",
    "buffers",
    "W",
    "S",
    "GB/s",
    "spread",
    "p50 us",
    "p99 us",
    "CPU s/GB",
    "x copy",
    "x bound",
    "x grpc",
    "x store+forward",
    "x plain receive",
    "x one tensor",
    "x peer",
    "p50 x peer",
    "p50 x ping-pong",
    "lost/late",
    "x ib_write_bw",
    "x ib_write_lat",
    "registered",
    "repeats",
    "calls/MB",
    "calls/op",
    "switches/op",
    "allocs/round",
    "idle CPU %",
    "pressure",
];

/// Columns of words, which are aligned to the left; numbers go to the right.
const WORD_COLUMNS: [usize; 4] = [0, 1, 5, 6];

fn cells(row: &Row) -> [String; HEADINGS.len()] {
    let word = |value: &Option<String>| value.clone().unwrap_or_default();
    let count = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let figure = |value: Option<f64>| value.map_or_else(String::new, format_figure);
    let percent = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0} %"));
    // A number of tensors alike says it all.
    let uneven = |value: Option<u64>| value.filter(|_| row.bytes.is_none());
    [
        row.name.clone(),
        word(&row.transport),
        count(row.bytes),
        count(row.tensors.map(u64::from)),
        figure(uneven(row.model_bytes).map(|bytes| bytes as f64 / 1e6)),
        word(&row.placement),
        word(&row.buffers),
        count(row.workers.map(u64::from)),
        count(row.servers.map(u64::from)),
        figure(row.gb_per_s),
        percent(row.spread.map(|spread| spread * 100.0)),
        figure(row.p50_us),
        figure(row.p99_us),
        figure(row.cpu_s_per_gb),
        figure(row.ratio_to_copy),
        figure(row.ratio_to_bound),
        figure(row.ratio_to_grpc),
        figure(row.ratio_to_store_and_forward),
        figure(row.ratio_to_plain_receive),
        figure(row.ratio_to_one_tensor),
        figure(row.ratio_to_peer),
        figure(row.p50_ratio_to_peer),
        figure(row.p50_ratio_to_ping_pong),
        figure(row.lost_per_late),
        figure(row.ratio_to_ib_write_bw),
        figure(row.ratio_to_ib_write_lat),
        count(row.registered_bytes),
        count(row.repeats),
        figure(row.syscalls_per_mb),
        figure(row.syscalls_per_op),
        figure(row.switches_per_op),
        figure(row.allocations_per_round),
        figure(row.idle_cpu_percent),
        percent(row.cpu_pressure_percent),
    ]
}

fn format_figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        1.0..10.0 => format!("{value:.2}"),
        0.0..0.1 => format!("{value:.4}"),
        _ => format!("{value:.3}"),
    }
}

/// The rows as an aligned table, without columns in which nothing stands.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let mut widths = [0; HEADINGS.len()];
    let is_empty: Vec<bool> =
        (0..HEADINGS.len()).map(|at| lines[1..].iter().all(|line| line[at].is_empty())).collect();
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut out = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            if is_empty[column] {
                continue;
            }
            if WORD_COLUMNS.contains(&column) {
                out.push_str(&format!("{cell:<width$}  "));
            } else {
                out.push_str(&format!("{cell:>width$}  "));
            }
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// Prints results to standard output.
///
/// # Errors
/// Standard output is closed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Says on standard error how far the run is; nobody listening is no reason to stop.
pub(crate) fn progress(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counts;

    fn row() -> Row {
        Row {
            name: "push_pull".into(),
            transport: Some("grpc".into()),
            bytes: Some(1024),
            dtype: Some("f32".into()),
            workers: Some(2),
            servers: Some(1),
            gb_per_s: Some(1.234_567_8),
            p50_us: Some(f64::NAN),
            ..Row::default()
        }
    }

    #[test]
    fn a_row_is_a_flat_object_without_what_does_not_apply() {
        let json = serde_json::to_string(&row().rounded()).expect("serialises");
        assert_eq!(
            json,
            r#"{"name":"push_pull","transport":"grpc","bytes":1024,"dtype":"f32","workers":2,"servers":1,"gb_per_s":1.235}"#
        );
    }

    #[test]
    fn every_name_of_the_contract_is_there() {
        let words = ["buffers", "device", "dtype", "failed", "name", "placement", "transport"];
        let numbers = [
            "allocations_per_round",
            "bytes",
            "cpu_pressure_percent",
            "cpu_s_per_gb",
            "gb_per_s",
            "idle_cpu_percent",
            "lost_per_late",
            "model_bytes",
            "p50_ratio_to_peer",
            "p50_ratio_to_ping_pong",
            "p50_us",
            "p99_us",
            "pairs",
            "ratio_to_copy",
            "ratio_to_bound",
            "ratio_to_grpc",
            "ratio_to_ib_write_bw",
            "ratio_to_ib_write_lat",
            "ratio_to_one_tensor",
            "ratio_to_peer",
            "ratio_to_plain_receive",
            "ratio_to_store_and_forward",
            "registered_bytes",
            "repeats",
            "servers",
            "spread",
            "switches_per_op",
            "syscalls_per_mb",
            "syscalls_per_op",
            "tensors",
            "workers",
        ];
        let fields = words.iter().map(|name| ((*name).to_owned(), serde_json::json!("x")));
        let fields = fields.chain(numbers.iter().map(|name| ((*name).to_owned(), serde_json::json!(1))));
        let all = serde_json::Map::from_iter(fields);
        let row: Row = serde_json::from_value(all.clone().into()).expect("a row takes every name");
        let told = serde_json::to_value(row).expect("serialises");
        assert!(all.keys().eq(told.as_object().expect("an object").keys()), "{told}");
    }

    #[test]
    fn what_was_counted_is_told_by_megabyte_and_by_operation() {
        let counts = Counts { syscalls: 300, switches: 30 };
        let mut row = row();
        row.tell(&Counted { counts, operations: 100, payload_bytes: 2_000_000 });
        assert_eq!((row.syscalls_per_mb, row.syscalls_per_op), (Some(150.0), Some(3.0)));
        assert_eq!(row.switches_per_op, Some(0.3));
    }

    #[test]
    fn the_file_is_one_json_array() {
        let path = std::env::temp_dir().join(format!("gradwire-bench-report-{}.json", std::process::id()));
        write_json(&path, &[row(), row()]).expect("writes");
        let text = std::fs::read_to_string(&path).expect("reads");
        std::fs::remove_file(&path).expect("removes");
        let value: serde_json::Value = serde_json::from_str(&text.replace("null", "0")).expect("is JSON");
        assert_eq!(value.as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn the_table_is_aligned() {
        let text = table(&[row()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("push_pull  grpc"));
        assert!(!lines[0].contains("placement"), "a column without anything in it: {text}");
        assert_eq!(lines[0].find("GB/s").map(|at| at + 4), lines[1].find("1.23").map(|at| at + 4));
    }
}
