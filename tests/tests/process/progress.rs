//! Who moves a worker's lane on: callers that wait drive it, a thread behind them does when nobody waits. No
//! mixture of waiting, calling back, dropping and closing may lose an event or leave anyone waiting.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, only};
use gradwire_worker::{Client, OpError};
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use proto_common::transport::Driver;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 400;
const ELEMENTS: u64 = 16;

/// A tensor that adds up what is pushed.
fn counting(key: u64) -> TensorSpec {
    TensorSpec::f32(key, ELEMENTS, Optimizer::sum())
}

fn cluster(driver: Driver, workers: u32) -> (Cluster, Vec<Client>) {
    cluster_with(workers, |settings| settings.transport = only(driver))
}

fn cluster_with(workers: u32, adjust: impl Fn(&mut Settings)) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(1, workers, &[]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, workers, adjust);
    (cluster, clients)
}

/// Pushes ones and waits each time; the value counts the rounds.
fn wait_each_round(client: &Client, key: u64) {
    let tensor = client.tensor(key).unwrap();
    let mut weights = [0.0f32; ELEMENTS as usize];
    for round in 1..=ROUNDS {
        client.push_pull_slice(&tensor, &[1.0; ELEMENTS as usize], &mut weights).unwrap();
        assert_eq!(weights, [round as f32; ELEMENTS as usize], "tensor {key}");
    }
}

/// Nobody waits: each round is started by the callback of the one before it.
fn call_back_each_round(client: &Client, key: u64) {
    let tensor = client.tensor(key).unwrap();
    let (ended, events) = channel();
    for round in 1..=ROUNDS {
        let mut gradient = client.allocate(tensor.bytes()).unwrap();
        gradient.as_f32_mut().fill(1.0);
        let ended = ended.clone();
        let handle = client.push(&tensor, gradient).unwrap();
        handle.on_end(move |result| ended.send(result).unwrap());
        drop(handle);
        assert_eq!(events.recv_timeout(PATIENCE).expect("a callback").unwrap().0, round);
    }
}

/// Handles are dropped at once; a last pull sees all of it.
fn drop_each_handle(client: &Client, key: u64) {
    let tensor = client.tensor(key).unwrap();
    for _ in 0..ROUNDS {
        let mut gradient = client.allocate(tensor.bytes()).unwrap();
        gradient.as_f32_mut().fill(1.0);
        drop(client.push(&tensor, gradient).unwrap());
    }
    let mut weights = [0.0f32; ELEMENTS as usize];
    client.pull_slice(&tensor, &mut weights).unwrap();
    assert_eq!(weights, [ROUNDS as f32; ELEMENTS as usize], "tensor {key}");
}

fn everything_at_once(driver: Driver) {
    let (mut cluster, clients) = cluster(driver, 1);
    declare(&clients, &(0..5).map(counting).collect::<Vec<_>>());
    let client = &clients[0];
    let started = Instant::now();
    std::thread::scope(|scope| {
        for key in 0..3 {
            scope.spawn(move || wait_each_round(client, key));
        }
        scope.spawn(|| call_back_each_round(client, 3));
        scope.spawn(|| drop_each_handle(client, 4));
    });
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    client.close();
    cluster.assert_no_panic();
}

#[test]
fn waiting_calling_back_and_dropping_at_once_over_shm() {
    everything_at_once(Driver::Shm);
}

#[test]
fn waiting_calling_back_and_dropping_at_once_over_tcp() {
    everything_at_once(Driver::Tcp);
}

