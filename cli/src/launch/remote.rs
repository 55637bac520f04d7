//! Access to other hosts: the command line of ssh, the order for `attend` at its other end, and the copy of the working directory.
//! Must not start processes of the cluster.

use super::args::LaunchArgs;
use super::hosts::Host;
use super::plan::remote_directory;
use super::plan::{ChildSpec, Plan};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use proto_common::ids::MemberId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Tells `attend` to end its program.
pub(super) const END_WORD: &str = "end";
/// Sign of life, sent to `attend` at this interval. After `SILENCE_MS` without one, `attend` ends its program.
pub(super) const ALIVE_WORD: &str = "alive";
pub(super) const ALIVE_WORD_MS: u64 = 5_000;
pub(super) const SILENCE_MS: u64 = 30_000;
/// The first line of `attend` on stderr: its program has started.
pub(super) const STARTED_LINE: &[u8] = b"gradwire attend: started";
/// Time limit for the copy to one host, in seconds.
const SYNC_SECONDS: u64 = 600;
/// Interval of ssh's keep-alive messages in seconds, and how many may remain unanswered.
const ALIVE_SECONDS: u64 = 5;
const ALIVE_MISSES: u64 = 3;
/// Largest order in bytes: it fits into a pipe before ssh reads it.
const ORDER_BYTES_MAX: usize = 60 << 10;
/// Variables that are forwarded to other hosts.
const PREFIXES: [&str; 7] = ["GRADWIRE_", "DMLC_", "PS_", "BYTEPS_", "MXNET_", "OMP_", "KMP_"];
const NAMES: [&str; 10] = [
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "RUST_BACKTRACE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT",
    "AWS_ALLOW_HTTP",
];

/// What to run on the other host. It is one line of JSON on stdin, so that command lines contain no secrets.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: MemberId,
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) env: Vec<(String, String)>,
    pub(super) env_removed: Vec<String>,
    /// Where Gradwire's programs are.
    pub(super) bin_dir: PathBuf,
}

/// How hosts are reached.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// ssh, and its first arguments.
    ssh: Vec<String>,
    bin_dir: PathBuf,
    gradwire: PathBuf,
    /// How long a program may take to be started.
    pub(super) start_timeout: Duration,
    sync_to: Option<String>,
}

impl Reach {
    pub(super) fn new(args: &LaunchArgs) -> Result<Self, Failure> {
        let ssh: Vec<String> = args.ssh.split_whitespace().map(str::to_owned).collect();
        if ssh.is_empty() {
            return Err(Failure::message(ExitCode::Usage, "--ssh is empty; name a program, such as ssh"));
        }
        let bin_dir = remote_directory(args)?;
        let gradwire = match &args.remote_bin_dir {
            Some(_) => bin_dir.join("gradwire"),
            None => std::env::current_exe().code(ExitCode::Io)?,
        };
        let start_timeout = Duration::from_secs(args.start_timeout);
        Ok(Self { ssh, bin_dir, gradwire, start_timeout, sync_to: args.sync_dst_dir.clone() })
    }

    /// Arguments of ssh before the host: no prompts, and a limit for every wait.
    fn options(&self, host: &Host) -> Vec<String> {
        let mut options = self.ssh.clone();
        options.push("-T".into());
        for option in [
            "BatchMode=yes".to_owned(),
            format!("ConnectTimeout={}", self.start_timeout.as_secs()),
            format!("ServerAliveInterval={ALIVE_SECONDS}"),
            format!("ServerAliveCountMax={ALIVE_MISSES}"),
        ] {
            options.extend(["-o".to_owned(), option]);
        }
        options.extend(host.ssh_port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
        options.extend(host.user.iter().flat_map(|user| ["-l".to_owned(), user.clone()]));
        options
    }

    pub(super) fn command(&self, spec: &ChildSpec) -> Command {
        let host = spec.host.as_ref();
        let mut words = host.map(|host| self.options(host)).unwrap_or_default();
        words.extend(host.map(|host| host.name.clone()));
        words.push(format!("exec {} attend", quoted(&self.gradwire.to_string_lossy())));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// The first line for `attend`.
    pub(super) fn order(&self, spec: &ChildSpec, env: &[(String, String)]) -> Result<Vec<u8>, Failure> {
        let own = std::env::current_dir().code(ExitCode::Io)?;
        let mut all: Vec<(String, String)> =
            env.iter().filter(|(name, _)| goes_along(name)).cloned().collect();
        all.retain(|(name, _)| !spec.env_removed.contains(name));
        all.extend(spec.env.iter().cloned());
        let order = Order {
            id: spec.id,
            program: text(spec.program.as_os_str())?,
            args: spec.args.iter().map(|arg| text(arg)).collect::<Result<_, _>>()?,
            directory: spec.directory.clone().unwrap_or(own),
            env: all,
            env_removed: spec.env_removed.clone(),
            bin_dir: self.bin_dir.clone(),
        };
        let mut line = serde_json::to_vec(&order).code(ExitCode::Internal)?;
        line.push(b'\n');
        if line.len() > ORDER_BYTES_MAX {
            let text = format!(
                "the arguments and variables of {} have {} bytes, more than the limit of {ORDER_BYTES_MAX}; pass them in a file",
                spec.id,
                line.len()
            );
            return Err(Failure::message(ExitCode::Usage, text));
        }
        Ok(line)
    }

    /// Copies the working directory to every host of the plan, where that is asked for.
    pub(super) async fn sync(&self, plan: &Plan) -> Result<(), Failure> {
        let Some(directory) = &self.sync_to else { return Ok(()) };
        let hosts: BTreeSet<&Host> = plan.seats.iter().filter_map(|seat| seat.host.as_ref()).collect();
        for host in hosts {
            self.sync_one(host, directory).await?;
        }
        Ok(())
    }

    async fn sync_one(&self, host: &Host, directory: &str) -> Result<(), Failure> {
        let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
        let shell: Vec<String> = self.options(host).iter().map(|word| quoted(word)).collect();
        let mut command = Command::new("rsync");
        command.args(["--archive", "--compress", "--rsh", &shell.join(" "), "--", "./"]);
        command.arg(format!("{name}:{}/", directory.trim_end_matches('/')));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let failed = |reason: String| {
            let fix = "copy the directory yourself, or check that rsync is installed there and the parent directory exists";
            Failure::message(ExitCode::Io, format!("cannot copy to {name}:{directory}: {reason}; {fix}"))
        };
        let ended = timeout(Duration::from_secs(SYNC_SECONDS), command.output()).await;
        let output = ended.map_err(|_| {
            let text = format!(
                "copying to {name}:{directory} timed out after {SYNC_SECONDS} s; copy fewer files, or copy them before the launch"
            );
            Failure::message(ExitCode::Deadline, text)
        })?;
        let output = output.context("rsync").map_err(|error| failed(format!("{error:#}")))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.trim().lines().next_back().unwrap_or_default().to_owned();
                Err(failed(format!("rsync: {}, {last}", output.status)))
            }
        }
    }
}

