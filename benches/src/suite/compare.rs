//! One work with several subjects in turn, and the rows that come of it: figures, and ratios to whatever baselines are
//! among the subjects.
//!
//! It must not know how a subject does its work, nor which works there are.

use crate::copy::Calibration;
use crate::counters::Counted;
use crate::measure::{self, Sample, Series, Subject};
use crate::report::{self, Row};
use crate::workload::WorkSpec;

/// Names of subjects that ratios are taken to.
pub(super) const GRPC: &str = "grpc";
pub(super) const STORE_AND_FORWARD: &str = "store_and_forward";
pub(super) const PLAIN_RECEIVE: &str = "plain_receive";
pub(super) const PEER: &str = "peer";

/// What a subject's name ends with that does the same work in one tensor.
pub(super) const ONE_TENSOR: &str = "_one_tensor";

/// Subjects, each with the bare exchange of the same wait policy on the same cores.
pub(super) const PING_PONGS: [(&str, &str); 4] = [
    ("shm_spinning", "spin_ping_pong"),
    ("shm_blocked", "futex_ping_pong"),
    ("unix_blocked", "unix_ping_pong"),
    ("tcp_blocked", "tcp_ping_pong"),
];

/// What is compared.
pub(super) struct Comparison<'a> {
    /// The work, with operations in flight as for throughput.
    pub(super) spec: WorkSpec,
    pub(super) throughput: bool,
    /// Also with one operation in flight, on the first tensor.
    pub(super) latency: bool,
    pub(super) pairs: u32,
    pub(super) copy: &'a Calibration,
}

/// What it showed.
pub(super) struct Compared {
    pub(super) rows: Vec<Row>,
    /// One a subject, where throughput was measured.
    pub(super) throughput: Vec<Series>,
}

impl Comparison<'_> {
    /// Measures all subjects in turn.
    ///
    /// # Errors
    /// The first failure of a subject.
    pub(super) fn run(&self, subjects: &mut [Box<dyn Subject>]) -> anyhow::Result<Compared> {
        let spec = &self.spec;
        let label = format!("{}, {} worker(s), {} server(s)", described(spec), spec.workers, spec.servers);
        let mut throughput = Vec::new();
        if self.throughput {
            report::progress(&format!("{label}: throughput, {} in flight", spec.inflight));
            throughput = measure::run_pairs(subjects, spec, self.pairs)?;
        }
        let mut latency = Vec::new();
        if self.latency {
            report::progress(&format!("{label}: latency"));
            latency = measure::run_pairs(subjects, &alone(spec), self.pairs)?;
        }
        let counted = if self.throughput { self.count(subjects) } else { Vec::new() };
        let mut rows = Vec::new();
        for (index, subject) in subjects.iter().enumerate() {
            let is_there = |series: &&Series| !series.samples.is_empty();
            let mine = Measured {
                throughput: throughput.get(index).filter(is_there),
                latency: latency.get(index).filter(is_there),
            };
            let failed = [throughput.get(index), latency.get(index)]
                .into_iter()
                .flatten()
                .find_map(|one| one.failed.clone());
            if mine.throughput.is_none() && mine.latency.is_none() && failed.is_none() {
                continue;
            }
            let mut row = Row { failed, ..self.row(subject.as_ref()) };
            mine.figures(&mut row, self.copy);
            counted.get(index).into_iter().flatten().for_each(|counted| row.tell(counted));
            mine.ratios(&mut row, subject.name(), &throughput, &latency);
            report::progress(&summary(&row));
            rows.push(row);
        }
        Ok(Compared { rows, throughput })
    }

    /// What each subject asks of the kernel, where that can be counted.
    fn count(&self, subjects: &mut [Box<dyn Subject>]) -> Vec<Option<Counted>> {
        let count = |subject: &mut Box<dyn Subject>| match subject.count(&self.spec) {
            Ok(counted) => counted,
            Err(error) => {
                report::progress(&format!("  {}: system calls are not counted: {error:#}", subject.name()));
                None
            }
        };
        subjects.iter_mut().map(count).collect()
    }

    /// What a row says of the work and of whoever does it.
    fn row(&self, subject: &dyn Subject) -> Row {
        let work = if self.throughput { self.spec.clone() } else { alone(&self.spec) };
        let spec = &subject.work(&work);
        Row {
            name: spec.name.clone(),
            transport: Some(subject.name().to_owned()),
            bytes: spec.is_alike().then(|| spec.tensor_bytes()),
            tensors: u32::try_from(spec.tensors.len()).ok(),
            model_bytes: Some(spec.model_bytes()),
            dtype: Some("f32".to_owned()),
            placement: subject.placement(spec),
            buffers: subject.buffers(spec),
            workers: Some(spec.workers),
            servers: Some(spec.servers),
            pairs: Some(self.pairs),
            ..Row::default()
        }
    }
}

