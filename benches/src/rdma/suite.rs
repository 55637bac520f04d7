//! What is measured over an RDMA device, in which order, and how rows are made of it.
//!
//! It must not know how a subject does its work.

use super::channel::{RawChannel, Way};
use super::document::Document;
use super::perftest::{Perftest, Tool};
use super::{device, registered};
use crate::gradwire::worker::{Buffers, Rule, Variant};
use crate::gradwire::{GradwireSubject, program};
use crate::measure::{self, Sample, Series, Subject};
use crate::procfs;
use crate::report::{self, Row};
use crate::workload::{Op, WorkSpec};
use clap::Args;
use std::process::Command;
use std::time::{Duration, Instant};

/// What the command line may say about the suite.
#[derive(Debug, Args)]
pub(crate) struct RdmaArgs {
    /// Few sizes and short runs: shows that it works, not what it reaches.
    #[arg(long)]
    quick: bool,
    /// Only the part of this name (raw, latency, push, pull, transports, zero_copy, placement, registered).
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Interleaved pairs per benchmark.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Only these sizes of those that a part measures. May be repeated.
    #[arg(long, value_name = "BYTES")]
    bytes: Vec<u64>,
    /// The device's address, which perftest's ends meet at.
    #[arg(long, value_name = "IP", default_value = "10.9.0.1")]
    address: String,
    /// A setting of all daemons and clients but those of the part `registered`, such as memory.spin_us=1000. May be
    /// repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// After this no further part is begun: the guest has a deadline, and what is measured by then is to be told.
const BUDGET: Duration = Duration::from_secs(540);

/// The ways a tensor can travel.
const PLACEMENTS: [&str; 4] = ["slot", "static", "rendezvous-read", "rendezvous-write"];

/// The sizes of tensors that placements are compared by.
const PLACED_BYTES: [u64; 7] = [4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];

/// The same where two workers contribute, and one's contribution waits for the other's.
const PLACED_BYTES_BY_TWO: [u64; 3] = [64 * KIB, MIB, 16 * MIB];

/// The settings of one run of the suite.
struct Plan {
    quick: bool,
    only_bytes: Vec<u64>,
    pairs: u32,
    seconds: f64,
    address: String,
    settings: Vec<String>,
}

impl Plan {
    /// These sizes, or those of them that were asked for, or with `--quick` those that tell most.
    fn sizes(&self, all: &[u64]) -> Vec<u64> {
        let quick: &[u64] = if self.quick { &[64 * KIB, MIB] } else { all };
        let chosen = if self.only_bytes.is_empty() { quick } else { &self.only_bytes };
        all.iter().copied().filter(|bytes| chosen.contains(bytes)).collect()
    }

