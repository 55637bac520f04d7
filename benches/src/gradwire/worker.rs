//! One worker process of Gradwire: does the declared work through the client library, told by lines.

use crate::child;
use crate::cluster::{FromChild, ToWorker};
use crate::workload::{LEARNING_RATE, Op, WorkSpec};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use gradwire_worker::{Client, Handle, Source, Tensor, TensorBuffer, UserBuffer};
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
    /// Settings, as `key=value`.
    #[arg(long)]
    set: Vec<String>,
    /// The CPU to stay on.
    #[arg(long)]
    cpu: Option<usize>,
    #[command(flatten)]
    variant: Variant,
}

/// What a worker pushes by, and from where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub(crate) struct Variant {
    #[arg(long, value_enum, default_value_t)]
    pub(crate) rule: Rule,
    #[arg(long, value_enum, default_value_t)]
    pub(crate) buffers: Buffers,
}

/// What the server does with what is pushed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rule {
    /// One step of gradient descent, as everywhere in `make bench`.
    #[default]
    Sgd,
    /// Adds it.
    Sum,
    /// Puts it in the place of what was there.
    Assign,
}

/// The trainer's memory that is pushed from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Buffers {
    /// Registered memory of the client's: nothing is copied.
    #[default]
    Library,
    /// Memory of the trainer's own, which the client registers at its second use: nothing is copied from then on.
    Registered,
    /// Plain slices, each copied once into registered memory. Pushes only, one at a time.
    Plain,
}

impl std::fmt::Display for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Library => "library",
            Self::Registered => "registered",
            Self::Plain => "plain",
        })
    }
}

impl Variant {
    /// As a worker process takes it.
    pub(super) fn arguments(self) -> [String; 4] {
        let rule = match self.rule {
            Rule::Sgd => "sgd",
            Rule::Sum => "sum",
            Rule::Assign => "assign",
        };
        ["--rule".to_owned(), rule.to_owned(), "--buffers".to_owned(), self.buffers.to_string()]
    }

    fn optimizer(self) -> Optimizer {
        match self.rule {
            Rule::Sgd => Optimizer::sgd(LEARNING_RATE, 0.0, 0.0),
            Rule::Sum => Optimizer::sum(),
            Rule::Assign => Optimizer::assign(),
        }
    }
}

/// Connects, then does what it is told until its input ends.
pub(crate) fn main(args: &WorkerArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    args.cpu.map_or(Ok(()), child::stay_on)?;
    let client = Client::connect(settings(&args.scheduler, &args.transport, args.rank, &args.set)?)?;
    child::say(&FromChild::Ready)?;
    let mut work: Option<Work> = None;
    for line in std::io::stdin().lock().lines() {
        let answer = obey(&client, args.variant, &mut work, &line?);
        child::say(&answer.unwrap_or_else(|error| FromChild::Failed { error: format!("{error:#}") }))?;
    }
    client.close();
    Ok(())
}

/// The settings of a worker over one transport; `more` as `key=value`.
pub(crate) fn settings(
    scheduler: &str,
    transport: &str,
    rank: u32,
    more: &[String],
) -> anyhow::Result<Settings> {
    let (driver, unix_sockets) = super::driver_of(transport);
    let driver = Driver::ALL
        .into_iter()
        .find(|known| known.to_string() == driver)
        .with_context(|| format!("{driver} is no transport"))?;
    let (host, port) = scheduler.rsplit_once(':').context("the scheduler's address is not host:port")?;
    let mut settings = Settings { transport: Policies::only(driver), ..Settings::default() };
    settings.scheduler.host = host.to_owned();
    settings.scheduler.port = port.parse()?;
    settings.node.rank = Some(rank);
    settings.node.http = String::new();
    settings.node.unix_sockets = unix_sockets;
    more.iter().try_fold(settings, |settings, pair| with(&settings, pair))
}

/// Settings with one more, as `section.name=value`: by its name, as the daemons take it.
fn with(settings: &Settings, pair: &str) -> anyhow::Result<Settings> {
    let (path, value) = pair.split_once('=').with_context(|| format!("{pair} is not key=value"))?;
    let (section, name) = path.split_once('.').with_context(|| format!("{path} is not section.name"))?;
    let mut all = serde_json::to_value(settings)?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    all[section][name] = value;
    serde_json::from_value(all).with_context(|| format!("the client does not take {pair}"))
}

fn obey(client: &Client, variant: Variant, work: &mut Option<Work>, line: &str) -> anyhow::Result<FromChild> {
    match serde_json::from_str(line)? {
        ToWorker::Connect { .. } => Ok(FromChild::Ready),
        ToWorker::Declare { session, spec, .. } => {
            *work = None;
            *work = Some(Work::declare(client, variant, session, spec)?);
            Ok(FromChild::Ready)
        }
        ToWorker::Run { rounds } => {
            work.as_mut().context("a run before its declaration")?.run(client, rounds)
        }
        ToWorker::Verify => {
            work.as_mut().context("nothing to verify before its declaration")?.verify_pushed(client)?;
            Ok(FromChild::Ready)
        }
    }
}

struct Place {
    tensor: Tensor,
    gradient: Option<Gradient>,
    weights: Option<TensorBuffer>,
    flight: Option<Flight>,
}

enum Gradient {
    Library(TensorBuffer),
    Registered(UserBuffer),
    Plain(Vec<f32>),
}

