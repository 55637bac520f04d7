//! Per-key FIFO: what a worker does to one tensor happens in the order in which it did it, waited for or not.
//! A pull after an un-waited push sees that push's round, whatever priorities, faults and breaks there are.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{Action, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, Kind, OpId, Shape, seeds};

const FILE: &str = "order";

/// Every worker pushes and pulls all tensors for some rounds and waits for nothing in between.
fn burst(cluster: &mut Cluster, rounds: u64) -> Vec<(OpId, u64)> {
    let mut pulls = Vec::new();
    let tensors = cluster.shape().tensors.len();
    for round in 1..=rounds {
        for tensor in 0..tensors {
            for rank in 0..cluster.shape().workers {
                cluster.submit(rank, tensor, Kind::Push);
                pulls.push((cluster.submit(rank, tensor, Kind::Pull), round));
            }
        }
    }
    pulls
}

fn check(cluster: &Cluster, pulls: &[(OpId, u64)]) {
    for (op, round) in pulls {
        let ended = cluster.ended(*op).expect("ended");
        let version = ended.result.as_ref().expect("no failure").0;
        let exact = cluster.reconnects() == 0;
        assert!(version == *round || (!exact && version > *round), "{op:?} sees {version}, not {round}");
    }
}

#[test]
fn a_pull_sees_the_push_before_it() {
    seeds::for_each(FILE, "a_pull_sees_the_push_before_it", 80, |seed| {
        let faults = if seed % 2 == 0 { SimFaults::rough() } else { SimFaults::hostile() };
        let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::drawn(seed) });
        let pulls = burst(&mut cluster, 5);
        cluster.finish();
        check(&cluster, &pulls);
    });
}

#[test]
fn also_when_channels_break() {
    seeds::for_each(FILE, "also_when_channels_break", 80, |seed| {
        let mut cluster = Cluster::new(seed, Shape::drawn(seed));
        cluster.run_until_connected();
        let pulls = burst(&mut cluster, 5);
        let start_us = cluster.now_us();
        for at in 0..8 {
            let server = cluster.server_node((at % u64::from(cluster.shape().servers)) as u32);
            let worker = cluster.worker_node(((seed + at) % u64::from(cluster.shape().workers)) as u32);
            cluster.fault(start_us + at * 900 + seed * 13 % 700, Action::Break(server, worker));
        }
        cluster.finish();
        check(&cluster, &pulls);
    });
}

#[test]
fn also_when_early_contributions_cannot_be_kept() {
    seeds::for_each(FILE, "also_when_early_contributions_cannot_be_kept", 40, |seed| {
        let shape = Shape { workers: 4, spill_blocks: 1, inbox_slots: 6, ..Shape::default() };
        let mut cluster = Cluster::new(seed, shape);
        let pulls = burst(&mut cluster, 4);
        cluster.finish();
        check(&cluster, &pulls);
        let retries: u64 = (0..cluster.shape().servers).map(|rank| cluster.server_stats(rank).retries).sum();
        assert!(retries > 0, "nothing had to be tried again: the test tests nothing");
    });
}
