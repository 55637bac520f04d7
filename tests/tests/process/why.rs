//! `gradwire why` over real daemons: jobs that are held up, and whether it finds by what.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::job::{declare, join, round, summed};
use gradwire_tests::rigs::process::Process;
use gradwire_worker::Client;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const TENSORS: [u64; 2] = [1, 2];

/// One server and two clients that have finished a round of each tensor.
fn job(args: &[&str]) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(1, 2, &[&["--set", "deadlines.heartbeat_ms=50"], args].concat());
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 2, |_| {});
    declare(&clients, &TENSORS.map(|key| summed(key, 64)));
    for key in TENSORS {
        round(&clients, key);
    }
    (cluster, clients)
}

fn why(cluster: &Cluster, more: &[&str]) -> String {
    let mut command = cluster.place.command("gradwire");
    command.args(["why", "--scheduler-http", &cluster.http]).args(more);
    let mut why = Process::start("why", &mut command);
    assert_eq!(why.expect_end(PATIENCE), 0, "{}", why.log().text());
    why.log().text()
}

/// Until it says all of these.
fn until(cluster: &Cluster, expected: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = why(cluster, &[]);
        if expected.iter().all(|words| text.contains(words)) {
            return;
        }
        assert!(Instant::now() < deadline, "{expected:?} is not in\n{text}");
        // Sleep: what is looked for grows with time, and nobody tells when.
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn push_pull(client: &Client, key: u64) {
    let tensor = client.tensor(key).expect("declared");
    let mut weights = vec![0.0_f32; 64];
    client.push_pull_slice(&tensor, &[1.0_f32; 64], &mut weights).unwrap();
}

#[test]
fn a_trainer_that_does_not_contribute_is_found() {
    let (cluster, clients) = job(&[]);
    assert!(why(&cluster, &[]).contains("nothing delays the job"));
    assert_eq!(why(&cluster, &["--json"]).trim(), "[]");
    std::thread::scope(|scope| {
        scope.spawn(|| push_pull(&clients[0], 1));
        let me = format!("process {}", std::process::id());
        until(
            &cluster,
            &[
                "worker 1 is what the others wait for, for ",
                "worker 0: push_pull of tensor 1, waiting for server 0, for ",
                "server 0: worker 0 waits for round 2 of tensor 1, chunk 0, missing workers: 1, for ",
                "worker 1: nothing under way",
                &me,
            ],
        );
        push_pull(&clients[1], 1);
    });
    until(&cluster, &["nothing delays the job"]);
}

#[test]
fn workers_that_wait_for_each_other_in_different_orders_are_found() {
    let (cluster, clients) = job(&[]);
    std::thread::scope(|scope| {
        for (client, key) in clients.iter().zip(TENSORS) {
            scope.spawn(move || push_pull(client, key));
        }
        until(&cluster, &[" wait for one another, for ", "worker 0", "worker 1", "different orders"]);
        for (client, key) in clients.iter().zip(TENSORS.into_iter().rev()) {
            scope.spawn(move || push_pull(client, key));
        }
    });
}

#[test]
fn a_server_that_stands_still_is_found() {
    let (cluster, clients) = job(&["--set", "deadlines.silence_ms=60000"]);
    std::thread::scope(|scope| {
        scope.spawn(|| push_pull(&clients[0], 1));
        cluster.servers[0].signal(Signal::STOP);
        until(&cluster, &["no heartbeat from server 0 for ", "it counts as failed after 1 min 0 s"]);
        cluster.servers[0].signal(Signal::CONT);
        push_pull(&clients[1], 1);
    });
}

#[test]
fn a_job_that_waits_for_members_names_them_and_nobody_there_is_an_error() {
    let cluster = Cluster::new(1, 2, &[]);
    until(&cluster, &["the job has been waiting for members for ", "server 0, worker 0, worker 1"]);
    let mut command = Place::default().command("gradwire");
    command.args(["why", "--scheduler-http", "127.0.0.1:1"]);
    let mut why = Process::start("why", &mut command);
    assert_eq!(why.expect_end(PATIENCE), 69);
    assert!(why.log().text().contains("is the scheduler running"), "{}", why.log().text());
}
