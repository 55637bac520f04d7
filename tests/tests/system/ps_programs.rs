//! Programs written for ps-lite, in C++ against our headers: every node is a process of theirs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::PATIENCE;
use gradwire_tests::rigs::native::{Native, expect_all};
use gradwire_tests::rigs::ports::free_port;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs;
use rustix::process::Signal;
use std::cell::Cell;
use std::path::Path;
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
fn values_are_those_that_were_sent_whatever_their_handler_does_with_them() {
    let scratch = TempDir::new().unwrap();
    for transport in [SHM, TCP] {
        let written = scratch.path().join(transport.1);
        let deadline = ("GRADWIRE_DEADLINES__OPERATION_MS", "1000");
        let settings = [transport, deadline, ("TEST_WRITTEN", written.to_str().unwrap())];
        cluster("ps/lent.cc", (1, 1, 1), &[&settings]);
    }
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
    let again = settings.into_iter().filter(|(name, _)| *name != "FORMER").collect::<Vec<_>>();
    nodes.push(native.node(&program, ("worker", 1), (1, 1), &again));
    expect_all(&mut nodes, PATIENCE);
}

#[test]
fn states_of_handlers_are_saved_and_loaded_and_garbage_is_refused() {
    cluster("ps/states.cc", (1, 1, 1), &[&[]]);
}

/// The lines with these words so far.
fn lines(process: &Process, words: &str) -> usize {
    process.log().text().lines().filter(|line| line.contains(words)).count()
}

/// Waits until so many lines have these words.
fn expect_lines(process: &Process, words: &str, count: usize) {
    let seen = Cell::new(0);
    let is_last = |line: &str| {
        seen.set(seen.get() + usize::from(line.contains(words)));
        seen.get() >= count
    };
    let found = process.log().wait_for(is_last, PATIENCE);
    assert!(found.is_some(), "{} said {words:?} {} times and not {count} times", process.name(), seen.get());
}

/// Each worker makes a round that begins after this call, and gets all answers. Each of the processes shows the lines of so many
/// workers.
fn expect_rounds(shown: &[&Process], workers: usize, directory: &Path, mark: u32) {
    std::fs::write(directory.join(format!("mark-{mark}")), "").unwrap();
    for process in shown {
        expect_lines(process, &format!("passed mark {mark}."), workers);
    }
}

/// Each of the two servers keeps the journal of the other one. So the other one is killed only when the new process has its journal:
/// it has saved its state for the new process, and has answered requests since, which it does not do before the journal has them.
#[test]
fn servers_that_are_killed_twenty_times_lose_nothing_of_their_handlers() {
    let native = Native::new();
    let (program, scratch) = (native.compile("ps/survives.cc"), TempDir::new().unwrap());
    let port = free_port().to_string();
    let settings = [
        ("DMLC_PS_ROOT_PORT", port.as_str()),
        ("GRADWIRE_CLUSTER__REPLICAS", "1"),
        ("TEST_DIRECTORY", scratch.path().to_str().unwrap()),
    ];
    let mut nodes = native.cluster(&program, (2, 2, 2), &settings);
    let mut servers: Vec<_> = nodes.drain(1..3).collect();
    for server in &servers {
        server.expect_line("is the first process", PATIENCE);
        server.expect_line("saved its state", PATIENCE);
    }
    for kill in 1..=20 {
        expect_rounds(&[&nodes[1], &nodes[2]], 1, scratch.path(), kill);
        let (victim, other) = if kill % 2 == 0 { (0, 1) } else { (1, 0) };
        servers[victim].kill();
        assert_eq!(servers[victim].expect_end(PATIENCE), 128 + 9);
        let saved = lines(&servers[other], "saved its state");
        servers[victim] = native.node(&program, ("server", kill + 1), (2, 2), &settings);
        servers[victim].expect_line("replaces another process", PATIENCE);
        servers[victim].expect_line("loaded its state", PATIENCE);
        expect_lines(&servers[other], "saved its state", saved + 1);
    }
    expect_rounds(&[&nodes[1], &nodes[2]], 1, scratch.path(), 21);
    std::fs::write(scratch.path().join("end"), "").unwrap();
    expect_all(&mut nodes, PATIENCE);
    expect_all(&mut servers, PATIENCE);
}

#[test]
fn handlers_of_servers_that_the_launcher_restarts_continue() {
    let native = Native::new();
    let (program, scratch) = (native.compile("ps/survives.cc"), TempDir::new().unwrap());
    let mut command = native.command(&programs::program("gradwire"));
    command.args(["launch", "--every-role", "-n", "2", "-s", "2", "--restart=9"]);
    command.args(["--set", "cluster.replicas=1", "--"]).arg(&program);
    command.env("TEST_DIRECTORY", scratch.path());
    let mut launched = Process::start("launch", &mut command);
    for rank in 0..2 {
        launched.expect_line(&format!("server {rank} is the first process"), PATIENCE);
        launched.expect_line(&format!("server {rank} saved its state"), PATIENCE);
    }
    for kill in 1..=4 {
        expect_rounds(&[&launched], 2, scratch.path(), kill);
        let (victim, other) = (kill % 2, (kill + 1) % 2);
        let replaces = format!("server {victim} replaces another process");
        let saves = format!("server {other} saved its state");
        let (replaced, saved) = (lines(&launched, &replaces), lines(&launched, &saves));
        std::fs::write(scratch.path().join(format!("kill-{victim}")), "").unwrap();
        expect_lines(&launched, &replaces, replaced + 1);
        expect_lines(&launched, &saves, saved + 1);
    }
    expect_rounds(&[&launched], 2, scratch.path(), 5);
    std::fs::write(scratch.path().join("end"), "").unwrap();
    let code = launched.expect_end(PATIENCE);
    let text = launched.log().text();
    assert_eq!(code, 0, "{text}");
    assert_eq!(lines(&launched, "everything holds"), 5, "{text}");
    assert_eq!(lines(&launched, "killed by signal 9; restarting it"), 4, "{text}");
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
