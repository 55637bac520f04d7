//! A member's link to the scheduler: registration, heartbeats, loss, and the way back when another scheduler is at the same
//! address. One task owns the socket; the member sees a queue of events and a sender. It must not interpret what the
//! scheduler says beyond that.
//!
//! When the connection is lost the member goes on, for `deadlines.scheduler_ms` of the scheduler's settings: the link says
//! [`LinkEvent::Away`], connects again, registers with what the member knows ([`Resume`]), and says [`LinkEvent::Back`].
//! What was handed over meanwhile is sent then. What was sent before and may not have arrived is the member's to send again
//! after `Back`: requests that are not answered (`Declare`, `ChangeRule`, `Barrier`), `Assigned` of what it was asked last,
//! `Seeded`, `LinksReady`, `Drain`. All of them may come twice: the scheduler takes that.

use super::connect::connect_with_retry;
use super::connection::{Connection, ReadHalf, WriteHalf};
use super::frame::{FrameError, frame_of};
use super::link_error::LinkError;
use super::seek::{Seeker, greet};
use proto_common::config::Settings;
use proto_common::message::{FromScheduler, MemberReport, Register, Resume, ToScheduler, Welcome};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// Messages that may wait to be sent; more wait in their callers.
const OUTGOING_MAX: usize = 256;
/// Events that may wait for the member; more wait in the socket.
const EVENTS_MAX: usize = 1024;

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
    /// With whom to tell when it is written.
    Last(Vec<u8>, oneshot::Sender<()>),
}

