//! Starts one process, in a process group of its own, with piped output; the kernel kills it if the launcher exits. For another
//! host the process is ssh. Its input carries the order (`remote`), and when that input closes, the program there is ended.

use super::guard::{Guard, kill_group};
use super::plan::ChildSpec;
use super::remote::{self, Reach};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// Time limit for sending a word to another host, in milliseconds.
const WORD_MS: u64 = 100;

/// A running process.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) process: Child,
    pub(super) handle: Handle,
}

/// Ends a process.
#[derive(Debug)]
pub(super) struct Handle {
    /// The process id, and the id of its process group.
    pub(super) group: Pid,
    /// The input of ssh, if the program is on another host.
    line: Option<ChildStdin>,
}

impl Handle {
    pub(super) fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// Signals the process group. On another host the program is killed when the input of ssh closes.
    pub(super) async fn signal(&mut self, signal: Signal) {
        if self.line.is_some() && signal == Signal::TERM {
            return self.say(remote::END_WORD).await;
        }
        self.line = None;
        kill_group(self.group, signal);
    }

    /// Sends the sign of life to another host.
    pub(super) async fn keep_alive(&mut self) {
        self.say(remote::ALIVE_WORD).await;
    }

    async fn say(&mut self, word: &str) {
        let Some(line) = &mut self.line else { return };
        // If this fails, `attend` ends its program after `SILENCE_MS`.
        let _ = timeout(Duration::from_millis(WORD_MS), line.write_all(format!("{word}\n").as_bytes())).await;
    }
}

/// Starts a process of this host.
pub(super) fn start(spec: &ChildSpec, guard: &Guard) -> Result<Running, Failure> {
    let launcher = std::env::current_exe().code(ExitCode::Io)?;
    let mut command = Command::new(launcher);
    command
        .args(["supervise-child", "--parent", &std::process::id().to_string(), "--"])
        .arg(&spec.program)
        .args(&spec.args)
        .stdin(guard.line().code(ExitCode::Io)?);
    if let Some(directory) = &spec.directory {
        command.current_dir(directory);
    }
    for name in &spec.env_removed {
        command.env_remove(name);
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    spawn(command, spec)
}

/// Starts ssh to the host of a process.
pub(super) async fn start_far(
    spec: &ChildSpec,
    reach: &Reach,
    env: &[(String, String)],
) -> Result<Running, Failure> {
    let order = reach.order(spec, env)?;
    let mut command = reach.command(spec);
    command.stdin(Stdio::piped());
    let mut running = spawn(command, spec)?;
    let mut line = running.process.stdin.take();
    if let Some(line) = &mut line {
        // ssh reads it once it is connected; the supervisor enforces the deadline of the start.
        let _ = timeout(Duration::from_millis(WORD_MS), line.write_all(&order)).await;
    }
    running.handle.line = line;
    Ok(running)
}

fn spawn(mut command: Command, spec: &ChildSpec) -> Result<Running, Failure> {
    let process = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| {
            let program = command.as_std().get_program();
            format!("cannot start {} ({})", spec.id, program.display())
        })
        .code(ExitCode::Io)?;
    let group = process.id().and_then(|id| Pid::from_raw(id as i32));
    let group = group.ok_or_else(|| {
        Failure::message(
            ExitCode::Internal,
            format!("{} has no process id although it was not waited for", spec.id),
        )
    })?;
    Ok(Running { process, handle: Handle { group, line: None } })
}

/// Waits for the end of a process. It is not waited for in the system's sense: until then it keeps its id, which is its group's, too. If
/// another process had got the id, a signal to the group would end that one.
pub(super) async fn ended(process: &mut Child) {
    let pid = process.id().and_then(|id| Pid::from_raw(id as i32));
    // Before the first look, so that no end is missed.
    let (Some(pid), Ok(mut ends)) = (pid, signal(SignalKind::child())) else {
        // `wait` returns the same again.
        return drop(process.wait().await);
    };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(None) = waitid(WaitId::Pid(pid), look) {
        ends.recv().await;
    }
}

/// How a process ended: its exit code (128 plus the signal, as in a shell) and a description.
pub(super) fn ending(status: ExitStatus) -> (u8, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code as u8, format!("exit code {code}{}", meaning(code))),
        (None, Some(signal)) => (128u8.saturating_add(signal as u8), format!("killed by signal {signal}")),
        (None, None) => (1, "ended without an exit code or a signal".into()),
    }
}

/// Advice for an error in the last lines of a process. `on` names its host if that is another one.
pub(super) fn advice(tail: &[String], on: &str) -> Option<String> {
    let module = tail.iter().find_map(|line| {
        let (_, rest) = line.split_once("ModuleNotFoundError: No module named ")?;
        Some(rest.trim().trim_matches('\''))
    })?;
    let place = if on.is_empty() { " of this process" } else { on };
    Some(format!(
        "the Python{place} has no module {module}: name the Python of the right environment by its path (such as \
         .venv/bin/python), install the module there, or pass PYTHONPATH with --env PYTHONPATH=DIR; ssh does not pass PATH or \
         VIRTUAL_ENV on"
    ))
}

fn meaning(code: i32) -> String {
    let known = ExitCode::TABLE.iter().find(|(known, _)| *known as i32 == code && code > 2);
    known.map(|(_, text)| format!(" ({text})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::test_kill_process_group;

    #[test]
    fn a_missing_module_has_advice() {
        let tail = ["Traceback".to_owned(), "ModuleNotFoundError: No module named 'gradwire'".to_owned()];
        let advised = advice(&tail, " on n1").unwrap();
        assert!(advised.starts_with("the Python on n1 has no module gradwire: "), "{advised}");
        assert!(advised.contains("--env") && advice(&tail[..1], "").is_none());
    }

    #[tokio::test]
    async fn an_ended_process_keeps_its_group_until_it_is_waited_for() {
        let mut process = Command::new("true").process_group(0).spawn().unwrap();
        let group = Pid::from_raw(process.id().unwrap() as i32).unwrap();
        ended(&mut process).await;
        assert!(test_kill_process_group(group).is_ok(), "nobody else can have this id yet");
        assert!(process.wait().await.unwrap().success());
        assert!(test_kill_process_group(group).is_err());
    }

    #[test]
    fn endings_in_words() {
        assert_eq!(ending(ExitStatus::from_raw(71 << 8)).1, "exit code 71 (a member of the cluster failed)");
        assert_eq!(ending(ExitStatus::from_raw(3 << 8)), (3, "exit code 3".into()));
        assert_eq!(ending(ExitStatus::from_raw(9)), (137, "killed by signal 9".into()));
    }
}
