//! How subjects are compared: interleaved runs of the same work, medians and spread, ratios pair by pair.
//!
//! It must not know what a subject is made of, and must not print results.

use crate::counters::Counted;
use crate::procfs;
use crate::report;
use crate::stats;
use crate::workload::WorkSpec;
use std::time::{Duration, Instant};

/// Something that can do a [`WorkSpec`]: Gradwire over one transport, or a baseline.
pub(crate) trait Subject {
    /// What the report calls it; the transport of its rows.
    fn name(&self) -> &str;

    /// What it makes of the work, where it does it in another shape.
    fn work(&self, spec: &WorkSpec) -> WorkSpec {
        spec.clone()
    }

    /// Does the work once: warms up, then measures about `spec.seconds`. Processes stay up between runs, so
    /// that no run pays for a start, and are idle while another subject runs.
    ///
    /// # Errors
    /// A process failed, a deadline passed, or the result was wrong.
    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample>;

    /// How its tensors travel (`slot`, `static`, …), where that word applies.
    fn placement(&self, _spec: &WorkSpec) -> Option<String> {
        None
    }

    /// What memory its trainer-side buffers are: `library`, `registered` or `plain`.
    fn buffers(&self, _spec: &WorkSpec) -> Option<String> {
        None
    }

    /// Does the work once more, and counts what it asks of the kernel; `None` of a subject whose processes are not ours.
    ///
    /// # Errors
    /// As of a run, or nothing can be counted here.
    fn count(&mut self, _spec: &WorkSpec) -> anyhow::Result<Option<Counted>> {
        Ok(None)
    }

    /// Is a failure its own affair, after which the others go on without it?
    fn is_guest(&self) -> bool {
        false
    }

    /// Ends its processes; the next run starts them again. Called before another cluster shape is measured.
    fn stop(&mut self);
}

/// What one run measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    /// Time of the measured part, the slowest worker's.
    pub(crate) seconds: f64,
    /// Payload bytes of both directions, over the whole cluster.
    pub(crate) payload_bytes: u64,
    /// Times of single operations, from call to completion; possibly a regular subsample.
    pub(crate) latencies_ns: Vec<u64>,
    /// CPU time of all the subject's processes in the measured part.
    pub(crate) cpu_seconds: f64,
    /// Rounds of the measured part; 0 where a subject does not count them.
    pub(crate) rounds: u64,
    /// Median and 99th percentile of the operation times in microseconds, of a subject that tells no single times.
    pub(crate) told_us: Option<(f64, f64)>,
    /// Allocations of a worker's process in one round, where they are counted.
    pub(crate) allocations_per_round: Option<f64>,
}

impl Sample {
    fn gb_per_s(&self) -> f64 {
        self.payload_bytes as f64 / self.seconds / 1e9
    }

    fn median_latency_ns(&self) -> Option<f64> {
        if let Some((p50_us, _)) = self.told_us {
            return Some(p50_us * 1e3);
        }
        stats::median(self.latencies_ns.iter().map(|ns| *ns as f64))
    }

    fn round_s(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.seconds / self.rounds as f64)
    }

    fn cpu_s_per_gb(&self) -> f64 {
        self.cpu_seconds / (self.payload_bytes as f64 / 1e9)
    }
}

/// The samples of one subject, and how contended the machine was meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    /// The subject's name.
    pub(crate) subject: String,
    /// One sample a pair, in the order of the pairs.
    pub(crate) samples: Vec<Sample>,
    /// Median share of a run in which some process waited for a CPU, in percent; `None` where not told.
    pub(crate) cpu_pressure_percent: Option<f64>,
    /// Why it has no samples, though the others have.
    pub(crate) failed: Option<String>,
}

impl Series {
    /// Median throughput, in decimal gigabytes of payload per second.
    pub(crate) fn gb_per_s(&self) -> Option<f64> {
        stats::median(self.samples.iter().map(Sample::gb_per_s))
    }

    /// The highest throughput of any sample: what an undisturbed machine gives, for finding settings.
    pub(crate) fn best_gb_per_s(&self) -> Option<f64> {
        self.samples.iter().map(Sample::gb_per_s).max_by(f64::total_cmp)
    }

