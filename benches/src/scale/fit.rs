//! Finds the model's parameters. CPU time that processes really used is the sum of what they did times what it costs; what
//! they did, the model counts itself, since it runs the same engines: least squares give the prices to begin with. Then
//! all parameters are moved as long as that brings simulated times, and CPU times, closer to the measured ones.
//! Arithmetic only: it measures nothing.

use super::loggp::{KINDS, LogGp, Prices, Worked};
use super::real::Measured;
use super::shape::{Hosts, Shape, Work};
use super::turn::ModelError;
use super::world::World;

/// What a CPU time that is off counts, where a round's time counts 1.
const CPU_WEIGHT: f64 = 0.25;
/// Parameters are moved by this factor at first, and by ever less.
const FIRST_STEP: f64 = 1.6;
const LAST_STEP: f64 = 1.01;
/// No work is for nothing, and prices of nothing could not be moved by factors: nanoseconds, and nanoseconds a byte.
const LEAST: [f64; KINDS] = [100.0, 100.0, 10.0, 0.005, 0.005, 0.005, 0.005];
const SEED: u64 = 1;

/// What is measured to fit the model: runs with one worker and one server, and runs with three workers, because only with several
/// workers contributions are copied aside. Prices show best on one core, where no process waits for another one to wake up. L shows
/// only on two cores.
pub(crate) fn shapes() -> Vec<Shape> {
    let shape = |(cores, workers), tensors, tensor_bytes, work| Shape {
        tensors,
        tensor_bytes,
        work,
        rounds: 8,
        hosts: Hosts::Pinned { cores },
        ..Shape::cluster(workers, 1, tensor_bytes)
    };
    vec![
        shape((1, 1), 1, 16, Work::PushPull),
        shape((1, 1), 1, 16, Work::Push),
        shape((1, 1), 64, 16, Work::PushPull),
        shape((1, 1), 64, 16, Work::Push),
        shape((1, 1), 1, 4 << 20, Work::Push),
        shape((1, 1), 1, 4 << 20, Work::Pull),
        shape((1, 1), 1, 4 << 20, Work::PushPull),
        shape((1, 1), 1, 256 << 10, Work::PushPull),
        shape((2, 1), 1, 16, Work::PushPull),
        shape((2, 1), 1, 256 << 10, Work::PushPull),
        shape((1, 1), 1, 16 << 20, Work::PushPull),
        shape((1, 3), 1, 256 << 10, Work::PushPull),
        shape((1, 3), 1, 4 << 20, Work::PushPull),
        shape((1, 3), 1, 4 << 20, Work::Push),
    ]
}

/// A start for the search, and the links of hosts: as fast as a core fills them.
fn first_guess() -> LogGp {
    let prices = Prices::from_array([5_000.0, 3_000.0, 500.0, 0.2, 0.2, 0.1, 0.1]);
    LogGp { prices, wake_ns: 10_000.0, wire_ns: 0.0, gap_ns: 0.0, link_ns_per_byte: 0.0, jitter: 0.0 }
}

/// The model that explains these measurements best.
pub(crate) fn fit(measured: &[(Shape, Measured)]) -> Result<LogGp, ModelError> {
    let mut model = first_guess();
    let mut rows = Vec::new();
    for (shape, real) in measured {
        let ran = Ran::new(shape, model)?;
        rows.extend([(ran.worker, real.worker_cpu_ns), (ran.server, real.server_cpu_ns)]);
    }
    model.prices = Prices::from_array(least_squares(&rows));
    model = with(&model, |_| {});
    let (mut badness, mut step) = (distance(measured, &model)?, FIRST_STEP);
    while step > LAST_STEP {
        let mut moved = false;
        for at in 0..=KINDS {
            for factor in [step, 1.0 / step] {
                let other = with(&model, |values| values[at] *= factor);
                let distance = distance(measured, &other)?;
                if distance < badness {
                    (model, badness, moved) = (other, distance, true);
                }
            }
        }
        step = if moved { step } else { step.sqrt() };
    }
    model.gap_ns = model.prices.message;
    model.link_ns_per_byte = model.prices.sent_byte.max(model.prices.taken_byte);
    Ok(model)
}

