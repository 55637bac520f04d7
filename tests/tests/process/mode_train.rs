//! The digits trainer in each mode: it learns over shared memory and TCP, and steps do not wait for a backup worker that is
//! stopped, who finds the training over when it goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::training::{Carrier, SHM, TCP};
use rustix::process::Signal;

const TRAIN: [&str; 6] = ["--layers", "64,64,10", "--epochs", "12", "--seed", "3"];

/// What rank 0 says of the test rows.
fn accuracy(text: &str) -> f64 {
    let line = text.lines().rfind(|line| line.contains("test_accuracy=")).expect("a result line");
    let number = line.split("test_accuracy=").nth(1).and_then(|rest| rest.split(' ').next());
    number.expect("a number").parse().expect("a number")
}

fn learns(Carrier(flags, words): Carrier, trainer: &[&str], scheduler: &[&str]) {
    let mut cluster = Cluster::new(2, 3, scheduler);
    cluster.add_servers(2, flags);
    cluster.add_trainers(3, &[&TRAIN[..], trainer, flags].concat());
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    let text = cluster.workers[0].log().text();
    assert!(text.contains(words), "{text}");
    let accuracy = accuracy(&text);
    assert!(accuracy >= 0.9, "{trainer:?}: {accuracy}");
}

const FREE: [&str; 2] = ["--set", "cluster.deterministic=false"];

#[test]
fn it_learns_in_each_mode_over_each_driver() {
    for carrier in [SHM, TCP] {
        learns(carrier, &["--mode", "async"], &[]);
        learns(carrier, &["--mode", "bounded:3"], &[]);
        learns(carrier, &["--mode", "sync", "--backup-workers", "1"], &FREE);
    }
}

#[test]
fn it_learns_in_the_cluster_s_mode() {
    learns(SHM, &["--momentum", "0"], &["--set", "cluster.mode=async"]);
}

#[test]
fn steps_go_on_without_a_stopped_backup_worker() {
    let patient = ["--set", "deadlines.silence_ms=60000", "--set", "cluster.backup_workers=1"];
    for Carrier(flags, _) in [SHM, TCP] {
        let mut cluster = Cluster::new(2, 3, &[&FREE[..], &patient].concat());
        cluster.add_servers(2, flags);
        cluster.add_trainers(3, &[&TRAIN[..], flags].concat());
        cluster.workers[0].expect_line("epoch  1/12", PATIENCE);
        cluster.workers[2].signal(Signal::STOP);
        for worker in 0..2 {
            assert_eq!(cluster.workers[worker].expect_end(PATIENCE), 0, "worker {worker} waits");
        }
        assert!(cluster.workers[2].is_running() && cluster.scheduler.is_running());
        cluster.workers[2].signal(Signal::CONT);
        for process in cluster.everyone() {
            assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
        }
        cluster.assert_no_panic();
        let accuracy = accuracy(&cluster.workers[0].log().text());
        assert!(accuracy >= 0.9, "{accuracy}");
    }
}
