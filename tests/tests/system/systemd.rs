//! The units of `deploy/systemd` under a real systemd, in a machine that it has booted: what they are told, trainings to their end,
//! deaths and hangs that the manager mends while the job goes on, and a stop in order.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::PATIENCE;
use gradwire_tests::rigs::machine::Machine;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::repository;
use gradwire_tests::rigs::training::{TRAIN, hash_in, reference};
use std::fs;
use std::path::Path;
use std::process::Command;

const SCHEDULER: &str = "gradwire-scheduler.service";
const SERVERS: [&str; 2] = ["gradwire-server@0.service", "gradwire-server@1.service"];
const WORKERS: [&str; 2] = ["gradwire-worker@0.service", "gradwire-worker@1.service"];
const TARGET: &str = "gradwire.target";
/// Longer than any test: it is stopped.
const LONG: [&str; 8] =
    ["--layers", "64,105,33,10", "--epochs", "1000000", "--batch", "8", "--jitter-us", "500"];
/// PTRACE_SEIZE, then PTRACE_INTERRUPT until the thread (the first number) stops in poll, ppoll or epoll_wait.
const HOLDER: &str = r"
import ctypes, os, signal, sys, time
thread, process = map(int, sys.argv[1:])
trace = ctypes.CDLL(None, use_errno=True).ptrace
SEIZE, INTERRUPT, CONTINUE, WALL = 0x4206, 0x4207, 7, 0x40000000
WAITS = {'x86_64': ('7', '271', '232', '281'), 'aarch64': ('73', '22')}[os.uname().machine]
held = trace(SEIZE, thread, 0, 0) == 0
while held:
    held = trace(INTERRUPT, thread, 0, 0) == 0
    os.waitpid(thread, WALL)
    with open(f'/proc/{process}/task/{thread}/syscall') as call:
        if call.read().split()[0] in WAITS:
            break
    held = trace(CONTINUE, thread, 0, 0) == 0
    time.sleep(0.001)
print('held' if held else f'not held: {os.strerror(ctypes.get_errno())}', flush=True)
signal.pause()
";

fn all() -> Vec<&'static str> {
    [&[SCHEDULER][..], &SERVERS, &WORKERS].concat()
}

/// A machine whose workers train with these words, and units with these drop-ins.
fn machine(train: &[&str], drop_ins: &[(&str, &str)]) -> Machine {
    Machine::boot(|root| {
        fs::copy(repository().join("examples/digits/digits.csv"), root.join("srv/digits.csv")).unwrap();
        let words = format!("TRAIN=--data /srv/digits.csv {}\n", train.join(" "));
        fs::write(root.join("etc/gradwire/worker.environment"), words).unwrap();
        drop_ins.iter().for_each(|(unit, text)| drop_in(root, unit, text));
    })
}

fn drop_in(root: &Path, unit: &str, text: &str) {
    let directory = root.join(format!("etc/systemd/system/{unit}.d"));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("test.conf"), format!("[Service]\n{text}\n")).unwrap();
}

fn start(machine: &Machine) {
    machine.run(&[&["systemctl", "enable", TARGET][..], &all()].concat());
    // Returns when all have said that they are ready.
    machine.run(&["systemctl", "start", TARGET]);
}

/// How each of them has ended.
fn assert_ended(machine: &Machine, units: &[&str], codes: &[&str]) {
    for unit in units {
        machine.until_shown(unit, "ActiveState", |state| state == "inactive" || state == "failed");
        assert_eq!(machine.show(unit, "Result"), "success", "{unit}");
        let code = machine.show(unit, "ExecMainStatus");
        assert!(codes.contains(&code.as_str()), "{unit} ended with {code}");
    }
}

