//! The scheduler's sockets. If another process has the port, the error names the scheduler that runs there.

use daemon::exit::{Failure, WithCode as _};
use daemon::http;
use daemon::security::Security;
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use proto_common::message::{FromScheduler, RefusalReason, ToScheduler};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Milliseconds that another scheduler on our port has to say who it is.
const IDENTIFY_MS: u64 = 2_000;

/// Who is there, where it does not say so because this job is not its own.
const OTHERS_PORT: &str =
    "another job's scheduler is running there: stop it first, or set scheduler.port to a free port";

/// The scheduler's bound sockets.
#[derive(Debug)]
pub struct Listeners {
    /// Members connect here.
    pub control: TcpListener,
    /// The HTTP endpoints, unless they are off.
    pub http: Option<TcpListener>,
    /// What members are shown, and asked for.
    pub(super) security: Security,
}

/// Binds what the settings say. Port 0 lets the system choose.
pub async fn bind(settings: &Settings) -> Result<Listeners, Failure> {
    let security = Security::open(settings, Some(Role::Scheduler))
        .map_err(|error| Failure::new(ExitCode::Config, error))?;
    let scheduler = &settings.scheduler;
    let (host, port) = (scheduler.bind.as_deref().unwrap_or(&scheduler.host), scheduler.port);
    let control = match TcpListener::bind((host, port)).await {
        Ok(listener) => listener,
        Err(error) => {
            let there = if port == 0 { None } else { who_is_there(&security, host, port).await };
            let there = there.unwrap_or_else(|| {
                "stop the process that uses this port, or set scheduler.port to a free port (0: the operating system chooses one)".into()
            });
            let text = format!("cannot bind the scheduler to {host}:{port}; {there}");
            return Err(anyhow::Error::new(error).context(text)).code(ExitCode::Io);
        }
    };
    let http = http::bind(&settings.node.http).await?;
    Ok(Listeners { control, http, security })
}

/// Another scheduler's words about itself, where one has our port.
async fn who_is_there(security: &Security, host: &str, port: u16) -> Option<String> {
    let ask = async {
        let limit = Duration::from_millis(IDENTIFY_MS);
        let stream = TcpStream::connect((host, port)).await.ok()?;
        // It may be another job's.
        let mut connection = security.dial(stream, None, limit).await.ok()?;
        connection.send_within(&ToScheduler::Identify, limit).await.ok()?;
        match connection.receive_within(limit).await.ok()? {
            // It tells nothing of itself to other jobs.
            Some(FromScheduler::Refused(RefusalReason::Certificate(_))) => Some(OTHERS_PORT.into()),
            Some(FromScheduler::Refused(reason)) => Some(reason.to_string()),
            _ => None,
        }
    };
    timeout(Duration::from_millis(IDENTIFY_MS), ask).await.ok().flatten()
}
