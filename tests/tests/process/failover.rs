//! Servers that die, come and go while four workers train: nobody notices but by the logs, and the weights are those of an
//! undisturbed run, to the last bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::training::{Carrier, SHM, TCP, UNIX, hash_in};
use proto_common::error::ExitCode;
use rustix::process::Signal;
use std::sync::LazyLock;

const WORKERS: u32 = 4;
/// Long enough for something to happen in between.
const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "12", "--batch", "8", "--seed", "7"];
/// As if backward passes took so long, differently in every rank.
const JITTER: [&str; 2] = ["--jitter-us", "800"];
const COPIES: [&str; 4] = ["--set", "cluster.replicas=1", "--set", "cluster.lanes=2"];

static EXPECTED: LazyLock<String> = LazyLock::new(|| {
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(TRAIN).args(["--reference", "--workers", &WORKERS.to_string()]);
    let mut process = Process::start("reference", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    hash_in(&process.log().text())
});

/// A cluster in mid-training.
fn training(carrier: Carrier, servers: u32, scheduler: &[&str]) -> Cluster {
    let mut cluster =
        Cluster::new(servers, WORKERS, &[&["--set", "cluster.chunk_bytes=4096"], scheduler].concat());
    cluster.add_servers(servers, carrier.0);
    cluster.add_trainers(WORKERS, &[&TRAIN[..], &JITTER, carrier.0].concat());
    cluster.workers[0].expect_line("epoch  2/", PATIENCE);
    cluster
}

/// All workers end well, with the weights of an undisturbed run; so do servers, but those that were killed.
fn ends_as_undisturbed(cluster: &mut Cluster, killed: &[usize]) {
    for worker in &mut cluster.workers {
        assert_eq!(worker.expect_end(PATIENCE), 0, "{} failed", worker.name());
    }
    assert_eq!(hash_in(&cluster.workers[0].log().text()), *EXPECTED);
    for (rank, server) in cluster.servers.iter_mut().enumerate() {
        let code = server.expect_end(PATIENCE);
        assert!(code == 0 || killed.contains(&rank), "{} failed with {code}", server.name());
    }
    assert_eq!(cluster.scheduler.expect_end(PATIENCE), 0);
    cluster.assert_no_panic();
}

fn one_is_killed(carrier: Carrier, servers: u32) {
    let mut cluster = training(carrier, servers, &COPIES);
    cluster.servers[1].kill();
    cluster.servers[0].expect_line("server process has ended: closed its channels server=1", PATIENCE);
    assert!(cluster.workers[0].is_running(), "it was killed too late to prove anything");
    ends_as_undisturbed(&mut cluster, &[1]);
}

#[test]
fn one_of_two_servers_is_killed_over_shm() {
    one_is_killed(SHM, 2);
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn one_of_two_servers_is_killed_over_tcp() {
    one_is_killed(TCP, 2);
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn one_of_three_servers_is_killed_over_shm() {
    one_is_killed(SHM, 3);
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn one_of_three_servers_is_killed_over_unix_sockets() {
    one_is_killed(UNIX, 3);
}

/// One after the other, until nobody is left of those that the job began with.
#[test]
#[ignore = "slow tier: half a minute in all"]
fn spare_servers_take_over_from_all_that_die() {
    let mut cluster = training(SHM, 2, &COPIES);
    cluster.servers[1].kill();
    cluster.servers[0].expect_line("server process has ended: closed its channels server=1", PATIENCE);
    // It gets the free rank.
    let mut command = cluster.member("gradwire-server", &[], None, SHM.0);
    cluster.servers.push(Process::start("the spare server", &mut command));
    cluster.servers[0].expect_line("the replicas at a server are complete server=1", PATIENCE);
    // The scheduler has heard of that, and says so: a copy that it does not know of takes over nothing.
    cluster.servers[2].expect_line("copies=15 arriving=0", PATIENCE);
    cluster.servers[0].kill();
    cluster.servers[2].expect_line("server process has ended: closed its channels server=0", PATIENCE);
    assert!(cluster.workers[0].is_running(), "it was killed too late to prove anything");
    ends_as_undisturbed(&mut cluster, &[0, 1]);
}

#[test]
fn without_copies_a_dead_server_is_the_end() {
    let mut cluster = training(SHM, 2, &[]);
    cluster.servers[1].kill();
    for process in cluster.workers.iter_mut().chain(&mut cluster.servers[..1]) {
        assert_eq!(process.expect_end(PATIENCE), ExitCode::MemberDied as i32, "{}", process.name());
        assert!(process.log().text().contains("server 1 failed"), "{}", process.name());
    }
}

/// SIGTERM to a server: others take over what it has, with copies and without.
fn one_is_told_to_go(carrier: Carrier, scheduler: &[&str]) {
    let mut cluster = training(carrier, 3, scheduler);
    cluster.servers[1].signal(Signal::TERM);
    assert_eq!(cluster.servers[1].expect_end(PATIENCE), 0);
    assert!(
        cluster.servers[1].log().text().contains("other servers have taken over all chunks of this server")
    );
    assert!(cluster.workers[0].is_running(), "it went too late to prove anything");
    ends_as_undisturbed(&mut cluster, &[]);
}

#[test]
#[ignore = "slow tier: half a minute in all"]
fn a_server_that_is_told_to_go_is_emptied_first_with_copies() {
    one_is_told_to_go(SHM, &COPIES);
}

#[test]
fn a_server_that_is_told_to_go_is_emptied_first_without_copies() {
    one_is_told_to_go(TCP, &[]);
}
