//! A member's link to the scheduler: registration, heartbeats, loss, and the way back when another scheduler is at the same
//! address. One task owns the socket; the member sees a queue of events and a sender. It must not interpret what the
//! scheduler says beyond that.
//!
//! When the connection is lost the member goes on, for `deadlines.scheduler_ms` of the scheduler's settings: the link says
//! [`LinkEvent::Away`], connects again, registers with what the member knows ([`Resume`]), and says [`LinkEvent::Back`].
//! What was handed over meanwhile is sent then. What was sent before and may not have arrived is the member's to send again
//! after `Back`: requests that are not answered (`Declare`, `ChangeRule`, `Barrier`), `Assigned` of what it was asked last,
//! `Seeded`, `LinksReady`, `Drain`. All of them may come twice: the scheduler takes that. A goodbye that no scheduler has
//! confirmed is said again here.

use super::beats::Beats;
use super::connect::connect_with_retry;
use super::connection::{Connection, ReadHalf, WriteHalf};
use super::frame::{FrameError, frame_of};
use super::link_error::LinkError;
use super::seek::{Resuming, Seeker, greet};
use super::undecided::{Overflow, Undecided};
use crate::Later;
use crate::security::Security;
use proto_common::config::Settings;
use proto_common::message::{FromScheduler, MemberReport, Register, Resume, ToScheduler, Welcome};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Messages that may wait to be sent; more wait in their callers.
const OUTGOING_MAX: usize = 256;
/// Events that may wait for the member; more wait in the socket.
const EVENTS_MAX: usize = 1024;

/// Connections that may end before the registration is answered: one is a scheduler that died at this moment, and more are
/// somebody who does not speak to us.
const GREETS_MAX: u32 = 3;
/// Between two of them.
const GREET_AGAIN: Duration = Duration::from_millis(100);

/// What arrives from the scheduler.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// It said this. Heartbeat acknowledgements are not shown.
    Message(FromScheduler),
    /// It is gone, for now: the link looks for the next one. `Back` or `Lost` follows.
    Away {
        /// Since when.
        since: Instant,
        /// How it was lost.
        why: LinkError,
    },
    /// There is a scheduler again, which knows what the members told it. Requests that were open are to be sent again.
    Back(Welcome),
    /// It is gone. This is the last event.
    Lost(LinkError),
}

/// Sends to the scheduler; cheap to clone.
#[derive(Clone, Debug)]
pub struct LinkSender {
    frames: mpsc::Sender<Outgoing>,
}

#[derive(Debug)]
enum Outgoing {
    Frame(Vec<u8>),
    Last(LastWord),
}

/// The last word of a member.
#[derive(Clone, Debug)]
struct LastWord {
    frame: Vec<u8>,
    /// The next scheduler is to hear it where this one has not confirmed it. A failing member needs none: who does not come
    /// is dead to it.
    again: bool,
}

impl LinkSender {
    /// Hands a message over for sending; waits while many wait already, also while there is no scheduler. An error means that
    /// the message is too large, or that the link is lost: the reason comes as [`LinkEvent::Lost`].
    pub async fn send(&self, message: &ToScheduler) -> Result<(), LinkError> {
        let frame = Outgoing::Frame(frame_of(message)?);
        self.frames.send(frame).await.map_err(|_| LinkError::Closed)
    }

    /// As [`LinkSender::send`], for the first message of a queue, which may be empty. Cancel-safe: a message that is not handed over
    /// stays in its queue.
    pub async fn send_next(&self, message: Option<&ToScheduler>) -> Result<(), LinkError> {
        match message {
            Some(message) => self.send(message).await,
            None => Ok(()),
        }
    }
}

/// A registered member's link to the scheduler.
#[derive(Debug)]
pub struct SchedulerLink {
    /// What the scheduler says, in order. Bounded: a member that does not read it is not served.
    pub events: mpsc::Receiver<LinkEvent>,
    sender: LinkSender,
    task: JoinHandle<()>,
}

