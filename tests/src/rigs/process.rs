//! One real process in a group of its own: its output, its end within a deadline, its signals. When it is
//! dropped the whole group dies; in a failing test its last words are printed first.

use super::log::Log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal, test_kill_process_group,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Lines of each process's output that a failed test shows.
const TAIL_LINES: usize = 25;
/// How long the last output of an ended process may take to be read.
const DRAIN: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    group: Pid,
    log: Log,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts it; both outputs go to one log. `name` is for people: "server 1".
    pub fn start(name: impl Into<String>, command: &mut Command) -> Self {
        let name = name.into();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let second = writer.try_clone().expect("a pipe's end");
        command.stdin(Stdio::null()).stdout(writer).stderr(second).process_group(0);
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{name}: cannot start {command:?}: {error}"));
        // The command keeps its ends of the pipe; with them the log would never end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let group = Pid::from_child(&child);
        let pidfd = pidfd_open(group, PidfdFlags::empty()).expect("a file of the process just started");
        Self { name, child, pidfd, group, log: Log::collect(reader), ended: None }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, which is its group's too.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it says.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits for a line; fails the test when none comes.
    pub fn expect_line(&self, words: &str, within: Duration) -> String {
        match self.log.wait(words, within) {
            Some(line) => line,
            None => panic!("{} did not say {words:?} within {within:?}, or ended without", self.name),
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        if self.ended.is_none() && becomes_readable(self.pidfd.as_fd(), Instant::now() + within) {
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
        }
        self.ended
    }

    /// Waits for its end and gives what the shell would: the exit code, or 128 + the signal. Fails the test
    /// when the end does not come.
    pub fn expect_end(&mut self, within: Duration) -> i32 {
        let Some(status) = self.wait(within) else {
            panic!("{} did not end within {within:?}", self.name);
        };
        assert!(self.log.wait_end(DRAIN), "someone keeps the output of {} open", self.name);
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).expect("ended somehow")
    }

    /// Has it not ended yet?
    pub fn is_running(&mut self) -> bool {
        self.wait(Duration::ZERO).is_none()
    }

    /// What names this very process, whoever has its number later.
    pub(crate) fn handle(&self) -> OwnedFd {
        self.pidfd.try_clone().expect("a descriptor")
    }

    /// Sends it a signal; an ended process is left in peace.
    pub fn signal(&self, signal: Signal) {
        // The file names this very process, whoever has its number by now.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Kills it alone, hard.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Is anyone of its group alive, itself or a child of its?
    #[must_use]
    pub fn group_lives(&self) -> bool {
        test_kill_process_group(self.group).is_ok()
    }
}

/// Waits until a descriptor is readable.
pub(crate) fn becomes_readable(fd: std::os::fd::BorrowedFd<'_>, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("tests are shorter than centuries");
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if !left.is_zero() => {}
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let ended = self.wait(Duration::ZERO);
        if std::thread::panicking() {
            let end = ended.map_or("still running".to_owned(), |status| status.to_string());
            eprintln!("--- {} (process {}), {end}:\n{}", self.name, self.pid(), self.log.tail(TAIL_LINES));
        }
        // Its children too, whatever has become of itself; until it is waited for, the group is still its.
        let _ = kill_process_group(self.group, Signal::KILL);
        self.kill();
        let _ = self.child.wait();
    }
}
