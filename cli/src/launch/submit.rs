//! Outside of tasks: calls srun or mpirun, which runs this launcher again in each task. Exits with the code of the task that failed
//! first, and passes the output of the tasks through unchanged. Must not start processes of the cluster.

use super::args::LaunchArgs;
use super::blame::reports_another;
use super::guard::{Guard, kill_group};
use super::hosts;
use super::kind::Kind;
use super::output::{EndWord, Printer};
use super::ranks::{FIRST_HOST, value};
use super::supervisor::listen_for_signals;
use super::variables::trust_for_tasks;
use crate::find;
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::process::DIE_WITH_PARENT;
use proto_common::error::ExitCode;
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

/// Time limit for `mpirun --version`, in milliseconds.
const VERSION_MS: u64 = 10_000;
/// Largest number of bytes of a line that are examined.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Prefixes of the variables that Open MPI forwards to other hosts.
const PREFIXES: [&str; 5] = ["GRADWIRE_", "DMLC_", "PS_", "BYTEPS_", "MXNET_"];

/// The number of tasks. Without a number of workers, a batch script of Slurm determines it.
fn tasks(args: &LaunchArgs, env: &[(String, String)], kind: Kind) -> u32 {
    let servers = args.servers.unwrap_or(1);
    let allocated = || value(env, "SLURM_NTASKS").and_then(|count| count.parse().ok());
    match (args.workers, kind) {
        (None, Kind::Slurm) => allocated().unwrap_or(2 + servers),
        (workers, _) => 1 + servers + workers.unwrap_or(1),
    }
}

/// The words of srun or mpirun, without the program that each task runs.
fn starter(args: &LaunchArgs, env: &[(String, String)], kind: Kind, is_open_mpi: bool) -> Vec<OsString> {
    let tasks = tasks(args, env, kind);
    let mut words: Vec<OsString> = Vec::new();
    if kind == Kind::Slurm {
        words.extend(["srun".into(), format!("--ntasks={tasks}").into(), "--kill-on-bad-exit=1".into()]);
        // Also if sbatch was called with --export=NONE: tasks need the certificates of their job.
        words.push("--export=ALL".into());
        let queue = args.dmlc.queue.as_deref().filter(|queue| *queue != "default");
        words.extend(queue.map(|queue| format!("--partition={queue}").into()));
        words.extend(args.dmlc.jobname.iter().map(|name| format!("--job-name={name}").into()));
        return words;
    }
    words.extend(["mpirun".into(), "-n".into(), tasks.to_string().into()]);
    if let Some(file) = &args.host_file {
        words.extend([if is_open_mpi { "--hostfile".into() } else { "-f".into() }, file.into()]);
    }
    if is_open_mpi {
        let names = env.iter().map(|(name, _)| name);
        let ours = names.filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
        words.extend(ours.flat_map(|name| ["-x".into(), name.into()]));
    }
    words
}

/// The variable that names the host of rank 0 to the tasks of MPI: mpirun starts with the first host of its file.
fn first_host(args: &LaunchArgs, kind: Kind) -> Result<Option<(String, String)>, Failure> {
    let Some(file) = args.host_file.as_ref().filter(|_| kind == Kind::Mpi) else { return Ok(None) };
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the host file {}", file.display()))
        .code(ExitCode::Io)?;
    Ok(hosts::first_of_mpi(&text).map(|host| (FIRST_HOST.to_owned(), host)))
}

/// Starts the tasks and waits for their end; returns the exit code.
pub(super) async fn submit(
    args: &LaunchArgs,
    env: &[(String, String)],
    kind: Kind,
) -> Result<u8, anyhow::Error> {
    let is_open_mpi = kind == Kind::Mpi && is_open_mpi().await?;
    let mut of_tasks = trust_for_tasks(args, env, kind)?;
    of_tasks.extend(first_host(args, kind)?);
    let words = starter(args, &[env, &of_tasks[..]].concat(), kind, is_open_mpi);
    let path = std::env::var_os("PATH");
    find::program(Path::new("/nonexistent"), &words[0], path.as_deref())
        .with_context(|| {
            format!("--cluster {} calls it; install it, or start gradwire launch in its tasks", kind.name())
        })
        .code(ExitCode::Usage)?;
    let (end, signals) = listen_for_signals().code(ExitCode::Io)?;
    let (printer, thread) = Printer::start(Some(end)).code(ExitCode::Io)?;
    let shown: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    printer.say(&format!("starting the tasks: {}", shown.join(" "))).await;
    let launcher = std::env::current_exe().code(ExitCode::Io)?;
    // If this process is killed, srun and mpirun are killed too, as every launched program.
    let guard = Guard::start().context("cannot start the launcher's guard").code(ExitCode::Io)?;
    let mut command = Command::new(&launcher);
    command
        .args(["supervise-child", "--parent", &std::process::id().to_string(), "--"])
        .args(&words)
        .arg(&launcher)
        .args(std::env::args_os().skip(1))
        .env("DMLC_SUBMIT_CLUSTER", kind.name())
        .envs(of_tasks)
        // Tasks are not children of this process.
        .env_remove(DIE_WITH_PARENT)
        .stdin(guard.line().code(ExitCode::Io)?)
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let starter = command.spawn().context("cannot start this program again").code(ExitCode::Io)?;
    let code = watch(starter, Duration::from_millis(args.grace_ms), (&printer, signals)).await?;
    drop(printer);
    thread.finish().await;
    Ok(code)
}