impl SchedulerLink {
    /// Reaches the scheduler within `deadlines.connect_ms` (where it dies before it answers, the next one within as much again),
    /// registers, and starts heartbeats that carry what `report` says at that moment (it runs on the runtime's thread and must
    /// return at once). Needs a tokio runtime, which must be driven for as long as the link lives.
    ///
    /// `resume` is asked, on the same thread, when the scheduler was lost: what the member knows, or `None` where it is in no
    /// roster yet. Then the link is lost.
    pub fn connect<'a>(
        own: (&'a Settings, &'a Security),
        register: Register,
        report: impl FnMut() -> MemberReport + Send + 'static,
        resume: impl FnMut() -> Option<Resume> + Send + 'static,
    ) -> Later<'a, Result<(Self, Welcome), LinkError>> {
        Box::pin(Self::connect_with(own, register, Box::new(report), Box::new(resume)))
    }

    async fn connect_with(
        (settings, security): (&Settings, &Security),
        register: Register,
        report: Report,
        resume: Resuming,
    ) -> Result<(Self, Welcome), LinkError> {
        let (host, port) = (settings.scheduler.host.as_str(), settings.scheduler.port);
        let fix = "start gradwire-scheduler there, or set scheduler.host and scheduler.port";
        let deadlines = &settings.deadlines;
        // Who wants no rank of its own may have to wait until it is clear that it is nobody's.
        let answer_ms = match register.wanted_rank {
            Some(_) => deadlines.connect_ms,
            None => deadlines.connect_ms.saturating_add(deadlines.silence_ms),
        };
        let limit = Duration::from_millis(answer_ms);
        let address = format!("{host}:{port}");
        let mut tries = 0;
        let (connection, welcome) = loop {
            tries += 1;
            let stream = connect_with_retry(host, port, deadlines.connect_ms, fix)
                .await
                .map_err(|error| LinkError::Unreachable(Arc::new(error)))?;
            match greet((security, stream), (&address, &register), None, &mut 0, limit).await {
                Err(error) if error.is_cut() && tries < GREETS_MAX => {
                    tracing::debug!(%error, "the scheduler closed the connection before it answered");
                    // Nothing tells when the next one listens.
                    sleep(GREET_AGAIN).await;
                }
                greeted => break greeted?,
            }
        };
        let (frames, outgoing) = mpsc::channel(OUTGOING_MAX);
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let seeker = Seeker::new((settings, security), register, &welcome, resume);
        let (beats, undecided) = (Beats::new(&welcome.shape), Undecided::default());
        let keeper = Keeper { events, outgoing, report, beats, last: None, parting: false, undecided };
        let task = tokio::spawn(keeper.keep(connection, welcome.clone(), seeker));
        Ok((Self { events: received, sender: LinkSender { frames }, task }, welcome))
    }

    /// A sender, for any number of tasks and threads.
    #[must_use]
    pub fn sender(&self) -> LinkSender {
        self.sender.clone()
    }

    /// Sends the last message (`Goodbye` or `Failing`), flushes the queue, and waits for the scheduler to close the connection, all
    /// within `limit`. If the scheduler exits before it has confirmed a goodbye, the goodbye is sent again to the next scheduler, if
    /// that one starts in time. Senders cannot be used afterwards.
    pub fn finish(mut self, last: &ToScheduler, limit: Duration) -> Later<'_, Result<(), LinkError>> {
        Box::pin(async move {
            let again = matches!(last, ToScheduler::Goodbye);
            let frame = Outgoing::Last(LastWord { frame: frame_of(last)?, again });
            let orderly = async {
                self.sender.frames.send(frame).await.map_err(|_| LinkError::Closed)?;
                self.closed().await;
                Ok::<_, LinkError>(())
            };
            timeout(limit, orderly).await.unwrap_or(Ok(()))
        })
    }

    /// Waits until the link is lost; what else comes is of no interest any more.
    async fn closed(&mut self) {
        while !matches!(self.events.recv().await, None | Some(LinkEvent::Lost(_))) {}
    }

    /// Says goodbye until a scheduler has confirmed it: one that nobody has heard is a death. Where there is none it waits for
    /// the next one, for as long as the link looks for it; the error says that nobody has heard it. Then as
    /// [`SchedulerLink::finish`].
    pub fn goodbye(self, limit: Duration) -> Later<'static, Result<(), LinkError>> {
        Box::pin(self.goodbye_within(limit))
    }

    async fn goodbye_within(mut self, limit: Duration) -> Result<(), LinkError> {
        let frame = Outgoing::Last(LastWord { frame: frame_of(&ToScheduler::Goodbye)?, again: true });
        let (sender, events) = (self.sender.clone(), &mut self.events);
        let said = async move {
            // A lost link reports itself as an event.
            let _ = sender.frames.send(frame).await;
            std::future::pending::<()>().await;
        };
        let heard = async {
            // The job may be over meanwhile: then nobody needs to hear it.
            let mut is_over = false;
            loop {
                match events.recv().await {
                    Some(LinkEvent::Message(FromScheduler::GoodbyeAck)) => return Ok(()),
                    Some(LinkEvent::Message(
                        FromScheduler::Shutdown { .. } | FromScheduler::MemberDied(_),
                    )) => {
                        is_over = true;
                    }
                    Some(LinkEvent::Lost(_)) | None if is_over => return Ok(()),
                    Some(LinkEvent::Lost(error)) => return Err(error),
                    None => return Err(LinkError::Closed),
                    Some(_) => {}
                }
            }
        };
        tokio::select! {
            heard = heard => heard?,
            () = said => {}
        }
        // It was heard; whoever does not close is no reason to stay.
        let _ = timeout(limit, self.closed()).await;
        Ok(())
    }
}

