//! One worker process of Gradwire: does the declared work through the client library, told by lines.

use crate::child;
use crate::cluster::{FromChild, ToWorker};
use crate::laps::{Laps, Times};
use crate::workload::{LEARNING_RATE, Op, WorkSpec};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use fabric::allocations;
use gradwire_worker::{Client, Handle, Source, Tensor, TensorBuffer, UserBuffer, Weights as Shown};
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Driver, Policies};
use std::collections::VecDeque;
use std::io::BufRead as _;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

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
    /// Memory of the trainer's own both ways: gradients as [`Buffers::Registered`], and weights copied out once, over
    /// shared memory of where the servers have them.
    Own,
    /// Plain slices: each gradient is copied once into registered memory, and weights as for [`Buffers::Own`].
    Plain,
    /// Gradients as [`Buffers::Library`]; weights are shown where the servers have them, and not read.
    View,
    /// The same, and each weight is read.
    Touch,
}

impl std::fmt::Display for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Library => "library",
            Self::Registered => "registered",
            Self::Own => "own",
            Self::Plain => "plain",
            Self::View => "view",
            Self::Touch => "touch",
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
    let (driver, unix_sockets) = driver_of(transport);
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

/// The driver that a subject requires, and whether it may use unix sockets.
pub(super) fn driver_of(transport: &str) -> (&str, bool) {
    match transport {
        "unix" => ("tcp", true),
        "tcp" => ("tcp", false),
        other => (other, true),
    }
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
    weights: Option<Weights>,
    flight: Option<Flight>,
}

enum Gradient {
    Library(TensorBuffer),
    Registered(UserBuffer),
    Plain(Vec<f32>),
}

enum Weights {
    Library(TensorBuffer),
    /// Copied out of what a pull shows.
    Own(Vec<f32>),
    /// The last round's, let go before the next one: and is each weight read?
    Shown {
        last: Option<Shown>,
        touch: bool,
    },
}

/// An operation under way.
struct Flight {
    handle: Handle,
    started: Instant,
    /// What becomes of weights that do not land in a buffer.
    weights: Option<Weights>,
}

struct Work {
    spec: WorkSpec,
    rule: Rule,
    places: Vec<Place>,
    laps: Laps,
}

impl Work {
    fn declare(client: &Client, variant: Variant, session: u64, spec: WorkSpec) -> anyhow::Result<Self> {
        let optimizer = variant.optimizer();
        let specs = spec.tensors.iter().zip(session << 32..);
        let specs: Vec<TensorSpec> =
            specs.map(|(bytes, key)| TensorSpec::f32(key, bytes / 4, optimizer)).collect();
        let mut places = Vec::with_capacity(specs.len());
        for (tensor, bytes) in client.declare(&specs)?.into_iter().zip(&spec.tensors) {
            let gradient = Some(gradient(client, variant.buffers, *bytes)?);
            let weights = Some(weights(client, variant.buffers, *bytes)?);
            places.push(Place { tensor, gradient, weights, flight: None });
        }
        let laps = Laps::new(&spec, client.rank());
        Ok(Self { spec, rule: variant.rule, places, laps })
    }

