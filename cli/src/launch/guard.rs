//! What ends launched processes if the launcher is killed. `gradwire supervise-child` is the start of each of them: it sets the
//! kernel's parent-death signal, checks that the launcher still runs, registers with the guard, and becomes the program.
//! `gradwire guard` is a process that kills everything that the launcher has started if the launcher itself is killed. The kernel's
//! parent-death signal ends only the launched programs. Their children share their process groups, and the guard kills those.

use anyhow::Context as _;
use clap::Args;
use daemon::exit::WithCode as _;
use proto_common::error::ExitCode;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Runs the guard: it reads process groups from stdin, and kills them when stdin ends.
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

/// Sends a signal to a process group, which may have ended already.
pub(super) fn kill_group(group: Pid, signal: Signal) {
    // The only possible error is ESRCH: the group has ended.
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

    /// The stdin of a launched process until it calls [`announce`].
    pub(super) fn line(&self) -> io::Result<Stdio> {
        match &self.stdin {
            Some(stdin) => Ok(Stdio::from(stdin.as_fd().try_clone_to_owned()?)),
            None => Ok(Stdio::null()),
        }
    }

    /// Forgets a killed group. If it stayed, the guard could kill another group with the same number later.
    pub(super) fn remove(&mut self, group: Pid) {
        if let Some(stdin) = &mut self.stdin {
            // A missing guard matters only if the launcher is killed too.
            let _ = stdin.write_all(format!("del {}\n", group.as_raw_nonzero()).as_bytes());
        }
    }
}

/// Registers this process group with the guard, over stdin. The new process calls this before it becomes the program. If the
/// launcher registered it instead and were killed just before, children of the program could survive.
pub(super) fn announce() -> io::Result<()> {
    let line: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    File::from(line).write_all(format!("add {}\n", std::process::id()).as_bytes())
}

impl Drop for Guard {
    fn drop(&mut self) {
        // When its stdin closes, the guard kills the remaining groups and exits.
        self.stdin = None;
        let _ = self.process.wait();
    }
}

/// The program to become, and the expected parent.
#[derive(Args, Debug)]
pub(crate) struct SuperviseArgs {
    /// The launcher's process id.
    #[arg(long)]
    parent: u32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub(crate) fn supervise_child(args: &SuperviseArgs) -> anyhow::Error {
    match become_program(args) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn become_program(args: &SuperviseArgs) -> Result<std::convert::Infallible, anyhow::Error> {
    daemon::process::watch_parent(Some(args.parent))?;
    let (program, rest) = args.program.split_first().context("no program is given")?;
    announce().context("cannot reach the launcher's guard").code(ExitCode::Io)?;
    // The program must not hold the guard's pipe open, so its stdin is replaced first.
    let error = Command::new(program).args(rest).stdin(Stdio::null()).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display())).code(ExitCode::Io)?
}