impl Drop for SchedulerLink {
    fn drop(&mut self) {
        // Without a last word the scheduler sees a lost connection, at once.
        self.task.abort();
    }
}

fn silence_of(welcome: &Welcome) -> Duration {
    Duration::from_millis(welcome.shape.silence_ms.max(1))
}

/// What a heartbeat carries.
type Report = Box<dyn FnMut() -> MemberReport + Send>;

/// The link's task.
struct Keeper {
    events: mpsc::Sender<LinkEvent>,
    outgoing: mpsc::Receiver<Outgoing>,
    report: Report,
    beats: Beats,
    /// We have said the last word, this one.
    last: Option<LastWord>,
    /// The scheduler has: a close that follows is no loss to come back from.
    parting: bool,
    undecided: Undecided,
}

impl Keeper {
    async fn keep(mut self, mut connection: Connection, welcome: Welcome, mut seeker: Seeker) {
        let mut silence = silence_of(&welcome);
        let lost = loop {
            let Some((lost, is_told)) = self.serve(connection, silence).await else { return };
            let since = Instant::now();
            let is_over = self.last.as_ref().is_some_and(|last| !last.again);
            if is_over || self.parting || !is_told || !seeker.may_seek() {
                break lost;
            }
            tracing::warn!(error = %lost, "training continues without a scheduler; start one at the same address, with the same job and settings, within deadlines.scheduler_ms");
            if self.events.send(LinkEvent::Away { since, why: lost.clone() }).await.is_err() {
                return;
            }
            // What the last one said is taken before the member tells what it knows.
            if self.events.reserve_many(EVENTS_MAX).await.is_err() {
                return;
            }
            self.undecided.lost();
            match seeker.seek(lost, self.last.is_some(), &self.undecided).await {
                Ok((next, welcome)) => {
                    connection = next;
                    tracing::info!(epoch = %welcome.epoch, "reconnected to a scheduler");
                    (self.beats, silence) = (Beats::new(&welcome.shape), silence_of(&welcome));
                    if self.events.send(LinkEvent::Back(welcome)).await.is_err() {
                        return;
                    }
                }
                Err(LinkError::MayGo) => {
                    if self.events.send(LinkEvent::Message(FromScheduler::GoodbyeAck)).await.is_err() {
                        return;
                    }
                    break LinkError::MayGo;
                }
                Err(lost) => break lost,
            }
        };
        let _ = self.events.send(LinkEvent::Lost(lost)).await;
    }

    /// One connection's life; says how it was lost, and whether the scheduler knows, or will, that this process goes on. None when
    /// nobody listens to us any more.
    async fn serve(&mut self, connection: Connection, silence: Duration) -> Option<(LinkError, bool)> {
        let (read, write) = connection.into_split();
        let (answers, to_answer) = watch::channel(None);
        let outgoing = (&mut self.last, &mut self.outgoing, to_answer);
        let writer = write_frames(write, outgoing, (&mut self.beats, &mut self.report), silence);
        let heard = Heard { undecided: &mut self.undecided, answers };
        let reader = read_events(read, (&self.events, heard), silence, &mut self.parting);
        tokio::pin!(writer, reader);
        // The reading half sees a broken connection as well, and says so.
        tokio::select! {
            lost = &mut reader => {
                let lost = lost?;
                // The reader has said that this scheduler is given up, where that is not the scheduler's own doing.
                let is_told = matches!(lost, LinkError::Closed) || timeout(silence, writer).await.is_ok();
                Some((lost, is_told))
            }
            () = &mut writer => Some((reader.await?, true)),
        }
    }
}