    fn spec(&self, name: &str, op: Op, bytes: u64, inflight: u32) -> WorkSpec {
        WorkSpec { seconds: self.seconds, warmup_rounds: 1, ..WorkSpec::alike(name, op, bytes, inflight) }
    }
}

/// A part of the suite.
type Part = fn(&Plan) -> anyhow::Result<Vec<Row>>;

const PARTS: [(&str, Part); 8] = [
    ("raw", raw),
    ("latency", latency),
    ("push", push),
    ("pull", pull),
    ("transports", transports),
    ("zero_copy", zero_copy),
    ("placement", placement),
    ("registered", |plan| registered::measure(plan.quick)),
];

/// Measures; prints the table and the results as one line of JSON.
///
/// # Errors
/// A subject failed, or there is no such part.
pub(crate) fn run(args: &RdmaArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let chosen = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    anyhow::ensure!(PARTS.iter().any(|(name, _)| chosen(name)), "no such part: see --help");
    let plan = Plan {
        quick: args.quick,
        only_bytes: args.bytes.clone(),
        pairs: args.pairs,
        seconds: if args.quick { 0.15 } else { 0.5 },
        address: args.address.clone(),
        settings: args.set.clone(),
    };
    let mut document = Document::new(procfs::describe_machine());
    let mut failures: Vec<String> = Vec::new();
    for (name, part) in PARTS.into_iter().filter(|(name, _)| chosen(name)) {
        if started.elapsed() > BUDGET {
            let note = format!("{name}: not measured, as {} s were used up before it", BUDGET.as_secs());
            report::progress(&note);
            document.notes.push(note);
            continue;
        }
        report::progress(&format!("{name}, after {} s", started.elapsed().as_secs()));
        match part(&plan) {
            Ok(rows) if rows.is_empty() => {
                document.notes.push(format!("{name}: nothing to measure in this build"));
            }
            Ok(rows) => document.rows.extend(rows.into_iter().map(Row::rounded)),
            // What else there is, is told before it ends with this.
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    document.notes.push(format!("measured in {} s", started.elapsed().as_secs()));
    document.notes.extend(failures.iter().map(|failure| format!("FAILED {failure}")));
    document.print()?;
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// One work with several subjects, and which figures are taken of it.
pub(super) struct Comparison<'a> {
    pub(super) spec: WorkSpec,
    /// The rows' name, with the subjects' in the place of the transport; without it subjects name the rows, which are
    /// all over verbs.
    pub(super) name: Option<&'a str>,
    pub(super) throughput: bool,
    pub(super) latency: bool,
}

/// Measures the subjects in turn. Of throughput, operations are in flight as the spec says; of latency, one.
fn compare(
    plan: &Plan,
    comparison: &Comparison<'_>,
    subjects: &mut [Box<dyn Subject>],
) -> anyhow::Result<Vec<Row>> {
    let spec = &comparison.spec;
    let mut run = |spec: &WorkSpec| measure::run_pairs(subjects, spec, plan.pairs);
    let throughput = if comparison.throughput { Some(run(spec)?) } else { None };
    let latency = if comparison.latency {
        Some(run(&WorkSpec {
            seconds: spec.seconds / 2.0,
            ..plan.spec(&spec.name, spec.op, spec.tensor_bytes(), 1)
        })?)
    } else {
        None
    };
    let mut rows = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        let label = subject.name();
        let (name, transport) = comparison.name.map_or((label, "verbs"), |name| (name, label));
        let baseline = |all: &Option<Vec<Series>>, tool: Tool| {
            all.iter().flatten().find(|series| series.subject == tool.name() && label != tool.name()).cloned()
        };
        let mut row = Row {
            name: name.to_owned(),
            device: Some(device().to_owned()),
            transport: Some(transport.to_owned()),
            bytes: Some(spec.tensor_bytes()),
            workers: subject.placement(spec).map(|_| spec.workers),
            servers: subject.placement(spec).map(|_| spec.servers),
            placement: subject.placement(spec),
            buffers: subject.buffers(spec),
            pairs: Some(plan.pairs),
            ..Row::default()
        };
        if let Some(series) = latency.as_ref().map(|all| &all[index]) {
            row.p50_us = series.p50_us();
            row.p99_us = series.p99_us();
            row.spread = series.latency_spread();
            row.ratio_to_ib_write_lat =
                baseline(&latency, Tool::WriteLatency).and_then(|theirs| series.latency_ratio_to(&theirs));
        }
        if let Some(series) = throughput.as_ref().map(|all| &all[index]) {
            row.gb_per_s = series.gb_per_s();
            row.cpu_s_per_gb = series.cpu_s_per_gb();
            row.spread = series.spread();
            row.ratio_to_ib_write_bw =
                baseline(&throughput, Tool::WriteBandwidth).and_then(|theirs| series.ratio_to(&theirs));
        }
        rows.push(row.rounded());
    }
    report::progress(report::table(&rows).trim_end());
    Ok(rows)
}

/// A subject that does one kind of operation, whatever the others do.
struct Doing {
    subject: GradwireSubject,
    op: Op,
}

impl Subject for Doing {
    fn name(&self) -> &str {
        self.subject.name()
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        self.subject.run(&WorkSpec { op: self.op, ..spec.clone() })
    }

    fn placement(&self, spec: &WorkSpec) -> Option<String> {
        self.subject.placement(spec)
    }

    fn buffers(&self, spec: &WorkSpec) -> Option<String> {
        self.subject.buffers(spec)
    }

    fn stop(&mut self) {
        self.subject.stop();
    }
}

fn perftest(plan: &Plan, tool: Tool) -> Box<dyn Subject> {
    Box::new(Perftest { tool, address: plan.address.clone() })
}

fn gradwire(plan: &Plan, transport: &'static str) -> GradwireSubject {
    GradwireSubject::new(transport).with_settings(&plan.settings)
}

fn verbs(plan: &Plan, label: &'static str, rule: Rule, buffers: Buffers) -> GradwireSubject {
    gradwire(plan, "verbs").with_variant(label, Variant { rule, buffers })
}

/// Writes over a raw channel.
fn raw(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let sizes = plan.sizes(&[4 * KIB, 64 * KIB, MIB, 4 * MIB]);
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(RawChannel::new(Way::Writes, (4 * MIB) as usize)),
        perftest(plan, Tool::WriteBandwidth),
    ];
    let mut rows = Vec::new();
    for bytes in sizes {
        let spec = plan.spec("raw", Op::Push, bytes, 1);
        let comparison = Comparison { spec, name: None, throughput: true, latency: false };
        rows.extend(compare(plan, &comparison, &mut subjects)?);
    }
    Ok(rows)
}

/// The seed paper's smallest message.
const FOUR_FLOATS_BYTES: u64 = 16;

/// Longer than a round trip takes under emulation, so that nobody sleeps.
const SPINNING: &str = "memory.spin_us=5000";

/// A small write back and forth, and the client's smallest operations: as it waits by default, and with both its ends
/// spinning on a CPU each, as perftest's do.
fn latency(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let sleeping = |label, op| {
        let subject = verbs(plan, label, Rule::Sgd, Buffers::Library);
        Box::new(Doing { subject, op }) as Box<dyn Subject>
    };
    let spinning = |label, op| {
        let subject = verbs(plan, label, Rule::Sgd, Buffers::Library);
        let subject = subject.with_settings(&[SPINNING.to_owned()]).with_cpus(crate::child::cpus());
        Box::new(Doing { subject, op }) as Box<dyn Subject>
    };
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(RawChannel::new(Way::PingPong, KIB as usize)),
        sleeping("push", Op::Push),
        sleeping("push_pull", Op::PushPull),
        spinning("push_spinning", Op::Push),
        spinning("push_pull_spinning", Op::PushPull),
        perftest(plan, Tool::WriteLatency),
    ];
    let spec = plan.spec("latency", Op::PushPull, FOUR_FLOATS_BYTES, 1);
    let mut rows =
        compare(plan, &Comparison { spec, name: None, throughput: false, latency: true }, &mut subjects)?;
    // The round trips of a raw channel and of perftest have a size of their own.
    for row in rows.iter_mut().filter(|row| row.buffers.is_none()) {
        row.bytes = Some(super::PING_BYTES);
    }
    Ok(rows)
}

