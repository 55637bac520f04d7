//! A scheduler that is killed in mid-training and started again: data goes on meanwhile, the next one rebuilds the cluster from
//! its members, and the weights are those of an undisturbed run. And a second one by mistake, which is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::job;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::training::hash_in;
use gradwire_worker::Client;
use proto_common::error::ExitCode;
use std::cell::Cell;

const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "8", "--batch", "8", "--seed", "7"];
const JITTER: [&str; 2] = ["--jitter-us", "1500"];

fn reference() -> String {
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(TRAIN).args(["--reference", "--workers", "4"]);
    let mut process = Process::start("reference", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    hash_in(&process.log().text())
}

/// The scheduler of a cluster once more, at the same port.
fn another(cluster: &Cluster, name: &str, args: &[&str]) -> Process {
    let mut command = cluster.place.command("gradwire-scheduler");
    command.args(["--servers", "2", "--workers", "4", "--scheduler", &cluster.control]).args(args);
    Process::start(name, &mut command)
}

fn trained_with_kills(transport: &str, epochs: &[&str]) -> String {
    let mut cluster = Cluster::new(2, 4, &[]);
    cluster.add_servers(2, &["--transport", transport]);
    cluster.add_trainers(4, &[&TRAIN[..], &JITTER, &["--transport", transport]].concat());
    for (life, epoch) in epochs.iter().enumerate() {
        cluster.workers[0].expect_line(&format!("epoch {epoch}/"), PATIENCE);
        cluster.scheduler.kill();
        assert!(cluster.scheduler.wait(PATIENCE).is_some());
        // It finds out by itself what it follows, and can be told.
        let told: &[&str] = if life % 2 == 0 { &[] } else { &["--resume"] };
        cluster.scheduler = another(&cluster, "scheduler", told);
        let line = cluster.scheduler.expect_line("new roster", PATIENCE);
        let term = format!("epoch={}.", life + 2);
        assert!(line.contains(&term) && line.contains("members=6"), "{line}");
    }
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    hash_in(&cluster.workers[0].log().text())
}

#[test]
fn killed_five_times_in_one_training_it_changes_no_bit() {
    assert_eq!(trained_with_kills("shm", &["2", "3", "4", "5", "6"]), reference());
}

/// Two servers and two workers that have finished a round; their scheduler was killed then.
fn without_scheduler(args: &[&str]) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(2, 2, args);
    cluster.add_servers(2, &[]);
    let clients = job::join(&cluster, 2, |_| ());
    job::declare(&clients, &[job::summed(1, 1000)]);
    job::round(&clients, 1);
    cluster.scheduler.kill();
    assert!(cluster.scheduler.wait(PATIENCE).is_some());
    (cluster, clients)
}

/// As the first one was started, but for `args`.
fn of_two(cluster: &Cluster, args: &[&str]) -> Process {
    let mut command = cluster.place.command("gradwire-scheduler");
    command.args(["--servers", "2", "--workers", "2", "--scheduler", &cluster.control]).args(args);
    Process::start("scheduler", &mut command)
}

#[test]
fn a_goodbye_that_no_scheduler_could_hear_is_said_to_the_next_one() {
    let stop = ["--set", "cluster.worker_loss=stop"];
    let (mut cluster, clients) = without_scheduler(&stop);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| clients.iter().for_each(Client::close));
        cluster.scheduler = of_two(&cluster, &stop);
        leaving.join().unwrap();
    });
    // To a scheduler that a goodbye did not reach, the worker would be dead, and the job with it.
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
}

/// Whatever it had told, and to whom: the job was over, or nearly.
#[test]
fn one_that_is_killed_while_workers_leave_spoils_no_end() {
    for (turn, left) in [1, 2, 1, 2, 1, 2].into_iter().enumerate() {
        let mut cluster = Cluster::new(2, 2, &[]);
        cluster.add_servers(2, &[]);
        let clients = job::join(&cluster, 2, |_| ());
        job::declare(&clients, &[job::summed(1, 1000)]);
        job::round(&clients, 1);
        let seen = Cell::new(0);
        let is_last = |line: &str| {
            seen.set(seen.get() + u32::from(line.contains("has left the job")));
            seen.get() == left
        };
        std::thread::scope(|scope| {
            clients.iter().for_each(|client| drop(scope.spawn(|| client.close())));
            assert!(cluster.scheduler.log().wait_for(is_last, PATIENCE).is_some());
            cluster.scheduler.kill();
            assert!(cluster.scheduler.wait(PATIENCE).is_some());
            cluster.scheduler = of_two(&cluster, &[]);
        });
        for server in &mut cluster.servers {
            assert_eq!(server.expect_end(PATIENCE), 0, "{} failed in turn {turn}", server.name());
        }
        // One to which nobody came waits for a job that is over.
        if cluster.scheduler.log().text().contains(" registered ") {
            assert_eq!(cluster.scheduler.expect_end(PATIENCE), 0, "in turn {turn}");
        }
        cluster.assert_no_panic();
    }
}

#[test]
fn one_with_other_settings_ends_with_78_and_the_job_goes_on_with_the_right_one() {
    let copies = ["--set", "cluster.replicas=1"];
    let (mut cluster, clients) = without_scheduler(&copies);
    let wrong: [(&[&str], &str); 2] = [
        (
            &["--set", "cluster.replicas=1", "--set", "cluster.chunk_bytes=65536"],
            "cluster.chunk_bytes = 65536",
        ),
        (&["--resume"], "cluster.replicas = 0"),
    ];
    for (args, words) in wrong {
        let mut other = of_two(&cluster, args);
        assert_eq!(other.expect_end(PATIENCE), ExitCode::Config as i32, "{words}");
        let text = other.log().text();
        assert!(text.contains(words) && text.contains("were started with"), "{text}");
    }
    cluster.scheduler = of_two(&cluster, &[&copies[..], &["--set", "deadlines.silence_ms=9000"]].concat());
    let line = cluster.scheduler.expect_line("new roster", PATIENCE);
    assert!(line.contains("members=4"), "{line}");
    job::round(&clients, 1);
    clients.iter().for_each(Client::close);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
}

#[test]
fn a_second_scheduler_is_refused_and_says_whose_the_port_is() {
    let cluster = Cluster::new(2, 4, &[]);
    let mut second = another(&cluster, "second scheduler", &[]);
    assert_eq!(second.expect_end(PATIENCE), ExitCode::Io as i32);
    let text = second.log().text();
    let words =
        format!("a scheduler of job 0 is already running there (pid {}, term 1", cluster.scheduler.pid());
    assert!(text.contains(&words) && text.contains("scheduler.port"), "{text}");
}