#[test]
fn units_are_sound_and_open_to_little() {
    let machine = machine(&TRAIN, &[]);
    let names: Vec<String> = [TARGET, SCHEDULER, SERVERS[0], WORKERS[0]].map(str::to_owned).to_vec();
    let mut verify = machine.command(&["systemd-analyze", "verify", "--man=no", "--recursive-errors=no"]);
    let output = verify.args(&names).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
    // systemd's own measure, from 0 (nothing is open) to 10.
    for (unit, most) in [(SCHEDULER, 15), (SERVERS[0], 17), (WORKERS[0], 21)] {
        let threshold = format!("--threshold={most}");
        let mut security = machine.command(&["systemd-analyze", "security", "--no-pager", &threshold, unit]);
        let output = security.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let exposure = said.lines().find(|line| line.contains("Overall exposure")).unwrap_or_default();
        assert!(output.status.success(), "{unit}: {exposure}\n{said}");
        println!("{unit}: {}", exposure.trim());
    }
    assert_eq!(machine.show(SERVERS[0], "LimitMEMLOCK"), "infinity");
    // Everybody may look at settings, and nobody but root writes them; keys and variables are for the daemons' group.
    for (path, rights) in [
        ("/etc/gradwire", "root:root 755"),
        ("/etc/gradwire/tls", "root:gradwire 750"),
        ("/etc/gradwire/worker.environment", "root:gradwire 640"),
    ] {
        assert_eq!(machine.run(&["stat", "-c", "%U:%G %a", path]).trim(), rights, "{path}");
    }
    machine.power_off();
}

#[test]
fn a_job_trains_to_its_end() {
    let machine = machine(&TRAIN, &[]);
    machine.run(&[&["systemctl", "enable", TARGET][..], &all()].concat());
    machine.run(&["systemctl", "start", SCHEDULER]);
    machine.until_shown(SCHEDULER, "StatusText", |text| {
        text == "waiting for members: 0 of 2 servers, 0 of 2 workers"
    });
    let status = machine.run(&["systemctl", "status", "--no-pager", SCHEDULER]);
    assert!(status.contains("Status: \"waiting for members: "), "{status}");
    machine.run(&["systemctl", "start", TARGET]);
    let line = machine.journal.expect_line("weights_sha256=", PATIENCE);
    assert_eq!(hash_in(&line), reference(2));
    // Nobody has asked them to.
    assert_ended(&machine, &all(), &["0"]);
    all().iter().for_each(|unit| assert_eq!(machine.show(unit, "NRestarts"), "0", "{unit}"));
    machine.power_off();
}

#[test]
fn settings_that_are_wrong_are_not_tried_again() {
    let machine = machine(&TRAIN, &[]);
    fs::write(machine.path("etc/gradwire/scheduler.toml"), "[cluster]\nserver = 2\n").unwrap();
    let started = machine.command(&["systemctl", "start", SCHEDULER]).output().unwrap();
    assert!(!started.status.success());
    machine.until_shown(SCHEDULER, "ActiveState", |state| state == "failed");
    assert_eq!(machine.show(SCHEDULER, "ExecMainStatus"), "78");
    assert_eq!(machine.show(SCHEDULER, "NRestarts"), "0");
    machine.journal.expect_line("cluster.server", PATIENCE);
    machine.power_off();
}

/// What may be pinned is what the unit says; a limit that is low is told with what mends it.
#[test]
fn a_low_limit_of_pinned_memory_is_told() {
    let doctor =
        "[Service]\nType=oneshot\nUser=gradwire\nLimitMEMLOCK=4M\nExecStart=/usr/bin/gradwire doctor\n";
    let machine =
        Machine::boot(|root| fs::write(root.join("etc/systemd/system/doctor.service"), doctor).unwrap());
    let _ = machine.command(&["systemctl", "start", "doctor.service"]).output().unwrap();
    let line = machine.journal.expect_line("may be pinned", PATIENCE);
    assert!(line.contains("4.0 MiB"), "{line}");
    machine.run(&["systemctl", "start", "--no-block", SERVERS[0]]);
    machine.until_shown(SERVERS[0], "StatusText", |text| text.starts_with("looking for the scheduler"));
    // No limit, or the highest that may be set here: raising it is a right that not every host gives away.
    let pinned = |pid: u32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
        line.split_whitespace().rev().skip(1).take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let (own, most) = (pinned(machine.pid(SERVERS[0])), pinned(machine.init())[0].clone());
    assert!(own == ["unlimited", "unlimited"] || own == [most.clone(), most], "{own:?}");
    machine.power_off();
}