/// Pushes through a cluster beside bare writes of the same size.
fn push(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let sizes = plan.sizes(&[64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]);
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(verbs(plan, "push_assign", Rule::Assign, Buffers::Library)),
        Box::new(verbs(plan, "push_sum", Rule::Sum, Buffers::Library)),
        perftest(plan, Tool::WriteBandwidth),
    ];
    let mut rows = Vec::new();
    for bytes in sizes {
        let spec = plan.spec("push", Op::Push, bytes, in_flight(bytes));
        let comparison = Comparison { spec, name: None, throughput: true, latency: false };
        rows.extend(compare(plan, &comparison, &mut subjects)?);
    }
    Ok(rows)
}

/// Pulls, whose payload comes as the server's writes, beside bare writes of the same size.
fn pull(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(Doing { subject: verbs(plan, "pull", Rule::Assign, Buffers::Library), op: Op::Pull }),
        perftest(plan, Tool::WriteBandwidth),
    ];
    let mut rows = Vec::new();
    for bytes in plan.sizes(&[64 * KIB, MIB, 4 * MIB]) {
        let spec = plan.spec("pull", Op::Push, bytes, in_flight(bytes));
        let comparison = Comparison { spec, name: None, throughput: true, latency: false };
        rows.extend(compare(plan, &comparison, &mut subjects)?);
    }
    Ok(rows)
}

/// As many as `ib_write_bw` has under way, but not so many bytes that one round takes a whole run's time.
fn in_flight(bytes: u64) -> u32 {
    u32::try_from((32 * MIB / bytes).clamp(1, 64)).unwrap_or(1)
}

/// The same work over every driver, by the rule that only copies: an emulated CPU adds floats slower than drivers move
/// them.
fn transports(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut subjects: Vec<Box<dyn Subject>> = ["shm", "unix", "tcp", "verbs"]
        .map(|transport| {
            let variant = Variant { rule: Rule::Assign, ..Variant::default() };
            Box::new(gradwire(plan, transport).with_variant(transport, variant)) as Box<dyn Subject>
        })
        .into();
    let mut rows = Vec::new();
    for bytes in plan.sizes(&[4 * KIB, 64 * KIB, MIB]) {
        let spec = plan.spec("push_pull", Op::PushPull, bytes, in_flight(bytes).min(8));
        let comparison = Comparison { spec, name: Some("push_pull"), throughput: true, latency: true };
        rows.extend(compare(plan, &comparison, &mut subjects)?);
    }
    Ok(rows)
}

