//! Deadlines: when a process dies or falls silent, everybody else's operations end in time with an error that
//! names it. Nothing hangs: the harness fails an operation that is overdue.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{Action, Rng};
use gradwire_tests::rigs::sim::{Cluster, Ended, Kind, OpId, Shape, seeds};
use gradwire_worker::OpError;
use proto_common::ids::Rank;

const FILE: &str = "deadline";
const TIMEOUT_MS: u32 = 1_500;

/// A connected cluster of four workers that has gone through two rounds.
fn warm(seed: u64) -> Cluster {
    let shape =
        Shape { workers: 4, servers: 1 + (seed % 3) as u32, timeout_ms: TIMEOUT_MS, ..Shape::default() };
    let mut cluster = Cluster::new(seed, shape);
    cluster.run_until_connected();
    for _ in 0..2 {
        let ops: Vec<_> = (0..4).map(|rank| cluster.submit(rank, 1, Kind::PushPull)).collect();
        cluster.run_until_ended(&ops);
    }
    cluster.allow_failures();
    cluster
}

fn ends(cluster: &mut Cluster, ops: &[OpId]) -> Vec<Ended> {
    cluster.run_until_ended(ops);
    ops.iter().map(|op| cluster.ended(*op).expect("run until ended").clone()).collect()
}

#[test]
fn a_dead_worker_is_named_within_the_deadline() {
    seeds::for_each(FILE, "a_dead_worker_is_named_within_the_deadline", 80, |seed| {
        let mut cluster = warm(seed);
        let dead = (seed % 4) as u32;
        let node = cluster.worker_node(dead);
        cluster.fault(cluster.now_us(), Action::Crash(node));
        cluster.step();
        let living: Vec<u32> = (0..4).filter(|rank| *rank != dead).collect();
        let ops: Vec<_> = living.iter().map(|rank| cluster.submit(*rank, 1, Kind::PushPull)).collect();
        for ended in ends(&mut cluster, &ops) {
            assert!(ended.after_ms <= u64::from(TIMEOUT_MS) + 200, "after {} ms", ended.after_ms);
            match ended.result {
                Err(OpError::Deadline { missing, round: 3, .. }) => assert_eq!(missing, [Rank(dead)]),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_worker_that_dies_while_it_sends_never_makes_half_a_round() {
    seeds::for_each(FILE, "a_worker_that_dies_while_it_sends_never_makes_half_a_round", 60, |seed| {
        let mut cluster = warm(seed);
        let ops: Vec<_> = (0..4).map(|rank| cluster.submit(rank, 1, Kind::PushPull)).collect();
        let at_us = cluster.now_us() + Rng::new(seed).below(600);
        let node = cluster.worker_node(3);
        cluster.fault(at_us, Action::Crash(node));
        for ended in ends(&mut cluster, &ops[..3]) {
            match ended.result {
                Ok(version) => assert_eq!(version.0, 3, "its contribution had arrived whole"),
                Err(OpError::Deadline { missing, .. }) => assert_eq!(missing, [Rank(3)]),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_dead_server_ends_operations_with_its_name() {
    seeds::for_each(FILE, "a_dead_server_ends_operations_with_its_name", 40, |seed| {
        let mut cluster = warm(seed);
        let dead = cluster.holder(1);
        let node = cluster.server_node(dead);
        cluster.fault(cluster.now_us(), Action::Crash(node));
        cluster.step();
        let ops: Vec<_> = (0..4).map(|rank| cluster.submit(rank, 1, Kind::PushPull)).collect();
        for ended in ends(&mut cluster, &ops) {
            assert!(ended.after_ms <= 2_700, "after {} ms", ended.after_ms);
            match ended.result {
                Err(OpError::NoAnswer { servers, .. } | OpError::Unconnected { servers, .. }) => {
                    assert_eq!(servers, [Rank(dead)]);
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_worker_that_is_cut_off_ends_its_own_operations_too() {
    seeds::for_each(FILE, "a_worker_that_is_cut_off_ends_its_own_operations_too", 20, |seed| {
        let mut cluster = warm(seed);
        let lonely = cluster.worker_node(1);
        for rank in 0..cluster.shape().servers {
            let server = cluster.server_node(rank);
            cluster.fault(cluster.now_us(), Action::Partition(server, lonely));
        }
        cluster.step();
        let ops: Vec<_> = (0..4).map(|rank| cluster.submit(rank, 1, Kind::PushPull)).collect();
        for (rank, ended) in ends(&mut cluster, &ops).into_iter().enumerate() {
            match (rank, ended.result) {
                (1, Err(OpError::Unconnected { .. } | OpError::NoAnswer { .. })) => {}
                (0 | 2 | 3, Err(OpError::Deadline { missing, .. })) => assert_eq!(missing, [Rank(1)]),
                (_, other) => panic!("{rank}: {other:?}"),
            }
        }
    });
}