/// The model with its prices, and L behind them, changed; each costs something.
fn with(model: &LogGp, change: impl FnOnce(&mut [f64])) -> LogGp {
    let mut values = [0.0; KINDS + 1];
    values[..KINDS].copy_from_slice(&model.prices.to_array());
    values[KINDS] = model.wake_ns;
    change(&mut values);
    values.iter_mut().zip(LEAST).for_each(|(value, least)| *value = value.max(least));
    let mut prices = [0.0; KINDS];
    prices.copy_from_slice(&values[..KINDS]);
    LogGp { prices: Prices::from_array(prices), wake_ns: values[KINDS], ..*model }
}

/// A round of a shape, as the model has it.
struct Ran {
    round_ns: f64,
    /// What one worker did in a round, by kind; and one server.
    worker: [f64; KINDS],
    server: [f64; KINDS],
}

impl Ran {
    fn new(shape: &Shape, model: LogGp) -> Result<Self, ModelError> {
        let outcome = World::new(shape, model, SEED)?.run()?;
        let per = |worked: Worked, processes: u32| {
            worked.to_array().map(|count| count / shape.rounds as f64 / f64::from(processes))
        };
        Ok(Self {
            round_ns: outcome.round_ns,
            worker: per(outcome.workers_worked, shape.workers),
            server: per(outcome.servers_worked, shape.servers),
        })
    }
}

/// How far a model is from what was measured: squares of the logarithms of what is off.
fn distance(measured: &[(Shape, Measured)], model: &LogGp) -> Result<f64, ModelError> {
    let prices = model.prices.to_array();
    let cost =
        |counts: [f64; KINDS]| counts.iter().zip(prices).map(|(count, price)| count * price).sum::<f64>();
    let off = |simulated: f64, real: f64| (simulated.max(1.0) / real.max(1.0)).ln().powi(2);
    let mut sum = 0.0;
    for (shape, real) in measured {
        let ran = Ran::new(shape, *model)?;
        sum += off(ran.round_ns, real.round_ns);
        sum += CPU_WEIGHT * off(cost(ran.worker), real.worker_cpu_ns);
        sum += CPU_WEIGHT * off(cost(ran.server), real.server_cpu_ns);
    }
    Ok(sum)
}

/// The prices, none below zero, with which the rows' relative errors are least: coordinate by coordinate, which needs no
/// more than that the rows differ.
fn least_squares(rows: &[([f64; KINDS], f64)]) -> [f64; KINDS] {
    let scaled: Vec<[f64; KINDS]> =
        rows.iter().filter(|(_, ns)| *ns > 0.0).map(|(counts, ns)| counts.map(|count| count / ns)).collect();
    let mut prices = [0.0; KINDS];
    for _ in 0..5_000 {
        for kind in 0..KINDS {
            let (mut square, mut product) = (0.0, 0.0);
            for row in &scaled {
                let others: f64 = (0..KINDS).filter(|at| *at != kind).map(|at| row[at] * prices[at]).sum();
                square += row[kind] * row[kind];
                product += row[kind] * (1.0 - others);
            }
            if square > 0.0 {
                prices[kind] = (product / square).max(0.0);
            }
        }
    }
    prices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine with these prices would have measured.
    fn as_if(model: &LogGp) -> Vec<(Shape, Measured)> {
        let of = |shape: &Shape| {
            let outcome = World::new(shape, *model, SEED).and_then(World::run).expect("runs");
            let per = |worked: Worked| worked.cost_ns(&model.prices) / shape.rounds as f64;
            Measured {
                round_ns: outcome.round_ns,
                median_round_ns: outcome.round_ns,
                worker_cpu_ns: per(outcome.workers_worked),
                server_cpu_ns: per(outcome.servers_worked),
            }
        };
        // A simulated machine has no noise, so a few rounds show as much as the eight that are measured on a real one.
        shapes().iter().map(|shape| Shape { rounds: 3, ..*shape }).map(|shape| (shape, of(&shape))).collect()
    }

    #[test]
    fn a_known_machine_is_predicted_where_it_was_not_measured() {
        let prices = Prices::from_array([4_000.0, 2_500.0, 700.0, 0.15, 0.3, 0.08, 0.2]);
        let truth = LogGp { prices, wake_ns: 20_000.0, ..first_guess() };
        let found = fit(&as_if(&truth)).expect("fits");
        // What it predicts counts: some prices go together, and one may stand for another.
        for shape in super::super::validate::shapes() {
            let time = |model| World::new(&shape, model, SEED).and_then(World::run).expect("runs").round_ns;
            let off = time(found) / time(truth) - 1.0;
            assert!(off.abs() < 0.15, "{off} for {shape:?}, {found:?}");
        }
        assert!(found.link_ns_per_byte >= found.prices.taken_byte);
    }
}
