//! What one run found: as text, as JSON, as plots. All of it says what is simulated. It must not measure or simulate.

use super::loggp::LogGp;
use super::sweep::Row;
use super::validate::{Checked, ModelErrors};
use crate::plot::{Chart, Line, Range, Ranges};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// See the module.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) what: String,
    pub(crate) machine: String,
    /// Share of the time in which somebody waited for a CPU while the model was fitted and compared, in percent.
    pub(crate) pressure_percent: Option<f64>,
    pub(crate) model: LogGp,
    pub(crate) errors: Vec<ModelErrors>,
    pub(crate) held_out: Vec<Checked>,
    pub(crate) clusters: Vec<Row>,
}

/// The first line of everything.
pub(crate) const WHAT: &str = "Simulated: the engines over a LogGP model whose parameters were measured over loopback TCP on one machine";

const MIB: f64 = 1_048_576.0;

impl Document {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.what, self.machine);
        let prices = self.model.prices;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "wake {:.1} us + {:.1} us CPU, o {:.2} us, block {:.2} us, byte sent {:.3}, taken {:.3}, reduced {:.3}, spilled {:.3} ns, \
             g {:.2} us, G {:.3} ns, L between hosts + {:.1} us",
            self.model.wake_ns / 1e3,
            prices.wake / 1e3,
            prices.message / 1e3,
            prices.block / 1e3,
            prices.sent_byte,
            prices.taken_byte,
            prices.reduced_byte,
            prices.spilled_byte,
            self.model.gap_ns / 1e3,
            self.model.link_ns_per_byte,
            self.model.wire_ns / 1e3,
        );
        self.held_out_text(&mut text);
        self.clusters_text(&mut text);
        text
    }

    fn held_out_text(&self, text: &mut String) {
        for errors in &self.errors {
            let _ = writeln!(
                text,
                "\nheld-out real runs on {} cores: median error {:.0} %, worst {:.0} %, CPU time {:.0} %; others used {} % of the time",
                errors.cores,
                errors.median * 100.0,
                errors.worst * 100.0,
                errors.cpu_median * 100.0,
                self.pressure_percent.map_or_else(|| "an unknown share".to_owned(), |p| format!("{p:.0}")),
            );
        }
        if !self.held_out.is_empty() {
            let _ = writeln!(
                text,
                "cores  W  S  work       tensors     bytes  measured us    median  simulated  error"
            );
        }
        for one in &self.held_out {
            let _ = writeln!(
                text,
                "{:>5}{:>3}{:>3}  {:<9}{:>9}{:>10}{:>13.1}{:>10.1}{:>11.1}{:>+6.0} %",
                one.cores,
                one.workers,
                one.servers,
                format!("{:?}", one.work),
                one.tensors,
                one.tensor_bytes,
                one.measured_us,
                one.measured_median_us,
                one.simulated_us,
                one.error * 100.0
            );
        }
    }

    fn clusters_text(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nsimulated clusters, a round each; (f): closed form\n    W    S      order     round ms  (f) at least  batches/worker   \
             (f)  notices  landings/server      (f)  results  spilled  back  server MiB   (f)  per pair  worker MiB   (f)"
        );
        for row in &self.clusters {
            let mib = |bytes: u64| bytes as f64 / MIB;
            let _ = writeln!(
                text,
                "{:>5}{:>5}{:>11}{:>13.2}{:>14.2}{:>16.0}{:>6.0}{:>9.1}{:>17.0}{:>9.0}{:>9.0}{:>8.0}%{:>5.0}%{:>12.1}{:>6.1}{:>10.1}{:>12.1}{:>6.1}",
                row.workers,
                row.servers,
                if row.deterministic { "by rank" } else { "any" },
                row.round_ms,
                row.form_round_ms,
                row.worker_batches,
                row.form_worker_batches,
                row.worker_notices,
                row.server_landings,
                row.form_server_landings,
                row.server_batches,
                row.spilled * 100.0,
                row.retried * 100.0,
                mib(row.server_reachable_bytes),
                mib(row.form_server_bytes),
                mib(row.per_pair_server_bytes),
                mib(row.worker_reachable_bytes),
                mib(row.form_worker_bytes),
            );
        }
    }

    /// By name.
    pub(crate) fn plots(&self) -> Vec<(&'static str, String)> {
        let most_workers = self.clusters.iter().map(|row| row.workers).max().unwrap_or(0);
        let most_servers = self.clusters.iter().map(|row| row.servers).max().unwrap_or(0);
        let mut plots = vec![
            ("time-workers", self.time_by_workers(most_servers)),
            ("time-servers", self.time_by_servers(most_workers)),
            ("registered", self.registered_by_workers(most_servers)),
            ("registered-worker", self.registered_by_servers(most_workers)),
            ("messages", self.messages_by_workers(most_servers)),
        ];
        if !self.held_out.is_empty() {
            plots.push(("error-1-core", self.error_plot(1)));
            plots.push(("error-2-cores", self.error_plot(2)));
        }
        plots
    }

    fn by_workers(&self, servers: u32, value: impl Fn(&Row) -> f64) -> Vec<(f64, f64)> {
        let rows = self.clusters.iter().filter(|row| row.deterministic && row.servers == servers);
        rows.map(|row| (f64::from(row.workers), value(row))).collect()
    }

    fn by_servers(&self, workers: u32, value: impl Fn(&Row) -> f64) -> Vec<(f64, f64)> {
        let rows = self.clusters.iter().filter(|row| row.deterministic && row.workers == workers);
        rows.map(|row| (f64::from(row.servers), value(row))).collect()
    }

    fn model_words(&self) -> String {
        let bytes = self.clusters.first().map_or(0, |row| row.model_bytes);
        format!("simulated: push_pull of {} MiB in chunks of 256 KiB, in rank order", bytes >> 20)
    }

    fn time_by_workers(&self, servers: u32) -> String {
        let few = servers.div_ceil(10);
        let free = self.clusters.iter().filter(|row| !row.deterministic && row.servers == servers);
        let free = free.map(|row| (f64::from(row.workers), row.round_ms)).collect();
        let lines = vec![
            line(&format!("{few} servers"), self.by_workers(few, |row| row.round_ms), false),
            line(&format!("{servers} servers"), self.by_workers(servers, |row| row.round_ms), false),
            line("any order", free, false),
            line("at least (both)", self.by_workers(few, |row| row.form_round_ms), true),
            line("", self.by_workers(servers, |row| row.form_round_ms), true),
        ];
        chart("Time of a round by workers", &self.model_words(), ("workers", "ms"), lines)
    }

    fn time_by_servers(&self, workers: u32) -> String {
        let lines = vec![
            line(&format!("{workers} workers"), self.by_servers(workers, |row| row.round_ms), false),
            line("at least", self.by_servers(workers, |row| row.form_round_ms), true),
        ];
        chart("Time of a round by servers", &self.model_words(), ("servers", "ms"), lines)
    }

    fn registered_by_workers(&self, servers: u32) -> String {
        let mib = |bytes: u64| bytes as f64 / MIB;
        let lines = vec![
            line(
                "reached by workers",
                self.by_workers(servers, |row| mib(row.server_reachable_bytes)),
                false,
            ),
            line("all but tensors", self.by_workers(servers, |row| mib(row.form_server_bytes)), false),
            line(
                "a ring a pair (m n 2 k)",
                self.by_workers(servers, |row| mib(row.per_pair_server_bytes)),
                true,
            ),
        ];
        chart("Registered bytes of a server", "simulated fabric, real runtimes", ("workers", "MiB"), lines)
    }

    fn registered_by_servers(&self, workers: u32) -> String {
        let mib = |bytes: u64| bytes as f64 / MIB;
        let lines = vec![
            line(
                "reached by servers",
                self.by_servers(workers, |row| mib(row.worker_reachable_bytes)),
                false,
            ),
            line("all but tensors", self.by_servers(workers, |row| mib(row.form_worker_bytes)), true),
        ];
        chart("Registered bytes of a worker", "simulated fabric, real runtimes", ("servers", "MiB"), lines)
    }

    fn messages_by_workers(&self, servers: u32) -> String {
        let sent = |row: &Row| row.worker_batches + row.worker_notices;
        let answered = |row: &Row| row.server_landings + row.server_batches;
        let lines = vec![
            line("by a worker", self.by_workers(servers, sent), false),
            line("by a server", self.by_workers(servers, answered), false),
            line("batches, landings (form)", self.by_workers(servers, |row| row.form_worker_batches), true),
            line("", self.by_workers(servers, |row| row.form_server_landings), true),
        ];
        let title = format!("Messages sent in a round, {servers} servers");
        chart(&title, &self.model_words(), ("workers", "messages"), lines)
    }

    fn error_plot(&self, cores: u32) -> String {
        let range = |one: &Checked| Range {
            name: format!(
                "{}x{} {:?} {}x{}",
                one.workers,
                one.servers,
                one.work,
                one.tensors,
                crate::plot::bytes(one.tensor_bytes as f64)
            ),
            from: one.measured_us,
            to: one.simulated_us,
            is_baseline: false,
        };
        let errors = self.errors.iter().find(|errors| errors.cores == cores);
        let errors = errors.map_or_else(String::new, |errors| {
            format!(": median error {:.0} %, worst {:.0} %", errors.median * 100.0, errors.worst * 100.0)
        });
        let subtitle = format!("held-out real runs of 2 to 8 processes, cores: {cores}{errors}");
        Ranges {
            title: "Measured (full) and simulated (open)",
            subtitle: &subtitle,
            x_label: "us a round",
            ranges: self.held_out.iter().filter(|one| one.cores == cores).map(range).collect(),
        }
        .svg()
    }
}