impl LinkSender {
    /// Hands a message over for sending; waits while many wait already, also while there is no scheduler. An error means that
    /// the message is too large, or that the link is lost: the reason comes as [`LinkEvent::Lost`].
    pub async fn send(&self, message: &ToScheduler) -> Result<(), LinkError> {
        let frame = Outgoing::Frame(frame_of(message)?);
        self.frames.send(frame).await.map_err(|_| LinkError::Closed)
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
    /// Reaches the scheduler within `deadlines.connect_ms`, registers, and starts heartbeats that carry what
    /// `report` says at that moment (it runs on the runtime's thread and must return at once). Needs a tokio
    /// runtime, which must be driven for as long as the link lives.
    ///
    /// `resume` is asked, on the same thread, when the scheduler was lost: what the member knows, or `None` where it is in no
    /// roster yet. Then the link is lost.
    pub async fn connect(
        settings: &Settings,
        register: Register,
        report: impl FnMut() -> MemberReport + Send + 'static,
        resume: impl FnMut() -> Option<Resume> + Send + 'static,
    ) -> Result<(Self, Welcome), LinkError> {
        let (host, port) = (settings.scheduler.host.as_str(), settings.scheduler.port);
        let fix = "start gradwire-scheduler there, or set scheduler.host and scheduler.port";
        let limit = Duration::from_millis(settings.deadlines.connect_ms);
        let stream = connect_with_retry(host, port, settings.deadlines.connect_ms, fix)
            .await
            .map_err(|error| LinkError::Unreachable(Arc::new(error)))?;
        let address = format!("{host}:{port}");
        let (connection, welcome) = greet(stream, &address, &register, None, limit).await?;
        let (frames, outgoing) = mpsc::channel(OUTGOING_MAX);
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let seeker = Seeker::new(settings, register, &welcome, resume);
        let keeper =
            Keeper { events, outgoing, unsaid: None, report, beat: beats(&welcome), said_last: false, parting: false };
        let task = tokio::spawn(keeper.keep(connection, welcome.clone(), seeker));
        Ok((Self { events: received, sender: LinkSender { frames }, task }, welcome))
    }

    /// A sender, for any number of tasks and threads.
    #[must_use]
    pub fn sender(&self) -> LinkSender {
        self.sender.clone()
    }

    /// Says the last word (`Goodbye` or `Failing`), flushes what waits, and waits for the scheduler to close,
    /// all within `limit`. A goodbye that is not heard is a death: while there is no scheduler it waits for the next one, for
    /// as long as the link looks for it. Senders are of no use afterwards.
    pub async fn finish(mut self, last: &ToScheduler, limit: Duration) -> Result<(), LinkError> {
        let (written, mut is_written) = oneshot::channel();
        let frame = Outgoing::Last(frame_of(last)?, written);
        let (sender, events) = (self.sender.clone(), &mut self.events);
        let said = async move {
            // A lost link reports itself as an event.
            let _ = sender.frames.send(frame).await;
            loop {
                tokio::select! {
                    biased;
                    Ok(()) = &mut is_written => return Ok(()),
                    event = events.recv() => match event {
                        Some(LinkEvent::Lost(error)) => return Err(error),
                        Some(_) => {}
                        None => return Err(LinkError::Closed),
                    },
                }
            }
        };
        match last {
            ToScheduler::Goodbye => said.await?,
            _ => timeout(limit, said).await.unwrap_or(Err(LinkError::Closed))?,
        }
        let closed = async {
            while let Some(event) = self.events.recv().await {
                if matches!(event, LinkEvent::Lost(_)) {
                    break;
                }
            }
        };
        // It was said; whoever does not close is no reason to stay.
        let _ = timeout(limit, closed).await;
        Ok(())
    }
}

impl Drop for SchedulerLink {
    fn drop(&mut self) {
        // Without a last word the scheduler sees a lost connection, at once.
        self.task.abort();
    }
}

fn beats(welcome: &Welcome) -> Interval {
    let mut beat = interval(Duration::from_millis(welcome.shape.heartbeat_ms.max(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

/// The link's task.
struct Keeper<R> {
    events: mpsc::Sender<LinkEvent>,
    outgoing: mpsc::Receiver<Outgoing>,
    /// A last word that a lost connection did not take.
    unsaid: Option<Outgoing>,
    report: R,
    beat: Interval,
    /// We have said the last word.
    said_last: bool,
    /// The scheduler has: a close that follows is no loss to come back from.
    parting: bool,
}

impl<R: FnMut() -> MemberReport + Send + 'static> Keeper<R> {
    async fn keep<F: FnMut() -> Option<Resume> + Send>(
        mut self,
        mut connection: Connection,
        welcome: Welcome,
        mut seeker: Seeker<F>,
    ) {
        let silence = Duration::from_millis(welcome.shape.silence_ms.max(1));
        let lost = loop {
            let Some(lost) = self.serve(connection, silence).await else { return };
            let since = Instant::now();
            if self.said_last || self.parting || !seeker.may_seek() {
                break lost;
            }
            tracing::warn!(error = %lost, "the scheduler is lost; looking for the next one");
            if self.events.send(LinkEvent::Away { since, why: lost.clone() }).await.is_err() {
                return;
            }
            // What the last one said is taken before the member tells what it knows.
            if self.events.reserve_many(EVENTS_MAX).await.is_err() {
                return;
            }
            match seeker.seek(lost).await {
                Ok((next, welcome)) => {
                    connection = next;
                    tracing::info!(epoch = %welcome.epoch, "there is a scheduler again");
                    self.beat = beats(&welcome);
                    if self.events.send(LinkEvent::Back(welcome)).await.is_err() {
                        return;
                    }
                }
                Err(lost) => break lost,
            }
        };
        let _ = self.events.send(LinkEvent::Lost(lost)).await;
    }

    /// One connection's life; says how it was lost. None when nobody listens to us any more.
    async fn serve(&mut self, connection: Connection, silence: Duration) -> Option<LinkError> {
        let (read, write) = connection.into_split();
        let writer = write_frames(write, (&mut self.outgoing, &mut self.unsaid), &mut self.beat, silence, &mut self.report);
        let reader = read_events(read, &self.events, silence, &mut self.parting);
        tokio::pin!(writer, reader);
        // The reading half sees a broken connection as well, and says so.
        tokio::select! {
            lost = &mut reader => lost,
            said_last = &mut writer => {
                let lost = reader.await;
                self.said_last = said_last;
                lost
            }
        }
    }
}

/// What the scheduler says, until it is lost. None when the member does not listen any more.
async fn read_events(
    mut read: ReadHalf,
    events: &mpsc::Sender<LinkEvent>,
    silence: Duration,
    parting: &mut bool,
) -> Option<LinkError> {
    loop {
        match read.receive_within(silence).await {
            Ok(Some(FromScheduler::HeartbeatAck)) => {}
            Ok(Some(message)) => {
                *parting |= matches!(
                    message,
                    FromScheduler::Refused(_) | FromScheduler::MemberDied(_) | FromScheduler::Shutdown { .. }
                );
                if events.send(LinkEvent::Message(message)).await.is_err() {
                    return None;
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

/// Sends what waits and a heartbeat each period, until the connection fails or the last word is said: then true.
async fn write_frames(
    mut write: WriteHalf,
    (outgoing, unsaid): (&mut mpsc::Receiver<Outgoing>, &mut Option<Outgoing>),
    beat: &mut Interval,
    limit: Duration,
    report: &mut impl FnMut() -> MemberReport,
) -> bool {
    loop {
        let waits = unsaid.take();
        let next = tokio::select! {
            biased;
            Some(last) = std::future::ready(waits) => last,
            _ = beat.tick() => match frame_of(&ToScheduler::Heartbeat(report())) {
                Ok(frame) => Outgoing::Frame(frame),
                Err(error) => {
                    tracing::warn!(%error, "the heartbeat's report is too large; sending none");
                    continue;
                }
            },
            next = outgoing.recv() => match next {
                Some(next) => next,
                // The link holds a sender itself, so it is being dropped.
                None => return true,
            },
        };
        let (frame, last) = match next {
            Outgoing::Frame(frame) => (frame, None),
            Outgoing::Last(frame, written) => (frame, Some(written)),
        };
        if let Err(error) = write.write_within(&frame, limit).await {
            tracing::debug!(%error, "cannot write to the scheduler");
            *unsaid = last.map(|written| Outgoing::Last(frame, written));
            return false;
        }
        if let Some(written) = last {
            // Nobody listens where its time is up.
            let _ = written.send(());
            let _ = write.close().await;
            return true;
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
