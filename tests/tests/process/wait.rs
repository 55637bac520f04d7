//! Waits that come to nothing: each ends at its own deadline, and its error names whom it waited for. Nothing
//! of it may break what comes after.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use daemon::status::BarrierStatus;
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, only, summed};
use gradwire_worker::{Client, ClientError, OpError};
use proto_common::error::ExitCode;
use proto_common::ids::{Key, Rank};
use proto_common::message::{NodeGroup, WaitError};
use proto_common::transport::Driver;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How late a deadline may be on a busy machine, on top of the second that a server has to say so itself.
const LATE: Duration = Duration::from_secs(4);

/// Deadline of the impatient client.
const DEADLINE_MS: u64 = 400;
/// Who has it. The others have the patience that a busy machine may need for what is to succeed.
const IMPATIENT: usize = 1;

fn cluster(driver: Driver) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(1, 3, &["--set", "deadlines.silence_ms=60000"]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 3, |settings| {
        if settings.node.rank == Some(IMPATIENT as u32) {
            let deadlines = &mut settings.deadlines;
            (deadlines.operation_ms, deadlines.busy_ms) = (DEADLINE_MS, DEADLINE_MS);
        }
        settings.transport = only(driver);
    });
    declare(&clients, &[summed(1, 4)]);
    (cluster, clients)
}

/// The call fails, not before its deadline and not much after.
fn fails<T: std::fmt::Debug>(call: impl FnOnce() -> Result<T, ClientError>) -> ClientError {
    let started = Instant::now();
    let error = call().expect_err("it waits in vain");
    // The processes' clocks count whole milliseconds, so a deadline can seem one millisecond early from here.
    let (took, least) = (started.elapsed(), Duration::from_millis(DEADLINE_MS - 1));
    assert!(took >= least && took < least + LATE, "{took:?}: {error}");
    error
}

/// Until the scheduler has someone of this rank at a barrier.
fn wait_for_arrival(cluster: &Cluster, rank: u32) {
    let deadline = Instant::now() + PATIENCE;
    let there =
        |barriers: &[BarrierStatus]| barriers.iter().flat_map(|b| &b.arrived).any(|id| id.rank.0 == rank);
    while !there(&cluster.status().barriers) {
        assert!(Instant::now() < deadline, "worker {rank} did not come to the barrier");
    }
}

#[test]
fn a_barrier_names_who_did_not_come() {
    let (mut cluster, clients) = cluster(Driver::Shm);
    let error = fails(|| clients[IMPATIENT].barrier_of("start", NodeGroup::ALL));
    assert_eq!(error.exit_code(), ExitCode::Deadline);
    let text = error.to_string();
    assert!(
        text.contains("barrier \"start\"") && text.contains("missing: server 0, worker 0, worker 2"),
        "{text}"
    );
    // Whoever waits there is not missing for the others.
    std::thread::scope(|scope| {
        let first = scope.spawn(|| clients[2].barrier());
        wait_for_arrival(&cluster, 2);
        let error = fails(|| clients[IMPATIENT].barrier());
        let ClientError::Wait(WaitError::Deadline { missing, .. }) = &error else { panic!("{error}") };
        assert_eq!(missing.len(), 1, "{error}");
        assert!(error.to_string().contains("missing: worker 0"), "{error}");
        let second = scope.spawn(|| clients[0].barrier());
        wait_for_arrival(&cluster, 0);
        // Who was late can come again, and then all are there.
        clients[IMPATIENT].barrier().unwrap();
        [first, second].into_iter().for_each(|waiting| waiting.join().unwrap().unwrap());
    });
    cluster.assert_no_panic();
}

#[test]
fn an_operation_names_the_workers_that_did_not_push() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let (mut cluster, clients) = cluster(driver);
        let tensor = clients[IMPATIENT].tensor(1).unwrap();
        let error = fails(|| clients[IMPATIENT].push_slice(&tensor, &[5.0f32; 4]));
        assert_eq!(error.exit_code(), ExitCode::Deadline);
        let ClientError::Op(OpError::Deadline { chunk, round, missing, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!((chunk.key, *round), (Key(1), 1));
        assert_eq!(*missing, [Rank(0), Rank(2)], "{error}");
        let text = error.to_string();
        assert!(text.contains("workers 0, 2 have not contributed to round 1"), "{text}");
        // The contribution counted: when the others push, the round is complete, and it is theirs and ours.
        let others: Vec<f32> = std::thread::scope(|scope| {
            let push = |client: &Client| {
                let tensor = client.tensor(1).unwrap();
                let mut weights = [0.0f32; 4];
                client.push_pull_slice(&tensor, &[1.0; 4], &mut weights).unwrap();
                weights[0]
            };
            let pushes = [0, 2].map(|rank| &clients[rank]).map(|client| scope.spawn(move || push(client)));
            pushes.into_iter().map(|push| push.join().unwrap()).collect()
        });
        assert_eq!(others, [7.0, 7.0]);
        cluster.assert_no_panic();
    }
}

#[test]
fn a_server_that_stands_still_is_named() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let (cluster, clients) = cluster(driver);
        cluster.servers[0].signal(Signal::STOP);
        let tensor = clients[IMPATIENT].tensor(1).unwrap();
        let error = fails(|| clients[IMPATIENT].push_slice(&tensor, &[5.0f32; 4]));
        let ClientError::Op(OpError::NoAnswer { key, servers, .. }) = &error else { panic!("{error}") };
        assert_eq!((*key, &servers[..]), (Key(1), &[Rank(0)][..]));
        assert_eq!(error.exit_code(), ExitCode::Deadline);
        assert!(error.to_string().contains("server 0 has not answered"), "{error}");
        cluster.servers[0].signal(Signal::CONT);
    }
}

#[test]
fn a_declaration_at_a_server_that_stands_still_ends_too() {
    let (cluster, clients) = cluster(Driver::Shm);
    cluster.servers[0].signal(Signal::STOP);
    let error = fails(|| clients[IMPATIENT].declare(&[summed(2, 4)]));
    assert_eq!(error.exit_code(), ExitCode::Deadline, "{error}");
    cluster.servers[0].signal(Signal::CONT);
}

/// A worker that evaluates does not push for longer than operations have, and does not come to barriers.
#[test]
fn a_worker_that_is_busy_is_waited_for_as_long_as_it_is_alive() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 2, |settings| settings.deadlines.operation_ms = DEADLINE_MS);
    declare(&clients, &[summed(1, 4)]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let tensor = clients[1].tensor(1).unwrap();
            let mut weights = [0.0f32; 4];
            clients[1].push_pull_slice(&tensor, &[2.0; 4], &mut weights).unwrap();
            clients[1].barrier().unwrap();
            weights[0]
        });
        // Sleep: that time passes is what is tested.
        std::thread::sleep(Duration::from_millis(3 * DEADLINE_MS));
        let tensor = clients[0].tensor(1).unwrap();
        clients[0].push_slice(&tensor, &[1.0f32; 4]).unwrap();
        // Sleep: as above.
        std::thread::sleep(Duration::from_millis(3 * DEADLINE_MS));
        clients[0].barrier().unwrap();
        assert_eq!(other.join().unwrap(), 3.0, "it was sent several times, and counts once");
    });
    cluster.assert_no_panic();
}
