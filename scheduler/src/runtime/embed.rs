//! A scheduler inside any process, on a thread of its own. What it does is `run`'s.

use super::{bind, run_with, verdict};
use crate::engine::Outcome;
use daemon::post::Posts;
use daemon::shutdown::Trigger;
use proto_common::config::Settings;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// A scheduler in this process. Dropping it ends the job, as [`Scheduler::close`] does.
#[derive(Debug)]
pub struct Scheduler {
    control: SocketAddr,
    posts: Posts,
    trigger: Trigger,
    ended: Receiver<anyhow::Result<Outcome>>,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Binds what the settings say, and takes registrations from then on.
    pub fn start(settings: Settings) -> anyhow::Result<Self> {
        let (trigger, shutdown) = daemon::shutdown::channel();
        let (tell, ended) = sync_channel(1);
        let posts = Posts::start()?;
        let for_core = posts.clone();
        let (tell_bound, bound) = sync_channel(1);
        let thread = std::thread::Builder::new().name("gradwire-scheduler".into()).spawn(move || {
            let body = async move {
                let listeners = bind(&settings).await?;
                let _ = tell_bound.try_send(listeners.control.local_addr()?);
                run_with(listeners, &settings, shutdown, Some(for_core)).await
            };
            let result = daemon::process::run_to_end(body);
            // Nobody listens any more where it was dropped.
            let _ = tell.try_send(result.map_err(Into::into).and_then(|result| result));
        })?;
        // It is bound at once, or the thread ends.
        match bound.recv() {
            Ok(control) => Ok(Self { control, posts, trigger, ended, thread: Some(thread) }),
            Err(_) => match ended.recv() {
                Ok(Err(error)) => Err(error),
                _ => Err(anyhow::anyhow!("the scheduler's thread ended before it was bound")),
            },
        }
    }

    /// Where members connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.control
    }

    /// Messages to and from members' programs.
    #[must_use]
    pub fn posts(&self) -> &Posts {
        &self.posts
    }

    /// Has the job ended?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the job has ended: in good order, or the error says how.
    pub fn join(mut self) -> anyhow::Result<()> {
        self.wait()
    }

    /// Ends the job.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.trigger.fire("the scheduler was closed");
        self.wait()
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let panicked =
            || anyhow::anyhow!("the scheduler's thread panicked; please report it with what the log says");
        let ended = self.ended.recv().map_err(|_| panicked());
        thread.join().map_err(|_| panicked())?;
        Ok(verdict(&ended??)?)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.trigger.fire("the scheduler was dropped");
        if let Err(error) = self.wait() {
            tracing::warn!(%error, "a scheduler in this process ended badly");
        }
    }
}