enum Flight {
    /// Since then.
    UnderWay(Handle, Instant),
    /// After so many nanoseconds.
    Over(u64),
}

struct Work {
    spec: WorkSpec,
    rule: Rule,
    places: Vec<Place>,
    rounds_done: u64,
}

impl Work {
    fn declare(client: &Client, variant: Variant, session: u64, spec: WorkSpec) -> anyhow::Result<Self> {
        let optimizer = variant.optimizer();
        let tensor = |i| TensorSpec::f32(session << 32 | u64::from(i), spec.bytes / 4, optimizer);
        let specs: Vec<TensorSpec> = (0..spec.inflight).map(tensor).collect();
        let mut places = Vec::with_capacity(specs.len());
        for tensor in client.declare(&specs)? {
            let gradient = gradient(client, variant.buffers, spec.bytes)?;
            let mut weights = client.allocate(spec.bytes)?;
            weights.fill(0xFF);
            places.push(Place { tensor, gradient: Some(gradient), weights: Some(weights), flight: None });
        }
        Ok(Self { spec, rule: variant.rule, places, rounds_done: 0 })
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
        if self.spec.op.pulls() {
            self.places.iter().enumerate().try_for_each(|(key, place)| self.verify(key, place))?;
        }
        Ok(FromChild::Done { seconds, latencies_ns })
    }

    /// Whether pushes did what they should: of one tensor, as these runs bring no weights back.
    fn verify_pushed(&mut self, client: &Client) -> anyhow::Result<()> {
        if self.spec.op != Op::Push {
            return Ok(());
        }
        let Some(place) = self.places.first_mut() else { return Ok(()) };
        place.start(client, Op::Pull)?;
        place.finish()?;
        self.places.first().map_or(Ok(()), |place| self.verify(0, place))
    }

    /// The first and the last weight of a tensor must be what the rounds so far make of them.
    fn verify(&self, key: usize, place: &Place) -> anyhow::Result<()> {
        let (expected, tolerance) = match self.rule {
            Rule::Sgd => self.spec.expected_weight(self.rounds_done),
            Rule::Sum => self.spec.expected_sum(self.rounds_done),
            Rule::Assign => self.spec.expected_sum(self.rounds_done.min(1)),
        };
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
        Ok(())
    }
}

fn gradient(client: &Client, buffers: Buffers, bytes: u64) -> anyhow::Result<Gradient> {
    let value = WorkSpec::gradient_value(client.rank());
    let plain = || vec![value; (bytes / 4) as usize];
    Ok(match buffers {
        Buffers::Library => {
            let mut gradient = client.allocate(bytes)?;
            gradient.as_f32_mut().fill(value);
            Gradient::Library(gradient)
        }
        Buffers::Registered => Gradient::Registered(plain().into()),
        Buffers::Plain => Gradient::Plain(plain()),
    })
}

impl Place {
    fn start(&mut self, client: &Client, op: Op) -> anyhow::Result<()> {
        let away = "already in flight";
        let started = Instant::now();
        let gradient = if op.pushes() { Some(self.gradient.take().context(away)?) } else { None };
        let gradient = match gradient {
            Some(Gradient::Library(buffer)) => Some(Source::from(buffer)),
            Some(Gradient::Registered(buffer)) => Some(buffer.into()),
            Some(Gradient::Plain(numbers)) => {
                anyhow::ensure!(op == Op::Push, "plain memory is measured by pushes only");
                client.push_slice(&self.tensor, &numbers)?;
                self.gradient = Some(Gradient::Plain(numbers));
                self.flight = Some(Flight::Over(started.elapsed().as_nanos() as u64));
                return Ok(());
            }
            None => None,
        };
        let weights = if op.pulls() { Some(self.weights.take().context(away)?) } else { None };
        let handle = match (gradient, weights) {
            (Some(gradient), Some(weights)) => client.push_pull(&self.tensor, gradient, weights, 0)?,
            (Some(gradient), None) => client.push(&self.tensor, gradient)?,
            (None, Some(weights)) => client.pull(&self.tensor, weights)?,
            (None, None) => anyhow::bail!("an operation that moves nothing"),
        };
        self.flight = Some(Flight::UnderWay(handle, started));
        Ok(())
    }

    /// Waits for the operation; gives its time in nanoseconds.
    fn finish(&mut self) -> anyhow::Result<u64> {
        let (handle, started) = match self.flight.take().context("nothing in flight")? {
            Flight::UnderWay(handle, started) => (handle, started),
            Flight::Over(took_ns) => return Ok(took_ns),
        };
        let ended = handle.wait()?;
        let took = started.elapsed().as_nanos() as u64;
        let library = ended.source.map(Gradient::Library);
        self.gradient = library.or(ended.user.map(Gradient::Registered)).or(self.gradient.take());
        self.weights = ended.target.or(self.weights.take());
        Ok(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_by_name_and_unknown_ones_refused() {
        let more = ["memory.spin_us=7".to_owned(), "verbs.device=rxe9".to_owned()];
        let settings = settings("10.9.0.1:33", "verbs", 2, &more).expect("settings");
        assert_eq!((settings.memory.spin_us, settings.verbs.device.as_deref()), (7, Some("rxe9")));
        assert_eq!((settings.scheduler.port, settings.node.rank), (33, Some(2)));
        for bad in ["memory.nothing=1", "memory.spin_us=x", "spin_us=1", "memory.spin_us"] {
            assert!(with(&settings, bad).is_err(), "{bad}");
        }
    }
}
