//! What `gradwire chaos` is told. It names and bounds flags; what follows from them is decided by those who read them.

use super::schedule::{Kind, Menu};
use crate::common::role;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use daemon::settings::driver_words;
use proto_common::ids::Role;
use proto_common::limits::{SERVERS_MAX, WORKERS_MAX};
use proto_common::transport::Driver;
use std::ffi::OsString;
use std::path::PathBuf;

/// Epochs of a run that is not told otherwise.
const EPOCHS: u32 = 40;
/// Faults of a run that is not told otherwise, nor how long.
const KILLS_PER_RUN: u32 = 100;
/// Bound of epochs.
pub(super) const EPOCHS_MAX: i64 = 1_000_000;

/// Inject faults into a real cluster, and check that it still trains the same weights.
///
/// The command first runs the demo (a scheduler, servers, and trainers on the digits in deterministic rounds) without faults, for
/// the hash of its weights, and then under faults: it kills processes (-9) and restarts them, stops and continues them (for less
/// and for more than deadlines.silence_ms), partitions them (each process runs in its own network namespace), or drains servers
/// while others join. --seed determines all faults. A fault is injected after a few rounds, when all members are present and
/// every shard has its replicas, at a seeded moment within a round. The command measures, by role, the time until every worker
/// has finished a round that needed the recovery. Trainers fill each buffer that an operation has returned with a pattern, and fail if
/// anybody writes into it before the next operation.
///
/// With --replicas 0 the failure of a server ends the job by design: all processes must exit with a code that `gradwire env`
/// lists, and the job is restarted from the last checkpoint. --expect end requires that of every failure, without checkpoints.
///
/// Results go to a directory: chaos.json, recovery.svg, and the resource use of each process over time (soak.csv, soak.svg);
/// logs of failed runs are kept. Exit code: 0 if all hashes are equal (and, with --minutes, no resource use grew), 1 otherwise,
/// with the command that repeats the failed run.
///
/// Examples:
///   gradwire chaos --kills 200 --transport tcp
///   gradwire chaos --roles scheduler --kills 20 --epochs 60
///   gradwire chaos --faults kill,stop,partition --transport tcp --kills 30     (as root)
///   gradwire chaos --faults kill,drain --servers 3 --set cluster.servers_max=4 --kills 30
///   gradwire chaos --minutes 30 --away-ms 500                                  (a soak)
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct ChaosArgs {
    /// Seed of all faults. Each run uses the next higher seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Number of faults in total, over as many runs as they need.
    #[arg(long, visible_alias = "strikes", value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) kills: u32,
    /// Maximum number of faults in one run (100 without --minutes). The rest of the run is without faults.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) kills_per_run: Option<u32>,
    /// Soak test of about this many minutes with faults throughout, instead of a number of faults: one long training, and a second one
    /// in the remaining time (with --epochs: trainings of that many epochs, one after the other). Some processes are spared, so that
    /// they run long: the last server and the last worker, then the scheduler, server 0 and worker 0. The exit code is 1 if the memory,
    /// the open files or the registered bytes of a process grew, while it ran or from one restart to the next, and if no process ran for
    /// the minute that is needed to tell.
    #[arg(long, value_name = "N", conflicts_with = "kills", value_parser = clap::value_parser!(u32).range(1..=10_080))]
    pub(super) minutes: Option<u32>,
    /// Roles to inject faults into.
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',', default_value = "scheduler,server,worker",
        value_parser = roles())]
    pub(super) roles: Vec<Role>,
    /// Kinds of faults. Partitions need root, and tcp (or verbs) between the namespaces; the scheduler is never partitioned.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', default_value = "kill")]
    pub(super) faults: Vec<Kind>,
    /// Combine each fault with a second one: kill another process before the cluster has recovered from the first. Never two servers.
    #[arg(long)]
    pub(super) double: bool,
    /// Transport that all processes must use.
    #[arg(long, value_name = "NAME", value_parser = driver_words(), default_value_t = Driver::Shm)]
    pub(super) transport: Driver,
    /// Number of workers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub(super) workers: u32,
    /// Number of servers.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    pub(super) servers: u32,
    /// Replicas of each shard on other servers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1))]
    pub(super) replicas: u32,
    /// same: training continues, and ends with the hash of the run without faults. end: each fault ends the job, and every process ends
    /// in time with a documented exit code.
    #[arg(long, value_name = "WHAT", default_value = "same")]
    pub(super) expect: Expect,
    /// Expected hash of the weights. Default: that of a run without faults, which is made first.
    #[arg(long, value_name = "SHA256", value_parser = sha256)]
    pub(super) hash: Option<String>,
    /// Epochs of each run. Default: 40; with --minutes as many as take about that long, which a short trial determines (the hash is then
    /// that of a single process).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=EPOCHS_MAX))]
    pub(super) epochs: Option<u32>,
    /// Workers delay each gradient by a seeded time up to this, so that gradients arrive in every order and faults happen in every state
    /// of a round.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(super) jitter_us: u64,
    /// Longest time before a killed process is restarted.
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub(super) away_ms: u64,
    /// The setting deadlines.silence_ms, which says how long a silent member counts as alive.
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(500..=60_000))]
    pub(super) silence_ms: u64,
    /// How long training may stall after a fault before the run fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(super) patience: u64,
    /// With --replicas 0: a checkpoint every so many rounds.
    #[arg(long, value_name = "ROUNDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) checkpoint_rounds: u64,
    /// A setting for all processes, by its dotted name. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// The same for servers only.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set_server: Vec<String>,
    /// The same for workers only.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set_worker: Vec<String>,
    /// Directory for results and logs of failed runs.
    #[arg(long, value_name = "DIR", default_value = "chaos-out")]
    pub(super) out: PathBuf,
    /// Also keep the logs of successful runs.
    #[arg(long)]
    pub(super) keep_logs: bool,
    /// Directory of Gradwire's programs. Default: the directory of this program.
    #[arg(long, value_name = "DIR")]
    pub(super) bin_dir: Option<PathBuf>,
    /// The namespaces that this process runs in the hub of (used by itself).
    #[arg(long, hide = true, value_name = "NAME")]
    pub(super) inside: Option<String>,
    /// Further words for the trainers, after --: gradwire-worker train --help lists them.
    #[arg(last = true, value_name = "TRAIN")]
    pub(super) train: Vec<OsString>,
}

