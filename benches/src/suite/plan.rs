//! What one run of the suite is to measure: the command line's choice, and the time that is left.
//!
//! It must not know how a part is measured.

use super::compare::{GRPC, STORE_AND_FORWARD};
use crate::copy::Calibration;
use crate::report;
use clap::Args;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Every subject that a run can be held to, in the order of the pairs. The baselines come last, so that each pair ends
/// with them. A way to hand over memory is a subject of its own (`shm_view`, …).
pub(super) const SUBJECTS: [&str; 9] =
    ["shm", "shm_view", "shm_touch", "shm_own", "shm_plain", "unix", "tcp", STORE_AND_FORWARD, GRPC];

/// The parts in which an outside program runs beside the others.
pub(super) const PEER_PARTS: [&str; 2] = ["sizes", "models"];

/// What the command line may say about the suite.
#[derive(Debug, Clone, Args)]
pub(crate) struct SuiteArgs {
    /// Also write the results as a JSON array to this file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Also write the results, the table and plots into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub(super) results: Option<PathBuf>,
    /// Few sizes, one worker, three short pairs: shows that it works, not what it reaches.
    #[arg(long)]
    pub(super) quick: bool,
    /// Only this part (sizes, models, shapes, latency, receive, late, rows, idle, copy) or the benchmarks of this name (push,
    /// pull, push_pull, kv_100k_f32, a model's).
    #[arg(long, value_name = "NAME")]
    pub(super) only: Option<String>,
    /// Of the sizes only tensors of this many bytes.
    #[arg(long, value_name = "N")]
    pub(super) bytes: Option<u64>,
    /// Only these subjects [default: all]. Ratios to a baseline need it among them.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = SUBJECTS)]
    pub(super) subjects: Vec<String>,
    /// Also runs an outside program, by a shell, beside the subjects of sizes and models: benches/README.md has what it is
    /// told and has to tell.
    #[arg(long, value_name = "CMD")]
    pub(super) peer: Option<String>,
    /// Interleaved pairs per benchmark [default: 10, of models and with --peer 5, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) pairs: Option<u32>,
    /// Worker counts to measure sizes and models with [default: 1].
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub(super) workers: Vec<u32>,
    /// Server processes of the same.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) servers: u32,
    /// Seconds of one measured run [default: 0.2, with --quick 0.1].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub(super) seconds: Option<f64>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("take 0.01 to 60 seconds".to_owned()),
    }
}

/// After this time the suite begins no further workload, and reports what it has measured.
const BUDGET: Duration = Duration::from_secs(13 * 60);

/// The settings of one run of the suite.
pub(super) struct Plan {
    pub(super) args: SuiteArgs,
    pub(super) workers: Vec<u32>,
    pub(super) pairs: u32,
    /// Of a model, whose rounds are long.
    pub(super) model_pairs: u32,
    pub(super) seconds: f64,
    pub(super) copy: Calibration,
    pub(super) started: Instant,
}

impl Plan {
    pub(super) fn new(args: &SuiteArgs, copy: Calibration) -> Self {
        let pairs = |default| args.pairs.unwrap_or(if args.quick { 3 } else { default });
        Self {
            workers: if args.workers.is_empty() { vec![1] } else { args.workers.clone() },
            pairs: pairs(if args.peer.is_some() { 5 } else { 10 }),
            model_pairs: pairs(5),
            seconds: args.seconds.unwrap_or(if args.quick { 0.1 } else { 0.2 }),
            args: args.clone(),
            copy,
            started: Instant::now(),
        }
    }

    /// Is a benchmark wanted? `is_quick`: whether it is among the few of a quick run.
    pub(super) fn wants(&self, part: &str, name: &str, is_quick: bool) -> bool {
        match self.args.only.as_deref() {
            Some(only) if only == name => true,
            Some(only) => only == part && (is_quick || !self.args.quick),
            // Beside a peer only what it is measured by.
            None if self.args.peer.is_some() && !PEER_PARTS.contains(&part) => false,
            None => is_quick || !self.args.quick,
        }
    }

    pub(super) fn wants_subject(&self, name: &str) -> bool {
        self.args.subjects.is_empty() || self.args.subjects.iter().any(|chosen| chosen == name)
    }

    /// Is there time to begin another workload? If not, a note says that `what` was not measured.
    pub(super) fn has_time(&self, what: &str, notes: &mut Vec<String>) -> bool {
        // How long a peer takes to start is not known.
        let has_time = self.args.peer.is_some() || self.started.elapsed() < BUDGET;
        if !has_time {
            let note =
                format!("{what}: not measured, as {} min were used up before it", BUDGET.as_secs() / 60);
            report::progress(&note);
            notes.push(note);
        }
        has_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::CopySpeed;

    fn plan(quick: bool, only: Option<&str>) -> Plan {
        let args = SuiteArgs {
            json: None,
            results: None,
            quick,
            only: only.map(str::to_owned),
            bytes: None,
            subjects: Vec::new(),
            peer: None,
            pairs: None,
            workers: Vec::new(),
            servers: 1,
            seconds: None,
        };
        Plan::new(&args, Calibration { speeds: Vec::new(), bytes: 1, two: CopySpeed::default() })
    }

    #[test]
    fn the_plan_follows_the_arguments() {
        let full = plan(false, None);
        assert!(full.wants("sizes", "push_pull", false) && full.wants("models", "vgg16", false));
        assert_eq!((full.pairs, full.model_pairs), (10, 5));
        let quick = plan(true, None);
        assert!(quick.wants("sizes", "push_pull", true) && !quick.wants("models", "vgg16", false));
        assert_eq!((quick.pairs, quick.model_pairs), (3, 3));
        let one = plan(true, Some("vgg16"));
        assert!(one.wants("models", "vgg16", false) && !one.wants("models", "gru", true));
        let part = plan(false, Some("models"));
        assert!(part.wants("models", "gru", false) && !part.wants("sizes", "push", true));
        assert!(full.wants_subject("shm"));
        let mut beside = plan(false, None);
        beside.args.peer = Some("true".to_owned());
        assert!(beside.wants("models", "vgg16", false) && !beside.wants("late", "late", true));
    }

    #[test]
    fn what_there_is_no_time_for_is_told() {
        let mut plan = plan(false, None);
        let mut notes = Vec::new();
        assert!(plan.has_time("first", &mut notes) && notes.is_empty());
        plan.started -= BUDGET;
        assert!(!plan.has_time("second", &mut notes) && notes[0].starts_with("second: not measured"));
    }
}
