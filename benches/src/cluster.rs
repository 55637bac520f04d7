//! The processes of one subject's cluster and what is said to its workers, a JSON line each. The same for
//! Gradwire and for the baseline, so that both are driven in the same way.

use crate::child::Child;
use crate::counters;
use crate::counters::Counted;
use crate::measure::{self, Sample};
use crate::procfs;
use crate::workload::WorkSpec;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long the parent waits for a child beyond the child's own deadline, so that the child's reason is heard.
pub(crate) const REPLY_DEADLINE: Duration = Duration::from_secs(130);

/// How long after its last work a cluster is watched while it is idle.
const IDLE_AFTER: Duration = Duration::from_secs(15);

/// What a worker is told, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToWorker {
    Connect {
        servers: Vec<SocketAddr>,
    },
    Declare {
        session: u64,
        rank: u32,
        spec: WorkSpec,
    },
    Run {
        rounds: u64,
    },
    /// To look whether the server has what was pushed, where a run itself brings nothing back.
    Verify,
}

/// What a child answers, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromChild {
    Listening {
        address: SocketAddr,
    },
    Ready,
    Done {
        seconds: f64,
        latencies_ns: Vec<u64>,
        /// By all threads of the worker.
        allocations: u64,
    },
    Failed {
        error: String,
    },
}

/// What workers say of their rounds.
#[derive(Debug, Default)]
struct Rounds {
    /// The slowest one's.
    seconds: f64,
    /// Of all of them.
    latencies_ns: Vec<u64>,
    allocations: u64,
}

/// The processes of one cluster; dropping it ends them.
pub(crate) struct Cluster {
    name: &'static str,
    /// Servers and workers.
    shape: (u32, u32),
    daemons: Vec<Child>,
    workers: Vec<Child>,
    session: u64,
    declared: Option<WorkSpec>,
    /// Rounds that take the declared work's time; found once, so that all pairs do the same.
    rounds: u64,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All at once: who is left for a moment would say that it has lost the others.
        self.daemons.iter_mut().chain(&mut self.workers).for_each(Child::kill);
    }
}

impl Cluster {
    /// Takes over started processes; `name` is the subject's, for errors.
    pub(crate) fn new(name: &'static str, spec: &WorkSpec, daemons: Vec<Child>, workers: Vec<Child>) -> Self {
        let shape = (spec.servers, spec.workers);
        Self { name, shape, daemons, workers, session: 0, declared: None, rounds: 0 }
    }

    pub(crate) fn fits(&self, spec: &WorkSpec) -> bool {
        self.shape == (spec.servers, spec.workers)
    }

    /// Tells every worker something before any answer is awaited, since workers wait for one another.
    pub(crate) fn ask(&mut self, message: impl Fn(u32) -> ToWorker) -> anyhow::Result<Vec<FromChild>> {
        for (rank, worker) in (0..).zip(&mut self.workers) {
            worker.send(&message(rank))?;
        }
        let mut answers = Vec::with_capacity(self.workers.len());
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            match worker.recv(REPLY_DEADLINE)? {
                FromChild::Failed { error } => anyhow::bail!("{} worker {rank}: {error}", self.name),
                answer => answers.push(answer),
            }
        }
        Ok(answers)
    }

    /// Declares the work, if it is not declared already, and finds the number of rounds for it.
    fn declare(&mut self, spec: &WorkSpec) -> anyhow::Result<()> {
        if self.declared.as_ref() == Some(spec) {
            return Ok(());
        }
        self.session += 1;
        let session = self.session;
        self.ask(|rank| ToWorker::Declare { session, rank, spec: spec.clone() })?;
        self.rounds(spec.warmup_rounds)?;
        self.rounds = measure::calibrate_rounds(spec.seconds, |rounds| Ok(self.rounds(rounds)?.seconds))?;
        self.declared = Some(spec.clone());
        Ok(())
    }

    /// Does so many rounds.
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<Rounds> {
        let mut done = Rounds::default();
        for (rank, answer) in (0..).zip(self.ask(|_| ToWorker::Run { rounds })?) {
            let FromChild::Done { seconds, latencies_ns, allocations } = answer else {
                anyhow::bail!("a {} worker answered a run with {answer:?}", self.name);
            };
            done.seconds = done.seconds.max(seconds);
            done.allocations += allocations;
            // What a late worker does to the others is told by the others.
            if self.declared.as_ref().is_none_or(|spec| spec.late(rank).is_zero()) {
                done.latencies_ns.extend(latencies_ns);
            }
        }
        Ok(done)
    }

    fn pids(&self) -> Vec<u32> {
        self.daemons.iter().chain(&self.workers).map(Child::pid).collect()
    }

    /// The share of one CPU that all processes take in some time in which nothing is asked of them, in percent.
    pub(crate) fn idle_cpu_percent(&self, time: Duration) -> anyhow::Result<f64> {
        let pids = self.pids();
        // Sleep: nothing reports that heartbeats have become rare.
        std::thread::sleep(IDLE_AFTER);
        let (before, start) = (procfs::cpu_seconds(&pids)?, Instant::now());
        // Sleep: that nothing happens is what is measured.
        std::thread::sleep(time);
        Ok((procfs::cpu_seconds(&pids)? - before) / start.elapsed().as_secs_f64() * 100.0)
    }

    /// One sample of the work: warm-up, then the measured rounds.
    pub(crate) fn sample(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        self.declare(spec)?;
        self.rounds(spec.warmup_rounds)?;
        let pids = self.pids();
        let cpu_before = procfs::cpu_seconds(&pids)?;
        let Rounds { seconds, latencies_ns, allocations } = self.rounds(self.rounds)?;
        let cpu_seconds = procfs::cpu_seconds(&pids)? - cpu_before;
        self.ask(|_| ToWorker::Verify)?;
        let rounds = self.rounds;
        let allocations_per_round = Some(allocations as f64 / (rounds * u64::from(spec.workers)) as f64);
        let payload_bytes = spec.payload_bytes(rounds);
        let told_us = None;
        Ok(Sample {
            seconds,
            payload_bytes,
            latencies_ns,
            cpu_seconds,
            rounds,
            told_us,
            allocations_per_round,
        })
    }

    /// What all processes ask of the kernel in as many rounds as a sample has, and what those rounds were.
    pub(crate) fn count(&mut self, spec: &WorkSpec) -> anyhow::Result<Counted> {
        self.declare(spec)?;
        self.rounds(spec.warmup_rounds)?;
        let (pids, rounds) = (self.pids(), self.rounds);
        let (counts, _) = counters::during(&pids, || self.rounds(rounds))?;
        let operations = rounds * u64::from(spec.workers) * spec.lap().len() as u64;
        Ok(Counted { counts, operations, payload_bytes: spec.payload_bytes(rounds) })
    }
}
