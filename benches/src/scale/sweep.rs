//! The clusters that are simulated, and a row of figures for each with its closed forms beside. Measures nothing.

use super::forms;
use super::loggp::LogGp;
use super::registered;
use super::roster;
use super::shape::Shape;
use super::world::World;
use crate::report::progress;
use serde::{Deserialize, Serialize};
use std::time::Instant;

const SEED: u64 = 1;

/// One simulated cluster. All of it is simulated but what its name calls `form`, which is a closed form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) simulated: bool,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) model_bytes: u64,
    pub(crate) deterministic: bool,
    pub(crate) round_ms: f64,
    /// What the busiest of link, server and worker take at least.
    pub(crate) form_round_ms: f64,
    pub(crate) server_busy: f64,
    pub(crate) worker_busy: f64,
    /// A round's messages that one worker sends: batches, and notices beside them.
    pub(crate) worker_batches: f64,
    pub(crate) form_worker_batches: f64,
    pub(crate) worker_notices: f64,
    /// A round's messages that one server sends: landings, result batches with credits.
    pub(crate) server_landings: f64,
    pub(crate) form_server_landings: f64,
    pub(crate) server_batches: f64,
    /// Contributions that were copied because others come first; operations sent back, each as a share.
    pub(crate) spilled: f64,
    pub(crate) retried: f64,
    /// What peers can reach at a server, counted; and all that it registers but tensors.
    pub(crate) server_reachable_bytes: u64,
    pub(crate) form_server_bytes: u64,
    /// What its spill area adds once all of it is in use.
    pub(crate) form_server_spill_bytes: u64,
    /// With a ring for each pair.
    pub(crate) per_pair_server_bytes: u64,
    pub(crate) worker_reachable_bytes: u64,
    pub(crate) form_worker_bytes: u64,
    /// Control messages until all tensors are there.
    pub(crate) scheduler_messages: u64,
    /// Turns of all processes, and what the simulation took here.
    pub(crate) steps: u64,
    pub(crate) host_seconds: f64,
    pub(crate) trace: String,
}

/// What is swept.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workers_max: u32,
    pub(crate) servers_max: u32,
    pub(crate) model_bytes: u64,
}

/// 1, 2, 4 and so on below `max`, then `max`.
fn doubling(max: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..32).map(|power| 1 << power).take_while(|value| *value < max).collect();
    all.push(max);
    all
}

/// 1, 2, 5, 10 and so on below `max`, then `max`.
fn round_numbers(max: u32) -> Vec<u32> {
    let decades = (0..9).map(|power| 10_u32.pow(power));
    let all = decades.flat_map(|decade| [decade, 2 * decade, 5 * decade]);
    let mut all: Vec<u32> = all.take_while(|value| *value < max).collect();
    all.push(max);
    all
}

impl Plan {
    /// All W for a few S and all S for the most W, each once; and all W for the most S without an order of ranks.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let mut pairs = Vec::new();
        for servers in [self.servers_max.div_ceil(10), self.servers_max] {
            pairs.extend(doubling(self.workers_max).into_iter().map(|workers| (workers, servers)));
        }
        pairs.extend(round_numbers(self.servers_max).into_iter().map(|servers| (self.workers_max, servers)));
        pairs.sort_unstable();
        pairs.dedup();
        let in_order = |(workers, servers)| Shape::cluster(workers, servers, self.model_bytes);
        let any_order = |workers| Shape { is_deterministic: false, ..in_order((workers, self.servers_max)) };
        let free = doubling(self.workers_max).into_iter().map(any_order);
        pairs.into_iter().map(in_order).chain(free).collect()
    }
}

/// Simulates one cluster.
///
/// # Errors
/// An engine fails in the simulation, or memory cannot be had.
pub(crate) fn simulate(shape: &Shape, model: &LogGp) -> anyhow::Result<Row> {
    let start = Instant::now();
    let (map, _) = roster::start(shape)?;
    let outcome = World::new(shape, *model, SEED)?.run()?;
    let host_seconds = start.elapsed().as_secs_f64();
    let (messages, registered) = (forms::messages(shape, &map), forms::registered(shape));
    let all_rounds = shape.rounds as f64 * f64::from(shape.servers);
    let counted = (shape.rounds - 1) as f64 * f64::from(shape.workers);
    let landings = (messages.worker_landings * u64::from(shape.workers)) as f64;
    let row = Row {
        simulated: true,
        workers: shape.workers,
        servers: shape.servers,
        model_bytes: shape.tensor_bytes * u64::from(shape.tensors),
        deterministic: shape.is_deterministic,
        round_ms: outcome.round_ns / 1e6,
        form_round_ms: forms::round_ns(shape, &map, model) / 1e6,
        server_busy: outcome.server_busy,
        worker_busy: outcome.worker_busy,
        worker_batches: outcome.workers_sent.batches as f64 / counted,
        form_worker_batches: messages.worker_batches as f64,
        worker_notices: outcome.workers_sent.notices as f64 / counted,
        server_landings: outcome.servers_sent.landings as f64 / all_rounds,
        form_server_landings: landings / f64::from(shape.servers),
        server_batches: outcome.servers_sent.batches as f64 / all_rounds,
        spilled: outcome.spilled,
        retried: outcome.retried,
        server_reachable_bytes: registered::server_bytes(shape)?,
        form_server_bytes: registered.server,
        form_server_spill_bytes: registered.server_spill,
        per_pair_server_bytes: registered.server_per_pair,
        worker_reachable_bytes: registered::worker_bytes(shape)?,
        form_worker_bytes: registered.worker,
        scheduler_messages: outcome.start_up.to_scheduler + outcome.start_up.from_scheduler,
        steps: outcome.steps,
        host_seconds,
        trace: format!("{:016x}", outcome.trace),
    };
    progress(&format!(
        "simulated: {} workers, {} servers{}: {:.2} ms a round (form {:.2}), {:.1} s here, {:.3} sent back",
        row.workers,
        row.servers,
        if row.deterministic { "" } else { ", any order" },
        row.round_ms,
        row.form_round_ms,
        row.host_seconds,
        row.retried
    ));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_has_its_corners_once() {
        let plan = Plan { workers_max: 1000, servers_max: 100, model_bytes: 1 << 20 };
        let pairs: Vec<_> = plan.shapes().iter().map(|shape| (shape.workers, shape.servers)).collect();
        for (pair, count) in [((1, 100), 2), ((1000, 100), 2), ((1000, 1), 1), ((512, 10), 1)] {
            assert_eq!(pairs.iter().filter(|other| **other == pair).count(), count, "{pair:?}");
        }
        assert_eq!((doubling(1), round_numbers(3)), (vec![1], vec![1, 2, 3]));
    }

    #[test]
    fn a_row_has_its_closed_forms_beside() {
        let row = simulate(&Shape::cluster(6, 2, 2 << 20), &LogGp::round_numbers()).expect("runs");
        assert_eq!(
            (row.worker_batches, row.server_landings),
            (row.form_worker_batches, row.form_server_landings)
        );
        assert!(row.round_ms >= row.form_round_ms, "{row:?}");
        assert!(row.simulated && row.server_reachable_bytes <= row.form_server_bytes);
        let text = serde_json::to_string(&row).expect("a row is JSON");
        assert!(text.contains("\"simulated\":true"), "{text}");
    }
}
