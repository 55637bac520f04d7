//! `gradwire chaos`: the demo on real processes, broken again and again; weights must be those of the undisturbed run. Owns the
//! order of runs and the files of results. Which fault comes is `schedule`'s to say, and a run from start to end is `run`'s.

mod args;
mod cluster;
mod judge;
mod net;
mod plot;
mod report;
mod run;
mod schedule;
mod soak;
mod watch;

pub(crate) use args::ChaosArgs;

use anyhow::Context as _;
use args::Expect;
use cluster::Cluster;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use report::{Report, RunReport, times};
use run::{Allowance, Run, Wrong};
use schedule::Kind;
use soak::Soak;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Epochs of the training that is measured, under faults, to choose how many take so many minutes.
const TRIAL_EPOCHS: u32 = 20;

/// Runs it all; the result is the exit code.
pub(crate) fn run(args: &ChaosArgs) -> Result<u8, anyhow::Error> {
    check(args)?;
    if args.faults.contains(&Kind::Partition) && args.inside.is_none() {
        let status = net::run_inside(args.servers + args.workers)?;
        return Ok(status.code().map_or(ExitCode::Failure as u8, |code| code as u8));
    }
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make {}; name a directory with --out", args.out.display()))
        .code(ExitCode::Io)?;
    // One thread, which is also the one that the kernel takes for the children's parent.
    let runtime = daemon::process::control_runtime().code(ExitCode::Io)?;
    let mut soak = Soak::new();
    let report = runtime.block_on(all(args, &mut soak))?;
    let is_flat = write_results(args, &report, &soak)?;
    say(&report.table());
    Ok(if report.is_equal && is_flat { 0 } else { ExitCode::Failure as u8 })
}

fn check(args: &ChaosArgs) -> Result<(), Failure> {
    let wrong = |text: &str| Err(Failure::message(ExitCode::Usage, text.to_owned()));
    if args.replicas > 0 && args.servers < 2 {
        return wrong("--replicas 1 needs --servers of 2 and more: a copy lies on another server");
    }
    if args.faults.contains(&Kind::Drain) && args.servers < 2 + args.replicas {
        return wrong(
            "--faults drain needs --servers of 2 and more, of 3 with --replicas 1: others take over",
        );
    }
    if args.double && (args.replicas == 0 || args.expect == Expect::End) {
        return wrong(
            "--double needs --replicas 1 and --expect same: the job would end with the first fault",
        );
    }
    if args.faults.contains(&Kind::Partition) && args.transport.shares_memory() {
        return wrong("hosts share no memory: --faults partition needs --transport tcp or verbs");
    }
    if args.expect == Expect::End && args.replicas > 0 && args.menu().roles.contains(&Role::Server) {
        return wrong(
            "--expect end needs --replicas 0 if servers are killed, because with replicas the job continues; or remove server from --roles",
        );
    }
    if args.menu().is_empty() {
        return wrong(
            "no fault is possible: the scheduler is never partitioned, and only servers are drained; use other --faults or --roles",
        );
    }
    Ok(())
}

/// The undisturbed run, where the hash is not known, and then the disturbed ones.
async fn all(args: &ChaosArgs, soak: &mut Soak) -> Result<Report, Failure> {
    let mut long = args.clone();
    let is_one = args.minutes.is_some() && args.epochs.is_none();
    if let (Some(minutes), true) = (args.minutes, is_one) {
        long.epochs = Some(epochs_of(args, minutes).await?);
        long.hash = Some(reference(&long).await?);
    }
    let minutes = args.minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes)));
    let mut report = Report {
        command: long.replay(args.seed, args.kills),
        hash: long.hash.clone(),
        runs: Vec::new(),
        times: Vec::new(),
        is_equal: true,
    };
    if report.hash.is_none() && args.expect == Expect::Same {
        report.hash = Some(undisturbed(&long).await?);
    }
    let (begun, mut struck) = (Instant::now(), 0);
    for seed in args.seed.. {
        let left = if minutes.is_some() { u32::MAX } else { args.kills - struck };
        if left == 0 || minutes.is_some_and(|minutes| begun.elapsed() >= minutes) {
            break;
        }
        let turn = minutes.map(|minutes| begun + minutes / 2);
        let allowance = Allowance { strikes: left.min(args.kills_per_run()), turn };
        let (run, strikes) = one(&long, seed, allowance, report.hash.as_deref(), soak).await?;
        struck += strikes;
        report.is_equal &= run.failure.is_none();
        let (is_idle, seconds) = (strikes == 0, run.seconds);
        report.runs.push(run);
        // What one seed shows is looked at before others are tried; and a training too short for a fault never has one.
        if !report.is_equal || is_idle {
            break;
        }
        if let (Some(minutes), true) = (minutes, is_one) {
            // The trial was short, and said it roughly: another training for the time that is left.
            let left = minutes.saturating_sub(begun.elapsed()).as_secs_f64();
            let epochs = f64::from(long.epochs()) * left / seconds;
            if epochs < f64::from(TRIAL_EPOCHS) {
                break;
            }
            long.epochs = Some(epochs.min(args::EPOCHS_MAX as f64) as u32);
            long.hash = Some(reference(&long).await?);
            report.hash.clone_from(&long.hash);
        }
    }
    report.is_equal &= struck > 0;
    report.times = times(&report.runs);
    Ok(report)
}

