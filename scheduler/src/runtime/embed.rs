//! A scheduler inside another process, on its own thread. `run` does its work.

use super::{Follows, bind, run_with, verdict};
use crate::engine::Outcome;
use daemon::embed::{Embedded, Ready, StartError};
use daemon::flight::Flight;
use daemon::notify::Notify;
use daemon::post::Posts;
use proto_common::config::Settings;
use proto_common::ids::Role;
use std::net::SocketAddr;
use std::time::Duration;

/// Binding may have to look up a name.
const BOUND_WITHIN: Duration = Duration::from_secs(60);

/// A scheduler in this process. If it is dropped, the job ends, as with [`Scheduler::close`].
#[derive(Debug)]
pub struct Scheduler {
    control: SocketAddr,
    posts: Posts,
    role: Embedded<Outcome>,
}

impl Scheduler {
    /// Binds the address in the settings, and accepts registrations from then on.
    pub fn start(settings: Settings) -> anyhow::Result<Self> {
        let posts = Posts::start()?;
        let for_core = posts.clone();
        let started =
            Embedded::start("scheduler", BOUND_WITHIN, |shutdown, ready: Ready<SocketAddr>| async move {
                let listeners = bind(&settings).await?;
                ready.tell(listeners.control.local_addr()?);
                let told = (Notify::default(), Flight::embedded(Role::Scheduler, &settings));
                run_with(listeners, &settings, shutdown, (Some(for_core), Follows::Nobody), told).await
            });
        let (role, control) = started.map_err(|error| match error {
            StartError::Ended(error) => error,
            other => anyhow::Error::new(other).context("cannot start a scheduler in this process"),
        })?;
        Ok(Self { control, posts, role })
    }

    /// The address for members.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.control
    }

    /// Messages to and from members' programs.
    #[must_use]
    pub fn posts(&self) -> &Posts {
        &self.posts
    }

    /// Whether the job has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.role.is_over()
    }

    /// Waits until the job has ended, successfully or with an error.
    pub fn join(mut self) -> anyhow::Result<()> {
        Ok(verdict(&self.role.wait()?)?)
    }

    /// Ends the job.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.role.stop("the scheduler was closed");
        Ok(verdict(&self.role.wait()?)?)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.role.end();
    }
}