    /// Interquartile range of the throughput over its median.
    pub(crate) fn spread(&self) -> Option<f64> {
        stats::spread(self.samples.iter().map(Sample::gb_per_s))
    }

    /// Median CPU time per gigabyte of payload.
    pub(crate) fn cpu_s_per_gb(&self) -> Option<f64> {
        stats::median(self.samples.iter().map(Sample::cpu_s_per_gb))
    }

    /// Interquartile range of the CPU time over its median.
    pub(crate) fn cpu_spread(&self) -> Option<f64> {
        stats::spread(self.samples.iter().map(Sample::cpu_s_per_gb))
    }

    /// Median number of allocations of one round at a worker.
    pub(crate) fn allocations_per_round(&self) -> Option<f64> {
        stats::median(self.samples.iter().filter_map(|sample| sample.allocations_per_round))
    }

    /// Median over the pairs of what a round takes longer than the other subject's in the same pair.
    pub(crate) fn round_s_beyond(&self, other: &Series) -> Option<f64> {
        let pairs = self.samples.iter().zip(&other.samples);
        stats::median(pairs.filter_map(|(mine, theirs)| Some(mine.round_s()? - theirs.round_s()?)))
    }

    /// The median of the operation times of all samples, in microseconds.
    pub(crate) fn p50_us(&self) -> Option<f64> {
        let told = self.samples.iter().filter_map(|sample| Some(sample.told_us?.0));
        stats::median(told).or_else(|| self.latency_us(0.5))
    }

    /// The 99th percentile of the same.
    pub(crate) fn p99_us(&self) -> Option<f64> {
        let told = self.samples.iter().filter_map(|sample| Some(sample.told_us?.1));
        stats::median(told).or_else(|| self.latency_us(0.99))
    }

    fn latency_us(&self, q: f64) -> Option<f64> {
        let all = self.samples.iter().flat_map(|sample| &sample.latencies_ns);
        stats::quantile_sorted(&stats::sorted(all.map(|ns| *ns as f64 / 1e3)), q)
    }

    /// Interquartile range of each sample's median operation time, over their median.
    pub(crate) fn latency_spread(&self) -> Option<f64> {
        stats::spread(self.samples.iter().filter_map(Sample::median_latency_ns))
    }

    /// Median over the pairs of this subject's throughput divided by the other's in the same pair.
    pub(crate) fn ratio_to(&self, other: &Series) -> Option<f64> {
        let pairs = self.samples.iter().zip(&other.samples);
        stats::median(pairs.map(|(mine, theirs)| mine.gb_per_s() / theirs.gb_per_s()))
    }

    /// Median over the pairs of this subject's median operation time divided by the other's in the same pair.
    pub(crate) fn latency_ratio_to(&self, other: &Series) -> Option<f64> {
        let pairs = self.samples.iter().zip(&other.samples);
        stats::median(
            pairs.filter_map(|(mine, theirs)| Some(mine.median_latency_ns()? / theirs.median_latency_ns()?)),
        )
    }
}

