//! What a process uses, from `/proc`: processor time, sleeps, resident memory, files.

use super::process::Process;
use std::time::Duration;

/// Processor time of all its threads that live.
#[must_use]
pub fn cpu_time(process: &Process) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).expect("a living process");
    let nanoseconds = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let used: u64 = tasks.flatten().filter_map(nanoseconds).sum();
    assert!(used > 0, "this kernel does not account for processor time (CONFIG_SCHED_INFO)");
    Duration::from_nanos(used)
}

/// How often its threads that live have gone to sleep: how often something woke them.
#[must_use]
pub fn sleeps(process: &Process) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).expect("a living process");
    let count = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    tasks.flatten().filter_map(count).sum()
}

/// Resident memory in bytes.
#[must_use]
pub fn resident_bytes(process: &Process) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("a living process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Open file descriptors.
#[must_use]
pub fn open_files(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.pid())).expect("a living process").count()
}
