//! Handles as futures: two workers on one thread of an async runtime, where whoever blocked would keep the other one from
//! contributing, and so would wait for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, summed};
use gradwire_worker::{Client, OpError};
use proto_common::ids::Version;
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, TableSpec};

const ELEMENTS: u64 = 100_000;

fn block_on<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, task).await.expect("no handle is awaited for ever")
    })
}

/// Rounds and pushes to rows of one worker.
async fn train(client: &Client) {
    let tensor = client.tensor(1).unwrap();
    let spec = TableSpec::new(3, 4, Optimizer::sum(), Initial::Constant(0.0));
    let table = client.declare_table(&spec).unwrap();
    for round in 1..=3 {
        let mut gradient = client.allocate(tensor.bytes()).unwrap();
        gradient.as_f32_mut().fill((client.rank() + round) as f32);
        let weights = client.allocate(tensor.bytes()).unwrap();
        let ended = client.push_pull(&tensor, gradient, weights, 0).unwrap().await.unwrap();
        assert_eq!(ended.version, Version(u64::from(round)));
        let expected = (2 * round + 1) as f32;
        assert!(ended.target.unwrap().as_f32().iter().all(|weight| *weight == expected));
        client.push_rows(&table, &[1, 2, 1 << 40], &[1.0; 12]).unwrap().await.unwrap();
    }
    client.push_rows(&table, &[], &[]).unwrap().await.unwrap();
    let mut row = [0.0; 4];
    client.pull_rows(&table, &[1 << 40], &mut row).unwrap();
    assert!(row[0] >= 3.0, "this worker's own pushes are in: {row:?}");
}

#[test]
fn two_workers_await_each_other_on_one_thread() {
    let mut cluster = Cluster::new(2, 2, &[]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, 2, |_| {});
    declare(&clients, &[summed(1, ELEMENTS)]);
    block_on(async { tokio::join!(train(&clients[0]), train(&clients[1])) });
}

#[test]
fn what_ended_before_and_what_fails_is_ready_too() {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &[]);
    let client = join(&cluster, 1, |_| {}).remove(0);
    declare(std::slice::from_ref(&client), &[summed(1, ELEMENTS)]);
    let tensor = client.tensor(1).unwrap();
    let handle = client.push(&tensor, client.allocate(tensor.bytes()).unwrap()).unwrap();
    assert!(handle.is_done_by(std::time::Instant::now() + PATIENCE));
    assert_eq!(block_on(handle.into_future()).unwrap().version, Version(1));
    let handle = client.push(&tensor, client.allocate(tensor.bytes()).unwrap());
    client.close();
    // It ended before the client was closed, or failed because of that.
    match block_on(handle.unwrap().into_future()) {
        Ok(ended) => assert_eq!(ended.version, Version(2)),
        Err(error) => {
            assert!(matches!(error, gradwire_worker::ClientError::Op(OpError::Closed(_))), "{error}");
        }
    }
}
