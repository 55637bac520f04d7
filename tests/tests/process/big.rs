//! A tensor above 4 GiB under a key above 2^32, for real: every element comes back from where it was put. Takes
//! much memory, so for the slow tier.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, Place};
use gradwire_tests::rigs::programs::build_release;
use std::time::Duration;

const KEY: u64 = (1 << 40) + 5;
/// 4 GiB and a bit that is no whole chunk.
const ELEMENTS: u64 = (1 << 30) + (1 << 20) + 123;
/// Two buffers of weights at the server, an accumulator (untouched with one worker), one buffer at the worker.
const NEEDED_GIB: u64 = 15;
const LIMIT: Duration = Duration::from_secs(600);

fn available_gib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 20
}

fn moves_a_big_tensor(transport: &str) {
    let available = available_gib();
    assert!(available >= NEEDED_GIB, "needs {NEEDED_GIB} GiB of available memory, there are {available}");
    let place = Place { programs: Some(build_release()), prefix: Vec::new() };
    let mut cluster = Cluster::at(&place, "127.0.0.1", 1, 1, &["--set", "deadlines.silence_ms=60000"]);
    cluster.add_servers(1, &["--transport", transport]);
    let words = ["big", &KEY.to_string(), &ELEMENTS.to_string()];
    let variable = format!("GRADWIRE_TRANSPORT__{}", transport.to_uppercase());
    let settings = [(variable.as_str(), "require"), ("GRADWIRE_DEADLINES__OPERATION_MS", "300000")];
    cluster.add_test_worker(&words, &settings);
    cluster.workers[0].expect_line("every element is where it belongs", LIMIT);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(LIMIT), 0, "{}", process.name());
    }
    cluster.assert_no_panic();
}

#[test]
#[ignore = "slow tier: needs 15 GiB of memory"]
fn above_four_gib_over_shm() {
    moves_a_big_tensor("shm");
}

#[test]
#[ignore = "slow tier: needs 15 GiB of memory"]
fn above_four_gib_over_tcp() {
    moves_a_big_tensor("tcp");
}
