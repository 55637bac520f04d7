//! One worker process of Gradwire: does the declared work through the client library, told by lines.

use crate::child;
use crate::cluster::{FromChild, ToWorker};
use crate::workload::{LEARNING_RATE, Op, WorkSpec};
use anyhow::Context as _;
use clap::Args;
use gradwire_worker::{Client, Handle, Tensor, TensorBuffer};
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Driver, Policies};
use std::io::BufRead as _;
use std::time::Instant;

/// The most operation times told per run; a regular subsample beyond that.
const MAX_LATENCIES: u64 = 20_000;

/// Arguments of the hidden subcommand.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    scheduler: String,
    #[arg(long)]
    transport: String,
    #[arg(long)]
    rank: u32,
}

/// Connects, then does what it is told until its input ends.
pub(crate) fn main(args: &WorkerArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    let client = Client::connect(settings(args)?)?;
    child::say(&FromChild::Ready)?;
    let mut work: Option<Work> = None;
    for line in std::io::stdin().lock().lines() {
        let answer = obey(&client, &mut work, &line?);
        child::say(&answer.unwrap_or_else(|error| FromChild::Failed { error: format!("{error:#}") }))?;
    }
    client.close();
    Ok(())
}

fn settings(args: &WorkerArgs) -> anyhow::Result<Settings> {
    let (driver, unix_sockets) = super::driver_of(&args.transport);
    let driver = if driver == "shm" { Driver::Shm } else { Driver::Tcp };
    let (host, port) = args.scheduler.rsplit_once(':').context("the scheduler's address is not host:port")?;
    let mut settings = Settings { transport: Policies::only(driver), ..Settings::default() };
    settings.scheduler.host = host.to_owned();
    settings.scheduler.port = port.parse()?;
    settings.node.rank = Some(args.rank);
    settings.node.http = String::new();
    settings.node.unix_sockets = unix_sockets;
    Ok(settings)
}

fn obey(client: &Client, work: &mut Option<Work>, line: &str) -> anyhow::Result<FromChild> {
    match serde_json::from_str(line)? {
        ToWorker::Connect { .. } => Ok(FromChild::Ready),
        ToWorker::Declare { session, spec, .. } => {
            *work = None;
            *work = Some(Work::declare(client, session, spec)?);
            Ok(FromChild::Ready)
        }
        ToWorker::Run { rounds } => {
            work.as_mut().context("a run before its declaration")?.run(client, rounds)
        }
    }
}

struct Place {
    tensor: Tensor,
    gradient: Option<TensorBuffer>,
    weights: Option<TensorBuffer>,
    flight: Option<(Handle, Instant)>,
}

struct Work {
    spec: WorkSpec,
    places: Vec<Place>,
    rounds_done: u64,
}

impl Work {
    fn declare(client: &Client, session: u64, spec: WorkSpec) -> anyhow::Result<Self> {
        let sgd = Optimizer::sgd(LEARNING_RATE, 0.0, 0.0);
        let tensor = |i| TensorSpec::f32(session << 32 | u64::from(i), spec.bytes / 4, sgd);
        let specs: Vec<TensorSpec> = (0..spec.inflight).map(tensor).collect();
        let mut places = Vec::with_capacity(specs.len());
        for tensor in client.declare(&specs)? {
            let mut gradient = client.allocate(spec.bytes)?;
            gradient.as_f32_mut().fill(WorkSpec::gradient_value(client.rank()));
            let mut weights = client.allocate(spec.bytes)?;
            weights.fill(0xFF);
            places.push(Place { tensor, gradient: Some(gradient), weights: Some(weights), flight: None });
        }
        Ok(Self { spec, places, rounds_done: 0 })
    }

    /// Does so many rounds: one operation on every tensor is outstanding until its last.
    fn run(&mut self, client: &Client, rounds: u64) -> anyhow::Result<FromChild> {
        let operations = rounds * self.places.len() as u64;
        let stride = operations.div_ceil(MAX_LATENCIES).max(1);
        let mut latencies_ns = Vec::with_capacity(operations.min(MAX_LATENCIES) as usize);
        let start = Instant::now();
        for place in &mut self.places {
            place.start(client, self.spec.op)?;
        }
        for done in 0..operations {
            let count = self.places.len() as u64;
            let place = &mut self.places[(done % count) as usize];
            let took = place.finish()?;
            if done % stride == 0 {
                latencies_ns.push(took);
            }
            if done + count < operations {
                place.start(client, self.spec.op)?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        self.rounds_done += rounds;
        self.verify()?;
        Ok(FromChild::Done { seconds, latencies_ns })
    }

    /// The first and the last weight of every tensor must be what the rounds so far make of them.
    fn verify(&self) -> anyhow::Result<()> {
        let (expected, tolerance) = self.spec.expected_weight(self.rounds_done);
        for (key, place) in self.places.iter().enumerate().filter(|_| self.spec.op.pulls()) {
            let Some(weights) = &place.weights else { anyhow::bail!("tensor {key} is still in flight") };
            let values = weights.as_f32();
            for value in [values.first(), values.last()].into_iter().flatten() {
                let found = f64::from(*value);
                anyhow::ensure!(
                    (found - expected).abs() <= tolerance,
                    "tensor {key} holds {found} after {} rounds, not {expected}",
                    self.rounds_done
                );
            }
        }
        Ok(())
    }
}

impl Place {
    fn start(&mut self, client: &Client, op: Op) -> anyhow::Result<()> {
        let away = "already in flight";
        let started = Instant::now();
        let gradient = if op.pushes() { Some(self.gradient.take().context(away)?) } else { None };
        let weights = if op.pulls() { Some(self.weights.take().context(away)?) } else { None };
        let handle = match (gradient, weights) {
            (Some(gradient), Some(weights)) => client.push_pull(&self.tensor, gradient, weights, 0)?,
            (Some(gradient), None) => client.push(&self.tensor, gradient)?,
            (None, Some(weights)) => client.pull(&self.tensor, weights)?,
            (None, None) => anyhow::bail!("an operation that moves nothing"),
        };
        self.flight = Some((handle, started));
        Ok(())
    }

    /// Waits for the operation; gives its time in nanoseconds.
    fn finish(&mut self) -> anyhow::Result<u64> {
        let (handle, started) = self.flight.take().context("nothing in flight")?;
        let ended = handle.wait()?;
        let took = started.elapsed().as_nanos() as u64;
        self.gradient = ended.source.or(self.gradient.take());
        self.weights = ended.target.or(self.weights.take());
        Ok(took)
    }
}
