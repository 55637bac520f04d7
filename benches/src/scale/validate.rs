//! The model against real runs that it was not fitted to: two to eight processes, other sizes. States its error; it must
//! not change the model.

use super::loggp::LogGp;
use super::real::{self, Measured};
use super::shape::{Hosts, Shape, Work};
use super::turn::ModelError;
use super::world::World;
use crate::report::progress;
use crate::stats;
use serde::{Deserialize, Serialize};

const SEED: u64 = 1;

/// One held-out shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checked {
    /// One for all, or one for workers and one for servers.
    pub(crate) cores: u32,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) work: Work,
    pub(crate) tensors: u32,
    pub(crate) tensor_bytes: u64,
    /// Quickest of the samples, and their median.
    pub(crate) measured_us: f64,
    pub(crate) measured_median_us: f64,
    pub(crate) simulated_us: f64,
    /// Simulated over measured, less one.
    pub(crate) error: f64,
    /// CPU time of all workers and servers a round.
    pub(crate) measured_cpu_us: f64,
    pub(crate) simulated_cpu_us: f64,
}

/// How far off the model is, where processes have so many cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelErrors {
    pub(crate) cores: u32,
    /// Median of the absolute errors of a round's time.
    pub(crate) median: f64,
    /// The largest one.
    pub(crate) worst: f64,
    /// Median of the absolute errors of CPU time.
    pub(crate) cpu_median: f64,
}

/// Two to eight processes, all on this host. None of them was measured to fit the model.
pub(crate) fn shapes() -> Vec<Shape> {
    let shape = |cores, (workers, servers), tensors, tensor_bytes, work| Shape {
        tensors,
        tensor_bytes,
        work,
        rounds: 8,
        hosts: Hosts::Pinned { cores },
        ..Shape::cluster(workers, servers, tensor_bytes)
    };
    use Work::{Pull, Push, PushPull};
    let on = |cores| {
        [
            shape(cores, (1, 1), 1, 64 << 10, PushPull),
            shape(cores, (1, 1), 1, 1 << 20, PushPull),
            shape(cores, (1, 1), 1, 8 << 20, PushPull),
            shape(cores, (1, 1), 16, 64 << 10, PushPull),
            shape(cores, (2, 1), 1, 1 << 20, PushPull),
            shape(cores, (2, 1), 8, 4 << 10, PushPull),
            shape(cores, (1, 2), 1, 8 << 20, PushPull),
            shape(cores, (2, 2), 1, 2 << 20, Push),
            shape(cores, (2, 2), 1, 2 << 20, Pull),
            shape(cores, (3, 1), 1, 16, PushPull),
            shape(cores, (4, 2), 1, 2 << 20, PushPull),
            shape(cores, (4, 4), 1, 4 << 20, PushPull),
            shape(cores, (6, 2), 1, 1 << 20, PushPull),
            shape(cores, (7, 1), 1, 512 << 10, PushPull),
        ]
    };
    [on(1), on(2)].concat()
}

/// Measures every held-out shape and asks the model for it.
///
/// # Errors
/// A real run fails, or a simulated one.
pub(crate) fn validate(model: &LogGp, samples: u32, seconds: f64) -> anyhow::Result<Vec<Checked>> {
    let mut all = Vec::new();
    for shape in shapes() {
        let measured = real::measure(&shape, samples, seconds)?;
        let checked = check(model, &shape, &measured)?;
        progress(&format!(
            "held out: {} cores, {} workers, {} servers, {:?} {} x {} B: measured {:.1} us, simulated {:.1} us ({:+.0} %)",
            checked.cores,
            shape.workers,
            shape.servers,
            shape.work,
            shape.tensors,
            shape.tensor_bytes,
            checked.measured_us,
            checked.simulated_us,
            checked.error * 100.0
        ));
        all.push(checked);
    }
    Ok(all)
}

fn check(model: &LogGp, shape: &Shape, measured: &Measured) -> Result<Checked, ModelError> {
    let outcome = World::new(shape, *model, SEED)?.run()?;
    let mut worked = outcome.workers_worked;
    worked.add(&outcome.servers_worked);
    let measured_cpu_ns =
        measured.worker_cpu_ns * f64::from(shape.workers) + measured.server_cpu_ns * f64::from(shape.servers);
    let cores = match shape.hosts {
        Hosts::Pinned { cores } => cores,
        Hosts::Own => shape.workers + shape.servers,
    };
    Ok(Checked {
        cores,
        workers: shape.workers,
        servers: shape.servers,
        work: shape.work,
        tensors: shape.tensors,
        tensor_bytes: shape.tensor_bytes,
        measured_us: measured.round_ns / 1e3,
        measured_median_us: measured.median_round_ns / 1e3,
        simulated_us: outcome.round_ns / 1e3,
        error: outcome.round_ns / measured.round_ns - 1.0,
        measured_cpu_us: measured_cpu_ns / 1e3,
        simulated_cpu_us: worked.cost_ns(&model.prices) / shape.rounds as f64 / 1e3,
    })
}

/// How far off it was, on one core and on two.
pub(crate) fn errors(checked: &[Checked]) -> Vec<ModelErrors> {
    let on = |cores| {
        let these = || checked.iter().filter(move |one| one.cores == cores);
        let cpu = these().map(|one| (one.simulated_cpu_us / one.measured_cpu_us - 1.0).abs());
        Some(ModelErrors {
            cores,
            median: stats::median(these().map(|one| one.error.abs()))?,
            worst: these().map(|one| one.error.abs()).fold(0.0, f64::max),
            cpu_median: stats::median(cpu)?,
        })
    };
    [1, 2].into_iter().filter_map(on).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::fit;

    #[test]
    fn nothing_that_was_fitted_is_held_out_and_all_have_two_to_eight_processes() {
        let fitted = fit::shapes();
        for shape in shapes() {
            assert!((2..=8).contains(&(shape.workers + shape.servers)), "{shape:?}");
            assert!(!fitted.contains(&shape), "{shape:?}");
        }
    }

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        let model = LogGp::round_numbers();
        let shape = shapes()[0];
        let real = |round_ns| Measured {
            round_ns,
            median_round_ns: round_ns,
            worker_cpu_ns: 100.0,
            server_cpu_ns: 100.0,
        };
        let one = check(&model, &shape, &real(1e6)).expect("runs");
        let exact = check(&model, &shape, &real(one.simulated_us * 1e3)).expect("runs");
        assert!(exact.error.abs() < 1e-9);
        let half = check(&model, &shape, &real(one.simulated_us * 2e3)).expect("runs");
        let errors = errors(&[exact, half]);
        assert_eq!((errors.len(), errors[0].cores), (1, 1), "nothing was measured on two cores");
        let (median, worst) = (errors[0].median, errors[0].worst);
        assert!((worst - 0.5).abs() < 1e-9 && (median - 0.25).abs() < 1e-9, "{errors:?}");
    }
}