/// Holds one thread of a process as a debugger does: it takes no step any more, and the others do. Until it is dropped.
///
/// The thread is held where it waits in the kernel. If it were held at any step, it could own the lock of its mailbox: the
/// thread that reports silence would then wait for that lock, and only systemd's watchdog would notice.
fn hold_thread(pid: u32, name: &str) -> Process {
    let thread = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .find(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default().trim() == name);
    let thread =
        thread.unwrap_or_else(|| panic!("{pid} has no thread {name}")).file_name().into_string().unwrap();
    let mut command = Command::new("python3");
    let holder = Process::start("debugger", command.args(["-c", HOLDER, &thread, &pid.to_string()]));
    assert_eq!(holder.expect_line("held", PATIENCE), "held");
    holder
}

/// All are there, and every chunk has its copy.
fn is_whole(status: &str) -> bool {
    status.starts_with("running: 2 of 2 servers, 2 of 2 workers") && !status.contains("without a replica")
}

fn round_in(status: &str) -> u64 {
    let word = status.split("round ").nth(1).and_then(|rest| rest.split(',').next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The job is whole, and rounds go on.
fn assert_goes_on(machine: &Machine) {
    let status =
        machine.until_shown(SCHEDULER, "StatusText", |status| is_whole(status) && round_in(status) > 0);
    let before = round_in(&status);
    machine.until_shown(SCHEDULER, "StatusText", |status| is_whole(status) && round_in(status) > before);
}

#[test]
fn what_hangs_or_dies_is_mended_while_the_job_goes_on_and_a_stop_ends_all_well() {
    // As shipped, but for the time: it allows for a minute of making memory.
    let soon = "WatchdogSec=3\nRestartSec=100ms";
    let units = ["gradwire-scheduler.service", "gradwire-server@.service", "gradwire-worker@.service"];
    let machine = machine(&LONG, &units.map(|unit| (unit, soon)));
    start(&machine);
    assert_goes_on(&machine);
    // Without a flag: this host's service.
    let told = machine.run(&["gradwire", "status"]);
    assert!(told.starts_with("job 1  running"), "{told}");
    for (unit, program) in [
        (SCHEDULER, "gradwire-scheduler["),
        (SERVERS[0], "gradwire-server["),
        (WORKERS[0], "gradwire-worker["),
    ] {
        machine.run(&["systemctl", "reload", unit]);
        let is_it = |line: &str| line.contains(program) && line.contains("SIGHUP: no setting has changed");
        assert!(
            machine.journal.log().wait_for(is_it, PATIENCE).is_some(),
            "{unit} has not read its settings"
        );
    }

    // One data thread hangs, and everything else of the process is well.
    let held = hold_thread(machine.pid(SERVERS[0]), "gradwire-data-0");
    machine.journal.expect_line("data threads do not answer", PATIENCE);
    machine.journal.expect_line("gradwire-server@0.service: Watchdog timeout", PATIENCE);
    drop(held);
    machine.until_shown(SERVERS[0], "NRestarts", |restarts| restarts == "1");
    assert_goes_on(&machine);

    machine.run(&["systemctl", "kill", "--kill-whom=main", "--signal=KILL", SERVERS[1]]);
    machine.until_shown(SERVERS[1], "NRestarts", |restarts| restarts == "1");
    assert_goes_on(&machine);

    // A whole process that is stopped.
    machine.run(&["systemctl", "kill", "--kill-whom=main", "--signal=STOP", WORKERS[1]]);
    machine.journal.expect_line("gradwire-worker@1.service: Watchdog timeout", PATIENCE);
    machine.until_shown(WORKERS[1], "NRestarts", |restarts| restarts == "1");
    assert_goes_on(&machine);

    machine.run(&["systemctl", "kill", "--kill-whom=main", "--signal=KILL", SCHEDULER]);
    machine.until_shown(SCHEDULER, "NRestarts", |restarts| restarts == "1");
    assert_goes_on(&machine);

    let text = machine.show(WORKERS[0], "StatusText");
    assert!(text.starts_with("worker 0: round ") && text.contains("2 servers connected"), "{text}");
    machine.run(&["systemctl", "stop", TARGET]);
    assert_ended(&machine, &[&[SCHEDULER][..], &SERVERS].concat(), &["0"]);
    assert_ended(&machine, &WORKERS, &["143"]);
    machine.journal.expect_line("Stopped target", PATIENCE);
    machine.power_off();
}
