//! Starting one process: in a group of its own, dying with the launcher, its output piped.

use super::guard::Guard;
use super::plan::ChildSpec;
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use rustix::process::Pid;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use tokio::process::{Child, Command};

/// A process that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) process: Child,
    /// Its process id, which is also its group's.
    pub(super) group: Pid,
}

pub(super) fn start(spec: &ChildSpec, guard: &Guard) -> Result<Running, Failure> {
    let launcher = std::env::current_exe().code(ExitCode::Io)?;
    let mut command = Command::new(launcher);
    command
        .args(["supervise-child", "--parent", &std::process::id().to_string(), "--"])
        .arg(&spec.program)
        .args(&spec.args)
        .stdin(guard.line().code(ExitCode::Io)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    for name in &spec.env_removed {
        command.env_remove(name);
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    let process = command
        .spawn()
        .with_context(|| format!("cannot start {} ({})", spec.id, spec.program.display()))
        .code(ExitCode::Io)?;
    let group = process.id().and_then(|id| Pid::from_raw(id as i32));
    let group = group.ok_or_else(|| {
        Failure::message(
            ExitCode::Internal,
            format!("{} has no process id although it was not waited for", spec.id),
        )
    })?;
    Ok(Running { process, group })
}

/// How a process ended, as an exit code and in words. A signal counts 128 more, as in a shell.
pub(super) fn ending(status: ExitStatus) -> (u8, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code as u8, format!("exit code {code}{}", meaning(code))),
        (None, Some(signal)) => (128u8.saturating_add(signal as u8), format!("killed by signal {signal}")),
        (None, None) => (1, "ended in an unknown way".into()),
    }
}

fn meaning(code: i32) -> String {
    let known = ExitCode::TABLE.iter().find(|(known, _)| *known as i32 == code && code > 2);
    known.map(|(_, text)| format!(" ({text})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_in_words() {
        assert_eq!(ending(ExitStatus::from_raw(71 << 8)).1, "exit code 71 (a member of the cluster died)");
        assert_eq!(ending(ExitStatus::from_raw(3 << 8)), (3, "exit code 3".into()));
        assert_eq!(ending(ExitStatus::from_raw(9)), (137, "killed by signal 9".into()));
    }
}