/// Where decisions go until they are in force, and the answer to the last proposal.
struct Heard<'a> {
    undecided: &'a mut Undecided,
    answers: watch::Sender<Option<ToScheduler>>,
}

/// What the scheduler says, until it is lost. None when the member does not listen any more.
async fn read_events(
    read: ReadHalf,
    (events, heard): (&mpsc::Sender<LinkEvent>, Heard<'_>),
    silence: Duration,
    parting: &mut bool,
) -> Option<LinkError> {
    let Heard { undecided, answers } = heard;
    let lost = read_until_lost(read, (events, undecided, &answers), silence, parting).await?;
    if !matches!(lost, LinkError::Closed) {
        // A connection that just closes is taken for the end of this process. It goes on, perhaps with another scheduler.
        answers.send_replace(Some(ToScheduler::Abandons));
    }
    Some(lost)
}

async fn read_until_lost(
    mut read: ReadHalf,
    (events, undecided, answers): (
        &mpsc::Sender<LinkEvent>,
        &mut Undecided,
        &watch::Sender<Option<ToScheduler>>,
    ),
    silence: Duration,
    parting: &mut bool,
) -> Option<LinkError> {
    let mut now = Vec::new();
    loop {
        match read.receive_within(silence).await {
            Ok(Some(FromScheduler::HeartbeatAck)) => {}
            Ok(Some(message)) => {
                *parting |= matches!(
                    message,
                    FromScheduler::Refused(_)
                        | FromScheduler::MemberDied(_)
                        | FromScheduler::Shutdown { .. }
                        | FromScheduler::GoodbyeAck
                );
                match undecided.take(message, &mut now) {
                    Ok(Some(answer)) => _ = answers.send_replace(Some(answer)),
                    Ok(None) => {}
                    Err(Overflow) => return Some(LinkError::Undecided),
                }
                for message in now.drain(..) {
                    if events.send(LinkEvent::Message(message)).await.is_err() {
                        return None;
                    }
                }
            }
            Ok(None) => return Some(LinkError::Closed),
            Err(FrameError::Deadline { waited_ms }) => {
                return Some(LinkError::Silent { silent_ms: waited_ms });
            }
            Err(FrameError::Cut { .. } | FrameError::Io(_)) => return Some(LinkError::Closed),
            Err(error) => return Some(LinkError::Broken(Arc::new(error))),
        }
    }
}

/// Sends what waits, and heartbeats, until the connection fails or the last word is said: at once, where it was
/// said to another scheduler.
async fn write_frames(
    mut write: WriteHalf,
    (said, outgoing, mut answers): (
        &mut Option<LastWord>,
        &mut mpsc::Receiver<Outgoing>,
        watch::Receiver<Option<ToScheduler>>,
    ),
    (beats, report): (&mut Beats, &mut Report),
    limit: Duration,
) {
    let mut is_over = false;
    while said.is_none() && !is_over {
        let next = tokio::select! {
            biased;
            Ok(()) = answers.changed() => {
                let answer = answers.borrow_and_update().clone();
                is_over = matches!(answer, Some(ToScheduler::Abandons));
                match answer.map(|answer| frame_of(&answer)) {
                    Some(Ok(frame)) => Outgoing::Frame(frame),
                    Some(Err(_)) | None => continue,
                }
            },
            () = beats.due() => {
                let report = report();
                beats.tell(&report);
                match frame_of(&ToScheduler::Heartbeat(report)) {
                    Ok(frame) => Outgoing::Frame(frame),
                    Err(error) => {
                        tracing::warn!(%error, "the report in the heartbeat is too large; sending the heartbeat without it");
                        continue;
                    }
                }
            },
            next = outgoing.recv() => match next {
                Some(next) => next,
                // The link holds a sender itself, so it is being dropped.
                None => return,
            },
        };
        match next {
            Outgoing::Frame(frame) => {
                if let Err(error) = write.write_within(&frame, limit).await {
                    tracing::debug!(%error, "cannot write to the scheduler");
                    return;
                }
            }
            Outgoing::Last(last) => *said = Some(last),
        }
    }
    let Some(last) = said else { return };
    match write.write_within(&last.frame, limit).await {
        Ok(()) => _ = write.close().await,
        Err(error) => tracing::debug!(%error, "cannot write to the scheduler"),
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
