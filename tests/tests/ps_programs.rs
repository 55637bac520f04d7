//! Programs written for ps-lite, in C++ against our headers: every node is a process of theirs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::PATIENCE;
use gradwire_tests::rigs::native::{Native, expect_all};
use gradwire_tests::rigs::process::Process;

const SHM: (&str, &str) = ("GRADWIRE_TRANSPORT__SHM", "require");
const TCP: (&str, &str) = ("GRADWIRE_TRANSPORT__SHM", "off");

/// Runs a program as every node of a cluster, with each of these settings.
fn cluster(source: &str, nodes: (u32, u32, u32), settings: &[&[(&str, &str)]]) {
    let native = Native::new();
    let program = native.compile(source);
    for settings in settings {
        expect_all(&mut native.cluster(&program, nodes, settings), PATIENCE);
    }
}

#[test]
fn arrays_share_and_checks_throw() {
    let native = Native::new();
    let mut command = native.command(&native.compile("ps/arrays.cc"));
    expect_all(&mut [Process::start("arrays", &mut command)], PATIENCE);
}

#[test]
fn pairs_move_over_shared_memory_and_tcp() {
    cluster("ps/pairs.cc", (2, 2, 2), &[&[SHM], &[TCP]]);
}

/// Also where the launcher gives the process a rank, and where it counts machines.
#[test]
fn customers_of_one_process_are_workers_of_their_own() {
    cluster("ps/customers.cc", (2, 2, 1), &[&[], &[("DMLC_WORKER_ID", "0")]]);
    cluster("ps/customers.cc", (2, 1, 1), &[&[("BYTEPS_LOCAL_SIZE", "2")]]);
}

#[test]
fn failed_requests_never_read_as_ones_that_went_well() {
    let native = Native::new();
    let mut command = native.command(&native.compile("ps/ledger.cc"));
    expect_all(&mut [Process::start("ledger", &mut command)], PATIENCE);
}

#[test]
fn what_ends_badly_ends() {
    cluster("ps/endings.cc", (1, 2, 2), &[&[("GRADWIRE_DEADLINES__OPERATION_MS", "1500")]]);
}

#[test]
fn messages_reach_everyone_over_the_scheduler() {
    cluster("ps/simple.cc", (2, 2, 2), &[&[]]);
}