/// Runs every subject once per pair, in turn (A B, A B, …), and collects their samples. The first pair's
/// order is kept: each subject always follows the same other one, so that what it inherits is the same.
///
/// # Errors
/// The first failure of any subject, with its name and work.
pub(crate) fn run_pairs(
    subjects: &mut [Box<dyn Subject>],
    spec: &WorkSpec,
    pairs: u32,
) -> anyhow::Result<Vec<Series>> {
    spec.check()?;
    let mut samples = vec![Vec::new(); subjects.len()];
    let mut pressures = vec![Vec::new(); subjects.len()];
    let mut failed: Vec<Option<String>> = vec![None; subjects.len()];
    for _ in 0..pairs.max(1) {
        for (index, subject) in subjects.iter_mut().enumerate() {
            if failed[index].is_some() {
                continue;
            }
            let before = procfs::cpu_pressure();
            let start = Instant::now();
            let sample = match subject.run(spec) {
                Ok(sample) => sample,
                Err(error) if subject.is_guest() => {
                    report::progress(&format!("{} goes on without {}: {error:#}", spec.name, subject.name()));
                    failed[index] = Some(format!("{error:#}"));
                    continue;
                }
                Err(error) => {
                    let (tensors, bytes) = (spec.tensors.len(), spec.model_bytes());
                    let what = format!("{}: {tensors} tensor(s), {bytes} bytes", spec.name);
                    return Err(error.context(format!("{what} over {}", subject.name())));
                }
            };
            if let (Some(before), Some(after)) = (before, procfs::cpu_pressure()) {
                let waited_us = after.total_us.saturating_sub(before.total_us);
                pressures[index].push(waited_us as f64 / start.elapsed().as_micros().max(1) as f64 * 100.0);
            }
            samples[index].push(sample);
        }
    }
    // Half a series would be compared with other pairs than its own.
    failed.iter().zip(&mut samples).filter(|(out, _)| out.is_some()).for_each(|(_, samples)| samples.clear());
    let all = subjects.iter().zip(samples).zip(pressures).zip(failed);
    let series = all.map(|(((subject, samples), pressures), failed)| Series {
        subject: subject.name().to_owned(),
        samples,
        cpu_pressure_percent: stats::median(pressures),
        failed,
    });
    Ok(series.collect())
}

/// The most rounds one run may take, whatever its target.
const MAX_ROUNDS: u64 = 50_000_000;

/// Finds how many rounds take about `target_seconds`, by running more and more of them.
///
/// # Errors
/// Those of `run`, which does a number of rounds and gives the seconds they took.
pub(crate) fn calibrate_rounds(
    target_seconds: f64,
    mut run: impl FnMut(u64) -> anyhow::Result<f64>,
) -> anyhow::Result<u64> {
    let mut rounds = 1_u64;
    loop {
        let seconds = run(rounds)?.max(1e-9);
        let wanted = (rounds as f64 * target_seconds / seconds).ceil();
        let wanted = (wanted as u64).clamp(1, MAX_ROUNDS);
        // An eighth of the target is a fair sample; before that, grow towards it without overshooting.
        if seconds >= target_seconds / 8.0 || rounds >= MAX_ROUNDS {
            return Ok(wanted);
        }
        rounds = (wanted / 6).clamp(rounds * 2, rounds.saturating_mul(16)).min(MAX_ROUNDS);
    }
}

/// Above this the machine is too busy to begin, in percent of the last ten seconds.
const QUIET_PRESSURE_PERCENT: f64 = 5.0;