/// One worker starts two operations and never comes back to the library; the second one, gathered behind the
/// first, is what the other worker waits for. That the first has no answer must not hold it back.
fn gathered_operations_go_out(driver: Driver) {
    let (_cluster, clients) = cluster_with(2, |settings| {
        settings.transport = only(driver);
        // Its data thread sleeps as soon as it can.
        settings.memory.spin_us = 0;
    });
    declare(&clients, &[counting(1), counting(2)]);
    let [first, second] = [1, 2].map(|key| clients[0].tensor(key).unwrap());
    let others = [1, 2].map(|key| clients[1].tensor(key).unwrap());
    let push = |tensor| {
        let mut gradient = clients[0].allocate(ELEMENTS * 4).unwrap();
        gradient.as_f32_mut().fill(1.0);
        drop(clients[0].push(tensor, gradient).unwrap());
    };
    let mut weights = [0.0f32; ELEMENTS as usize];
    let started = Instant::now();
    // A lane that only its own timer moves on takes some 30 ms a round, 90 s in all; else it is a second.
    for round in 1..=3_000 {
        push(&first);
        push(&second);
        clients[1].push_pull_slice(&others[1], &[1.0; ELEMENTS as usize], &mut weights).unwrap();
        assert_eq!(weights, [2.0 * round as f32; ELEMENTS as usize]);
        clients[1].push_slice(&others[0], &[1.0f32; ELEMENTS as usize]).unwrap();
    }
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[test]
fn gathered_operations_go_out_over_shm() {
    gathered_operations_go_out(Driver::Shm);
}

#[test]
fn gathered_operations_go_out_over_tcp() {
    gathered_operations_go_out(Driver::Tcp);
}

fn push_ones(client: &Client, key: u64) -> gradwire_worker::Handle {
    let tensor = client.tensor(key).unwrap();
    let mut gradient = client.allocate(tensor.bytes()).unwrap();
    gradient.as_f32_mut().fill(1.0);
    client.push(&tensor, gradient).unwrap()
}

/// The callback runs in a thread that drives both lanes, for the sake of a tensor with chunks on both.
#[test]
fn a_callback_may_push_on_any_lane_and_ask_to_be_called_back() {
    const LANES: &[&str] = &["--set", "cluster.lanes=2"];
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut cluster = Cluster::new(1, 2, LANES);
        cluster.add_servers(1, LANES);
        let mut clients = join(&cluster, 2, |settings| {
            settings.transport = only(driver);
            settings.cluster.lanes = 2;
            settings.memory.spin_us = 500_000;
        });
        let mut specs: Vec<_> = (1..=4).map(counting).collect();
        specs.push(TensorSpec::f32(9, 1 << 20, Optimizer::sum()));
        declare(&clients, &specs);
        let (other, client) = (clients.pop().unwrap(), Arc::new(clients.pop().unwrap()));
        let (called, calls) = channel();
        let inner = Arc::clone(&client);
        push_ones(&client, 1).on_end(move |_| {
            for key in 2..=4 {
                let called = called.clone();
                push_ones(&inner, key).on_end(move |result| called.send(result).unwrap());
            }
        });
        std::thread::scope(|scope| {
            let before = client.stats().batches;
            let waiting = scope.spawn(|| push_ones(&client, 9).wait());
            let until = Instant::now() + PATIENCE;
            while client.stats().batches == before && Instant::now() < until {
                std::thread::yield_now();
            }
            let pushed: Vec<_> = (1..=4).map(|key| push_ones(&other, key)).collect();
            for _ in 2..=4 {
                calls.recv_timeout(PATIENCE).expect("a callback").unwrap();
            }
            push_ones(&other, 9).wait().unwrap();
            waiting.join().unwrap().unwrap();
            pushed.into_iter().for_each(|handle| drop(handle.wait().unwrap()));
        });
    }
}

/// A thread that only collects what has ended, and computes between, drives nothing and must stop nothing.
#[test]
fn collecting_what_has_ended_holds_nothing_up() {
    const SMALL: u64 = 2_000;
    for driver in [Driver::Shm, Driver::Tcp] {
        let (_cluster, clients) = cluster(driver, 1);
        let client = &clients[0];
        declare(&clients, &[counting(1), TensorSpec::f32(9, 8 << 20, Optimizer::sum())]);
        push_ones(client, 9).wait().unwrap();
        let ended: Vec<_> = (0..SMALL).map(|_| push_ones(client, 1)).collect();
        let until = Instant::now() + PATIENCE;
        while !ended.iter().all(gradwire_worker::Handle::is_done) && Instant::now() < until {
            std::thread::yield_now();
        }
        let background = push_ones(client, 9);
        let mut collected = 0;
        for handle in ended {
            if background.is_done() {
                break;
            }
            handle.wait().unwrap();
            collected += 1;
            // Briefly at first, so that collecting is what it mostly does; on a busy machine the other one takes its time.
            let compute_us = if collected < SMALL / 2 { 300 } else { PATIENCE.as_micros() as u64 / SMALL };
            let computed = Instant::now();
            while !background.is_done() && computed.elapsed() < Duration::from_micros(compute_us) {
                std::hint::spin_loop();
            }
        }
        assert!(background.is_done(), "nothing moved while {collected} were collected");
        background.wait().unwrap();
    }
}

#[test]
fn closing_ends_those_who_wait() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let (_cluster, clients) = cluster(driver, 2);
        declare(&clients, &[counting(1)]);
        let tensor = clients[0].tensor(1).unwrap();
        std::thread::scope(|scope| {
            // The other worker never pushes.
            let waiting = scope.spawn(|| clients[0].push_slice(&tensor, &[1.0f32; ELEMENTS as usize]));
            let until = Instant::now() + PATIENCE;
            while clients[0].stats().batches == 0 && Instant::now() < until {
                std::thread::yield_now();
            }
            let closing = Instant::now();
            clients[0].close();
            let error = waiting.join().unwrap().expect_err("it cannot have ended well");
            assert!(matches!(error, gradwire_worker::ClientError::Op(OpError::Closed(_))), "{error}");
            assert!(closing.elapsed() < Duration::from_secs(10), "{:?}", closing.elapsed());
        });
    }
}
