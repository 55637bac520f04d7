//! One command in a process group of its own, its output in a log, killed whole at its deadline or when the
//! runner is told to stop. Must not interpret what it prints.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It ended by itself.
    Exited {
        /// Its exit code; 128 + N where signal N ended it.
        code: i32,
    },
    /// It was killed at its deadline.
    Deadline,
    /// It was killed because the runner is to stop.
    Stopped,
}

/// Stops all running commands, and all later ones. Cloned into the signal thread.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    groups: Arc<Mutex<BTreeSet<i32>>>,
}

impl Stop {
    /// Kills what runs now; nothing starts after it.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.groups().iter().for_each(|group| kill_group(*group));
    }

    fn groups(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Runs `command` with both outputs appended to `log`.
pub fn run(command: &mut Command, log: &File, limit: Duration, stop: &Stop) -> Result<Ending> {
    command.stdout(log.try_clone()?);
    run_with(command, log, limit, stop, |_| ())
}

/// As [`run`], with standard output handed to `read` on a thread of its own instead of the log.
pub fn run_reading<T: Send + 'static>(
    command: &mut Command,
    log: &File,
    limit: Duration,
    stop: &Stop,
    read: impl FnOnce(&mut dyn Read) -> T + Send + 'static,
) -> Result<(Ending, Option<T>)> {
    command.stdout(Stdio::piped());
    let (sender, receiver) = mpsc::channel();
    let ending = run_with(command, log, limit, stop, move |child| {
        let Some(mut output) = child.stdout.take() else { return };
        // Detached: a grandchild that keeps the pipe open must not keep the runner.
        thread::spawn(move || sender.send(read(&mut output)).ok());
    })?;
    let left = if ending == (Ending::Exited { code: 0 }) { limit } else { Duration::from_secs(5) };
    Ok((ending, receiver.recv_timeout(left).ok()))
}

fn run_with(
    command: &mut Command,
    log: &File,
    limit: Duration,
    stop: &Stop,
    started: impl FnOnce(&mut Child),
) -> Result<Ending> {
    if stop.is_asked() {
        return Ok(Ending::Stopped);
    }
    command.stdin(Stdio::null()).stderr(log.try_clone()?).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let group = i32::try_from(child.id()).context("process id")?;
    stop.groups().insert(group);
    if stop.is_asked() {
        kill_group(group);
    }
    started(&mut child);
    let ending = wait(child, group, Instant::now() + limit);
    stop.groups().remove(&group);
    // What the command left behind in its group goes too, however it ended.
    kill_group(group);
    Ok(match ending? {
        _ if stop.is_asked() => Ending::Stopped,
        Some(status) => Ending::Exited { code: exit_code(status) },
        None => Ending::Deadline,
    })
}

/// `None`: the deadline came first, and the group was killed.
fn wait(mut child: Child, group: i32, deadline: Instant) -> Result<Option<ExitStatus>> {
    let (sender, receiver) = mpsc::channel();
    let waiter = thread::spawn(move || sender.send(child.wait()).ok());
    let left = deadline.saturating_duration_since(Instant::now());
    let status = match receiver.recv_timeout(left) {
        Ok(status) => Some(status?),
        Err(_) => {
            kill_group(group);
            None
        }
    };
    waiter.join().ok();
    Ok(status)
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// A group that is gone already is no error.
fn kill_group(group: i32) {
    if group > 0
        && let Some(pid) = Pid::from_raw(group)
    {
        kill_process_group(pid, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn says_how_a_command_ended() {
        let log = tempfile::tempfile().unwrap();
        let run = |script| run(&mut shell(script), &log, Duration::from_secs(30), &Stop::default()).unwrap();
        assert_eq!(run("exit 0"), Ending::Exited { code: 0 });
        assert_eq!(run("exit 7"), Ending::Exited { code: 7 });
        assert_eq!(run("kill -ABRT $$"), Ending::Exited { code: 134 });
    }

    #[test]
    fn both_outputs_reach_the_log() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = file.reopen().unwrap();
        run(&mut shell("echo one; echo two >&2"), &log, Duration::from_secs(30), &Stop::default()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_hung_command_dies_with_its_children() {
        let log = tempfile::tempfile().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid_file.display());
        let ending = run(&mut shell(&script), &log, Duration::from_millis(500), &Stop::default()).unwrap();
        assert_eq!(ending, Ending::Deadline);
        let grandchild = std::fs::read_to_string(pid_file).unwrap();
        assert!(gone(grandchild.trim()), "{grandchild} lives on");
    }

    /// Killed or reaped; a killed orphan may stay a zombie until its new parent looks.
    fn gone(pid: &str) -> bool {
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
                Ok(stat) if !stat.contains(") Z") => thread::yield_now(),
                _ => return true,
            }
        }
        false
    }

    #[test]
    fn stopping_ends_the_running_command_and_later_ones() {
        let log = tempfile::tempfile().unwrap();
        let stop = Stop::default();
        let from_signal = stop.clone();
        let stopper = thread::spawn(move || {
            while from_signal.groups().is_empty() {
                thread::yield_now();
            }
            from_signal.stop();
        });
        assert_eq!(
            run(&mut shell("sleep 1000"), &log, Duration::from_secs(60), &stop).unwrap(),
            Ending::Stopped
        );
        stopper.join().unwrap();
        assert_eq!(run(&mut shell("exit 0"), &log, Duration::from_secs(60), &stop).unwrap(), Ending::Stopped);
    }

    #[test]
    fn a_reader_gets_all_of_standard_output() {
        let log = tempfile::tempfile().unwrap();
        let (ending, text) = run_reading(
            &mut shell("echo one; echo two >&2; echo three"),
            &log,
            Duration::from_secs(30),
            &Stop::default(),
            |output| {
                let mut text = String::new();
                output.read_to_string(&mut text).unwrap();
                text
            },
        )
        .unwrap();
        assert_eq!(ending, Ending::Exited { code: 0 });
        assert_eq!(text.as_deref(), Some("one\nthree\n"));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let log = tempfile::tempfile().unwrap();
        let error =
            run(&mut Command::new("/no/such"), &log, Duration::from_secs(1), &Stop::default()).unwrap_err();
        assert!(error.to_string().contains("cannot start"), "{error}");
    }
}
