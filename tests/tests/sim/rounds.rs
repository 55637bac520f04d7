//! Rounds complete: under loss, delay spikes and slow roles, and through partitions, whether the channels
//! outlive them or are connected again after them. Slow is not dead.

use fabric::sim::{Action, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, Shape, Style, seeds};

const FILE: &str = "rounds";

#[test]
fn under_loss_and_spikes() {
    seeds::for_each(FILE, "under_loss_and_spikes", 80, |seed| {
        let faults =
            SimFaults { loss_per_10k: 2_000, spike_per_10k: 1_000, spike_us: 30_000, ..SimFaults::rough() };
        let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::drawn(seed) });
        cluster.train(Style::Pipelined, 6);
        cluster.finish();
        assert_eq!((cluster.version(0), cluster.version(1), cluster.version(2)), (6, 6, 6));
    });
}

/// Cuts a worker off from all servers for some time in the middle of training.
fn partitioned(seed: u64, partition_us: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, Shape::drawn(seed));
    cluster.run_until_connected();
    cluster.train(Style::Pipelined, 10);
    let worker = cluster.worker_node((seed % u64::from(cluster.shape().workers)) as u32);
    let start_us = cluster.now_us() + (seed * 37) % 3_000;
    for rank in 0..cluster.shape().servers {
        let server = cluster.server_node(rank);
        cluster.fault(start_us, Action::Partition(server, worker));
        cluster.fault(start_us + partition_us, Action::Heal(server, worker));
    }
    cluster.finish();
    cluster
}

#[test]
fn through_a_partition_that_the_channels_outlive() {
    let budget_us = SimFaults::rough().retry_budget_us();
    seeds::for_each(FILE, "through_a_partition_that_the_channels_outlive", 60, |seed| {
        let cluster = partitioned(seed, budget_us / 4);
        assert_eq!(cluster.reconnects(), 0, "a short partition only delays");
    });
}

#[test]
fn through_a_partition_that_breaks_the_channels() {
    let budget_us = SimFaults::rough().retry_budget_us();
    let mut broken = 0;
    seeds::for_each(FILE, "through_a_partition_that_breaks_the_channels", 60, |seed| {
        broken += partitioned(seed, budget_us * 10 + (seed % 100) * 5_000).reconnects();
    });
    assert!(broken > 0, "no partition broke a channel: the test tests nothing");
}