fn goes_along(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

fn text(given: &OsStr) -> Result<String, Failure> {
    given.to_str().map(str::to_owned).ok_or_else(|| {
        let text =
            format!("{} is not valid UTF-8, which is required for other hosts; rename it", given.display());
        Failure::message(ExitCode::Usage, text)
    })
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Why a program on another host could not be started, from how ssh ended.
pub(super) fn why_not_started(host: &Host, code: u8) -> (ExitCode, String) {
    match code {
        255 => {
            let fix = "check the name and the port, and that ssh logs in there without a password prompt";
            (ExitCode::Io, format!("ssh cannot reach {host} (exit code 255); {fix}"))
        }
        126 | 127 => {
            let fix = "install it at the same path as here, or name its directory with --remote-bin-dir";
            (ExitCode::Usage, format!("gradwire was not found on {host} (exit code {code}); {fix}"))
        }
        code => {
            let known = ExitCode::TABLE.iter().find(|(known, _)| *known as u8 == code && code != 0);
            let code_of = known.map_or(ExitCode::Failure, |(known, _)| *known);
            (code_of, format!("cannot start its program on {host} (exit code {code})"))
        }
    }
}

/// Describes how a program ended that had started. ssh exits with 255 if the connection was lost.
pub(super) fn words_of_line(host: &Host, code: u8, words: String) -> String {
    match code {
        255 => format!(
            "{words}: the ssh connection to {host} was lost, unless the program itself exited with 255"
        ),
        _ => words,
    }
}

/// Does the program's name contain a directory?
pub(super) fn has_directory(program: &str) -> bool {
    Path::new(program).components().count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{Rank, Role};

    fn host() -> Host {
        Host { name: "n1".into(), user: Some("me".into()), ssh_port: Some(2222), slots: None }
    }

    fn reach() -> Reach {
        Reach {
            ssh: vec!["ssh".into(), "-x".into()],
            bin_dir: "/opt/bin".into(),
            gradwire: "/opt/it's/gradwire".into(),
            start_timeout: Duration::from_secs(7),
            sync_to: None,
        }
    }

    fn spec() -> ChildSpec {
        ChildSpec {
            id: MemberId { role: Role::Worker, rank: Rank(1) },
            host: Some(host()),
            program: "python3".into(),
            args: vec!["a b".into()],
            directory: Some("/there".into()),
            env: vec![("DMLC_ROLE".into(), "worker".into())],
            env_removed: vec!["DMLC_RANK".into()],
        }
    }

    #[test]
    fn ssh_asks_no_question_and_waits_for_a_while() {
        let command = reach().command(&spec());
        let words: Vec<String> =
            command.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = words.join(" ");
        assert!(
            line.starts_with("-x -T -o BatchMode=yes -o ConnectTimeout=7 -o ServerAliveInterval=5"),
            "{line}"
        );
        assert!(line.ends_with(r"-p 2222 -l me n1 exec '/opt/it'\''s/gradwire' attend"), "{line}");
    }

    #[test]
    fn an_order_has_what_is_needed_there_and_no_more() {
        let own = ["PATH", "DMLC_RANK", "OMP_NUM_THREADS", "HOME", "PS_VERBOSE"];
        let env: Vec<(String, String)> = own.map(|name| (name.to_owned(), "1".to_owned())).into();
        let line = reach().order(&spec(), &env).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
        let order: Order = serde_json::from_slice(&line).unwrap();
        let names: Vec<&str> = order.env.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["OMP_NUM_THREADS", "PS_VERBOSE", "DMLC_ROLE"]);
        assert_eq!((order.program.as_str(), order.args), ("python3", vec!["a b".to_owned()]));
        assert_eq!(order.directory, Path::new("/there"));
        let long = ChildSpec { args: vec!["x".repeat(ORDER_BYTES_MAX).into()], ..spec() };
        assert!(reach().order(&long, &[]).unwrap_err().to_string().contains("pass them in a file"));
    }

    #[test]
    fn endings_before_the_start_say_what_to_do() {
        let of = |code| why_not_started(&host(), code);
        assert!(of(255).0 == ExitCode::Io && of(255).1.contains("ssh cannot reach n1"));
        assert!(of(127).0 == ExitCode::Usage && of(127).1.contains("--remote-bin-dir"));
        assert_eq!((of(74).0, of(99).0), (ExitCode::Io, ExitCode::Failure));
    }
}
