//! `gradwire checkpoint save`: asks a scheduler for a checkpoint of the job that is running, and waits for it. It must not
//! write files: servers do.

use crate::common::{environment_of_no_role, print, role};
use clap::Args;
use daemon::control::{Connection, FrameError, code_of_refusal};
use daemon::exit::{Failure, WithCode as _};
use daemon::security::Security;
use daemon::settings::CommonArgs;
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::Role;
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
    /// How long to wait until it is complete.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout_s: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Which daemon's system-wide settings file to read, /etc/gradwire/ROLE.toml: a certificate of any role will do.
    #[arg(long, value_name = "ROLE", default_value = "worker", value_parser = role)]
    role: Role,
    #[command(flatten)]
    common: CommonArgs,
}

pub(crate) fn run(args: &SaveArgs) -> Result<(), anyhow::Error> {
    let settings = args.common.load(args.role, &environment_of_no_role())?.settings;
    if args.common.log.is_some() {
        daemon::logging::init(args.role, &settings.log)?;
    }
    let security = Security::open(&settings, None)?;
    let within = Duration::from_secs(args.timeout_s);
    let name = daemon::process::run_to_end(save((&settings, &security), within)).code(ExitCode::Io)??;
    Ok(print(&if args.json { json!({ "name": name }).to_string() } else { name })?)
}

/// The scheduler that settings name, as errors say it.
fn name_of(settings: &Settings) -> String {
    format!("{}:{}", settings.scheduler.host, settings.scheduler.port)
}

fn silent(settings: &Settings, why: &str) -> Failure {
    let at = name_of(settings);
    let text = format!(
        "the scheduler at {at} {why}; give the control address of a running gradwire-scheduler of this release \
         (--scheduler), not its HTTP address"
    );
    Failure::message(ExitCode::SchedulerUnreachable, text)
}

fn broken(settings: &Settings, error: &FrameError) -> Failure {
    match error {
        FrameError::Security(fault) => {
            let text = format!("no trusted connection to the scheduler at {}: {fault}", name_of(settings));
            Failure::message(ExitCode::Refused, text)
        }
        error => silent(settings, &format!("does not answer: {error}")),
    }
}

/// A connection to the scheduler of this job.
async fn reach((settings, security): (&Settings, &Security)) -> Result<Connection, Failure> {
    let limit = Duration::from_millis(GRACE_MS);
    let address = (settings.scheduler.host.as_str(), settings.scheduler.port);
    let stream = match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(silent(settings, &format!("is unreachable: {error}"))),
        Err(_) => return Err(silent(settings, &format!("did not answer within {GRACE_MS} ms"))),
    };
    let whom = Some((settings.job, Role::Scheduler));
    security.dial(stream, whom, limit).await.map_err(|error| broken(settings, &error))
}

async fn save((settings, security): (&Settings, &Security), within: Duration) -> Result<String, Failure> {
    let mut link = reach((settings, security)).await?;
    let order =
        ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms: within.as_millis() as u64 };
    let within = within + Duration::from_millis(GRACE_MS);
    let broken = |error: FrameError| broken(settings, &error);
    link.send_within(&order, within).await.map_err(broken)?;
    let answer = async {
        loop {
            match link.receive_within(within).await.map_err(broken)? {
                Some(FromScheduler::CheckpointGoes(goes)) => progress(&goes),
                Some(FromScheduler::CheckpointSaved { result, .. }) => return result.map_err(failure),
                Some(FromScheduler::Refused(reason)) => {
                    return Err(Failure::message(code_of_refusal(&reason), reason.to_string()));
                }
                Some(_) => return Err(silent(settings, "sent an unexpected message")),
                None => return Err(silent(settings, "closed the connection: the job has ended")),
            }
        }
    };
    let late = format!("did not answer within {} ms", within.as_millis());
    timeout(within, answer).await.unwrap_or_else(|_| Err(silent(settings, &late)))
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
        None => writeln!(
            stderr,
            "asking servers for their progress, or waiting for another checkpoint to be written"
        ),
        Some(round) => {
            writeln!(stderr, "round {round}: {parts} of {parts_expected} parts; training is at {newest}")
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const WITHIN: Duration = Duration::from_secs(30);

    fn settings(address: std::net::SocketAddr) -> Settings {
        let mut settings = Settings::default();
        (settings.scheduler.host, settings.scheduler.port) = (address.ip().to_string(), address.port());
        settings
    }

    /// What comes of it where a scheduler says these.
    async fn said(answers: &[FromScheduler]) -> Result<String, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (settings, plain) = (settings(listener.local_addr().unwrap()), Security::off());
        let answering = async {
            let mut link = Connection::new(listener.accept().await.unwrap().0).unwrap();
            let limit = Duration::from_secs(30);
            let asked: Option<ToScheduler> = link.receive_within(limit).await.unwrap();
            assert!(matches!(asked, Some(ToScheduler::OrderCheckpoint { timeout_ms: 30_000, .. })));
            for answer in answers {
                link.send_within(answer, limit).await.unwrap();
            }
        };
        tokio::join!(save((&settings, &plain), WITHIN), answering).0
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
        assert!(error.to_string().contains("an unexpected message"), "{error}");
    }

    #[tokio::test]
    async fn nobody_there_is_said_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = save((&settings(address), &Security::off()), WITHIN).await.unwrap_err();
        assert!(error.to_string().contains("is unreachable"), "{error}");
    }
}
