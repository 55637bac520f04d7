//! Programs in C through the shared library: tensors, several clients, and a whole cluster in one process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::native::{Native, expect_all, free_port};
use gradwire_tests::rigs::process::Process;

/// Compiles a program and runs it as the worker process of a cluster of daemons.
fn in_cluster(source: &str, workers: u32, settings: &[(&str, &str)]) {
    let native = Native::new();
    let program = native.compile(source);
    let mut cluster = Cluster::new(1, workers, &[]);
    cluster.add_servers(1, &[]);
    let mut command = native.command(&program);
    let of = cluster.settings();
    command.env("GRADWIRE_SCHEDULER__HOST", &of.scheduler.host);
    command.env("GRADWIRE_SCHEDULER__PORT", of.scheduler.port.to_string());
    command.envs(settings.iter().copied());
    let mut running = [Process::start(source, &mut command)];
    expect_all(&mut running, PATIENCE);
    cluster.assert_no_panic();
}

#[test]
fn tensors_move_over_shared_memory() {
    in_cluster("c/transfer.c", 1, &[("GRADWIRE_TRANSPORT__SHM", "require")]);
}

#[test]
fn tensors_move_over_tcp() {
    in_cluster("c/transfer.c", 1, &[("GRADWIRE_TRANSPORT__SHM", "off")]);
}

#[test]
fn several_clients_in_one_process_meet_and_fail_apart() {
    in_cluster("c/several.c", 2, &[]);
}

#[test]
fn a_whole_cluster_in_one_process_answers_calls() {
    let native = Native::new();
    let mut command = native.command(&native.compile("c/calls.c"));
    command.arg(free_port().to_string());
    expect_all(&mut [Process::start("calls", &mut command)], PATIENCE);
}

#[test]
fn the_library_shows_its_own_functions_only_under_their_version() {
    let native = Native::new();
    let program = native.compile("c/calls.c");
    let library = program.with_file_name("libgradwire.so");
    let run = |tool: &str, arguments: &[&str]| {
        let output =
            std::process::Command::new(tool).args(arguments).arg(&library).output().expect("binutils");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let symbols = run("nm", &["-D", "--defined-only", "--with-symbol-versions"]);
    let shown: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(shown.len() > 40, "{shown:?}");
    let foreign: Vec<_> = shown
        .iter()
        .filter(|name| **name != "GRADWIRE_1")
        .filter(|name| !(name.starts_with("gradwire_") && name.ends_with("@@GRADWIRE_1")))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(run("objdump", &["-p"]).contains("libgradwire.so.1"), "its name has the version in it");
}