fn described(spec: &WorkSpec) -> String {
    if spec.is_alike() {
        format!("{} of {} bytes", spec.name, spec.tensor_bytes())
    } else {
        format!("{}, {} tensors, {:.0} MB", spec.name, spec.tensors.len(), spec.model_bytes() as f64 / 1e6)
    }
}

/// The same work on the first tensor alone.
fn alone(spec: &WorkSpec) -> WorkSpec {
    WorkSpec {
        workers: spec.workers,
        servers: spec.servers,
        seconds: spec.seconds / 2.0,
        warmup_rounds: spec.warmup_rounds,
        late_us: spec.late_us,
        ..WorkSpec::alike(&spec.name, spec.op, spec.tensor_bytes(), 1)
    }
}

/// What one subject showed.
struct Measured<'a> {
    throughput: Option<&'a Series>,
    latency: Option<&'a Series>,
}

impl Measured<'_> {
    fn figures(&self, row: &mut Row, copy: &Calibration) {
        row.gb_per_s = self.throughput.and_then(Series::gb_per_s);
        row.cpu_s_per_gb = self.throughput.and_then(Series::cpu_s_per_gb);
        row.ratio_to_copy = row.gb_per_s.map(|speed| speed / copy.best_gb_per_s());
        row.allocations_per_round = self.throughput.and_then(Series::allocations_per_round);
        row.p50_us = self.latency.and_then(Series::p50_us);
        row.p99_us = self.latency.and_then(Series::p99_us);
        row.spread =
            self.throughput.map_or_else(|| self.latency.and_then(Series::latency_spread), Series::spread);
        row.cpu_pressure_percent =
            self.throughput.or(self.latency).and_then(|series| series.cpu_pressure_percent);
    }

    fn ratios(&self, row: &mut Row, me: &str, throughput: &[Series], latency: &[Series]) {
        let speed =
            |other: &str| self.throughput?.ratio_to(named(throughput, other).filter(|_| other != me)?);
        let time =
            |other: &str| self.latency?.latency_ratio_to(named(latency, other).filter(|_| other != me)?);
        row.ratio_to_grpc = speed(GRPC);
        row.ratio_to_store_and_forward = speed(STORE_AND_FORWARD);
        row.ratio_to_plain_receive = speed(PLAIN_RECEIVE);
        row.ratio_to_one_tensor = speed(&format!("{me}{ONE_TENSOR}"));
        row.ratio_to_peer = speed(PEER);
        row.p50_ratio_to_peer = time(PEER);
        let bare = PING_PONGS.iter().find(|(subject, _)| *subject == me).map(|(_, bare)| *bare);
        row.p50_ratio_to_ping_pong = bare.and_then(time);
    }
}

fn named<'a>(all: &'a [Series], name: &str) -> Option<&'a Series> {
    all.iter().find(|series| series.subject == name && !series.samples.is_empty())
}

fn summary(row: &Row) -> String {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    format!(
        "  {:<18} {} GB/s, p50 {} us, p99 {} us, CPU pressure {} %",
        row.transport.as_deref().unwrap_or_default(),
        figure(row.gb_per_s),
        figure(row.p50_us),
        figure(row.p99_us),
        figure(row.cpu_pressure_percent)
    )
}

/// The same bytes as one tensor.
pub(super) fn in_one_tensor(spec: &mut WorkSpec) {
    *spec = WorkSpec { tensors: vec![spec.model_bytes()], inflight: 1, ..spec.clone() };
}

/// A subject that does the work in another way, under a name of its own.
pub(super) struct Changed {
    name: String,
    subject: Box<dyn Subject>,
    change: fn(&mut WorkSpec),
}

impl Changed {
    /// `subject`, whose name gets this end.
    pub(super) fn new(subject: Box<dyn Subject>, end: &str, change: fn(&mut WorkSpec)) -> Self {
        Self { name: format!("{}{end}", subject.name()), subject, change }
    }
}