/// Waits until srun or mpirun and its output have ended.
async fn watch(
    mut starter: Child,
    grace: Duration,
    (printer, mut signals): (&Printer, mpsc::Receiver<EndWord>),
) -> Result<u8, Failure> {
    let group = starter.id().and_then(|id| Pid::from_raw(id as i32));
    let pipe = starter.stderr.take();
    let listen = async { if let Some(pipe) = pipe { listen(pipe, printer).await } else { None } };
    tokio::pin!(listen);
    let (mut verdict, mut heard, mut kill_at) = (None, None, None);
    let mut is_listening = true;
    let status = loop {
        tokio::select! {
            found = &mut listen, if is_listening => {
                heard = found;
                is_listening = false;
            }
            status = starter.wait(), if !is_listening => break status.code(ExitCode::Io)?,
            Some((code, why)) = signals.recv() => {
                let is_second = verdict.replace(code).is_some();
                printer.say(&format!("{why}; ending all tasks")).await;
                let signal = if is_second { Signal::KILL } else { Signal::TERM };
                group.inspect(|group| kill_group(*group, signal));
                // srun and mpirun end their tasks first, which have a grace period of their own.
                kill_at.get_or_insert(Instant::now() + 3 * grace);
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                group.inspect(|group| kill_group(*group, Signal::KILL));
                kill_at = None;
                is_listening = false;
            }
        }
    };
    let (own, _) = super::child::ending(status);
    Ok(verdict.or(heard).unwrap_or(own))
}

async fn is_open_mpi() -> Result<bool, Failure> {
    let asked = Command::new("mpirun").arg("--version").stdin(Stdio::null()).kill_on_drop(true).output();
    let missing = "cannot start mpirun; install an MPI, or use another --cluster";
    let output = timeout(Duration::from_millis(VERSION_MS), asked)
        .await
        .with_context(|| format!("mpirun --version timed out after {VERSION_MS} ms"))
        .code(ExitCode::Deadline)?
        .context(missing)
        .code(ExitCode::Usage)?;
    // Under another name, such as mpirun.openmpi, it calls itself OpenRTE.
    let version = String::from_utf8_lossy(&output.stdout);
    Ok(["Open MPI", "OpenRTE"].iter().any(|name| version.contains(name)))
}

/// Passes the output of the tasks on, and returns the code of the first failure. The code of a task that reports the failure of
/// another one counts only if no other task failed.
async fn listen(pipe: impl AsyncRead + Unpin, printer: &Printer) -> Option<u8> {
    use tokio::io::AsyncReadExt as _;
    let mut reader = BufReader::new(pipe);
    let (mut cause, mut echo) = (None, None);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(1..)) {
            return cause.or(echo);
        }
        if let Some(code) = code_of(&line) {
            if reports_another(code) {
                echo.get_or_insert(code)
            } else {
                cause.get_or_insert(code)
            };
        }
        printer.pass(line).await;
    }
}

/// Says in a task that its launcher failed by itself, before or beside its process, as [`code_of`] reads it.
pub(super) fn report(task: u32, code: ExitCode) {
    // Nobody reads it where stderr is closed.
    let _ = std::io::stderr()
        .write_all(format!("[launch] task {task} failed: exit code {}\n", code as u8).as_bytes());
}

/// The code in a launcher's line about its task: `[launch] worker 1 failed: exit code 65 (...)`.
fn code_of(line: &[u8]) -> Option<u8> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("[launch] ")?;
    let (_, words) = line.split_once(" failed: ")?;
    let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u8>().ok();
    match words.strip_prefix("exit code ") {
        Some(rest) => number(rest),
        None => number(words.strip_prefix("killed by signal ")?).map(|signal| signal.saturating_add(128)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: LaunchArgs,
    }

    fn line(flags: &str, env: &[(&str, &str)], kind: Kind) -> String {
        let cli = Cli::parse_from(flags.split_whitespace());
        let env: Vec<(String, String)> = env.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        let words = starter(&cli.args, &env, kind, true);
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_task_for_each_member() {
        let submit = "x -n 4 -s 2 --queue gpu --jobname j p";
        let slurm = "srun --ntasks=7 --kill-on-bad-exit=1 --export=ALL --partition=gpu --job-name=j";
        assert_eq!(line(submit, &[("SLURM_NTASKS", "9")], Kind::Slurm), slurm);
        let batch = line("x -s 2 p", &[("SLURM_NTASKS", "9")], Kind::Slurm);
        assert!(batch.contains("--ntasks=9"), "the rest of an allocation are workers: {batch}");
        assert!(line("x p", &[], Kind::Slurm).contains("--ntasks=3"));
        let mpi = line("x -n 2 -H f p", &[("DMLC_INTERFACE", "eth0"), ("HOME", "/")], Kind::Mpi);
        assert_eq!(mpi, "mpirun -n 4 --hostfile f -x DMLC_INTERFACE");
    }

    #[test]
    fn codes_are_read_from_launchers_lines_only() {
        assert_eq!(code_of(b"[launch] worker 1 failed: exit code 65 (bad data)\n"), Some(65));
        assert_eq!(code_of(b"[launch] task 1 failed: exit code 74\n"), Some(74));
        assert_eq!(code_of(b"[launch] server 0 failed: killed by signal 9\n"), Some(137));
        assert_eq!(code_of(b"[worker 1] [launch] worker 1 failed: exit code 65\n"), None);
        assert_eq!(code_of(b"[launch] the scheduler listens\n"), None);
    }

    #[tokio::test]
    async fn the_cause_comes_before_its_echoes() {
        let (printer, _thread) = Printer::start(None).unwrap();
        let said = b"[launch] worker 0 failed: exit code 71 (x)\n[launch] worker 1 failed: exit code 65\n";
        assert_eq!(listen(&said[..], &printer).await, Some(65));
        assert_eq!(listen(&said[..43], &printer).await, Some(71));
        assert_eq!(listen(&b"all is well\n"[..], &printer).await, None);
    }
}
