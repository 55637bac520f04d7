//! Exactly once: whatever the fabric repeats, reorders between channels or loses with a channel, the weights
//! are those of every contribution applied once, bit for bit. The harness checks every landing against the
//! oracle, and in the end that each server reduced each contribution once.
#![allow(clippy::unwrap_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{FaultScript, Rng, ScriptShape, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, Shape, Style, seeds};

const FILE: &str = "exactly_once";

fn style(seed: u64) -> Style {
    if seed.is_multiple_of(2) { Style::Waited } else { Style::Pipelined }
}

/// Breaks of random pairs within this time from now.
fn breaks(cluster: &mut Cluster, seed: u64, count: u32, within_us: u64) {
    let nodes = cluster.nodes();
    let servers = cluster.shape().servers as usize;
    let mut rng = Rng::new(seed);
    for _ in 0..count {
        // A worker and a server: there are no other channels.
        let pair = [
            nodes[rng.below(servers as u64) as usize],
            nodes[servers + rng.below((nodes.len() - servers) as u64) as usize],
        ];
        let at_us = cluster.now_us() + rng.below(within_us);
        cluster.fault(at_us, fabric::sim::Action::Break(pair[0], pair[1]));
    }
}

#[test]
fn repeated_notices_change_nothing() {
    seeds::for_each(FILE, "repeated_notices_change_nothing", 80, |seed| {
        // Late enough for the slot to be somebody else's, with somebody else's bytes on their way into it.
        let faults =
            SimFaults { duplicate_notice_per_10k: 3_000, duplicate_within_us: 3_000, ..SimFaults::hostile() };
        let mut cluster = Cluster::new(seed, Shape { faults, workers: 4, ..Shape::drawn(seed) });
        cluster.train(style(seed), 6);
        cluster.finish();
        assert_eq!(cluster.reconnects(), 0, "nobody took a repeated notice for an offence");
    });
}

#[test]
fn channels_that_break_are_replayed() {
    seeds::for_each(FILE, "channels_that_break_are_replayed", 80, |seed| {
        let mut cluster = Cluster::new(seed, Shape::drawn(seed));
        cluster.run_until_connected();
        cluster.train(style(seed), 8);
        breaks(&mut cluster, seed, 12, 60_000);
        cluster.finish();
        assert!(cluster.reconnects() > 0, "the breaks were noticed");
    });
}

/// Blocks, pins and slots that a broken channel kept would run out.
#[test]
fn hundreds_of_breaks_leak_nothing() {
    seeds::for_each(FILE, "hundreds_of_breaks_leak_nothing", 8, |seed| {
        let faults = SimFaults { spurious_full_per_10k: 3_000, ..SimFaults::rough() };
        let mut cluster = Cluster::new(seed, Shape { faults, workers: 2, servers: 1, ..Shape::drawn(seed) });
        cluster.run_until_connected();
        cluster.train(Style::Pipelined, 150);
        breaks(&mut cluster, seed, 600, 600_000);
        cluster.finish();
        assert!(cluster.reconnects() > 200, "{} only", cluster.reconnects());
    });
}

#[test]
fn everything_at_once() {
    seeds::for_each(FILE, "everything_at_once", 40, |seed| {
        let faults = SimFaults {
            loss_per_10k: 1_500,
            retry_max: 3,
            duplicate_notice_per_10k: 2_000,
            ..SimFaults::hostile()
        };
        let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::drawn(seed) });
        cluster.train(style(seed), 6);
        breaks(&mut cluster, seed, 6, 60_000);
        let shape = ScriptShape {
            horizon_us: 60_000,
            partitions: 3,
            partition_max_us: 20_000,
            breaks: 0,
            crashes: 0,
        };
        cluster.script(&FaultScript::random(seed, &cluster.nodes(), &[], shape));
        cluster.finish();
    });
}