/// As many epochs as take so many minutes under faults.
async fn epochs_of(args: &ChaosArgs, minutes: u32) -> Result<u32, Failure> {
    let trial = ChaosArgs { epochs: Some(TRIAL_EPOCHS), ..args.clone() };
    let directory = args.out.join("trial");
    let allowance = Allowance { strikes: u32::MAX, turn: None };
    let run = Run::new(&trial, args.seed, allowance, &directory)?;
    let seconds = whole(run, "trial", &directory).await?.seconds;
    clear(args, &directory);
    let epochs = 60.0 * f64::from(minutes) * f64::from(TRIAL_EPOCHS) / seconds;
    Ok(epochs.clamp(f64::from(TRIAL_EPOCHS), args::EPOCHS_MAX as f64) as u32)
}

/// A run that must be as it must be before others make sense.
async fn whole(run: Run<'_>, name: &str, directory: &Path) -> Result<RunReport, Failure> {
    let (report, result) = run.finish(&mut Soak::new()).await;
    match result {
        Ok(()) => Ok(report),
        Err(Wrong::Own(failure)) => Err(failure),
        Err(Wrong::Cluster(text)) => {
            let logs = directory.display();
            Err(Failure::message(ExitCode::Failure, format!("the {name} run failed: {text}; see {logs}")))
        }
    }
}

/// The hash of one process alone, told.
async fn reference(args: &ChaosArgs) -> Result<String, Failure> {
    let directory = args.out.join("reference");
    let hash = Cluster::new(args, &directory, false)?.reference().await?;
    say(&format!("one process alone: {hash} after {} epochs\n", args.epochs()));
    clear(args, &directory);
    Ok(hash)
}

async fn undisturbed(args: &ChaosArgs) -> Result<String, Failure> {
    let directory = args.out.join("undisturbed");
    let nothing = Allowance { strikes: 0, turn: None };
    let run = Run::new(args, args.seed, nothing, &directory)?;
    let report = whole(run, "undisturbed", &directory).await?;
    let hash = report.hash.unwrap_or_default();
    say(&format!("undisturbed: {hash} after {:.1} s\n", report.seconds));
    clear(args, &directory);
    Ok(hash)
}

/// One run, told as it ends.
async fn one(
    args: &ChaosArgs,
    seed: u64,
    allowance: Allowance,
    expected: Option<&str>,
    soak: &mut Soak,
) -> Result<(RunReport, u32), Failure> {
    let directory = args.out.join(format!("seed-{seed}"));
    // What an earlier call left would be taken for this one's.
    let _ = std::fs::remove_dir_all(&directory);
    let run = Run::new(args, seed, allowance, &directory)?;
    let (mut report, result) = run.finish(soak).await;
    report.failure = match result {
        Err(Wrong::Own(failure)) => return Err(failure),
        Err(Wrong::Cluster(text)) => Some(text),
        Ok(()) if args.expect == Expect::Same && report.hash.as_deref() != expected => {
            let hash = report.hash.as_deref().unwrap_or("none");
            Some(format!("the hash is {hash}, not {}", expected.unwrap_or("none")))
        }
        Ok(()) => None,
    };
    let strikes = report.recoveries.len() as u32;
    match &report.failure {
        None => {
            let end = if args.expect == Expect::Same { "the same hash" } else { "everybody ended in time" };
            say(&format!("seed {seed}: {strikes} faults, {end}, {:.1} s\n", report.seconds));
            clear(args, &directory);
        }
        Some(failure) => {
            // The fault that it failed at is one more than those that were recovered from.
            let command = args.replay(seed, (strikes + 1).min(allowance.strikes));
            let logs = directory.display();
            say(&format!(
                "seed {seed}: FAILED after {strikes} faults: {failure}\n  logs: {logs}\n  again: {command}\n"
            ));
        }
    }
    Ok((report, strikes))
}

fn clear(args: &ChaosArgs, directory: &Path) {
    if !args.keep_logs {
        // Left behind it is only untidy.
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Says whether it was seen that nothing grew, which only a soak is long enough to tell.
fn write_results(args: &ChaosArgs, report: &Report, soak: &Soak) -> Result<bool, Failure> {
    let write = |name: &str, text: &str| {
        let path = args.out.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("cannot write {}", path.display()))
            .code(ExitCode::Io)
    };
    let verdicts = soak.verdicts();
    let all = serde_json::json!({ "report": report, "soak": verdicts });
    write("chaos.json", &serde_json::to_string_pretty(&all).code(ExitCode::Internal)?)?;
    write("recovery.svg", &plot::recoveries("Recovery from faults", &report.times))?;
    write("soak.csv", &soak.csv())?;
    write("soak.svg", &plot::soak("What processes use under faults", soak))?;
    if args.minutes.is_none() {
        return Ok(true);
    }
    say(&soak::told(&verdicts));
    Ok(soak::is_flat(&verdicts))
}

fn say(text: &str) {
    // A closed stdout must not end it.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}