fn roles() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(["scheduler", "server", "worker"]).try_map(|word| role(&word))
}

/// What a death is to lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Expect {
    Same,
    End,
}

impl ChaosArgs {
    /// What may happen to whom.
    pub(super) fn menu(&self) -> Menu {
        Menu {
            faults: self.faults.clone(),
            roles: self.roles.clone(),
            away_ms: self.away_ms,
            silence_ms: self.silence_ms,
            servers: self.servers,
            workers: self.workers,
            is_double: self.double,
        }
    }

    /// Does the job end with a death of this role?
    pub(super) fn is_end(&self, role: Role) -> bool {
        self.expect == Expect::End || (role == Role::Server && self.replicas == 0)
    }

    /// So many in one run at most.
    pub(super) fn kills_per_run(&self) -> u32 {
        let usual = if self.minutes.is_some() { u32::MAX } else { KILLS_PER_RUN };
        self.kills_per_run.unwrap_or(usual)
    }

    /// Whom a soak spares, in its first half or after that.
    pub(super) fn spared(&self, is_first: bool) -> Vec<(Role, u32)> {
        if is_first {
            return vec![(Role::Server, self.servers - 1), (Role::Worker, self.workers - 1)];
        }
        vec![(Role::Scheduler, 0), (Role::Server, 0), (Role::Worker, 0)]
    }

    /// Of each run.
    pub(super) fn epochs(&self) -> u32 {
        self.epochs.unwrap_or(EPOCHS)
    }

