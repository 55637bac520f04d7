//! Programs in C through the shared library: tensors, several clients, and a whole cluster in one process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::launching::done;
use gradwire_tests::rigs::native::{Native, expect_all};
use gradwire_tests::rigs::ports::free_port;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::repository;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

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
    assert!(
        place
            .path()
            .join(checkpoint::name_of_job(0, &checkpoint::round_name(1)))
            .join("manifest.json")
            .exists()
    );
}

#[test]
fn a_whole_cluster_in_one_process_answers_calls() {
    whole_cluster("c/calls.c");
}

#[test]
fn a_program_registers_its_own_update_rule() {
    whole_cluster("c/own.c");
}

/// Runs a program that is a whole cluster in one process.
fn whole_cluster(program: &str) {
    let native = Native::new();
    let mut command = native.command(&native.compile(program));
    command.arg(free_port().to_string());
    expect_all(&mut [Process::start(program, &mut command)], PATIENCE);
}

/// A header of a foreign ps-lite that nobody may include or overwrite.
const FOREIGN: &str = "#error this is the header of another ps-lite\n";

/// What `make install-c` installs, from this build, below a prefix that has another ps-lite already.
struct Installed {
    native: Native,
    place: TempDir,
    /// Below the prefix, as Debian has it.
    libraries: String,
}

impl Installed {
    fn new() -> Self {
        let (native, place) = (Native::new(), tempfile::tempdir().unwrap());
        let libraries = format!("lib/{}", done(Command::new("cc").arg("-print-multiarch")).trim());
        let prefix = place.path().join("prefix");
        let foreign = prefix.join("include/ps");
        fs::create_dir_all(&foreign).unwrap();
        fs::write(foreign.join("ps.h"), FOREIGN).unwrap();
        let archive = native.library().with_file_name("libgradwire.a");
        let mut install = Command::new(sources().join("install.sh"));
        done(install.arg(archive).arg(prefix).arg("0.1.0").env("LIBDIR", &libraries));
        assert_eq!(fs::read_to_string(foreign.join("ps.h")).unwrap(), FOREIGN);
        Self { native, place, libraries }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.place.path().join(below)
    }

    fn library(&self, below: &str) -> PathBuf {
        self.path("prefix").join(&self.libraries).join(below)
    }

    /// Runs a program that is a whole cluster in one process.
    fn expect_runs(&self, program: &Path) {
        let mut command = self.native.command(program);
        command.env("LD_LIBRARY_PATH", self.library("")).arg(free_port().to_string());
        expect_all(&mut [Process::start("installed", &mut command)], PATIENCE);
    }
}

fn sources() -> PathBuf {
    repository().join("bindings/c")
}

#[test]
fn what_is_installed_builds_programs_through_pkg_config() {
    let installed = Installed::new();
    symbols_are_versioned(&installed.library("libgradwire.so.1"));
    let flags = |module: &str| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", installed.library("pkgconfig"));
        let flags = done(command.args(["--cflags", "--libs", module]));
        flags.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let program = installed.path("calls");
    let mut compile = Command::new("cc");
    compile.arg(sources().join("tests/c/calls.c")).args(flags("gradwire")).arg("-pthread");
    done(compile.arg("-o").arg(&program));
    installed.expect_runs(&program);
    let mut compile = Command::new("c++");
    compile.args(["-std=c++11", "-Wall", "-Wextra", "-Werror"]).arg(sources().join("tests/ps/arrays.cc"));
    done(compile.args(flags("gradwire-ps")).arg("-o").arg(installed.path("arrays")));
}

/// Also after the prefix was moved, and with the shared and the static library.
#[test]
fn a_cmake_project_finds_what_is_installed() {
    let installed = Installed::new();
    let (moved, build) = (installed.path("moved"), installed.path("build"));
    fs::rename(installed.path("prefix"), &moved).unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(sources().join("tests/cmake")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
    done(configure.arg(format!("-DSOURCES={}", sources().display())));
    done(Command::new("cmake").arg("--build").arg(&build));
    for program in ["shared", "static"] {
        let mut command = installed.native.command(&build.join(program));
        command.env_remove("LD_LIBRARY_PATH").arg(free_port().to_string());
        expect_all(&mut [Process::start(program, &mut command)], PATIENCE);
    }
    assert!(build.join("ps_arrays").is_file());
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
