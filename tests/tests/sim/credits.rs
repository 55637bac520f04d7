//! No credit is lost: in quiet every slot of every server is free, because idle workers hold none; and
//! however few there are, everybody gets its turn. The harness checks the ledgers in the end.

use fabric::sim::{Action, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, Kind, Shape, Style, seeds};

const FILE: &str = "credits";

#[test]
fn all_slots_are_free_in_quiet() {
    seeds::for_each(FILE, "all_slots_are_free_in_quiet", 80, |seed| {
        let faults = if seed % 2 == 0 { SimFaults::rough() } else { SimFaults::hostile() };
        let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::drawn(seed) });
        cluster.train(Style::Pipelined, 5);
        cluster.finish();
        // And once more: what was given back can be asked for again.
        let ops: Vec<_> =
            (0..cluster.shape().workers).map(|rank| cluster.submit(rank, 1, Kind::PushPull)).collect();
        cluster.run_until_ended(&ops);
        cluster.finish();
    });
}

#[test]
fn more_workers_than_slots_all_make_progress() {
    seeds::for_each(FILE, "more_workers_than_slots_all_make_progress", 40, |seed| {
        let slots = 1 + (seed % 4) as u32;
        let shape = Shape {
            workers: 6,
            servers: 1 + (seed % 2) as u32,
            inbox_slots: slots,
            timeout_ms: 5_000,
            ..Shape::default()
        };
        let mut cluster = Cluster::new(seed, shape);
        cluster.run_until_connected();
        let start_us = cluster.now_us();
        cluster.train(Style::Waited, 3);
        cluster.finish();
        let spent_ms = (cluster.now_us() - start_us) / 1_000;
        assert!(
            spent_ms < 3_000,
            "{spent_ms} ms for three rounds of small tensors: somebody sat on a credit"
        );
    });
}

#[test]
fn exactly_one_slot_for_each_worker() {
    seeds::for_each(FILE, "exactly_one_slot_for_each_worker", 40, |seed| {
        let shape =
            Shape { workers: 4, inbox_slots: 4, result_slots: 1, spill_blocks: 1, ..Shape::default() };
        let mut cluster = Cluster::new(seed, shape);
        cluster.train(Style::Pipelined, 5);
        cluster.finish();
    });
}

#[test]
fn the_credits_of_a_broken_channel_and_of_the_dead_come_back() {
    seeds::for_each(FILE, "the_credits_of_a_broken_channel_and_of_the_dead_come_back", 40, |seed| {
        let mut cluster =
            Cluster::new(seed, Shape { workers: 3, inbox_slots: 5, timeout_ms: 500, ..Shape::default() });
        cluster.run_until_connected();
        cluster.allow_failures();
        cluster.train(Style::Pipelined, 5);
        let (server, worker, dead) = (cluster.server_node(0), cluster.worker_node(0), cluster.worker_node(2));
        let now_us = cluster.now_us();
        cluster.fault(now_us + seed * 100, Action::Break(server, worker));
        cluster.fault(now_us + 300 + seed * 150, Action::Crash(dead));
        cluster.run_for(4_000_000);
        for rank in 0..cluster.shape().servers {
            let (free, total) = cluster.credits(rank);
            assert_eq!(free, total, "server {rank}");
        }
    });
}
