//! A server inside another process: on its own thread, with handlers that the program registers. `run` does its work.

use super::run::run_with;
use crate::app::{App, Apps, RegisterError, StuckHandler};
use crate::program::Program;
use daemon::embed::{self, Embedded, Ready};
use daemon::exit::Failure;
use daemon::flight::Flight;
use daemon::notify::Notify;
use daemon::post::Posts;
use daemon::shutdown::Shutdown;
use proto_common::config::Settings;
use proto_common::ids::{Rank, Role};
use proto_common::message::{ClusterShape, Coming, Welcome};
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;

/// A server that cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// It ended before the scheduler had assigned a rank.
    #[error("the server ended before it got a rank: {0:#}")]
    Ended(anyhow::Error),
    /// Its thread cannot be started.
    #[error("cannot start the server's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The scheduler assigned no rank in time.
    #[error(
        "the scheduler at {scheduler} did not assign a rank within {waited_ms} ms; start the scheduler, or check its log"
    )]
    NoRank {
        /// The scheduler's address.
        scheduler: String,
        /// How long the server waited.
        waited_ms: u64,
    },
}

/// A server in this process. If it is dropped, it leaves the cluster in good order, as with [`Server::close`].
#[derive(Debug)]
pub struct Server {
    rank: Rank,
    shape: ClusterShape,
    is_recovery: bool,
    apps: Apps,
    posts: Posts,
    role: Embedded<()>,
}

impl Server {
    /// Joins the cluster that the settings name, and returns when the scheduler has assigned a rank. Handlers may be
    /// registered from then on; earlier calls wait for their handler.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, Program::default())
    }

    /// As [`Server::start`], with handlers that are registered before the first call, or with update rules of the program's own
    /// ([`Rules`](crate::Rules)).
    pub fn start_with(settings: Settings, program: impl Into<Program>) -> Result<Self, StartError> {
        let program = program.into();
        let deadlines = &settings.deadlines;
        // The scheduler is sought that long, and a registration answered.
        let within = Duration::from_millis(deadlines.connect_ms.saturating_add(deadlines.handshake_ms))
            + Duration::from_secs(1);
        let scheduler = format!("{}:{}", settings.scheduler.host, settings.scheduler.port);
        let posts = Posts::start()?;
        let (apps, own) = (program.apps.clone(), (program, posts.clone()));
        let started = Embedded::start("server", within, move |shutdown, ready: Ready<Welcome>| {
            serve(settings, own, shutdown, |welcome| ready.tell(welcome.clone()))
        });
        match started {
            Ok((role, Welcome { rank, shape, coming, .. })) => {
                Ok(Self { rank, shape, is_recovery: coming == Coming::Again, apps, posts, role })
            }
            Err(embed::StartError::Ended(error)) => Err(StartError::Ended(error)),
            Err(embed::StartError::Thread(error)) => Err(error.into()),
            Err(embed::StartError::Late { waited_ms }) => Err(StartError::NoRank { scheduler, waited_ms }),
        }
    }

    /// Its rank among servers.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// Has this process taken the place of a server that failed? Its handlers with a state then go on with their journals, where the
    /// job keeps any ([`App`]).
    #[must_use]
    pub fn is_recovery(&self) -> bool {
        self.is_recovery
    }

    /// The number of workers in the cluster.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.shape.workers
    }

    /// The number of servers in the cluster.
    #[must_use]
    pub fn servers(&self) -> u32 {
        self.shape.servers
    }

    /// Registers a handler for calls to this number. Earlier calls have waited for it.
    pub fn register(&self, app: u32, handler: impl App + 'static) -> Result<(), RegisterError> {
        self.apps.register(app, handler)
    }

    /// Unregisters a handler, and waits until it has finished its current call. It is an error if it does not return
    /// in time. False if there is no handler.
    pub fn unregister(&self, app: u32) -> Result<bool, StuckHandler> {
        self.apps.unregister(app)
    }

    /// Its handlers.
    #[must_use]
    pub fn apps(&self) -> &Apps {
        &self.apps
    }

    /// Messages to and from other members' programs.
    #[must_use]
    pub fn posts(&self) -> &Posts {
        &self.posts
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.role.is_over()
    }

    /// Waits until the job has ended, and returns the result. It has no deadline: failures, the loss of the scheduler
    /// and the end of the job end it.
    pub fn join(mut self) -> anyhow::Result<()> {
        self.role.wait()
    }

    /// Leaves the cluster in good order. If a handler does not return within `deadlines.drain_ms`, the error names it.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.role.stop("it was closed by this process");
        self.role.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.role.end();
    }
}

async fn serve(
    settings: Settings,
    (program, posts): (Program, Posts),
    shutdown: Shutdown,
    tell: impl FnOnce(&Welcome),
) -> anyhow::Result<()> {
    let http = daemon::http::bind(&settings.node.http).await?;
    let listener = listen(&settings).await?;
    let told = (Notify::default(), Flight::embedded(Role::Server, &settings));
    let apps = program.apps.clone();
    let ended = run_with(listener, http, settings, shutdown, (program, posts, tell), told).await;
    // A server that has ended early has not ended its handlers: one may wait for its journal.
    let _ = apps.end();
    ended
}

/// Binds the address that workers connect to.
pub async fn listen(settings: &Settings) -> Result<TcpListener, Failure> {
    use anyhow::Context as _;
    use daemon::exit::WithCode as _;
    let (host, port) = (settings.node.bind.as_str(), settings.node.port);
    let bound = TcpListener::bind((host, port)).await.with_context(|| {
        format!("cannot bind {host}:{port}; set node.bind and node.port to a free address of this host")
    });
    bound.code(proto_common::error::ExitCode::Io)
}