impl Subject for Changed {
    fn name(&self) -> &str {
        &self.name
    }

    fn work(&self, spec: &WorkSpec) -> WorkSpec {
        let mut spec = spec.clone();
        (self.change)(&mut spec);
        spec
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        self.subject.run(&self.work(spec))
    }

    fn count(&mut self, spec: &WorkSpec) -> anyhow::Result<Option<Counted>> {
        self.subject.count(&self.work(spec))
    }

    fn placement(&self, spec: &WorkSpec) -> Option<String> {
        self.subject.placement(&self.work(spec))
    }

    fn buffers(&self, spec: &WorkSpec) -> Option<String> {
        self.subject.buffers(&self.work(spec))
    }

    fn stop(&mut self) {
        self.subject.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy;
    use crate::workload::Op;

    /// Does every operation in so many microseconds.
    struct Steady(&'static str, u64);

    impl Subject for Steady {
        fn name(&self) -> &str {
            self.0
        }

        fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
            let operations = spec.tensors.len() as u64;
            Ok(Sample {
                seconds: (operations * self.1) as f64 / 1e6,
                payload_bytes: spec.payload_bytes(1),
                latencies_ns: vec![self.1 * 1000],
                cpu_seconds: 0.0,
                rounds: 1,
                told_us: None,
                allocations_per_round: None,
            })
        }

        fn buffers(&self, _spec: &WorkSpec) -> Option<String> {
            Some("plain".to_owned())
        }

        fn stop(&mut self) {}
    }

    fn compared(spec: WorkSpec, mut subjects: Vec<Box<dyn Subject>>) -> Vec<Row> {
        let copy = copy::calibrate(copy::KERNELS, 1 << 16).expect("calibrates");
        let comparison = Comparison { spec, throughput: true, latency: true, pairs: 2, copy: &copy };
        comparison.run(&mut subjects).expect("measures").rows
    }

    #[test]
    fn every_baseline_among_the_subjects_gives_a_ratio() {
        let subjects: Vec<Box<dyn Subject>> = vec![
            Box::new(Steady("shm_spinning", 10)),
            Box::new(Steady("spin_ping_pong", 2)),
            Box::new(Steady(GRPC, 40)),
            Box::new(Steady(STORE_AND_FORWARD, 20)),
            Box::new(Steady(PLAIN_RECEIVE, 5)),
            Box::new(Steady(PEER, 100)),
        ];
        let rows = compared(WorkSpec::alike("test", Op::PushPull, 4096, 4), subjects);
        let close = |value: Option<f64>, to: f64| value.is_some_and(|value| (value - to).abs() < 1e-9);
        let ours = &rows[0];
        assert!(close(ours.ratio_to_grpc, 4.0) && close(ours.ratio_to_store_and_forward, 2.0));
        assert!(close(ours.ratio_to_plain_receive, 0.5) && close(ours.ratio_to_peer, 10.0));
        assert!(close(ours.p50_ratio_to_peer, 0.1) && close(ours.p50_ratio_to_ping_pong, 5.0));
        assert_eq!((ours.ratio_to_one_tensor, rows[2].ratio_to_grpc), (None, None));
        assert_eq!((ours.buffers.as_deref(), ours.tensors, ours.bytes), (Some("plain"), Some(4), Some(4096)));
    }

    #[test]
    fn the_same_bytes_in_one_tensor_are_a_baseline_of_their_own() {
        let subjects: Vec<Box<dyn Subject>> = vec![
            Box::new(Steady("shm", 10)),
            Box::new(Changed::new(Box::new(Steady("shm", 30)), ONE_TENSOR, in_one_tensor)),
        ];
        let rows = compared(WorkSpec::of_tensors("test", Op::PushPull, vec![4, 8, 4]), subjects);
        assert!(rows[0].ratio_to_one_tensor.is_some_and(|ratio| (ratio - 1.0).abs() < 1e-9), "{rows:?}");
        assert_eq!(rows[1].transport.as_deref(), Some("shm_one_tensor"));
        assert_eq!((rows[0].bytes, rows[0].tensors, rows[0].model_bytes), (None, Some(3), Some(16)));
        assert_eq!((rows[1].bytes, rows[1].tensors), (Some(16), Some(1)));
    }
}
