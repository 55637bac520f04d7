//! `gradwire status`: asks the scheduler and shows the answer. It must not compute anything the scheduler
//! did not say.

mod fetch;
pub(crate) mod table;
mod whom;
pub(crate) mod words;

pub(crate) use fetch::{Whose, get, get_status};
pub(crate) use whom::Whom;

use clap::Args;
use daemon::exit::{WithCode as _, code_of};
use daemon::status::{ClusterStatus, JobPhase};
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use std::future::Future;
use std::io::{self, Write as _};
use std::time::Duration;

/// Milliseconds between two looks with --watch.
const WATCH_MS: u64 = 1_000;
/// Looks in a row that may fail.
const MISSES_MAX: u32 = 3;

/// Show a job as its scheduler sees it: members and their state, links with transport and rate, rounds, and the operation
/// that has been waiting longest.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    whom: Whom,
    /// Print the scheduler's JSON unchanged.
    #[arg(long)]
    json: bool,
    /// Refresh every second, until the job ends or Ctrl-C.
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(args: &StatusArgs) -> Result<(), anyhow::Error> {
    let address = args.whom.address()?;
    // Home, and clear the screen.
    let clear = if args.watch && !args.json { "\x1b[H\x1b[2J" } else { "" };
    run_printing(print_looks(&address, args.watch, |status, body| {
        Ok(match args.json {
            true => String::from_utf8_lossy(body).into_owned(),
            false => format!("{clear}{}", table::render(status)),
        })
    }))
}

/// Runs what prints until it ends, or until its reader is gone, which is no error.
pub(crate) fn run_printing(
    printing: impl Future<Output = Result<(), anyhow::Error>>,
) -> Result<(), anyhow::Error> {
    match daemon::process::run_to_end(printing).code(ExitCode::Io)? {
        Err(error) if is_closed_pipe(&error) => Ok(()),
        other => other,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints what `render` makes of a status and its JSON: once, or every second until the job ends.
pub(crate) async fn print_looks(
    address: &str,
    is_watching: bool,
    render: impl Fn(&ClusterStatus, &[u8]) -> Result<String, anyhow::Error>,
) -> Result<(), anyhow::Error> {
    if !is_watching {
        let (status, body) = get_status(address).await?;
        return print(&render(&status, &body)?);
    }
    watch(address, Duration::from_millis(WATCH_MS), |status, body| print(&render(status, body)?)).await
}

fn print(text: &str) -> Result<(), anyhow::Error> {
    Ok(writeln!(io::stdout().lock(), "{}", text.trim_end())?)
}

/// Shows what the scheduler says, again and again, until the job has ended: as it says itself, or by being gone after it said that
/// this was to come. Another answer that fails is asked for again, a few times; only the first one is to be there at once, for
/// whoever mistyped the address.
async fn watch(
    address: &str,
    every: Duration,
    mut show: impl FnMut(&ClusterStatus, &[u8]) -> Result<(), anyhow::Error>,
) -> Result<(), anyhow::Error> {
    let (mut status, body) = get_status(address).await?;
    show(&status, &body)?;
    let mut missed = 0;
    while status.phase != JobPhase::Ended {
        // Looking again after a while is what watching is.
        tokio::time::sleep(every).await;
        match get_status(address).await {
            Ok((newer, body)) => {
                (status, missed) = (newer, 0);
                show(&status, &body)?;
            }
            Err(error) if is_ending(&status) && code_of(&error) == ExitCode::SchedulerUnreachable => break,
            Err(error) if missed < MISSES_MAX => {
                missed += 1;
                writeln!(io::stderr().lock(), "{error:#}; retrying ({missed} of {MISSES_MAX})")?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Is the scheduler about to go in good order?
fn is_ending(status: &ClusterStatus) -> bool {
    let mut workers = status.members.iter().filter(|member| member.role == Role::Worker).peekable();
    let all_left = workers.peek().is_some() && workers.all(|worker| worker.left);
    all_left || matches!(status.phase, JobPhase::Ending | JobPhase::Ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    const EVERY: Duration = Duration::from_millis(1);

    fn look(phase: &str, members: Value) -> String {
        let status = json!({
            "job": 7, "phase": phase, "epoch": "1.2", "workers": 1, "servers": 1, "silence_ms": 10_000,
            "uptime_ms": 1, "tensors": 0, "tensor_bytes": 0, "uncopied_chunks": 0, "members": members,
            "missing": [], "barriers": [], "ending": null,
        });
        status.to_string()
    }

    fn running() -> String {
        look("running", json!([]))
    }

    /// What is shown of a scheduler that gives these answers, one a connection, and is gone then; and the end.
    async fn watched(answers: Vec<String>) -> (Vec<JobPhase>, Result<(), ExitCode>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let scheduler = async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1_024];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let mut shown = Vec::new();
        let show = |status: &ClusterStatus, _: &[u8]| {
            shown.push(status.phase);
            Ok(())
        };
        let (ended, ()) = tokio::join!(watch(&address, EVERY, show), scheduler);
        (shown, ended.map_err(|error| code_of(&error)))
    }

    #[tokio::test]
    async fn a_scheduler_that_is_gone_after_it_said_so_is_the_end() {
        let ending = look("ending", json!([]));
        assert_eq!(
            watched(vec![running(), ending]).await,
            (vec![JobPhase::Running, JobPhase::Ending], Ok(()))
        );
        let ended = look("ended", json!([]));
        assert_eq!(watched(vec![ended]).await, (vec![JobPhase::Ended], Ok(())));
        let worker = json!([{
            "role": "worker", "rank": 0, "pid": 1, "build": "", "data_address": null, "http_address": null,
            "silent_ms": 1, "left": true, "links_ready": true, "round": 9, "in_flight": 0, "oldest": null, "links": [],
        }]);
        assert_eq!(watched(vec![look("running", worker)]).await.1, Ok(()), "all workers are done");
    }

    #[tokio::test]
    async fn some_bad_answers_are_asked_for_again_and_no_more() {
        let bad = || "{".to_owned();
        let few = vec![running(), bad(), bad(), bad(), running(), bad(), look("ended", json!([]))];
        assert_eq!(watched(few).await, (vec![JobPhase::Running, JobPhase::Running, JobPhase::Ended], Ok(())));
        let many = vec![running(), bad(), bad(), bad(), bad()];
        assert_eq!(watched(many).await, (vec![JobPhase::Running], Err(ExitCode::Failure)));
        let gone = watched(vec![running()]).await;
        assert_eq!(gone, (vec![JobPhase::Running], Err(ExitCode::SchedulerUnreachable)), "why is not known");
        assert_eq!(
            watched(vec![bad()]).await,
            (vec![], Err(ExitCode::Failure)),
            "the first one is to be there"
        );
    }
}
