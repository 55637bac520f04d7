//! A member's link to the scheduler: registration, heartbeats, loss. Two tasks own the socket's halves; the
//! member sees a queue of events and a sender. It must not interpret what the scheduler says beyond that.

use super::connect::connect_with_retry;
use super::connection::{Connection, ReadHalf, WriteHalf};
use super::frame::{FrameError, frame_of};
use super::link_error::LinkError;
use proto_common::config::Settings;
use proto_common::message::{FromScheduler, MemberReport, Register, ToScheduler, Welcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Messages that may wait to be sent; more wait in their callers.
const OUTGOING_MAX: usize = 256;
/// Events that may wait for the member; more wait in the socket.
const EVENTS_MAX: usize = 1024;

/// What arrives from the scheduler.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// It said this. Heartbeat acknowledgements are not shown.
    Message(FromScheduler),
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
    Last(Vec<u8>),
}

impl LinkSender {
    /// Hands a message over for sending; waits while many wait already. An error means that the message is
    /// too large, or that the link is lost: the reason comes as [`LinkEvent::Lost`].
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
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl SchedulerLink {
    /// Reaches the scheduler within `deadlines.connect_ms`, registers, and starts heartbeats that carry what
    /// `report` says at that moment (it runs on the runtime's thread and must return at once). Needs a tokio
    /// runtime, which must be driven for as long as the link lives.
    pub async fn connect(
        settings: &Settings,
        register: Register,
        report: impl FnMut() -> MemberReport + Send + 'static,
    ) -> Result<(Self, Welcome), LinkError> {
        let (host, port) = (settings.scheduler.host.as_str(), settings.scheduler.port);
        let fix = "start gradwire-scheduler there, or set scheduler.host and scheduler.port";
        let stream = connect_with_retry(host, port, settings.deadlines.connect_ms, fix)
            .await
            .map_err(|error| LinkError::Unreachable(Arc::new(error)))?;
        let limit = Duration::from_millis(settings.deadlines.connect_ms);
        let no_answer = |cause: FrameError| LinkError::NoAnswer {
            address: format!("{host}:{port}"),
            cause: Arc::new(cause),
        };
        let mut connection = Connection::new(stream).map_err(|error| no_answer(error.into()))?;
        connection.send_within(&ToScheduler::Register(register), limit).await.map_err(no_answer)?;
        match connection.receive_within::<FromScheduler>(limit).await.map_err(no_answer)? {
            Some(FromScheduler::Welcome(welcome)) => Ok((Self::start(connection, &welcome, report), welcome)),
            Some(FromScheduler::Refused(reason)) => Err(LinkError::Refused(reason)),
            Some(other) => {
                let error = std::io::Error::other(format!("unexpected first message {other:?}"));
                Err(no_answer(error.into()))
            }
            None => Err(no_answer(FrameError::Cut { got: 0 })),
        }
    }

    fn start(
        connection: Connection,
        welcome: &Welcome,
        report: impl FnMut() -> MemberReport + Send + 'static,
    ) -> Self {
        let (read, write) = connection.into_split();
        let (frames, outgoing) = mpsc::channel(OUTGOING_MAX);
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let silence = Duration::from_millis(welcome.shape.silence_ms.max(1));
        let period = Duration::from_millis(welcome.shape.heartbeat_ms.max(1));
        let reader = tokio::spawn(read_events(read, events, silence));
        let writer = tokio::spawn(write_frames(write, outgoing, period, silence, report));
        Self { events: received, sender: LinkSender { frames }, reader, writer }
    }

    /// A sender, for any number of tasks and threads.
    #[must_use]
    pub fn sender(&self) -> LinkSender {
        self.sender.clone()
    }

    /// Says the last word (`Goodbye` or `Failing`), flushes what waits, and waits for the scheduler to close,
    /// all within `limit`. Senders are of no use afterwards.
    pub async fn finish(mut self, last: &ToScheduler, limit: Duration) -> Result<(), LinkError> {
        let frame = Outgoing::Last(frame_of(last)?);
        let orderly = async {
            self.sender.frames.send(frame).await.map_err(|_| LinkError::Closed)?;
            // The tasks end by themselves; one that panicked has nothing more to say.
            let _ = (&mut self.writer).await;
            while let Some(event) = self.events.recv().await {
                if matches!(event, LinkEvent::Lost(_)) {
                    break;
                }
            }
            Ok(())
        };
        timeout(limit, orderly).await.unwrap_or(Ok(()))
    }
}

impl Drop for SchedulerLink {
    fn drop(&mut self) {
        // Without a last word the scheduler sees a lost connection, at once.
        self.reader.abort();
        self.writer.abort();
    }
}

async fn read_events(mut read: ReadHalf, events: mpsc::Sender<LinkEvent>, silence: Duration) {
    let lost = loop {
        match read.receive_within(silence).await {
            Ok(Some(FromScheduler::HeartbeatAck)) => {}
            Ok(Some(message)) => {
                if events.send(LinkEvent::Message(message)).await.is_err() {
                    return;
                }
            }
            Ok(None) => break LinkError::Closed,
            Err(FrameError::Deadline { waited_ms }) => break LinkError::Silent { silent_ms: waited_ms },
            Err(FrameError::Cut { .. } | FrameError::Io(_)) => break LinkError::Closed,
            Err(error) => break LinkError::Broken(Arc::new(error)),
        }
    };
    let _ = events.send(LinkEvent::Lost(lost)).await;
}

/// Sends what waits and a heartbeat each period. It just ends when the connection fails: the reading half
/// sees that as well, and says so.
async fn write_frames(
    mut write: WriteHalf,
    mut outgoing: mpsc::Receiver<Outgoing>,
    period: Duration,
    limit: Duration,
    mut report: impl FnMut() -> MemberReport + Send + 'static,
) {
    let mut beat = interval(period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next = tokio::select! {
            biased;
            _ = beat.tick() => match frame_of(&ToScheduler::Heartbeat(report())) {
                Ok(frame) => Outgoing::Frame(frame),
                Err(error) => {
                    tracing::warn!(%error, "the heartbeat's report is too large; sending none");
                    continue;
                }
            },
            next = outgoing.recv() => match next {
                Some(next) => next,
                None => return,
            },
        };
        let (frame, last) = match next {
            Outgoing::Frame(frame) => (frame, false),
            Outgoing::Last(frame) => (frame, true),
        };
        if let Err(error) = write.write_within(&frame, limit).await {
            tracing::debug!(%error, "cannot write to the scheduler");
            return;
        }
        if last {
            let _ = write.close().await;
            return;
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
