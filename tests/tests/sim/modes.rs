//! Modes whose versions are not rounds of everybody, under faults: each contribution counts once, or is dropped with its
//! round, workers read what they wrote, and no answer is further ahead of the slowest worker than the bound. The harness
//! checks every landing by what it counts, and in the end that nothing is missing.

use fabric::sim::{Action, FaultScript, ScriptShape, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, Shape, Style, seeds};

const FILE: &str = "modes";

fn style(seed: u64) -> Style {
    if seed.is_multiple_of(2) { Style::Waited } else { Style::Pipelined }
}

fn end(mut cluster: Cluster) -> Cluster {
    cluster.finish();
    let workers = u64::from(cluster.shape().workers);
    assert_eq!((cluster.version(0), cluster.version(1), cluster.version(2)), (8 * workers, 8 * workers, 8));
    cluster
}

#[test]
fn under_loss_spikes_and_repeated_notices() {
    let mut late = 0;
    seeds::for_each(FILE, "under_loss_spikes_and_repeated_notices", 60, |seed| {
        let faults = SimFaults {
            loss_per_10k: 1_500,
            spike_per_10k: 1_000,
            spike_us: 30_000,
            duplicate_notice_per_10k: 2_000,
            duplicate_within_us: 3_000,
            ..SimFaults::hostile()
        };
        let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::of_modes(seed) });
        cluster.train(style(seed), 8);
        let cluster = end(cluster);
        late += (0..cluster.shape().servers).map(|rank| cluster.server_stats(rank).late).sum::<u64>();
    });
    assert!(late > 0, "no round went on without a worker: the test tests nothing");
}

#[test]
fn channels_that_break_are_replayed() {
    let mut broken = 0;
    seeds::for_each(FILE, "channels_that_break_are_replayed", 60, |seed| {
        let mut cluster = Cluster::new(seed, Shape::of_modes(seed));
        cluster.run_until_connected();
        cluster.train(style(seed), 8);
        let (now_us, workers) = (cluster.now_us(), cluster.shape().workers);
        for at in 0..12 {
            let server = cluster.server_node((at * 5 + seed as u32) % cluster.shape().servers);
            let worker = cluster.worker_node((at + seed as u32 / 7) % workers);
            cluster.fault(now_us + u64::from(at) * 4_700 % 60_000, Action::Break(server, worker));
        }
        broken += end(cluster).reconnects();
    });
    assert!(broken > 0, "no channel broke: the test tests nothing");
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
        let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::of_modes(seed) });
        cluster.train(style(seed), 8);
        let shape = ScriptShape {
            horizon_us: 60_000,
            partitions: 3,
            partition_max_us: 20_000,
            breaks: 6,
            crashes: 0,
        };
        cluster.script(&FaultScript::random(seed, &cluster.nodes(), &[], shape));
        end(cluster);
    });
}
