//! A server inside any process: on a thread of its own, with handlers that the program registers. What it does is `run`'s.

use super::run::run_with;
use crate::app::{App, Apps, RegisterError, StuckHandler};
use daemon::embed::{self, Embedded, Ready};
use daemon::exit::Failure;
use daemon::flight::Flight;
use daemon::notify::Notify;
use daemon::post::Posts;
use daemon::shutdown::Shutdown;
use proto_common::config::Settings;
use proto_common::ids::{Rank, Role};
use proto_common::message::ClusterShape;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;

/// A server that cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// It ended before the scheduler had given it a rank.
    #[error("the server ended before it had a rank: {0:#}")]
    Ended(anyhow::Error),
    /// Its thread cannot be started.
    #[error("cannot start the server's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The scheduler gave it no rank in time.
    #[error(
        "the scheduler at {scheduler} gave this server no rank within {waited_ms} ms; start it, or look at its log"
    )]
    NoRank {
        /// Where it is.
        scheduler: String,
        /// How long it took.
        waited_ms: u64,
    },
}

/// A server in this process. Dropping it leaves the cluster in good order, as [`Server::close`] does.
#[derive(Debug)]
pub struct Server {
    rank: Rank,
    shape: ClusterShape,
    apps: Apps,
    posts: Posts,
    role: Embedded<()>,
}

impl Server {
    /// Joins the cluster that the settings name; returns when the scheduler has given it a rank. Handlers may be registered
    /// from then on; calls that come before theirs is there wait for it.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, Apps::default())
    }

    /// As [`Server::start`], with handlers that are there from the first call on.
    pub fn start_with(settings: Settings, apps: Apps) -> Result<Self, StartError> {
        let deadlines = &settings.deadlines;
        // The scheduler is sought that long, and a registration answered.
        let within = Duration::from_millis(deadlines.connect_ms.saturating_add(deadlines.handshake_ms))
            + Duration::from_secs(1);
        let scheduler = format!("{}:{}", settings.scheduler.host, settings.scheduler.port);
        let posts = Posts::start()?;
        let own = (apps.clone(), posts.clone());
        let started =
            Embedded::start("server", within, move |shutdown, ready: Ready<(Rank, ClusterShape)>| {
                serve(settings, own, shutdown, |rank, shape| ready.tell((rank, shape)))
            });
        match started {
            Ok((role, (rank, shape))) => Ok(Self { rank, shape, apps, posts, role }),
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

    /// How many workers the cluster has.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.shape.workers
    }

    /// How many servers the cluster has.
    #[must_use]
    pub fn servers(&self) -> u32 {
        self.shape.servers
    }

    /// Lets a handler take calls to this number. Calls that came before wait for it.
    pub fn register(&self, app: u32, handler: impl App + 'static) -> Result<(), RegisterError> {
        self.apps.register(app, handler)
    }

    /// Ends a handler when it is done with the call that it has; the error says that it did not return in time. False where
    /// there is none.
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

    /// Has it ended?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.role.is_over()
    }

    /// Waits until the job has ended, and says how. It has no deadline of its own: members' silence, the scheduler's end and
    /// the job's all end it.
    pub fn join(mut self) -> anyhow::Result<()> {
        self.role.wait()
    }

    /// Leaves the cluster in good order. A handler that does not return within `deadlines.drain_ms` is an error that names it.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.role.stop("it was closed");
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
    (apps, posts): (Apps, Posts),
    shutdown: Shutdown,
    tell: impl FnOnce(Rank, ClusterShape),
) -> anyhow::Result<()> {
    let http = daemon::http::bind(&settings.node.http).await?;
    let listener = listen(&settings).await?;
    let told = (Notify::default(), Flight::embedded(Role::Server, &settings));
    run_with(listener, http, settings, shutdown, (apps, posts, tell), told).await
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