/// Pushes that the sender copies first beside those that it does not copy, one at a time.
fn zero_copy(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let variant = |buffers| Box::new(verbs(plan, "zero_copy", Rule::Assign, buffers)) as Box<dyn Subject>;
    let mut subjects = [Buffers::Library, Buffers::Registered, Buffers::Plain].map(variant);
    let mut rows = Vec::new();
    for bytes in plan.sizes(&[64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]) {
        let spec = plan.spec("zero_copy", Op::Push, bytes, 1);
        let comparison = Comparison { spec, name: None, throughput: true, latency: false };
        rows.extend(compare(plan, &comparison, &mut subjects)?);
    }
    Ok(rows)
}

/// The placements against one another.
fn placement(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let help = Command::new(program("gradwire-server")?).arg("--help").output()?;
    if !String::from_utf8_lossy(&help.stdout).contains("--placement") {
        report::progress("placement: SKIPPED, the servers of this build know no --placement");
        return Ok(Vec::new());
    }
    let subject = |name| {
        let subject = verbs(plan, name, Rule::Assign, Buffers::Library);
        Box::new(subject.with_placement(name)) as Box<dyn Subject>
    };
    let mut rows = Vec::new();
    for (workers, sizes) in [(1, &PLACED_BYTES[..]), (2, &PLACED_BYTES_BY_TWO)] {
        let mut subjects = PLACEMENTS.map(subject);
        for bytes in plan.sizes(sizes) {
            let spec = plan.spec("placement", Op::PushPull, bytes, in_flight(bytes).min(4));
            let spec = WorkSpec { workers, ..spec };
            let comparison = Comparison { spec, name: Some("placement"), throughput: true, latency: false };
            for mut row in compare(plan, &comparison, &mut subjects)? {
                row.transport = Some("verbs".to_owned());
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(quick: bool) -> Plan {
        Plan {
            quick,
            only_bytes: Vec::new(),
            pairs: 2,
            seconds: 0.1,
            address: "10.9.0.1".into(),
            settings: Vec::new(),
        }
    }

    struct Fixed(&'static str, u64);

    impl Subject for Fixed {
        fn name(&self) -> &str {
            self.0
        }

        fn run(&mut self, _: &WorkSpec) -> anyhow::Result<Sample> {
            let latencies_ns = vec![1_000_000 / self.1];
            Ok(Sample {
                seconds: 1.0,
                payload_bytes: self.1,
                latencies_ns,
                cpu_seconds: 0.0,
                rounds: 0,
                told_us: None,
                allocations_per_round: None,
            })
        }

        fn stop(&mut self) {}
    }

    #[test]
    fn ratios_are_to_perftest_s_tool_for_the_figure_and_rows_name_the_device() {
        let comparison = |throughput| Comparison {
            spec: plan(false).spec("test", Op::Push, KIB, 1),
            name: None,
            throughput,
            latency: !throughput,
        };
        let subjects = |tool: Tool| -> Vec<Box<dyn Subject>> {
            vec![Box::new(Fixed("ours", 100)), Box::new(Fixed(tool.name(), 200))]
        };
        let rows =
            compare(&plan(false), &comparison(true), &mut subjects(Tool::WriteBandwidth)).expect("rows");
        assert_eq!((rows[0].ratio_to_ib_write_bw, rows[1].ratio_to_ib_write_bw), (Some(0.5), None));
        assert!(
            rows.iter()
                .all(|row| row.device.as_deref() == Some(device())
                    && row.transport.as_deref() == Some("verbs"))
        );
        let rows =
            compare(&plan(false), &comparison(false), &mut subjects(Tool::WriteLatency)).expect("rows");
        assert_eq!((rows[0].ratio_to_ib_write_lat, rows[0].ratio_to_ib_write_bw), (Some(2.0), None));
    }

    #[test]
    fn quick_runs_measure_fewer_sizes() {
        let all = [4 * KIB, 64 * KIB, MIB];
        assert_eq!(plan(true).sizes(&all), [64 * KIB, MIB]);
        assert_eq!(plan(false).sizes(&all), all);
        assert_eq!((in_flight(4 * KIB), in_flight(4 * MIB), in_flight(64 * MIB)), (64, 8, 1));
    }
}