    /// The words that repeat one run of these.
    pub(super) fn replay(&self, seed: u64, kills: u32) -> String {
        let names = |words: Vec<String>| words.join(",");
        let roles = names(self.roles.iter().map(Role::to_string).collect());
        let faults = names(self.faults.iter().map(|fault| name_of(*fault)).collect());
        let (transport, expect) = (self.transport, name_of(self.expect));
        // Whom a soak spares is a matter of time.
        let how_long = match self.minutes {
            Some(minutes) => format!("--minutes {minutes}"),
            None => format!("--kills {kills} --kills-per-run {kills}"),
        };
        let mut line = format!(
            "gradwire chaos --seed {seed} {how_long} --roles {roles} --faults {faults} \
             --transport {transport} --workers {} --servers {} --replicas {} --expect {expect} --epochs {} \
             --jitter-us {} --away-ms {} --silence-ms {} --patience {} --checkpoint-rounds {}",
            self.workers,
            self.servers,
            self.replicas,
            self.epochs(),
            self.jitter_us,
            self.away_ms,
            self.silence_ms,
            self.patience,
            self.checkpoint_rounds,
        );
        for (flag, pairs) in
            [("--set", &self.set), ("--set-server", &self.set_server), ("--set-worker", &self.set_worker)]
        {
            line.extend(pairs.iter().map(|pair| format!(" {flag} {pair}")));
        }
        line.extend(self.hash.iter().map(|hash| format!(" --hash {hash}")));
        if self.double {
            line.push_str(" --double");
        }
        if !self.train.is_empty() {
            line.push_str(" --");
            line.extend(self.train.iter().map(|word| format!(" {}", word.to_string_lossy())));
        }
        line
    }
}

/// The hash as trainers print it.
fn sha256(text: &str) -> Result<String, String> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("use the 64 hexadecimal digits that a trainer prints as weights_sha256".into());
    }
    Ok(text.to_ascii_lowercase())
}

/// As the command line names it.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ChaosArgs,
    }

    fn parse(line: &str) -> ChaosArgs {
        Cli::try_parse_from(line.split_whitespace()).unwrap().args
    }

    #[test]
    fn a_replayed_run_is_the_same_command() {
        let line = "x --seed 9 --kills 7 --roles server,worker --faults kill,stop --transport tcp --replicas 0 \
                    --set cluster.lanes=2 --away-ms 10 --double --patience 9";
        let line = format!("{line} --hash {} -- --layers 64,10", "0A".repeat(32));
        let args = parse(&line);
        let again = parse(args.replay(11, 3).strip_prefix("gradwire ").unwrap());
        assert_eq!((again.seed, again.kills, again.kills_per_run), (11, 3, Some(3)));
        assert_eq!((&again.roles, &again.faults, &again.set), (&args.roles, &args.faults, &args.set));
        assert_eq!((&again.train, again.replicas, again.away_ms), (&args.train, 0, 10));
        assert_eq!((again.transport, again.double), (Driver::Tcp, true));
        assert_eq!((again.patience, again.hash), (9, Some("0a".repeat(32))));
    }

    #[test]
    fn a_replayed_soak_is_one() {
        let args = ChaosArgs { epochs: Some(77), ..parse("x --minutes 5") };
        let again = parse(args.replay(3, 9).strip_prefix("gradwire ").unwrap());
        assert_eq!((again.minutes, again.epochs, again.seed), (Some(5), Some(77), 3));
    }

    #[test]
    fn without_copies_only_a_servers_death_ends_the_job() {
        let args = parse("x --replicas 0");
        assert!(args.is_end(Role::Server) && !args.is_end(Role::Worker) && !args.is_end(Role::Scheduler));
        assert!(!parse("x").is_end(Role::Server));
        assert!(parse("x --expect end").is_end(Role::Scheduler));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "x --hash zz",
            "x --kills 0",
            "x --minutes 5 --kills 3",
            "x --faults hang",
            "x --roles king",
            "x --replicas 2",
        ] {
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
