//! Weights that are read where servers have them: what a view shows stays as it is, however many rounds are published
//! meanwhile, and who reads for too long is named.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, only, summed};
use gradwire_tests::rigs::process::Process;
use gradwire_worker::{Client, Ended, Tensor, Weights};
use proto_common::transport::Driver;
use rustix::process::Signal;

const KEY: u64 = 7;
/// Several chunks, the last of them partial; more than one server's.
const COUNT: usize = 40_003;
const WORDS: [&str; 2] = ["--set", "cluster.chunk_bytes=16384"];

fn gradient(at: usize, rank: u32, round: u64) -> f32 {
    (at % 64) as f32 + rank as f32 * 0.5 + round as f32 * 100.0
}

fn expected(at: usize, workers: u32, round: u64) -> f32 {
    (0..workers).map(|rank| gradient(at, rank, round)).sum()
}

/// Every weight of a view, and that they are a round's.
fn check(weights: &Weights, workers: u32, round: u64) {
    assert_eq!(weights.version().0, round);
    let mut seen = 0;
    for (first, numbers) in weights.numbers::<f32>() {
        assert_eq!(first, seen, "pieces come in order");
        for at in 0..numbers.len() {
            assert_eq!(numbers.at(at), expected(first as usize + at, workers, round), "round {round}");
        }
        seen += numbers.len() as u64;
    }
    assert_eq!(seen, COUNT as u64);
    let mut copied = vec![0.0f32; COUNT];
    weights.copy_to(&mut copied).unwrap();
    assert!((0..COUNT).all(|at| copied[at] == expected(at, workers, round)));
}

/// A round of one worker, its gradient in the client's memory.
fn contribute(client: &Client, tensor: &Tensor, round: u64) -> Ended {
    let mut buffer = client.allocate(tensor.bytes()).unwrap();
    for (at, value) in buffer.as_mut_slice::<f32>().iter_mut().enumerate() {
        *value = gradient(at, client.rank(), round);
    }
    client.push_pull_view(tensor, buffer, 0).unwrap().wait().unwrap()
}

fn cluster(workers: u32) -> Cluster {
    let mut cluster = Cluster::new(2, workers, &WORDS);
    cluster.add_servers(2, &[]);
    cluster
}

#[test]
fn a_view_stays_as_it_is_while_newer_rounds_are_published() {
    const WORKERS: u32 = 3;
    let mut cluster = cluster(WORKERS);
    let clients = join(&cluster, WORKERS, |settings| settings.transport = only(Driver::Shm));
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                let tensor = client.tensor(KEY).unwrap();
                let mut before: Option<Weights> = None;
                for round in 1..=20 {
                    let ended = contribute(client, &tensor, round);
                    let weights = ended.weights.expect("asked for");
                    assert!(weights.is_in_place() && ended.target.is_none());
                    check(&weights, WORKERS, round);
                    if let Some(before) = &before {
                        check(before, WORKERS, round - 1);
                    }
                    // Some keep the last one, some read none meanwhile.
                    before = (client.rank() != 0).then_some(weights);
                }
                let last = client.pull_view(&tensor).unwrap().wait().unwrap().weights.unwrap();
                check(&last, WORKERS, 20);
            });
        }
    });
    drop(clients);
    cluster.assert_no_panic();
}

#[test]
fn over_other_transports_the_same_calls_land_weights_here() {
    let mut cluster = cluster(1);
    let clients = join(&cluster, 1, |settings| settings.transport = only(Driver::Tcp));
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let tensor = clients[0].tensor(KEY).unwrap();
    for round in 1..=3 {
        let weights = contribute(&clients[0], &tensor, round).weights.unwrap();
        assert!(!weights.is_in_place());
        check(&weights, 1, round);
    }
    drop(clients);
    cluster.assert_no_panic();
}

#[test]
fn who_reads_two_versions_for_too_long_is_named_and_one_let_go_frees_the_round() {
    let mut cluster = cluster(2);
    let clients = join(&cluster, 2, |settings| {
        settings.transport = only(Driver::Shm);
        (settings.deadlines.operation_ms, settings.deadlines.busy_ms) = (500, 500);
    });
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let tensors: Vec<Tensor> = clients.iter().map(|client| client.tensor(KEY).unwrap()).collect();
    let both = |round: u64| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| contribute(&clients[1], &tensors[1], round));
            (contribute(&clients[0], &tensors[0], round).weights.unwrap(), drop(other.join().unwrap())).0
        })
    };
    let (first, second) = (both(1), both(2));
    let start = |rank: usize| {
        let mut buffer = clients[rank].allocate(tensors[rank].bytes()).unwrap();
        for (at, value) in buffer.as_mut_slice::<f32>().iter_mut().enumerate() {
            *value = gradient(at, rank as u32, 3);
        }
        clients[rank].push_pull_view(&tensors[rank], buffer, 0).unwrap()
    };
    let (mine, other) = (start(0), start(1));
    let error = other.wait().unwrap_err().to_string();
    assert!(error.contains("still read") && error.contains('0') && !error.contains("worker 1"), "{error}");
    let error = mine.wait().unwrap_err().to_string();
    assert!(error.contains("still read"), "{error}");
    check(&first, 2, 1);
    check(&second, 2, 2);
    // The round was complete: with one version let go it is published, and a pull brings it.
    drop(first);
    let third = clients[0].pull_view(&tensors[0]).unwrap().wait().unwrap().weights.unwrap();
    check(&third, 2, 3);
    check(&second, 2, 2);
    drop((second, third));
    drop((tensors, clients));
    cluster.assert_no_panic();
}