fn line(name: &str, points: Vec<(f64, f64)>, is_baseline: bool) -> Line {
    Line { name: name.to_owned(), points, is_baseline }
}

fn chart(title: &str, subtitle: &str, (x_label, y_label): (&str, &str), lines: Vec<Line>) -> String {
    Chart { title, subtitle, x_label, y_label, has_log_y: true, x_is_bytes: false, lines }.svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::shape::Shape;
    use crate::scale::sweep;

    #[test]
    fn everything_that_leaves_says_that_it_is_simulated() {
        let model = LogGp::round_numbers();
        let row = sweep::simulate(&Shape::cluster(2, 1, 1 << 20), &model).expect("runs");
        let document = Document {
            what: WHAT.to_owned(),
            machine: "a machine".to_owned(),
            pressure_percent: None,
            model,
            errors: Vec::new(),
            held_out: Vec::new(),
            clusters: vec![row],
        };
        assert!(document.text().starts_with("Simulated"), "{}", document.text());
        for (name, svg) in document.plots() {
            assert!(svg.contains("simulated"), "{name}: {svg}");
        }
        let json = serde_json::to_string(&document).expect("JSON");
        let again: Document = serde_json::from_str(&json).expect("its own JSON");
        assert_eq!(again.clusters, document.clusters);
        assert_eq!(again.model, document.model);
    }
}
