//! Registered memory that several have, through real servers, over shm and over tcp: parts of one buffer are gradients
//! and weights at once, in place, and outlive whoever had them; and whoever waits at a barrier keeps nobody from
//! asking or from leaving.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::over_each;
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, only, summed};
use gradwire_worker::{Client, ClientError, OpError, SharedBuffer};
use proto_common::transport::Driver;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Several chunks, the last of them partial.
const COUNT: usize = 5000;
const BYTES: u64 = 4 * COUNT as u64;

fn cluster(driver: Driver, workers: u32) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(2, workers, &["--set", "cluster.chunk_bytes=4096"]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, workers, |settings| settings.transport = only(driver));
    (cluster, clients)
}

/// Room for two tensors side by side, with numbers that tell their places.
fn pattern(client: &Client, times: f32) -> SharedBuffer {
    let mut buffer = client.allocate(2 * BYTES).unwrap();
    buffer.as_f32_mut().iter_mut().enumerate().for_each(|(at, number)| *number = times * at as f32);
    buffer.share()
}

fn parts_are_both_gradient_and_weights(driver: Driver) {
    let (mut cluster, clients) = cluster(driver, 2);
    declare(&clients, &[summed(0, COUNT as u64), summed(1, COUNT as u64)]);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                let whole = pattern(client, 1.0);
                let handles: Vec<_> = (0..2u64)
                    .map(|key| {
                        let part = whole.slice(key * BYTES, BYTES).unwrap();
                        client.push_pull(&client.tensor(key).unwrap(), part.clone(), part, 0).unwrap()
                    })
                    .collect();
                for handle in handles {
                    let ended = handle.wait().unwrap();
                    assert!(ended.target.is_none() && ended.source.is_none() && ended.landed_bytes == BYTES);
                }
                // Read by a push of what landed, into memory of one holder.
                for key in 0..2u64 {
                    let part = whole.slice(key * BYTES, BYTES).unwrap();
                    let tensor = client.tensor(key).unwrap();
                    let weights = client.allocate(BYTES).unwrap();
                    let landed =
                        client.push_pull(&tensor, part, weights, 0).unwrap().wait().unwrap().target.unwrap();
                    let base = key as usize * COUNT;
                    // 2 workers' patterns, then 2 workers' sums of those (the rule replaces).
                    let same = landed
                        .as_f32()
                        .iter()
                        .enumerate()
                        .all(|(at, have)| *have == 4.0 * (base + at) as f32);
                    assert!(same, "other numbers came back than the sum of what was pushed");
                }
            });
        }
    });
    cluster.assert_no_panic();
}

fn an_operation_keeps_what_its_caller_dropped(driver: Driver) {
    let (mut cluster, clients) = cluster(driver, 1);
    declare(&clients, &[summed(0, COUNT as u64)]);
    let (client, tensor) = (&clients[0], clients[0].tensor(0).unwrap());
    for turn in 1..200 {
        let handle = client.push(&tensor, pattern(client, turn as f32).slice(0, BYTES).unwrap()).unwrap();
        // What was given back would be taken by this.
        client.allocate(2 * BYTES).unwrap().as_f32_mut().fill(f32::NAN);
        handle.wait().unwrap();
        let mut weights = vec![0.0f32; COUNT];
        client.pull_slice(&tensor, &mut weights).unwrap();
        assert!(weights.iter().enumerate().all(|(at, have)| *have == (turn * at) as f32), "turn {turn}");
    }
    cluster.assert_no_panic();
}

fn what_does_not_fit_is_refused(driver: Driver) {
    let (mut cluster, clients) = cluster(driver, 2);
    declare(&clients, &[summed(0, COUNT as u64)]);
    let tensor = clients[0].tensor(0).unwrap();
    let (own, foreign) = (pattern(&clients[0], 1.0), pattern(&clients[1], 1.0));
    assert!(own.slice(BYTES + 1, BYTES).is_err() && own.slice(u64::MAX, 2).is_err());
    let short = own.slice(0, BYTES - 4).unwrap();
    for error in [
        clients[0].push(&tensor, short.clone()).unwrap_err(),
        clients[0].pull(&tensor, short).unwrap_err(),
        clients[0].push(&tensor, own.clone()).unwrap_err(),
    ] {
        assert!(matches!(error, ClientError::WrongLength { .. }), "{error}");
    }
    let foreign = foreign.slice(0, BYTES).unwrap();
    for error in [
        clients[0].push(&tensor, foreign.clone()).unwrap_err(),
        clients[0].pull(&tensor, foreign).unwrap_err(),
    ] {
        assert!(matches!(error, ClientError::Foreign { .. }), "{error}");
    }
    cluster.assert_no_panic();
}

fn who_waits_at_a_barrier_keeps_nobody(driver: Driver) {
    let (mut cluster, clients) = cluster(driver, 2);
    declare(&clients, &[summed(0, COUNT as u64)]);
    let (begun, told) = channel();
    std::thread::scope(|scope| {
        let client = &clients[0];
        let waits = scope.spawn(move || {
            begun.send(()).unwrap();
            client.barrier()
        });
        told.recv_timeout(PATIENCE).unwrap();
        // Asks meanwhile, and then leaves.
        let again = Instant::now();
        client.declare(&[summed(0, COUNT as u64)]).unwrap();
        client.close();
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Op(OpError::Closed(_))), "{error}");
        assert!(again.elapsed() < PATIENCE / 2, "waited for the barrier's deadline");
    });
    let late = Instant::now();
    clients[1].close();
    assert!(late.elapsed() < PATIENCE / 2);
    cluster.assert_no_panic();
}

over_each!(
    parts_are_both_gradient_and_weights,
    an_operation_keeps_what_its_caller_dropped,
    what_does_not_fit_is_refused,
    who_waits_at_a_barrier_keeps_nobody,
);
