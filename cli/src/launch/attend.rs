//! `gradwire attend`: the launcher's agent on another host. It reads from stdin what to run (the order), runs it, forwards its
//! output, and exits with its code. If stdin ends, the launcher has failed, and the agent ends the program.

use super::child::{self, Running, ending};
use super::guard::{Guard, kill_group};
use super::output::{Printer, Tail, Target, Way, forward};
use super::plan::{ChildSpec, bind_towards};
use super::remote::{END_WORD, Order, SILENCE_MS, STARTED_LINE, has_directory};
use crate::find;
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::settings::variable_of;
use proto_common::error::ExitCode;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time limit for the first line, in milliseconds.
const ORDER_MS: u64 = 30_000;
/// Queued lines of the launcher. It sends few.
const LINES_MAX: usize = 4;
/// How long pipes may stay open after the program has ended and its group was killed, in milliseconds.
const PIPES_MS: u64 = 1_000;

/// Runs the order from stdin; returns the program's exit code.
pub(crate) fn attend() -> Result<u8, anyhow::Error> {
    Ok(daemon::process::run_to_end(attend_one())??)
}

/// The lines of stdin. Its thread may block there for ever, and ends with the process.
fn lines_of_stdin() -> io::Result<mpsc::Receiver<String>> {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    std::thread::Builder::new().name("launcher".into()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

async fn attend_one() -> Result<u8, Failure> {
    let mut lines = lines_of_stdin().code(ExitCode::Io)?;
    let first = timeout(Duration::from_millis(ORDER_MS), lines.recv()).await;
    let first = first.context("gradwire launch has not sent the order").code(ExitCode::Deadline)?;
    let Some(first) = first else {
        let text = "stdin ended before the order arrived; only gradwire launch starts this program";
        return Err(Failure::message(ExitCode::Usage, text));
    };
    let order: Order = serde_json::from_str(&first)
        .context("cannot decode the order; install the same version of gradwire on all hosts")
        .code(ExitCode::Usage)?;
    let spec = spec_of(order)?;
    let mut guard = Guard::start().context("cannot start the guard").code(ExitCode::Io)?;
    let Running { mut process, handle } = child::start(&spec, &guard)?;
    // The launcher learns by it that ssh works and the program runs.
    let _ = io::stderr().write_all(&[STARTED_LINE, b"\n"].concat());
    let (printer, printer_thread) = Printer::start(None).code(ExitCode::Io)?;
    let mut pipes = JoinSet::new();
    if let Some(pipe) = process.stdout.take() {
        pipes.spawn(forward(pipe, way(Target::Stdout), printer.clone()));
    }
    if let Some(pipe) = process.stderr.take() {
        pipes.spawn(forward(pipe, way(Target::Stderr), printer.clone()));
    }
    let mut is_led = true;
    loop {
        tokio::select! {
            () = child::ended(&mut process) => break,
            signal = next_signal(&mut lines), if is_led => {
                is_led = signal != Signal::KILL;
                kill_group(handle.group, signal);
            }
        }
    }
    // The id of its group may be another's once it has been waited for.
    kill_group(handle.group, Signal::KILL);
    guard.remove(handle.group);
    let status = process.wait().await.code(ExitCode::Io)?;
    let drained = async { while pipes.join_next().await.is_some() {} };
    let _ = timeout(Duration::from_millis(PIPES_MS), drained).await;
    pipes.shutdown().await;
    drop(printer);
    printer_thread.finish().await;
    Ok(ending(status).0)
}

/// The signal for the program: SIGTERM if the launcher asks for it, SIGKILL if the launcher has failed or is silent.
async fn next_signal(lines: &mut mpsc::Receiver<String>) -> Signal {
    loop {
        match timeout(Duration::from_millis(SILENCE_MS), lines.recv()).await {
            Ok(Some(word)) if word == END_WORD => return Signal::TERM,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Signal::KILL,
        }
    }
}

/// Lines pass without a prefix: the launcher adds it and writes the log files.
fn way(target: Target) -> Way {
    Way { prefix: String::new(), target, log: None, tail: Tail::default(), is_raw: true, started: None }
}

fn spec_of(order: Order) -> Result<ChildSpec, Failure> {
    if !order.directory.is_dir() {
        let fix = "create it, or copy the working directory with --sync-dst-dir";
        let text = format!("the directory {} does not exist on this host; {fix}", order.directory.display());
        return Err(Failure::message(ExitCode::Usage, text));
    }
    let path = order.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| OsString::from(path));
    let path = path.or_else(|| std::env::var_os("PATH"));
    let mut env = order.env;
    let root =
        env.iter().find(|(name, _)| *name == variable_of("scheduler.host")).map(|(_, host)| host.clone());
    env.extend(bind_towards(&root.unwrap_or_default(), &env)?);
    let program = match has_directory(&order.program) {
        // A relative path counts from the order's directory.
        true => {
            find::program(&order.bin_dir, order.directory.join(&order.program).as_os_str(), path.as_deref())?
        }
        false => find::program(&order.bin_dir, OsStr::new(&order.program), path.as_deref())?,
    };
    Ok(ChildSpec {
        id: order.id,
        host: None,
        program,
        args: order.args.into_iter().map(OsString::from).collect(),
        directory: Some(PathBuf::from(&order.directory)),
        env,
        env_removed: order.env_removed,
    })
}
