//! `gradwire checkpoint save`: asks a scheduler for a checkpoint of the job that is running, and waits for it. It must not
//! write files: servers do.

use clap::Args;
use daemon::control::{Connection, FrameError, code_of_refusal};
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromScheduler, SaveError, SaveProgress, ToScheduler};
use serde_json::json;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Beside its own deadline, the scheduler has so long to answer.
const GRACE_MS: u64 = 5_000;

#[derive(Args, Debug)]
pub(crate) struct SaveArgs {
    /// The scheduler's control address, as the processes of the job have it.
    #[arg(long, value_name = "HOST:PORT")]
    scheduler: String,
    /// How long to wait until it is complete.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout_s: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &SaveArgs) -> Result<(), anyhow::Error> {
    let name = daemon::process::run_to_end(save(args)).code(ExitCode::Io)??;
    let text = if args.json { json!({ "name": name }).to_string() } else { name };
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

async fn save(args: &SaveArgs) -> Result<String, Failure> {
    let at = &args.scheduler;
    let timeout_ms = args.timeout_s * 1000;
    let within = Duration::from_millis(timeout_ms + GRACE_MS);
    let silent = |why: String| {
        let text = format!(
            "the scheduler at {at} {why}; give the control address of a running gradwire-scheduler of this release \
             (--scheduler), not its HTTP address"
        );
        Failure::message(ExitCode::SchedulerUnreachable, text)
    };
    let broken = |error: FrameError| silent(format!("does not answer: {error}"));
    let stream = match timeout(Duration::from_millis(GRACE_MS), TcpStream::connect(at)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(silent(format!("cannot be reached: {error}"))),
        Err(_) => return Err(silent(format!("has not answered within {GRACE_MS} ms"))),
    };
    let mut link = Connection::new(stream).map_err(|error| broken(error.into()))?;
    let order = ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms };
    link.send_within(&order, within).await.map_err(broken)?;
    let answer = async {
        loop {
            match link.receive_within(within).await.map_err(broken)? {
                Some(FromScheduler::CheckpointGoes(goes)) => progress(&goes),
                Some(FromScheduler::CheckpointSaved { result, .. }) => return result.map_err(failure),
                Some(FromScheduler::Refused(reason)) => {
                    return Err(Failure::message(code_of_refusal(&reason), reason.to_string()));
                }
                Some(_) => return Err(silent("answers out of order".into())),
                None => return Err(silent("closed the connection: the job has ended".into())),
            }
        }
    };
    timeout(within, answer)
        .await
        .unwrap_or_else(|_| Err(silent(format!("has not answered within {} ms", within.as_millis()))))
}

fn failure(error: SaveError) -> Failure {
    let code = match &error {
        SaveError::NoPlace => ExitCode::Config,
        SaveError::Deadline { .. } | SaveError::NotBegun { .. } => ExitCode::Deadline,
        SaveError::NotNow(_) => ExitCode::Refused,
        SaveError::Failed { .. } => ExitCode::Failure,
    };
    Failure::message(code, error.to_string())
}

fn progress(goes: &SaveProgress) {
    let mut stderr = io::stderr().lock();
    if !stderr.is_terminal() {
        return;
    }
    let SaveProgress { round, newest, parts, parts_expected } = goes;
    // Somebody who does not look at it misses nothing.
    let _ = match round {
        None => writeln!(stderr, "servers are asked how far they are, or write another checkpoint"),
        Some(round) => {
            writeln!(stderr, "round {round}: {parts} of {parts_expected} parts; training is at {newest}")
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn args(address: std::net::SocketAddr) -> SaveArgs {
        SaveArgs { scheduler: address.to_string(), timeout_s: 30, json: false }
    }

    /// What comes of it where a scheduler says these.
    async fn said(answers: &[FromScheduler]) -> Result<String, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let args = args(listener.local_addr().unwrap());
        let answering = async {
            let mut link = Connection::new(listener.accept().await.unwrap().0).unwrap();
            let limit = Duration::from_secs(30);
            let asked: Option<ToScheduler> = link.receive_within(limit).await.unwrap();
            assert!(matches!(asked, Some(ToScheduler::OrderCheckpoint { timeout_ms: 30_000, .. })));
            for answer in answers {
                link.send_within(answer, limit).await.unwrap();
            }
        };
        tokio::join!(save(&args), answering).0
    }

    #[tokio::test]
    async fn the_answer_is_a_name_or_says_why_not() {
        let goes = FromScheduler::CheckpointGoes(SaveProgress::default());
        let done = |result| FromScheduler::CheckpointSaved { request: 0, result };
        assert_eq!(said(&[goes.clone(), done(Ok("round-7".into()))]).await.unwrap(), "round-7");
        let error = said(&[done(Err(SaveError::NoPlace))]).await.unwrap_err();
        assert!(error.to_string().contains("checkpoint.directory"), "{error}");
        let error = said(&[goes]).await.unwrap_err();
        assert!(error.to_string().contains("the job has ended"), "{error}");
        let error = said(&[FromScheduler::HeartbeatAck]).await.unwrap_err();
        assert!(error.to_string().contains("out of order"), "{error}");
    }

    #[tokio::test]
    async fn nobody_there_is_said_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = save(&args(address)).await.unwrap_err();
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }
}
