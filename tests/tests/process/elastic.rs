//! Members that come and go for good while others train: servers from one to three and back to two, with the weights of an
//! undisturbed run; workers that nobody waits for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::job::{declare, join, summed};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::training::{Carrier, SHM, TCP, hash_in};
use proto_common::error::ExitCode;
use proto_common::ids::{Rank, Role};
use rustix::process::Signal;
use std::time::Instant;

const WORKERS: u32 = 4;
const NETWORK: [&str; 6] = ["--layers", "64,105,33,10", "--batch", "8", "--seed", "7"];
const JITTER: [&str; 2] = ["--jitter-us", "800"];
const CHUNKS: [&str; 4] = ["--set", "cluster.chunk_bytes=4096", "--set", "cluster.lanes=2"];

fn reference(epochs: &str) -> String {
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(NETWORK).args(["--epochs", epochs, "--reference"]);
    command.args(["--workers", &WORKERS.to_string()]);
    let mut process = Process::start("reference", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    hash_in(&process.log().text())
}

/// A cluster in mid-training.
fn training(carrier: Carrier, servers: u32, epochs: &str, scheduler: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(servers, WORKERS, &[&CHUNKS[..], scheduler].concat());
    cluster.add_servers(servers, carrier.0);
    cluster.add_trainers(WORKERS, &trainer(carrier, epochs));
    cluster.workers[0].expect_line("epoch  2/", PATIENCE);
    cluster
}

fn trainer(carrier: Carrier, epochs: &str) -> Vec<&str> {
    [&NETWORK[..], &["--epochs", epochs], &JITTER, carrier.0].concat()
}

/// A server comes, and takes over shards of others.
fn one_comes(cluster: &mut Cluster, carrier: Carrier) {
    let mut command = cluster.member("gradwire-server", &[], None, carrier.0);
    let name = format!("server {}, which came", cluster.servers.len());
    let server = Process::start(name, &mut command);
    let serves = |line: &str| line.contains("chunks of this server") && !line.contains("served=0 ");
    assert!(server.log().wait_for(serves, PATIENCE).is_some(), "it got nothing:\n{}", server.log().text());
    cluster.servers.push(server);
}

/// A server goes by SIGTERM: others take over what it has.
fn one_goes(cluster: &mut Cluster, server: usize) {
    cluster.servers[server].signal(Signal::TERM);
    assert_eq!(cluster.servers[server].expect_end(PATIENCE), 0);
    assert!(
        cluster.servers[server]
            .log()
            .text()
            .contains("other servers have taken over all chunks of this server")
    );
}

/// The only other server stands still. What nobody takes over is waited for while it moves, and it does not.
#[test]
fn a_server_whose_chunks_do_not_leave_gives_up_and_names_what_it_waits_for() {
    let mut cluster = Cluster::new(2, 1, &["--set", "deadlines.silence_ms=60000"]);
    cluster.add_servers(2, &["--set", "deadlines.operation_ms=300"]);
    let clients = join(&cluster, 1, |_| ());
    declare(&clients, &[summed(1, 4), summed(2, 4)]);
    cluster.servers[1].signal(Signal::STOP);
    cluster.servers[0].signal(Signal::TERM);
    assert_eq!(cluster.servers[0].expect_end(PATIENCE), ExitCode::Deadline as i32);
    cluster.servers[1].signal(Signal::CONT);
    let text = cluster.servers[0].log().text();
    assert_eq!(text.matches("draining makes no progress").count(), 1, "{text}");
    assert!(text.contains("draining this server timed out: for 600 ms"), "{text}");
    assert!(text.contains("it waits for server 1 to receive"), "{text}");
}

fn all_end_well(cluster: &mut Cluster) -> String {
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    cluster.workers[0].log().text()
}

/// From one server to three, and to two: the first one goes, which had everything.
fn grows_and_shrinks(carrier: Carrier) {
    let mut cluster = training(carrier, 1, "30", &["--set", "cluster.servers_max=3"]);
    one_comes(&mut cluster, carrier);
    one_comes(&mut cluster, carrier);
    one_goes(&mut cluster, 0);
    assert!(cluster.workers[0].is_running(), "it went too late to prove anything");
    assert_eq!(hash_in(&all_end_well(&mut cluster)), reference("30"));
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn one_server_becomes_three_and_then_two_over_shm() {
    grows_and_shrinks(SHM);
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn one_server_becomes_three_and_then_two_over_tcp() {
    grows_and_shrinks(TCP);
}

/// With copies: from two to three, and back, while copies move as well.
#[test]
#[ignore = "slow tier: half a minute in all"]
fn servers_come_and_go_with_copies() {
    let copies = ["--set", "cluster.servers_max=3", "--set", "cluster.replicas=1"];
    let mut cluster = training(SHM, 2, "30", &copies);
    one_comes(&mut cluster, SHM);
    one_goes(&mut cluster, 0);
    one_comes(&mut cluster, SHM);
    one_goes(&mut cluster, 1);
    assert!(cluster.workers[0].is_running(), "it went too late to prove anything");
    assert_eq!(hash_in(&all_end_well(&mut cluster)), reference("30"));
}

const CONTINUE: [&str; 2] = ["--set", "cluster.worker_loss=continue"];

/// One dies for good: the others train on without it, and nobody waits.
fn one_worker_dies(carrier: Carrier, scheduler: &[&str]) -> Cluster {
    let cluster = training(carrier, 2, "12", &[&CONTINUE[..], scheduler].concat());
    cluster.workers[2].kill();
    cluster.scheduler.expect_line("members=5", PATIENCE);
    cluster.workers[0].expect_line("epoch  5/", PATIENCE);
    cluster
}

/// What rank 0 says at the end must be a network that has learned something.
fn has_learned(said: &str) {
    let accuracy = said.split("test_accuracy=").nth(1).and_then(|rest| rest.split(' ').next());
    let accuracy: f64 = accuracy.expect("a result").parse().unwrap();
    assert!(accuracy > 0.8, "{accuracy}: {said}");
}

#[test]
fn training_goes_on_without_a_worker_that_died() {
    let mut cluster = one_worker_dies(SHM, &[]);
    cluster.workers.remove(2);
    has_learned(&all_end_well(&mut cluster));
}

/// It comes again in between, and ends with the others.
fn it_comes_again(carrier: Carrier, scheduler: &[&str]) {
    let mut cluster = one_worker_dies(carrier, scheduler);
    let mut command = cluster.member("gradwire-worker", &["train"], Some(2), &trainer(carrier, "12"));
    cluster.workers[2] = Process::start("worker 2, again", &mut command);
    // Its own round is told from when it has finished one.
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        let status = cluster.status();
        let again = status.members.iter().find(|m| m.role == Role::Worker && m.rank == Rank(2));
        if again.is_some_and(|member| member.round > 0) {
            break status;
        }
        assert!(Instant::now() < deadline, "worker 2 has not finished a round: {status:?}");
    };
    assert!(cluster.workers[0].is_running(), "it came too late to prove anything");
    assert_eq!((status.recovery.lost, status.recovery.joined), (1, 1), "{status:?}");
    has_learned(&all_end_well(&mut cluster));
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn a_worker_that_died_comes_in_between_over_shm() {
    it_comes_again(SHM, &[]);
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn a_worker_that_died_comes_in_between_over_tcp_with_copies() {
    it_comes_again(TCP, &["--set", "cluster.replicas=1"]);
}
