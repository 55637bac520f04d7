//! The same weights to the last bit, whatever carries them: driver, number of servers, lanes, chunk size and
//! order of arrival must not show. Four workers, because two commute and prove nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::process::Process;

/// A few steps over tensors of 0.2 to 6.6 chunks of 4 KiB and less than one of 256 KiB.
const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "2", "--batch", "8", "--seed", "7"];
/// Delays each gradient by up to this, differently in every rank.
const JITTER: [&str; 2] = ["--jitter-us", "1500"];

/// What the last line of rank 0 says.
fn hash_in(text: &str) -> String {
    let line = text.lines().rfind(|line| line.contains("weights_sha256=")).expect("a result line");
    let hash = line.split("weights_sha256=").nth(1).and_then(|rest| rest.split(' ').next());
    hash.expect("a hash").to_owned()
}

/// The oracle: all workers' gradients in one process, no cluster.
fn reference(workers: u32) -> String {
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(TRAIN).args(["--reference", "--workers", &workers.to_string()]);
    let mut process = Process::start("reference", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    hash_in(&process.log().text())
}

/// What carries the data: the flags for it, and what the worker says then.
#[derive(Clone, Copy)]
struct Carrier(&'static [&'static str], &'static str);

const SHM: Carrier = Carrier(&["--transport", "shm"], "transport=shm");
/// What the tcp driver takes between processes of one host.
const UNIX: Carrier = Carrier(&["--transport", "tcp"], "; over unix socket");
const TCP: Carrier =
    Carrier(&["--transport", "tcp", "--set", "node.unix_sockets=false"], "; over tcp socket");

/// Trains on a cluster; everyone must end well.
fn trained(carrier: Carrier, servers: u32, workers: u32, scheduler: &[&str]) -> String {
    let Carrier(flags, words) = carrier;
    let mut cluster = Cluster::new(servers, workers, scheduler);
    cluster.add_servers(servers, flags);
    let args = [&TRAIN[..], &JITTER, flags].concat();
    cluster.add_trainers(workers, &args);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    let text = cluster.workers[0].log().text();
    assert!(text.contains(words), "{text}");
    hash_in(&text)
}

#[test]
fn the_reference_depends_on_seed_and_workers_and_on_nothing_else() {
    assert_eq!(reference(4), reference(4));
    assert_ne!(reference(4), reference(3), "the comparison below could not fail");
}

#[test]
fn one_two_and_three_servers_over_shm() {
    let expected = reference(4);
    for servers in 1..=3 {
        assert_eq!(trained(SHM, servers, 4, &[]), expected, "shm, {servers} servers");
    }
}

#[test]
fn one_two_and_three_servers_over_tcp() {
    let expected = reference(4);
    for (servers, carrier) in [(1, UNIX), (2, TCP), (3, UNIX)] {
        assert_eq!(trained(carrier, servers, 4, &[]), expected, "{}, {servers} servers", carrier.1);
    }
}

#[test]
fn two_workers_and_one() {
    for workers in 1..=2 {
        assert_eq!(trained(SHM, 2, workers, &[]), reference(workers), "shm, {workers} workers");
        assert_eq!(trained(TCP, 2, workers, &[]), reference(workers), "tcp, {workers} workers");
    }
}

#[test]
fn several_lanes() {
    let lanes = ["--set", "cluster.lanes=2"];
    let expected = reference(4);
    assert_eq!(trained(SHM, 2, 4, &lanes), expected, "shm, 2 lanes");
    assert_eq!(trained(UNIX, 1, 4, &lanes), expected, "tcp, 2 lanes");
}

#[test]
fn small_chunks_with_short_last_ones() {
    let chunks = ["--set", "cluster.chunk_bytes=4096"];
    let both = ["--set", "cluster.chunk_bytes=4096", "--set", "cluster.lanes=3"];
    let expected = reference(4);
    assert_eq!(trained(SHM, 2, 4, &chunks), expected, "shm, 4 KiB chunks");
    assert_eq!(trained(UNIX, 3, 4, &both), expected, "tcp, 4 KiB chunks, 3 lanes");
}