#[test]
fn a_round_that_waits_for_its_reader_goes_on_as_soon_as_the_view_is_dropped() {
    let mut cluster = cluster(1);
    let clients = join(&cluster, 1, |settings| settings.transport = only(Driver::Shm));
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let (client, tensor) = (&clients[0], clients[0].tensor(KEY).unwrap());
    let first = contribute(client, &tensor, 1).weights.unwrap();
    let second = contribute(client, &tensor, 2).weights.unwrap();
    std::thread::scope(|scope| {
        let third = scope.spawn(|| contribute(client, &tensor, 3).weights.unwrap());
        // Both versions are read: the round cannot have ended, whenever this is looked at.
        check(&first, 1, 1);
        check(&second, 1, 2);
        drop(first);
        check(&third.join().unwrap(), 1, 3);
    });
    check(&second, 1, 2);
    drop(second);
    drop((tensor, clients));
    cluster.assert_no_panic();
}

/// A snapshot for as long as one likes: the versions after it come and go in the other buffer.
#[test]
fn one_version_can_be_kept_while_newer_ones_come_and_go() {
    let mut cluster = cluster(1);
    let clients = join(&cluster, 1, |settings| settings.transport = only(Driver::Shm));
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let (client, tensor) = (&clients[0], clients[0].tensor(KEY).unwrap());
    let snapshot = contribute(client, &tensor, 1).weights.unwrap();
    let mut copied = vec![0.0f32; COUNT];
    for round in 2..=8 {
        let pushed: Vec<f32> = (0..COUNT).map(|at| gradient(at, 0, round)).collect();
        client.push_pull_slice(&tensor, &pushed, &mut copied).unwrap();
        assert_eq!(copied, pushed);
        check(&snapshot, 1, 1);
    }
    drop(snapshot);
    drop((tensor, clients));
    cluster.assert_no_panic();
}

#[test]
fn what_is_read_of_a_server_that_goes_stays_and_the_server_goes() {
    let mut cluster = cluster(1);
    let clients = join(&cluster, 1, |settings| settings.transport = only(Driver::Shm));
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let (client, tensor) = (&clients[0], clients[0].tensor(KEY).unwrap());
    let first = contribute(client, &tensor, 1).weights.unwrap();
    cluster.servers[1].signal(Signal::TERM);
    let mut round = 1;
    while cluster.servers[1].is_running() {
        round += 1;
        check(&contribute(client, &tensor, round).weights.unwrap(), 1, round);
    }
    assert_eq!(cluster.servers[1].expect_end(PATIENCE), 0);
    assert!(
        cluster.servers[1].log().text().contains("other servers have taken over all chunks of this server")
    );
    for round in round + 1..round + 4 {
        check(&contribute(client, &tensor, round).weights.unwrap(), 1, round);
        check(&first, 1, 1);
    }
    drop((first, tensor));
    drop(clients);
    cluster.assert_no_panic();
}

#[test]
fn who_reads_where_a_chunk_was_does_not_hold_up_the_copy_that_is_kept_there() {
    // The version before is kept, so that a copy writes each round to the buffer that has not the one before.
    let words = ["replicas=1", "worker_loss=wait", "servers_max=3", "chunk_bytes=16384"];
    let words = words.map(|word| ["--set".to_owned(), format!("cluster.{word}")]).concat();
    let mut cluster = Cluster::new(2, 1, &words.iter().map(String::as_str).collect::<Vec<_>>());
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, 1, |settings| settings.transport = only(Driver::Shm));
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let (client, tensor) = (&clients[0], clients[0].tensor(KEY).unwrap());
    let first = contribute(client, &tensor, 1).weights.unwrap();
    let mut command = cluster.member("gradwire-server", &[], None, &[]);
    let server = Process::start("server 2, which came", &mut command);
    let serves = |line: &str| line.contains("chunks of this server") && !line.contains("served=0 ");
    assert!(server.log().wait_for(serves, PATIENCE).is_some(), "it got nothing:\n{}", server.log().text());
    cluster.servers.push(server);
    check(&contribute(client, &tensor, 2).weights.unwrap(), 1, 2);
    check(&first, 1, 1);
    drop(first);
    for round in 3..=6 {
        check(&contribute(client, &tensor, round).weights.unwrap(), 1, round);
    }
    drop(tensor);
    drop(clients);
    cluster.assert_no_panic();
}