/// Waits until the machine is quiet, but not beyond `deadline`; gives the last pressure where it is not.
pub(crate) fn wait_until_quiet(deadline: Duration) -> Option<f64> {
    let start = Instant::now();
    loop {
        let pressure = procfs::cpu_pressure()?.avg10_percent;
        if pressure <= QUIET_PRESSURE_PERCENT {
            return None;
        }
        if start.elapsed() >= deadline {
            return Some(pressure);
        }
        // Sleep: the kernel renews this average every two seconds and offers no event below its triggers' privilege.
        std::thread::sleep(Duration::from_secs(1).min(deadline));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Op;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Fake {
        name: &'static str,
        is_guest: bool,
        speeds: Vec<u64>,
        log: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Subject for Fake {
        fn name(&self) -> &str {
            self.name
        }

        fn run(&mut self, _spec: &WorkSpec) -> anyhow::Result<Sample> {
            self.log.borrow_mut().push(self.name);
            let speed = self.speeds.pop().ok_or_else(|| anyhow::anyhow!("out of breath"))?;
            Ok(Sample {
                seconds: 1.0,
                payload_bytes: speed * 1_000_000_000,
                latencies_ns: vec![1000, 3000],
                cpu_seconds: 2.0,
                rounds: 4,
                told_us: None,
                allocations_per_round: None,
            })
        }

        fn is_guest(&self) -> bool {
            self.is_guest
        }

        fn stop(&mut self) {}
    }

    fn spec() -> WorkSpec {
        WorkSpec::alike("test", Op::Push, 4, 1)
    }

    #[test]
    fn pairs_are_interleaved_and_ratios_are_taken_pair_by_pair() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut subjects: Vec<Box<dyn Subject>> = vec![
            Box::new(Fake { name: "a", is_guest: false, speeds: vec![8, 6, 2], log: Rc::clone(&log) }),
            Box::new(Fake { name: "b", is_guest: false, speeds: vec![2, 2, 2], log: Rc::clone(&log) }),
        ];
        let series = run_pairs(&mut subjects, &spec(), 3).expect("runs");
        assert_eq!(*log.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(series[0].ratio_to(&series[1]), Some(3.0));
        assert_eq!(series[0].gb_per_s(), Some(6.0));
        assert_eq!(series[1].spread(), Some(0.0));
        assert_eq!(series[1].cpu_s_per_gb(), Some(1.0));
        assert_eq!(series[1].p50_us(), Some(2.0));
        assert_eq!(series[0].latency_ratio_to(&series[1]), Some(1.0));
        let error = run_pairs(&mut subjects, &spec(), 1).expect_err("out of speeds");
        assert!(
            format!("{error:#}").contains("test: 1 tensor(s), 4 bytes over a: out of breath"),
            "{error:#}"
        );
    }

    #[test]
    fn what_a_round_takes_longer_is_taken_pair_by_pair() {
        let series = |seconds: [f64; 3]| {
            let sample = |seconds| Sample { seconds, payload_bytes: 1, rounds: 2, ..Sample::default() };
            Series {
                subject: String::new(),
                samples: seconds.map(sample).into(),
                cpu_pressure_percent: None,
                failed: None,
            }
        };
        // The medians differ by 1 s a round, the pairs by 2.
        let (late, even) = (series([5.0, 7.0, 9.0]), series([1.0, 5.0, 5.0]));
        assert_eq!(late.round_s_beyond(&even), Some(2.0));
    }

    #[test]
    fn the_others_go_on_without_a_guest_that_fails() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut subjects: Vec<Box<dyn Subject>> = vec![
            Box::new(Fake { name: "guest", is_guest: true, speeds: vec![1], log: Rc::clone(&log) }),
            Box::new(Fake { name: "ours", is_guest: false, speeds: vec![2; 3], log: Rc::clone(&log) }),
        ];
        let series = run_pairs(&mut subjects, &spec(), 3).expect("ours runs");
        assert_eq!(*log.borrow(), ["guest", "ours", "guest", "ours", "ours"]);
        assert_eq!((series[0].samples.len(), series[1].samples.len()), (0, 3));
        assert!(series[0].failed.as_ref().is_some_and(|reason| reason.contains("out of breath")));
        assert_eq!(series[1].ratio_to(&series[0]), None);
    }

    #[test]
    fn what_a_subject_tells_of_its_times_is_taken_as_it_is() {
        let sample = |p50, p99| Sample {
            seconds: 1.0,
            payload_bytes: 1,
            latencies_ns: Vec::new(),
            cpu_seconds: f64::NAN,
            rounds: 0,
            told_us: Some((p50, p99)),
            allocations_per_round: None,
        };
        let samples = vec![sample(1.0, 9.0), sample(3.0, 11.0), sample(2.0, 10.0)];
        let series = Series { subject: "peer".into(), samples, cpu_pressure_percent: None, failed: None };
        let times = (series.p50_us(), series.p99_us(), series.round_s_beyond(&series));
        assert_eq!(times, (Some(2.0), Some(10.0), None));
        assert_eq!(series.latency_ratio_to(&series), Some(1.0));
    }

    #[test]
    fn rounds_are_found_for_fast_and_slow_work() {
        for per_round in [1e-7, 1e-3, 2.0] {
            let mut total = 0.0;
            let rounds = calibrate_rounds(0.5, |rounds| {
                let seconds = rounds as f64 * per_round;
                total += seconds;
                Ok(seconds)
            })
            .expect("calibrates");
            let expected = (0.5 / per_round).max(1.0);
            assert!((rounds as f64 / expected - 1.0).abs() < 0.01, "{rounds} for {per_round}");
            assert!(total < 2.5, "overshot to {total}");
        }
    }
}