    /// Does so many rounds.
    fn run(&mut self, client: &Client, rounds: u64) -> anyhow::Result<FromChild> {
        let mut times = Times::new(rounds * self.laps.len() as u64);
        let inflight = self.spec.inflight as usize;
        let mut flying: VecDeque<usize> = VecDeque::with_capacity(inflight);
        let (start, allocated) = (Instant::now(), allocations::of_process());
        for _ in 0..rounds {
            // Sleep: being late is what is measured.
            std::thread::sleep(self.laps.late());
            for place in 0..self.laps.len() {
                let key = self.laps.tensor(place);
                while flying.len() == inflight || self.places[key].flight.is_some() {
                    self.finish_first(&mut flying, &mut times)?;
                }
                self.places[key].start(client, self.spec.op)?;
                flying.push_back(key);
            }
        }
        while !flying.is_empty() {
            self.finish_first(&mut flying, &mut times)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let allocations = allocations::of_process() - allocated;
        self.laps.done(rounds);
        if self.spec.op.pulls() {
            self.places.iter().enumerate().try_for_each(|(key, place)| self.verify(key, place))?;
        }
        Ok(FromChild::Done { seconds, latencies_ns: times.kept(), allocations })
    }

    /// Waits for the operation that has been under way longest.
    fn finish_first(&mut self, flying: &mut VecDeque<usize>, times: &mut Times) -> anyhow::Result<()> {
        let key = flying.pop_front().context("nothing in flight")?;
        times.note(self.places[key].finish()?);
        Ok(())
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

    fn verify(&self, key: usize, place: &Place) -> anyhow::Result<()> {
        let copied;
        let bytes: &[u8] = match &place.weights {
            Some(Weights::Library(buffer)) => buffer,
            Some(Weights::Own(memory)) => memory.as_bytes(),
            Some(Weights::Shown { last, .. }) => {
                // As what was never pulled, where it was not.
                let mut memory = vec![f32::NAN; (place.tensor.bytes() / 4) as usize];
                last.as_ref().map_or(Ok(()), |shown| shown.copy_to(&mut memory))?;
                copied = memory;
                copied.as_bytes()
            }
            _ => anyhow::bail!("tensor {key} is still in flight"),
        };
        self.laps.verify(key, bytes, |times| match self.rule {
            Rule::Sgd => self.spec.expected_weight(times),
            Rule::Sum => self.spec.expected_sum(times),
            Rule::Assign => self.spec.expected_sum(times.min(1)),
        })
    }
}

fn gradient(client: &Client, buffers: Buffers, bytes: u64) -> anyhow::Result<Gradient> {
    let value = WorkSpec::gradient_value(client.rank());
    Ok(match buffers {
        Buffers::Library | Buffers::View | Buffers::Touch => {
            let mut gradient = client.allocate(bytes)?;
            gradient.as_f32_mut().fill(value);
            Gradient::Library(gradient)
        }
        Buffers::Registered | Buffers::Own => Gradient::Registered(vec![value; (bytes / 4) as usize].into()),
        Buffers::Plain => Gradient::Plain(vec![value; (bytes / 4) as usize]),
    })
}

/// Filled with what no round makes.
fn weights(client: &Client, buffers: Buffers, bytes: u64) -> anyhow::Result<Weights> {
    Ok(match buffers {
        Buffers::Own | Buffers::Plain => Weights::Own(vec![f32::NAN; (bytes / 4) as usize]),
        Buffers::View => Weights::Shown { last: None, touch: false },
        Buffers::Touch => Weights::Shown { last: None, touch: true },
        Buffers::Library | Buffers::Registered => {
            let mut weights = client.allocate(bytes)?;
            weights.fill(0xFF);
            Weights::Library(weights)
        }
    })
}

impl Place {
    fn start(&mut self, client: &Client, op: Op) -> anyhow::Result<()> {
        let started = Instant::now();
        let bytes = self.tensor.bytes();
        let gradient = match (op.pushes(), &self.gradient) {
            (false, _) => None,
            (true, Some(Gradient::Plain(numbers))) => {
                let mut copy = client.allocate(bytes)?;
                copy.as_f32_mut().copy_from_slice(numbers);
                Some(Source::from(copy))
            }
            (true, _) => match self.gradient.take() {
                Some(Gradient::Library(buffer)) => Some(buffer.into()),
                Some(Gradient::Registered(buffer)) => Some(buffer.into()),
                Some(Gradient::Plain(_)) | None => anyhow::bail!("its gradient is already in flight"),
            },
        };
        let weights = if op.pulls() {
            Some(self.weights.take().context("its weights are already in flight")?)
        } else {
            None
        };
        let (buffer, weights) = match weights {
            Some(Weights::Library(buffer)) => (Some(buffer), None),
            Some(Weights::Shown { last, touch }) => {
                // Read, and so free to be overwritten.
                drop(last);
                (None, Some(Weights::Shown { last: None, touch }))
            }
            other => (None, other),
        };
        let handle = match (gradient, buffer, &weights) {
            (Some(gradient), Some(buffer), _) => client.push_pull(&self.tensor, gradient, buffer, 0)?,
            (Some(gradient), None, Some(_)) => client.push_pull_view(&self.tensor, gradient, 0)?,
            (Some(gradient), None, None) => client.push(&self.tensor, gradient)?,
            (None, Some(buffer), _) => client.pull(&self.tensor, buffer)?,
            (None, None, Some(_)) => client.pull_view(&self.tensor)?,
            (None, None, None) => anyhow::bail!("an operation that moves nothing"),
        };
        self.flight = Some(Flight { handle, started, weights });
        Ok(())
    }

    /// Waits for the operation; gives its time.
    fn finish(&mut self) -> anyhow::Result<Duration> {
        let Flight { handle, started, weights } = self.flight.take().context("nothing in flight")?;
        let ended = handle.wait()?;
        match (weights, ended.weights) {
            (Some(Weights::Own(mut memory)), Some(shown)) => {
                shown.copy_to(&mut memory)?;
                self.weights = Some(Weights::Own(memory));
            }
            (Some(Weights::Shown { touch, .. }), Some(shown)) => {
                if touch {
                    std::hint::black_box(sum(&shown));
                }
                self.weights = Some(Weights::Shown { last: Some(shown), touch });
            }
            _ => self.weights = ended.target.map(Weights::Library).or(self.weights.take()),
        }
        let took = started.elapsed();
        // A copy of plain memory has served its turn; what was given away comes back.
        if self.gradient.is_none() {
            let library = ended.source.map(Gradient::Library);
            self.gradient = library.or(ended.user.map(Gradient::Registered));
        }
        Ok(took)
    }
}

/// Reads every weight.
fn sum(shown: &Shown) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    for (_, numbers) in shown.numbers::<f32>() {
        for first in (0..numbers.len() / LANES).map(|group| group * LANES) {
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum += numbers.at(first + lane);
            }
        }
    }
    sums.iter().sum()
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
