//! Workers that die in mid-training and come again, where rounds wait for them: the weights are those of an undisturbed run, to
//! the last bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::training::hash_in;
use proto_common::ids::Role;
use rustix::process::Signal;
use std::time::Instant;

/// Long enough that a death in the third epoch is one in mid-training.
const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "8", "--batch", "8", "--seed", "7"];
const JITTER: [&str; 2] = ["--jitter-us", "1500"];
const WAIT: [&str; 4] = ["--set", "cluster.worker_loss=wait", "--set", "cluster.chunk_bytes=4096"];

fn reference(workers: u32) -> String {
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(TRAIN).args(["--reference", "--workers", &workers.to_string()]);
    let mut process = Process::start("reference", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    hash_in(&process.log().text())
}

/// Kills these workers, one after the other: each when the first one says that this epoch is over. Each is started again.
fn train_and_kill(transport: &str, kills: &[(usize, &str)]) -> String {
    let mut cluster = Cluster::new(2, 4, &WAIT);
    cluster.add_servers(2, &["--transport", transport]);
    let args = [&TRAIN[..], &JITTER, &["--transport", transport]].concat();
    cluster.add_trainers(4, &args);
    for (victim, epoch) in kills {
        cluster.workers[0].expect_line(&format!("epoch {epoch}/"), PATIENCE);
        cluster.workers[*victim].kill();
        let mut command = cluster.member("gradwire-worker", &["train"], Some(*victim), &args);
        // Its connections are closed then: the scheduler hears of that before it hears of the next life.
        assert!(cluster.workers[*victim].wait(PATIENCE).is_some());
        cluster.workers[*victim] = Process::start(format!("worker {victim}"), &mut command);
    }
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    hash_in(&cluster.workers[0].log().text())
}

#[test]
fn a_worker_that_is_killed_and_started_again_changes_no_bit() {
    let expected = reference(4);
    for transport in ["shm", "tcp"] {
        assert_eq!(train_and_kill(transport, &[(2, "3"), (1, "5")]), expected, "{transport}");
    }
}

#[test]
fn nor_does_the_first_one_which_sets_initial_values_and_tells_the_result() {
    assert_eq!(train_and_kill("shm", &[(0, "3")]), reference(4));
}

/// A server that is there for the scheduler and answers no worker yet, as one that is just started again: workers that join
/// meanwhile come in when it does.
#[test]
fn workers_that_join_while_a_server_does_not_answer_come_in_later() {
    let mut cluster = Cluster::new(1, 1, &["--set", "deadlines.silence_ms=30000"]);
    cluster.add_server(&[]);
    let deadline = Instant::now() + PATIENCE;
    while !cluster.status().members.iter().any(|one| one.role == Role::Server) {
        assert!(Instant::now() < deadline, "server 0 has not come");
    }
    cluster.servers[0].signal(Signal::STOP);
    cluster.add_trainer(&[&TRAIN[..], &["--set", "deadlines.connect_ms=500"]].concat());
    // The first connection fails, and one that follows it: nothing of this is the first one's.
    for _ in 0..2 {
        cluster.workers[0].expect_line("cannot connect to a server", PATIENCE);
    }
    cluster.servers[0].signal(Signal::CONT);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
}
