//! Programs written for ps-lite, in C++ against our headers: every node is a process of theirs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::PATIENCE;
use gradwire_tests::rigs::native::{Native, expect_all};
use gradwire_tests::rigs::ports::free_port;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs;
use rustix::process::Signal;
use tempfile::TempDir;

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

#[test]
fn a_request_needs_memory_for_its_own_answer_whatever_another_had() {
    let pool = ("GRADWIRE_MEMORY__POOL_BYTES", "117440512");
    cluster("ps/mixed.cc", (1, 1, 1), &[&[SHM, pool], &[TCP, pool]]);
}

#[test]
fn keys_that_come_again_are_those_of_their_request() {
    cluster("ps/keys.cc", (2, 1, 1), &[&[SHM], &[TCP]]);
}

#[test]
fn a_request_that_failed_at_one_server_ends_when_no_server_has_it() {
    cluster("ps/partly.cc", (2, 1, 1), &[&[SHM], &[TCP]]);
}

#[test]
fn values_in_a_table_are_those_of_the_handler() {
    cluster("ps/table.cc", (2, 1, 1), &[&[SHM], &[TCP, ("PS_GRADWIRE_TABLE", "sum")]]);
}

#[test]
fn a_server_that_is_killed_takes_no_values_of_a_table_with_it() {
    let native = Native::new();
    let (program, scratch) = (native.compile("ps/killed.cc"), TempDir::new().unwrap());
    for victim in [0, 1] {
        let killed = scratch.path().join(format!("killed-{victim}"));
        let settings = [("GRADWIRE_CLUSTER__REPLICAS", "1"), ("TEST_KILLED", killed.to_str().unwrap())];
        let mut nodes = native.cluster(&program, (2, 1, 1), &settings);
        nodes[3].expect_line("running", PATIENCE);
        nodes[1 + victim].signal(Signal::KILL);
        std::fs::write(&killed, "").unwrap();
        expect_all(&mut nodes[3..], PATIENCE);
    }
}

/// The largest request has 8 MiB: what is pushed, and room for what comes back.
#[test]
fn a_full_pool_makes_callers_wait_and_fails_nothing() {
    let pool = ("GRADWIRE_MEMORY__POOL_BYTES", "14680064");
    let calls = ("GRADWIRE_MEMORY__CALL_BYTES", "8388608");
    cluster("ps/flood.cc", (1, 1, 1), &[&[SHM, pool, calls], &[TCP, pool, calls]]);
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

#[test]
fn whatever_handlers_throw_the_process_lives() {
    cluster("ps/thrown.cc", (1, 1, 1), &[&[("GRADWIRE_DEADLINES__OPERATION_MS", "5000")]]);
}

#[test]
fn the_oldest_unanswered_message_goes_first() {
    cluster("ps/late.cc", (1, 3, 3), &[&[]]);
}

#[test]
fn a_restarted_workers_requests_are_none_of_its_former_process() {
    let native = Native::new();
    let program = native.compile("ps/restarts.cc");
    let port = free_port().to_string();
    let settings = [
        ("DMLC_PS_ROOT_PORT", port.as_str()),
        ("GRADWIRE_CLUSTER__WORKER_LOSS", "wait"),
        ("GRADWIRE_DEADLINES__OPERATION_MS", "10000"),
        ("FORMER", "1"),
    ];
    let mut nodes = native.cluster(&program, (1, 1, 1), &settings);
    let mut former = nodes.pop().unwrap();
    expect_all(std::slice::from_mut(&mut former), PATIENCE);
    let mut command = native.command(&program);
    command.env("DMLC_ROLE", "worker").env("DMLC_NUM_SERVER", "1").env("DMLC_NUM_WORKER", "1");
    command.env("DMLC_PS_ROOT_URI", "127.0.0.1").envs(settings).env_remove("FORMER");
    nodes.push(Process::start("worker 0 again", &mut command));
    expect_all(&mut nodes, PATIENCE);
}

/// What the workers of the example say last, over this transport: accuracy and weights.
fn logistic(native: &Native, program: &std::path::Path, transport: &str) -> Vec<(f64, String)> {
    let mut command = native.command(&programs::program("gradwire"));
    command
        .args(["launch", "--every-role", "-n", "2", "-s", "2", "--transport", transport, "--"])
        .arg(program);
    let mut launched = Process::start("launch", &mut command);
    let code = launched.expect_end(PATIENCE);
    let text = launched.log().text();
    assert_eq!(code, 0, "{text}");
    let last = text.lines().filter_map(|line| {
        let (accuracy, weights) = line.split_once(" on unseen samples, weights ")?;
        let accuracy = accuracy.rsplit(' ').next()?.parse().expect("an accuracy");
        Some((accuracy, weights.trim().to_owned()))
    });
    last.collect()
}

#[test]
fn the_example_learns_and_all_workers_agree() {
    let native = Native::new();
    let program = native.compile_file(&programs::repository().join("examples/ps_logistic/ps_logistic.cc"));
    let (shm, tcp) = (logistic(&native, &program, "shm"), logistic(&native, &program, "tcp"));
    assert_eq!((shm.len(), tcp.len()), (2, 2), "{shm:?}, {tcp:?}");
    for (accuracy, weights) in shm.iter().chain(&tcp) {
        // Always the same weights: whoever asks, and however they travelled.
        assert!(*accuracy > 0.9 && *weights == shm[0].1, "{shm:?}, {tcp:?}");
    }
}
