//! Registering with a scheduler: with the first one, and with the next one at the same address when that is lost, within
//! `deadlines.scheduler_ms`. It must not send anything but registrations.

use super::connect::{BACKOFF_FIRST_MS, BACKOFF_MAX_MS, connect_with_retry};
use super::connection::Connection;
use super::frame::FrameError;
use super::link_error::LinkError;
use super::undecided::Undecided;
use crate::security::Security;
use proto_common::config::Settings;
use proto_common::ids::{Epoch, JobId, Role};
use proto_common::message::{ClusterShape, FromScheduler, Register, Resume, ToScheduler, Welcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

/// How long a refused member tries to say goodbye. There is room for one message as a rule.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// Registers on a new connection, and waits for the answer. A restarted scheduler asks for a vote before: it gets it where its
/// term is higher than `term`, the highest that this member has voted for or obeyed.
pub(super) async fn greet(
    (security, stream): (&Security, TcpStream),
    (address, register): (&str, &Register),
    resume: Option<Resume>,
    term: &mut u32,
    limit: Duration,
) -> Result<(Connection, Welcome), LinkError> {
    let address = address.to_owned();
    let no_answer = |cause: FrameError| match cause {
        FrameError::Security(fault) => LinkError::Untrusted { address: address.clone(), fault },
        cause => LinkError::NoAnswer { address: address.clone(), cause: Arc::new(cause) },
    };
    let whom = Some((register.job, Role::Scheduler));
    let mut connection = security.dial(stream, whom, limit).await.map_err(no_answer)?;
    let resumes = resume.is_some();
    let leaves = resume.as_ref().is_some_and(|resume| resume.leaves);
    let (resume, mut map) = resume.map_or((None, None), |resume| {
        let (resume, map) = resume.apart();
        (Some(resume), map)
    });
    let head = Register { resume: resume.as_ref().map(Resume::head), ..register.clone() };
    connection.send_within(&ToScheduler::Register(head), limit).await.map_err(no_answer)?;
    report(&mut connection, resume, limit).await.map_err(no_answer)?;
    let answer = loop {
        match connection.receive_within::<FromScheduler>(limit).await.map_err(no_answer)? {
            Some(FromScheduler::SendMap) if map.is_some() => {
                report(&mut connection, map.take(), limit).await.map_err(no_answer)?;
            }
            Some(FromScheduler::Candidate { term: its }) if its > *term => {
                *term = its;
                let vote = ToScheduler::Heard { epoch: Epoch { term: its, counter: 0 } };
                connection.send_within(&vote, limit).await.map_err(no_answer)?;
            }
            // It has had the vote for this term, or another scheduler has.
            Some(FromScheduler::Candidate { .. }) => {}
            answer => break answer,
        }
    };
    match answer {
        Some(FromScheduler::Welcome(welcome)) => {
            connection.admit();
            Ok((connection, welcome))
        }
        Some(FromScheduler::Refused(reason)) => {
            // A member exits now. The scheduler counts its exit if it hears of it, and does not wait for it.
            if resumes {
                let _ = connection.send_within(&ToScheduler::Goodbye, GOODBYE_LIMIT).await;
            }
            Err(LinkError::Refused(reason))
        }
        Some(FromScheduler::GoodbyeAck) if leaves => Err(LinkError::MayGo),
        Some(other) => {
            let error = std::io::Error::other(format!("unexpected first message {other:?}"));
            Err(no_answer(error.into()))
        }
        None => Err(no_answer(FrameError::Cut { got: 0 })),
    }
}

/// Sends what a member knows, in parts.
async fn report(
    connection: &mut Connection,
    known: Option<Resume>,
    limit: Duration,
) -> Result<(), FrameError> {
    let parts = known.map(Resume::parts).unwrap_or_default();
    let count = parts.len();
    for (at, part) in parts.into_iter().enumerate() {
        let last = at + 1 == count;
        connection.send_within(&ToScheduler::Resuming { part, last }, limit).await?;
    }
    Ok(())
}

/// What the member knows; `None` where it is in no roster yet.
pub(super) type Resuming = Box<dyn FnMut() -> Option<Resume> + Send>;

/// Looks for the next scheduler.
pub(super) struct Seeker {
    security: Security,
    host: String,
    port: u16,
    /// The shape that was told last: how long to look, and what the next one is shown.
    shape: ClusterShape,
    register: Register,
    job: JobId,
    /// The highest term that was obeyed: lower ones are deposed.
    term: u32,
    /// The checkpoint that the job began from.
    restore: Option<String>,
    resume: Resuming,
}

impl Seeker {
    pub(super) fn new(
        (settings, security): (&Settings, &Security),
        register: Register,
        welcome: &Welcome,
        resume: Resuming,
    ) -> Self {
        Self {
            security: security.clone(),
            host: settings.scheduler.host.clone(),
            port: settings.scheduler.port,
            shape: welcome.shape,
            register: Register { wanted_rank: Some(welcome.rank), ..register },
            job: welcome.job,
            term: welcome.epoch.term,
            restore: welcome.restore.clone(),
            resume,
        }
    }

    /// Is a lost scheduler to be survived?
    pub(super) fn may_seek(&self) -> bool {
        self.shape.scheduler_ms > 0
    }

    /// The next scheduler, or why there is none; `lost` is how the one before went. It is told whether the member `leaves`.
    pub(super) async fn seek(
        &mut self,
        lost: LinkError,
        leaves: bool,
        undecided: &Undecided,
    ) -> Result<(Connection, Welcome), LinkError> {
        let within = Duration::from_millis(self.shape.scheduler_ms);
        let deadline = Instant::now() + within;
        let mut backoff = Duration::from_millis(BACKOFF_FIRST_MS);
        // In no roster yet: nothing to come back to.
        if (self.resume)().is_none() {
            return Err(lost);
        }
        loop {
            let error = match self.attempt(deadline, leaves, undecided).await {
                Ok(None) => return Err(lost),
                Ok(Some((connection, welcome))) => {
                    (self.term, self.shape) = (welcome.epoch.term, welcome.shape);
                    return Ok((connection, welcome));
                }
                Err(
                    error @ (LinkError::Refused(_)
                    | LinkError::Deposed { .. }
                    | LinkError::Message(_)
                    | LinkError::MayGo),
                ) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            let next = Instant::now() + backoff;
            if next >= deadline {
                let waited_ms = self.shape.scheduler_ms;
                return Err(LinkError::NotBack { waited_ms, lost: Box::new(lost), last: Box::new(error) });
            }
            tracing::debug!(%error, "no scheduler found yet");
            // Nothing tells when a process on another machine answers.
            sleep_until(next).await;
            backoff = (backoff * 2).min(Duration::from_millis(BACKOFF_MAX_MS));
        }
    }

    /// One registration; `None` where there is nothing to register with.
    async fn attempt(
        &mut self,
        deadline: Instant,
        leaves: bool,
        undecided: &Undecided,
    ) -> Result<Option<(Connection, Welcome)>, LinkError> {
        let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let fix = "restart gradwire-scheduler there";
        let stream = connect_with_retry(&self.host, self.port, left().as_millis() as u64, fix)
            .await
            .map_err(|error| LinkError::Unreachable(Arc::new(error)))?;
        let address = format!("{}:{}", self.host, self.port);
        // Only now: what the last scheduler said before it went has been taken meanwhile.
        let Some(resume) = (self.resume)() else { return Ok(None) };
        let (term, restore, shape) = (self.term, self.restore.clone(), Some(self.shape));
        let resume = undecided.show(Resume { term, leaves, restore, shape, ..resume });
        let whom = (address.as_str(), &self.register);
        let (connection, welcome) =
            greet((&self.security, stream), whom, Some(resume), &mut self.term, left()).await?;
        // A scheduler of a term that another one had is not the one that this member follows, or has voted for.
        if welcome.job != self.job
            || welcome.epoch.term < self.term
            || welcome.epoch.term == term
            || Some(welcome.rank) != self.register.wanted_rank
        {
            let (term, known) = (welcome.epoch.term, self.term);
            return Err(LinkError::Deposed { address, job: welcome.job, term, known });
        }
        Ok(Some((connection, welcome)))
    }
}
