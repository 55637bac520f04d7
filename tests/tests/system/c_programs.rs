//! Programs in C through the shared library: tensors, several clients, and a whole cluster in one process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::native::{Native, expect_all, free_port};
use gradwire_tests::rigs::process::Process;

/// Compiles a program and runs it as the worker process of a cluster of daemons.
fn in_cluster(source: &str, workers: u32, settings: &[(&str, &str)]) {
    in_cluster_of(source, workers, settings, &[]);
}

/// As [`in_cluster`], with words for the daemons' command lines.
fn in_cluster_of(source: &str, workers: u32, settings: &[(&str, &str)], args: &[&str]) {
    let (_native, mut cluster, program) = started(source, workers, settings, args);
    expect_all(&mut [program], PATIENCE);
    cluster.assert_no_panic();
}

fn started(
    source: &str,
    workers: u32,
    settings: &[(&str, &str)],
    args: &[&str],
) -> (Native, Cluster, Process) {
    let native = Native::new();
    let program = native.compile(source);
    let mut cluster = Cluster::new(1, workers, args);
    cluster.add_servers(1, args);
    let mut command = native.command(&program);
    let of = cluster.settings();
    command.env("GRADWIRE_SCHEDULER__HOST", &of.scheduler.host);
    command.env("GRADWIRE_SCHEDULER__PORT", of.scheduler.port.to_string());
    command.envs(settings.iter().copied());
    let process = Process::start(source, &mut command);
    (native, cluster, process)
}

#[test]
fn tensors_move_over_shared_memory() {
    in_cluster("c/transfer.c", 1, &[("GRADWIRE_TRANSPORT__SHM", "require")]);
}

#[test]
fn the_books_program_runs() {
    let (_native, mut cluster, mut program) = started("c/first.c", 1, &[], &[]);
    assert_eq!(program.expect_end(PATIENCE), 0, "{}", program.log().text());
    program.expect_line("worker 0 of 1: 10", PATIENCE);
    cluster.assert_no_panic();
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
fn rules_codecs_versions_and_rows_are_as_in_rust() {
    let place = tempfile::tempdir().unwrap();
    let checkpoints = format!("checkpoint.directory={}", place.path().display());
    // Rounds that end without somebody are not the same twice.
    let args = ["--set", "cluster.deterministic=false", "--set", &checkpoints];
    in_cluster_of("c/extras.c", 2, &[], &args);
    assert!(place.path().join(checkpoint::round_name(1)).join("manifest.json").exists());
}

#[test]
fn a_whole_cluster_in_one_process_answers_calls() {
    let native = Native::new();
    let mut command = native.command(&native.compile("c/calls.c"));
    command.arg(free_port().to_string());
    expect_all(&mut [Process::start("calls", &mut command)], PATIENCE);
}

/// What `make install-c` installs is enough to build and run a program, with the flags that its pkg-config file gives.
#[test]
fn what_is_installed_builds_programs() {
    let native = Native::new();
    let program = native.compile("c/calls.c");
    let here = gradwire_tests::rigs::programs::repository().join("bindings/c");
    let place = tempfile::tempdir().unwrap();
    let archive = std::fs::canonicalize(program.with_file_name("libgradwire.so")).unwrap();
    let archive = archive.with_file_name("libgradwire.a");
    let mut install = std::process::Command::new(here.join("install.sh"));
    let status =
        install.arg(&archive).arg(place.path()).arg("0.1.0").status().expect("install.sh can be started");
    assert!(status.success(), "install.sh failed");
    let library = place.path().join("lib/libgradwire.so.1");
    symbols_are_versioned(&library);
    let config = std::fs::read_to_string(place.path().join("lib/pkgconfig/gradwire.pc")).unwrap();
    assert!(
        !config.contains('@') && config.contains(&format!("prefix={}", place.path().display())),
        "{config}"
    );
    let flags = flags_of(&config, place.path());
    let built = place.path().join("calls");
    let mut compile = std::process::Command::new("cc");
    compile.arg(here.join("tests/c/calls.c")).args(flags).arg("-pthread").arg("-o").arg(&built);
    assert!(compile.status().unwrap().success(), "the installed files do not build a program");
    let mut command = native.command(&built);
    command.env("LD_LIBRARY_PATH", place.path().join("lib")).arg(free_port().to_string());
    expect_all(&mut [Process::start("installed", &mut command)], PATIENCE);
}

/// The flags that pkg-config makes of the file.
fn flags_of(config: &str, prefix: &std::path::Path) -> Vec<String> {
    let value =
        |name: &str| config.lines().find_map(|line| line.strip_prefix(name)).expect("a line").to_owned();
    let text = format!("{} {}", value("Cflags: "), value("Libs: "));
    let text = text.replace("${libdir}", "${prefix}/lib").replace("${includedir}", "${prefix}/include");
    let text = text.replace("${prefix}", &prefix.display().to_string());
    text.split_whitespace().map(str::to_owned).collect()
}

fn symbols_are_versioned(library: &std::path::Path) {
    let run = |tool: &str, arguments: &[&str]| {
        let output =
            std::process::Command::new(tool).args(arguments).arg(library).output().expect("binutils");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let symbols = run("nm", &["-D", "--defined-only", "--with-symbol-versions"]);
    let shown: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(shown.len() > 60, "{shown:?}");
    let is_ours = |name: &&&str| name.starts_with("gradwire_") && name.ends_with("@@GRADWIRE_1");
    let foreign: Vec<_> = shown.iter().filter(|name| **name != "GRADWIRE_1" && !is_ours(name)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(run("objdump", &["-p"]).contains("SONAME               libgradwire.so.1"));
}
