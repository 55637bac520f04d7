//! Payload checksums between real daemons: the same weights to the last bit with them and without, and where they
//! are on, the link says so. That they catch anything is shown in `sim_checksum`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};

const TRAIN: [&str; 8] = ["--layers", "64,40,10", "--epochs", "1", "--batch", "8", "--seed", "7"];
const ON: [&str; 2] = ["--set", "transport.payload_checksum=true"];
const WORDS: &str = ", payload checksums";

/// Trains with four workers on two servers; the hash of the weights, and what worker 0 said.
fn trained(flags: &[&str], workers_flags: &[&str]) -> (String, String) {
    let mut cluster = Cluster::new(2, 4, &[]);
    cluster.add_servers(2, flags);
    cluster.add_trainers(4, &[&TRAIN[..], flags, workers_flags].concat());
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    let text = cluster.workers[0].log().text();
    let line = text.lines().rfind(|line| line.contains("weights_sha256=")).expect("a result line");
    let hash = line.split("weights_sha256=").nth(1).and_then(|rest| rest.split(' ').next());
    (hash.expect("a hash").to_owned(), text)
}

#[test]
fn the_same_weights_with_checksums_and_without() {
    let tcp = ["--transport", "tcp", "--set", "node.unix_sockets=false"];
    let (expected, text) = trained(&tcp, &[]);
    assert!(!text.contains(WORDS), "off unless asked for: {text}");
    let (hash, text) = trained(&tcp, &ON);
    assert_eq!(hash, expected);
    assert!(text.contains(WORDS), "{text}");
    // On shared memory nothing is on the way.
    let (hash, text) = trained(&["--transport", "shm"], &ON);
    assert_eq!(hash, expected);
    assert!(!text.contains(WORDS), "{text}");
}
