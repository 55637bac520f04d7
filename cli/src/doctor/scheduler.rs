//! Does a scheduler answer where the settings say, and would it take this process? It asks as daemons do, and must not
//! join: the question is a registration that every scheduler refuses.

use super::check::Check;
use super::dial::{self, Dialled};
use super::pair::tame;
use super::transport;
use daemon::control::{FrameError, code_of_refusal};
use daemon::security::Security;
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::{Incarnation, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromScheduler, RefusalReason, Register, ToScheduler};
use proto_common::transport::Driver;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

const WHAT: &str = "scheduler";
const FIX: &str =
    "give the control address of a gradwire-scheduler of this release (--scheduler), not its HTTP address";

/// Reaches it and asks, each within the given time.
pub(super) async fn check(settings: &Settings, within: Duration) -> Check {
    let (host, port) = (settings.scheduler.host.as_str(), settings.scheduler.port);
    let Dialled { stream, address, .. } = match dial::dial(host, port, within).await {
        Ok(dialled) => dialled,
        Err(error) => {
            let fix = error.fix("gradwire-scheduler");
            return Check::fail(WHAT, ExitCode::SchedulerUnreachable, error.to_string(), fix);
        }
    };
    let asked = Instant::now();
    let at = format!("{host}:{port} ({address})");
    match ask(stream, settings, within).await {
        // Version and job were looked at before the role was.
        Ok(Some(FromScheduler::Refused(RefusalReason::Misplaced(_)))) => {
            let seen = format!("{at} answers within {:.1} ms", asked.elapsed().as_secs_f64() * 1e3);
            answered(seen, address, settings)
        }
        Ok(Some(FromScheduler::Refused(reason))) => {
            let seen = format!("{at} would refuse this process: {}", tame(&reason.to_string()));
            Check::fail(WHAT, code_of_refusal(&reason), seen, "")
        }
        Ok(Some(_)) => silent(format!("{at} answers out of order")),
        Ok(None) => silent(format!("{at} closes the connection without an answer")),
        Err(FrameError::Security(fault)) => {
            let seen = format!("no trusted connection to {at}: {fault}");
            Check::fail(WHAT, ExitCode::Refused, seen, "")
        }
        Err(error) => silent(format!("{at} does not answer as a scheduler: {error}")),
    }
}

fn silent(seen: String) -> Check {
    Check::fail(WHAT, ExitCode::SchedulerUnreachable, seen, FIX)
}

async fn ask(
    stream: TcpStream,
    settings: &Settings,
    within: Duration,
) -> Result<Option<FromScheduler>, FrameError> {
    // A certificate that cannot be used has a line of its own.
    let security = Security::open(settings, None).unwrap_or(Security::off());
    let mut link = security.dial(stream, Some((settings.job, Role::Scheduler)), within).await?;
    let register = Register {
        protocol: PROTOCOL_VERSION,
        build: env!("CARGO_PKG_VERSION").into(),
        job: settings.job,
        // No scheduler takes another one.
        role: Role::Scheduler,
        incarnation: Incarnation(0),
        wanted_rank: None,
        data_address: None,
        http_address: None,
        host: None,
        pid: std::process::id(),
        offer: daemon::host::offer(settings.transport, Vec::new())?,
        rules: Vec::new(),
        resume: None,
    };
    link.send_within(&ToScheduler::Register(register), within).await?;
    link.receive_within(within).await
}

fn answered(seen: String, address: SocketAddr, settings: &Settings) -> Check {
    let is_alone = settings.node.bind.parse::<IpAddr>().is_ok_and(|bind| bind.is_loopback());
    let is_used = |driver: &Driver| transport::unused(*driver, &settings.transport).is_none();
    let uses_sockets = Driver::ALL.iter().filter(|driver| driver.uses_sockets()).any(is_used);
    if is_alone && !address.ip().is_loopback() && uses_sockets {
        let fix = "set node.bind to an address that the other hosts reach";
        return Check::warn(WHAT, format!("{seen}; this process would listen on loopback only"), fix);
    }
    Check::good(WHAT, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::{Level, code_of};
    use daemon::control::Connection;
    use proto_common::ids::JobId;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_secs(30);

    async fn listener() -> (TcpListener, Settings) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut settings = Settings::default();
        settings.scheduler.port = listener.local_addr().unwrap().port();
        (listener, settings)
    }

    /// What is found where somebody takes the question and says this.
    async fn found(answer: FromScheduler) -> Check {
        let (listener, settings) = listener().await;
        let answering = async {
            let mut link = Connection::new(listener.accept().await.unwrap().0).unwrap();
            let asked = link.receive_within(SOON).await.unwrap();
            assert!(
                matches!(asked, Some(ToScheduler::Register(register)) if register.role == Role::Scheduler)
            );
            link.send_within(&answer, SOON).await.unwrap();
        };
        tokio::join!(check(&settings, SOON), answering).0
    }

    #[tokio::test]
    async fn a_scheduler_is_known_by_its_answer() {
        let misplaced = RefusalReason::Misplaced("a second scheduler cannot join a job".into());
        let there = found(FromScheduler::Refused(misplaced)).await;
        assert_eq!(there.level, Level::Good, "{there}");
        let job = RefusalReason::Job { theirs: JobId(0), ours: JobId(7) };
        let other = found(FromScheduler::Refused(job)).await;
        assert_eq!(code_of([&other]), Some(ExitCode::Refused), "{other}");
        assert!(other.to_string().contains("set job to the same value"), "{other}");
        let odd = found(FromScheduler::HeartbeatAck).await;
        assert_eq!(code_of([&odd]), Some(ExitCode::SchedulerUnreachable), "{odd}");
    }

    #[tokio::test]
    async fn what_speaks_another_protocol_or_nothing_is_no_scheduler() {
        let (http, settings) = listener().await;
        let serving = async {
            let mut stream = http.accept().await.unwrap().0;
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        };
        let (told, ()) = tokio::join!(check(&settings, SOON), serving);
        assert_eq!(code_of([&told]), Some(ExitCode::SchedulerUnreachable), "{told}");
        assert!(told.to_string().contains("not its HTTP address"), "{told}");
        // The system takes the connection; nobody reads it.
        let told = check(&settings, Duration::from_millis(50)).await;
        assert_eq!(code_of([&told]), Some(ExitCode::SchedulerUnreachable), "{told}");
        assert!(told.to_string().contains("50 ms"), "{told}");
    }
}
