//! Finds the model's parameters. CPU time that processes really used is the sum of what they did times what it costs; what
//! they did, the model counts itself, since it runs the same engines. Least squares give the prices, and the time of a
//! small round gives L. Arithmetic only: it measures nothing.

use super::loggp::{KINDS, LogGp, Prices, Worked};
use super::real::Measured;
use super::shape::{Hosts, Shape, Work};
use super::world::{ModelError, World};

/// Counts depend a little on prices (who sleeps, who shares a batch): fitted again so often, they settle.
const PASSES: usize = 3;
/// Steps of the search for L.
const HALVINGS: usize = 20;
/// L is looked for up to here: a loopback round trip on a loaded machine.
const WAKE_NS_MAX: f64 = 5e6;
const SEED: u64 = 1;

/// What is measured to fit the model: one worker, one server. The first one gives L.
pub(crate) fn shapes(cores: u32) -> Vec<Shape> {
    let shape = |tensors, tensor_bytes, work| Shape {
        tensors,
        tensor_bytes,
        work,
        rounds: 8,
        hosts: Hosts::Shared { cores },
        ..Shape::cluster(1, 1, tensor_bytes)
    };
    vec![
        shape(1, 16, Work::PushPull),
        shape(1, 16, Work::Push),
        shape(64, 16, Work::PushPull),
        shape(64, 16, Work::Push),
        shape(1, 4 << 20, Work::Push),
        shape(1, 4 << 20, Work::Pull),
        shape(1, 4 << 20, Work::PushPull),
        shape(1, 256 << 10, Work::PushPull),
    ]
}

/// A start for the search, and the links of hosts: as fast as a core fills them.
fn first_guess() -> LogGp {
    let prices = Prices::from_array([5_000.0, 3_000.0, 500.0, 0.2, 0.2, 0.1]);
    LogGp { prices, wake_ns: 30_000.0, wire_ns: 0.0, gap_ns: 0.0, link_ns_per_byte: 0.0, jitter: 0.0 }
}

/// The model that explains these measurements best.
pub(crate) fn fit(measured: &[(Shape, Measured)]) -> Result<LogGp, ModelError> {
    let mut model = first_guess();
    for _ in 0..PASSES {
        let mut rows = Vec::new();
        for (shape, real) in measured {
            let outcome = World::new(shape, model, SEED)?.run()?;
            let rounds = shape.rounds as f64;
            let per = |worked: Worked, processes: u32| {
                worked.to_array().map(|count| count / rounds / f64::from(processes))
            };
            rows.push((per(outcome.workers_worked, shape.workers), real.worker_cpu_ns));
            rows.push((per(outcome.servers_worked, shape.servers), real.server_cpu_ns));
        }
        model.prices = Prices::from_array(least_squares(&rows));
        if let Some((shape, real)) = measured.first() {
            model.wake_ns = wake_ns(shape, real.round_ns, model)?;
        }
    }
    model.gap_ns = model.prices.message;
    model.link_ns_per_byte = model.prices.sent_byte.max(model.prices.taken_byte);
    Ok(model)
}

/// The L with which a round takes as long as it did, by halving.
fn wake_ns(shape: &Shape, round_ns: f64, model: LogGp) -> Result<f64, ModelError> {
    let (mut low, mut high) = (0.0, WAKE_NS_MAX);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        let outcome = World::new(shape, LogGp { wake_ns: middle, ..model }, SEED)?.run()?;
        if outcome.round_ns < round_ns { low = middle } else { high = middle }
    }
    Ok((low + high) / 2.0)
}

/// The prices, none below zero, with which the rows' relative errors are least: coordinate by coordinate, which needs no
/// more than that the rows differ.
fn least_squares(rows: &[([f64; KINDS], f64)]) -> [f64; KINDS] {
    let scaled: Vec<[f64; KINDS]> =
        rows.iter().filter(|(_, ns)| *ns > 0.0).map(|(counts, ns)| counts.map(|count| count / ns)).collect();
    let mut prices = [0.0; KINDS];
    for _ in 0..20_000 {
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
        shapes(2).iter().map(|shape| (*shape, of(shape))).collect()
    }

    #[test]
    fn the_parameters_of_a_known_machine_are_found_again() {
        let prices = Prices::from_array([4_000.0, 2_500.0, 700.0, 0.15, 0.3, 0.08]);
        let truth = LogGp { prices, wake_ns: 20_000.0, ..first_guess() };
        let found = fit(&as_if(&truth)).expect("fits");
        let pairs = found.prices.to_array().into_iter().zip(prices.to_array());
        for (found, true_price) in pairs.chain([(found.wake_ns, truth.wake_ns)]) {
            assert!((found / true_price - 1.0).abs() < 0.1, "{found} for {true_price}");
        }
        assert_eq!(found.link_ns_per_byte, found.prices.taken_byte);
    }
}
