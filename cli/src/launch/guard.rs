//! `gradwire guard`: a process that outlives a killed launcher for a moment and kills what it started. The
//! kernel's parent-death signal reaches the launched programs only; their own children, which share their
//! process groups, are reached from here.

use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The guard itself: learns process groups from stdin and kills them when stdin ends.
pub(crate) fn guard() -> Result<(), anyhow::Error> {
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match line.split_once(' ').map(|(word, pid)| (word, pid.parse::<i32>())) {
            Some(("add", Ok(pid))) => drop(groups.insert(pid)),
            Some(("del", Ok(pid))) => drop(groups.remove(&pid)),
            _ => {}
        }
    }
    for pid in groups.into_iter().filter_map(Pid::from_raw) {
        kill_group(pid, Signal::KILL);
    }
    Ok(())
}

/// Sends a signal to a process group, which may be gone already.
pub(super) fn kill_group(group: Pid, signal: Signal) {
    // ESRCH is what is hoped for, and nothing else can happen to a group of ours.
    let _ = kill_process_group(group, signal);
}

/// The launcher's end of its guard.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    stdin: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard in a process group of its own, out of reach of a terminal's Ctrl-C.
    pub(super) fn start() -> io::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let mut process = Command::new(std::env::current_exe()?)
            .arg("guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let stdin = process.stdin.take();
        Ok(Self { process, stdin })
    }

    /// What a launched process gets as its stdin until it has announced itself with [`announce`].
    pub(super) fn line(&self) -> io::Result<Stdio> {
        match &self.stdin {
            Some(stdin) => Ok(Stdio::from(stdin.as_fd().try_clone_to_owned()?)),
            None => Ok(Stdio::null()),
        }
    }

    /// A group that has been killed: its number may soon be someone else's.
    pub(super) fn remove(&mut self, group: Pid) {
        if let Some(stdin) = &mut self.stdin {
            // A guard that was killed is missed only if the launcher is killed too.
            let _ = stdin.write_all(format!("del {}\n", group.as_raw_nonzero()).as_bytes());
        }
    }
}

/// Tells the guard, on stdin, that this process's group is to be killed with the launcher. Said by the new
/// process itself before it becomes the program: if the launcher said it, it could die just before, when the
/// program may have children already.
pub(super) fn announce() -> io::Result<()> {
    let line: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    File::from(line).write_all(format!("add {}\n", std::process::id()).as_bytes())
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The end of its stdin lets it kill what is left, and end.
        self.stdin = None;
        let _ = self.process.wait();
    }
}
