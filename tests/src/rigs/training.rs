//! Short trainings on real clusters, to compare what they end with: driver, number of servers, lanes, chunk size and order
//! of arrival must not show.

use super::cluster::{Cluster, PATIENCE, Place};
use super::process::Process;

/// A few steps over tensors of 0.2 to 6.6 chunks of 4 KiB and less than one of 256 KiB.
pub const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "2", "--batch", "8", "--seed", "7"];
/// The same in a few large steps, for processors that are emulated.
pub const BRIEF: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "1", "--batch", "64", "--seed", "7"];
/// Delays each gradient by up to this, differently in every rank.
const JITTER: [&str; 2] = ["--jitter-us", "1500"];

/// What the last line of rank 0 says.
#[must_use]
pub fn hash_in(text: &str) -> String {
    let line = text.lines().rfind(|line| line.contains("weights_sha256=")).expect("a result line");
    let hash = line.split("weights_sha256=").nth(1).and_then(|rest| rest.split(' ').next());
    hash.expect("a hash").to_owned()
}

/// The oracle: all workers' gradients in one process, no cluster.
#[must_use]
pub fn reference(workers: u32) -> String {
    reference_of(workers, &[])
}

/// As [`reference()`], with further words for the trainer.
#[must_use]
pub fn reference_of(workers: u32, train: &[&str]) -> String {
    reference_by(workers, &[&TRAIN[..], train].concat())
}

/// The same, with all of the trainer's words.
#[must_use]
pub fn reference_by(workers: u32, train: &[&str]) -> String {
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(train).args(["--reference", "--workers", &workers.to_string()]);
    let mut process = Process::start("reference", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    hash_in(&process.log().text())
}

/// What carries the data: the flags for it, and what the worker says then.
#[derive(Clone, Copy, Debug)]
pub struct Carrier(pub &'static [&'static str], pub &'static str);

/// Shared memory.
pub const SHM: Carrier = Carrier(&["--transport", "shm"], "transport=shm");
/// What the tcp driver takes between processes of one host.
pub const UNIX: Carrier = Carrier(&["--transport", "tcp"], "; over unix socket");
/// TCP proper.
pub const TCP: Carrier =
    Carrier(&["--transport", "tcp", "--set", "node.unix_sockets=false"], "; over tcp socket");
/// A RDMA device.
pub const VERBS: Carrier = Carrier(&["--transport", "verbs"], "transport=verbs");

/// Trains on a cluster; everyone must end well.
#[must_use]
pub fn trained(carrier: Carrier, servers: u32, workers: u32, scheduler: &[&str]) -> String {
    trained_by(&[], carrier, servers, workers, scheduler)
}

/// As [`trained`], with flags for the trainers alone.
#[must_use]
pub fn trained_by(
    trainer: &[&str],
    carrier: Carrier,
    servers: u32,
    workers: u32,
    scheduler: &[&str],
) -> String {
    trained_on(&[&TRAIN[..], trainer].concat(), carrier, servers, workers, scheduler)
}

/// As [`trained`], with all of the trainer's words: see [`reference_by`].
#[must_use]
pub fn trained_on(
    words_of_trainers: &[&str],
    carrier: Carrier,
    servers: u32,
    workers: u32,
    scheduler: &[&str],
) -> String {
    let Carrier(flags, words) = carrier;
    train(words_of_trainers, flags, words, (servers, workers), scheduler)
}

/// As [`trained`], with any flags, and words that the first worker says.
#[must_use]
pub fn trained_with(flags: &[&str], words: &str, servers: u32, workers: u32, scheduler: &[&str]) -> String {
    train(&TRAIN, flags, words, (servers, workers), scheduler)
}

fn train(
    trainer: &[&str],
    flags: &[&str],
    words: &str,
    (servers, workers): (u32, u32),
    scheduler: &[&str],
) -> String {
    let mut cluster = Cluster::new(servers, workers, scheduler);
    cluster.add_servers(servers, flags);
    let args = [trainer, &JITTER, flags].concat();
    cluster.add_trainers(workers, &args);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    let text = cluster.workers[0].log().text();
    assert!(text.contains(words), "{text}");
    hash_in(&text)
}
