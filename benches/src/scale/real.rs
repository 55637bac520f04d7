//! Real runs of a shape over TCP on this host: what the model is fitted to, and what it is compared with. Owns the worker
//! processes and what is said to them; it must not know the model.
//!
//! All processes block instead of spinning, so that the CPU time of a process is the work it did.

use super::shape::{Hosts, Shape, Work};
use crate::child::{self, Child};
use crate::gradwire;
use crate::{procfs, stats};
use anyhow::Context as _;
use clap::Args;
use gradwire_worker::{Client, Handle, Tensor, TensorBuffer};
use serde::{Deserialize, Serialize};
use std::io::BufRead as _;
use std::time::{Duration, Instant};

/// How long a worker may take to answer.
const REPLY_DEADLINE: Duration = Duration::from_secs(60);
/// Rounds before anything is timed, and to find how many to time.
const WARM_ROUNDS: u64 = 10;
/// Rounds of a sample.
const ROUNDS_MAX: u64 = 20_000;

/// Arguments of the hidden subcommand.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    scheduler: String,
    #[arg(long)]
    rank: u32,
    /// The shape, as JSON.
    #[arg(long)]
    shape: String,
    /// Settings, as `key=value`.
    #[arg(long)]
    set: Vec<String>,
}

/// What workers stay on, and servers: one core, or one each. Where the kernel puts them would be another thing in each run,
/// and no property of the program: pairs that wake each other end up on one core or on two.
fn cpus(shape: &Shape) -> (usize, usize) {
    (0, usize::from(shape.hosts != Hosts::Pinned { cores: 1 }))
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Told {
    rounds: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Did {
    seconds: f64,
    cpu_ns: u64,
}

/// One shape, measured. Of several samples the quickest counts, in time as in CPU time: others use this machine too.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// Of a round.
    pub(crate) round_ns: f64,
    /// The median over the samples, to see how disturbed they were.
    pub(crate) median_round_ns: f64,
    /// CPU time of one worker a round in the quickest sample, the mean over the workers.
    pub(crate) worker_cpu_ns: f64,
    /// Of one server.
    pub(crate) server_cpu_ns: f64,
}

fn settings() -> [String; 2] {
    ["memory.spin_us=0".to_owned(), "transport.placement=slot".to_owned()]
}

/// Starts the shape's processes, lets them do their rounds, several times, and ends them.
///
/// # Errors
/// A program is missing or a process fails; the error says which.
pub(crate) fn measure(shape: &Shape, samples: u32, seconds: f64) -> anyhow::Result<Measured> {
    let mut all = settings().to_vec();
    all.push(format!("cluster.chunk_bytes={}", shape.chunk_bytes));
    let cpus = cpus(shape);
    let daemons = gradwire::start_daemons("tcp", (shape.servers, shape.workers), &all, "off", Some(cpus))?;
    let described = serde_json::to_string(shape)?;
    let mut workers = Vec::new();
    for rank in 0..shape.workers {
        let fixed = ["scale-worker", "--scheduler", &daemons.scheduler, "--shape", &described, "--rank"];
        let mut args: Vec<String> = fixed.iter().map(ToString::to_string).collect();
        args.push(rank.to_string());
        args.extend(settings().into_iter().flat_map(|setting| ["--set".to_owned(), setting]));
        workers.push(Child::spawn_self(&format!("scale worker {rank}"), &args, Vec::new())?);
    }
    for worker in &mut workers {
        worker.recv::<Told>(REPLY_DEADLINE)?;
    }
    let warm = round(&mut workers, WARM_ROUNDS)?;
    let per_round = warm.iter().map(|did| did.seconds).fold(0.0, f64::max) / WARM_ROUNDS as f64;
    let rounds = ((seconds / per_round.max(1e-9)) as u64).clamp(3, ROUNDS_MAX);
    let servers = daemons.servers();
    let mut all: Vec<Measured> = Vec::new();
    for _ in 0..samples.max(1) {
        let before = cpu_ns(&servers)?;
        let dids = round(&mut workers, rounds)?;
        let (per_round, slowest) =
            (1.0 / rounds as f64, dids.iter().map(|did| did.seconds).fold(0.0, f64::max));
        let spent: u64 = dids.iter().map(|did| did.cpu_ns).sum();
        all.push(Measured {
            round_ns: slowest * 1e9 * per_round,
            median_round_ns: f64::NAN,
            worker_cpu_ns: spent as f64 * per_round / f64::from(shape.workers),
            server_cpu_ns: (cpu_ns(&servers)? - before) as f64 * per_round / f64::from(shape.servers),
        });
    }
    // In this order: workers that end first would count as dead.
    drop(daemons);
    drop(workers);
    let median_round_ns = stats::median(all.iter().map(|one| one.round_ns)).unwrap_or(f64::NAN);
    // All of one sample: what the kernel books to a sender in one, it books to a receiver in another.
    let quickest = all.into_iter().min_by(|one, other| one.round_ns.total_cmp(&other.round_ns));
    let quickest = quickest.context("no samples")?;
    Ok(Measured { median_round_ns, ..quickest })
}

/// Tells all before it waits for any: workers wait for one another.
fn round(workers: &mut [Child], rounds: u64) -> anyhow::Result<Vec<Did>> {
    for worker in &mut *workers {
        worker.send(&Told { rounds })?;
    }
    workers.iter_mut().map(|worker| worker.recv(REPLY_DEADLINE)).collect()
}

/// CPU time that the threads of these processes have used, from the scheduler's own count in nanoseconds.
fn cpu_ns(processes: &[u32]) -> anyhow::Result<u64> {
    let mut all_ns = 0;
    for process in processes {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.with_context(|| format!("process {process} is gone"))? {
            let counts = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            all_ns +=
                counts.split_ascii_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(all_ns)
}

/// A worker process: does the rounds it is told until its input ends.
pub(crate) fn main(args: &WorkerArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    let shape: Shape = serde_json::from_str(&args.shape).context("--shape is no shape")?;
    child::stay_on(cpus(&shape).0)?;
    let client = Client::connect(gradwire::worker::settings(&args.scheduler, "tcp", args.rank, &args.set)?)?;
    let specs = shape.tensors();
    let tensors = client.declare(&specs)?;
    let mut places = Vec::new();
    for tensor in tensors {
        let bytes = shape.tensor_bytes;
        let (gradient, weights) = (client.allocate(bytes)?, client.allocate(bytes)?);
        places.push(Place { tensor, gradient: Some(gradient), weights: Some(weights), flight: None });
    }
    child::say(&Told { rounds: 0 })?;
    for line in std::io::stdin().lock().lines() {
        let told: Told = serde_json::from_str(&line?)?;
        let (before, start) = (cpu_ns(&[std::process::id()])?, Instant::now());
        for _ in 0..told.rounds {
            for place in &mut places {
                place.start(&client, shape.work)?;
            }
            for place in &mut places {
                place.finish()?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        child::say(&Did { seconds, cpu_ns: cpu_ns(&[std::process::id()])? - before })?;
    }
    client.close();
    Ok(())
}

struct Place {
    tensor: Tensor,
    gradient: Option<TensorBuffer>,
    weights: Option<TensorBuffer>,
    flight: Option<Handle>,
}

impl Place {
    fn start(&mut self, client: &Client, work: Work) -> anyhow::Result<()> {
        let away = "its buffer is in flight";
        let handle = match work {
            Work::Push => client.push(&self.tensor, self.gradient.take().context(away)?)?,
            Work::Pull => client.pull(&self.tensor, self.weights.take().context(away)?)?,
            Work::PushPull => {
                let (gradient, weights) = (self.gradient.take(), self.weights.take());
                client.push_pull(&self.tensor, gradient.context(away)?, weights.context(away)?, 0)?
            }
        };
        self.flight = Some(handle);
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let ended = self.flight.take().context("nothing in flight")?.wait()?;
        self.gradient = ended.source.or(self.gradient.take());
        self.weights = ended.target.or(self.weights.take());
        Ok(())
    }
}

/// How busy others kept this machine while `run` ran, in percent of the time.
pub(crate) fn under_pressure<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Option<f64>)> {
    let (before, start) = (procfs::cpu_pressure(), Instant::now());
    let value = run()?;
    let waited_us = before.zip(procfs::cpu_pressure());
    let waited_us = waited_us.map(|(before, after)| after.total_us.saturating_sub(before.total_us));
    let percent = |waited_us| waited_us as f64 / start.elapsed().as_micros().max(1) as f64 * 100.0;
    Ok((value, waited_us.map(percent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_this_process_grows_with_its_work() {
        let me = [std::process::id()];
        let before = cpu_ns(&me).expect("this process is there");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::black_box(before);
        }
        let (after, pressure) = under_pressure(|| cpu_ns(&me)).expect("this process is there");
        assert!(after > before, "{before} then {after}");
        assert!(pressure.is_none_or(|percent| percent >= 0.0));
        let gone = cpu_ns(&[u32::MAX]).expect_err("no such process");
        assert!(gone.to_string().contains("is gone"), "{gone}");
    }
}
