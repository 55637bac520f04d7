//! One control connection: a task that reads and a task that writes, with what each may cost. It must not
//! know what messages mean.

use super::frames::Encoded;
use super::keeper::Done;
use crate::engine::{ConnectionId, Standing};
use daemon::control::{Connection, FrameError, ReadHalf, WriteHalf};
use daemon::security::{Identity, Security};
use proto_common::ids::{JobId, Role};
use proto_common::limits::CONTROL_FRAME_BYTES_MAX;
use proto_common::message::{Build, POSTS_ASKED_MAX, POSTS_OWED_BYTES_MAX, POSTS_OWED_MAX, ToScheduler};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Messages that may wait for one peer before it may not ask other members any more.
const CROWDED_MAX: usize = 1024;
/// Messages that may wait for one peer. All that it has asked others may be answered at once, and so may a message to all
/// that was taken just before it was crowded.
const QUEUE_MAX: usize = 4 * CROWDED_MAX + 2 * POSTS_ASKED_MAX;
/// Bytes that may wait for one peer: the largest message four times.
const QUEUE_BYTES_MAX: usize = 4 * CONTROL_FRAME_BYTES_MAX;
/// Bytes that may wait for one peer when an answer of another member joins them: what the scheduler itself has to say is as
/// much at most.
const ANSWERS_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { QUEUE_BYTES_MAX / 2 };
/// Bytes that may wait for one peer when a message of another member joins them: all that it may owe, and answers to what it
/// has asked itself still have room.
const POSTED_BYTES_MAX: usize = ANSWERS_BYTES_MAX / 4 * 3;
/// Messages that may wait for one peer when a message of another member joins them: all that it may owe, and as much beside.
const POSTED_MAX: usize = 2 * POSTS_OWED_MAX;
const _: () = assert!(cfg!(test) || POSTED_BYTES_MAX > POSTS_OWED_BYTES_MAX);
const _: () = assert!(POSTED_MAX <= QUEUE_MAX / 2);
/// Milliseconds for which a closed connection's input is still read and thrown away: closing a socket with
/// unread input would destroy the last message to the peer.
const LINGER_MS: u64 = 500;

/// How long a connection may take for things.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For each message, as long as it is a stranger's.
    pub(super) handshake: Duration,
    /// To take one message of ours.
    pub(super) write: Duration,
}

/// What a connection did wrong.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// A metric's label.
    pub(super) kind: &'static str,
    /// For people.
    pub(super) text: String,
}

/// What a connection's tasks tell the core.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "few wait at once")]
pub(super) enum Event {
    Message {
        from: ConnectionId,
        message: ToScheduler,
    },
    Closed {
        connection: ConnectionId,
        fault: Option<Fault>,
    },
    /// It is of another protocol version, and says more than can be read.
    OtherVersion {
        connection: ConnectionId,
        theirs: Build,
    },
    /// Its certificate is not for what it says.
    NotPermitted {
        connection: ConnectionId,
        why: String,
    },
    /// Something is done at the place of checkpoints, or cannot be.
    Kept(Done),
}

/// Where connections' tasks tell the core. Heartbeats have a queue of their own: a message before them may take long, and nothing
/// depends on their order.
#[derive(Clone, Debug)]
pub(super) struct Events {
    all: mpsc::Sender<Event>,
    beats: mpsc::Sender<Event>,
}

impl Events {
    /// The queues, with room for so many events each, and their ends.
    pub(super) fn new(room: usize) -> (Self, mpsc::Receiver<Event>, mpsc::Receiver<Event>) {
        let ((all, received), (beats, heard)) = (mpsc::channel(room), mpsc::channel(room));
        (Self { all, beats }, received, heard)
    }

    /// Waits until there is room. The error is that the core is gone.
    pub(super) async fn send(&self, event: Event) -> Result<(), mpsc::error::SendError<Event>> {
        let is_beat = matches!(&event, Event::Message { message: ToScheduler::Heartbeat(_), .. });
        let queue = if is_beat { &self.beats } else { &self.all };
        queue.send(event).await
    }
}

/// What waits to be written.
#[derive(Debug)]
struct Frame {
    bytes: Encoded,
    /// Dropped when it is written, or never will be.
    _told: Option<mpsc::Sender<Infallible>>,
}

/// What is written when all else that a decision had to tell is: answers to goodbyes. Who is let go before the others have been told
/// would be missed by the next scheduler, were this one killed in between.
#[derive(Debug)]
pub(super) struct Parting {
    told: mpsc::Sender<Infallible>,
    all_told: mpsc::Receiver<Infallible>,
    answers: Vec<(mpsc::Sender<Frame>, Frame)>,
}

impl Parting {
    pub(super) fn new() -> Self {
        let (told, all_told) = mpsc::channel(1);
        Self { told, all_told, answers: Vec::new() }
    }

    /// Queues an answer; who does not read for as long as `limit` holds it up no longer.
    pub(super) fn go(self, limit: Duration, tasks: &mut JoinSet<()>) {
        let Self { told, mut all_told, answers } = self;
        drop(told);
        tasks.spawn(async move {
            let _ = timeout(limit, all_told.recv()).await;
            for (frames, answer) in answers {
                // It may have gone without.
                let _ = frames.try_send(answer);
            }
        });
    }
}

/// The core's end of a connection. Dropping it closes the connection after everything queued is written.
#[derive(Debug)]
pub(super) struct Outbox {
    peer: SocketAddr,
    frames: mpsc::Sender<Frame>,
    queued_bytes: Arc<AtomicUsize>,
    /// What the reading task takes its peer for.
    standing: watch::Sender<Standing>,
    /// The reading task lingers, then ends, when this is dropped.
    _open: oneshot::Sender<()>,
}

/// What the reading task hears of the core.
struct Judged {
    standing: watch::Receiver<Standing>,
    closing: oneshot::Receiver<()>,
}

impl Outbox {
    /// Starts the task of an accepted connection.
    pub(super) fn open(
        id: ConnectionId,
        (stream, peer): (TcpStream, SocketAddr),
        (security, job): (Security, JobId),
        limits: Limits,
        events: &Events,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let (frames, queue) = mpsc::channel(QUEUE_MAX);
        let (open, closing) = oneshot::channel();
        let (told, standing) = watch::channel(Standing::Stranger);
        let judged = Judged { standing, closing };
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let (events, waiting) = (events.clone(), Arc::clone(&queued_bytes));
        tasks.spawn(async move {
            match security.accept(stream, limits.handshake).await {
                Ok(connection) => {
                    converse(id, (connection, job), limits, (queue, waiting), events, judged).await;
                }
                // The core may be gone already; then nobody needs to know.
                Err(error) => {
                    let _ = events.send(Event::Closed { connection: id, fault: fault_of(&error) }).await;
                }
            }
        });
        Self { peer, frames, queued_bytes, standing: told, _open: open }
    }

    /// How far the core has let its peer come.
    pub(super) fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// The core has judged its peer. Nobody goes back: who is no member any more is closed.
    pub(super) fn judge(&self, standing: Standing) {
        self.standing.send_if_modified(|now| {
            let is_further = standing > *now;
            *now = standing.max(*now);
            is_further
        });
    }

    /// Bytes that wait for the peer.
    pub(super) fn queued_bytes(&self) -> &Arc<AtomicUsize> {
        &self.queued_bytes
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Does so much wait for the peer that it is to read first, and then to ask others?
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting() >= CROWDED_MAX || !self.has_room(0)
    }

    fn waiting(&self) -> usize {
        self.frames.max_capacity() - self.frames.capacity()
    }

    /// Is there room for another member's answer of so many bytes?
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.queued_bytes.load(Ordering::Relaxed).saturating_add(bytes) <= ANSWERS_BYTES_MAX
    }

    /// Is there room for another member's message of so many bytes?
    pub(super) fn has_room_for_post(&self, bytes: usize) -> bool {
        let queued_bytes = self.queued_bytes.load(Ordering::Relaxed);
        self.waiting() < POSTED_MAX && queued_bytes.saturating_add(bytes) <= POSTED_BYTES_MAX
    }

    /// Queues a frame, or says why the peer is to be given up. `before` waits for it. A frame for a connection that has
    /// ended is dropped.
    pub(super) fn push(&self, bytes: Encoded, before: Option<&Parting>) -> Result<(), String> {
        let length = bytes.len();
        let waiting = self.queued_bytes.fetch_add(length, Ordering::Relaxed);
        let frame = Frame { bytes, _told: before.map(|parting| parting.told.clone()) };
        if waiting + length <= QUEUE_BYTES_MAX {
            match self.frames.try_send(frame) {
                Ok(()) => return Ok(()),
                // Its process has exited, say, and writing to it failed. The reading task tells how the connection
                // ended: a member that was killed is not to be accused of reading nothing.
                Err(mpsc::error::TrySendError::Closed(_)) => {
                    self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
                    return Ok(());
                }
                Err(mpsc::error::TrySendError::Full(_)) => {}
            }
        }
        Err(format!("it does not read its control connection: {waiting} bytes are waiting for it"))
    }

    /// As [`Outbox::push`], for an answer to a goodbye. The connection stays open for it, also when this end is dropped.
    pub(super) fn push_last(&self, bytes: Encoded, parting: &mut Parting) {
        self.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        parting.answers.push((self.frames.clone(), Frame { bytes, _told: None }));
    }
}

async fn converse(
    id: ConnectionId,
    (connection, job): (Connection, JobId),
    limits: Limits,
    (queue, queued_bytes): (mpsc::Receiver<Frame>, Arc<AtomicUsize>),
    events: Events,
    judged: Judged,
) {
    let shown = Shown { identity: connection.identity().cloned(), job };
    let (read, write) = connection.into_split();
    let reading = read_messages(id, (read, shown), limits.handshake, events.clone(), judged);
    tokio::join!(reading, write_frames(id, write, limits.write, queue, queued_bytes, events));
}

/// What the peer has shown, and the job that it has to be of.
struct Shown {
    identity: Option<Identity>,
    job: JobId,
}

impl Shown {
    /// Why its certificate does not bear out what it says: it is for no process of this job, or for another role than it claims.
    /// A scheduler's registration is refused by every scheduler, and claims nothing.
    fn belies(&self, message: &ToScheduler) -> Option<String> {
        let identity = self.identity.as_ref()?;
        let claim = match message {
            ToScheduler::Register(register) if register.role != Role::Scheduler => {
                identity.permits(register.job, register.role).err()
            }
            _ => None,
        };
        let claim = claim.map(|claim| claim.to_string());
        claim.or_else(|| Some(identity.permits_job(self.job).err()?.to_string()))
    }
}

async fn read_messages(
    id: ConnectionId,
    (mut read, shown): (ReadHalf, Shown),
    handshake: Duration,
    events: Events,
    Judged { mut standing, mut closing }: Judged,
) {
    let fault = loop {
        let now = *standing.borrow_and_update();
        if now == Standing::Member {
            read.admit();
        }
        let next = async {
            match now {
                Standing::Stranger => read.receive_within::<ToScheduler>(handshake).await,
                // The engine's deadlines hold.
                Standing::Waiting | Standing::Member => read.receive_beside().await,
            }
        };
        let received = tokio::select! {
            biased;
            _ = &mut closing => return linger(read).await,
            Ok(()) = standing.changed(), if now != Standing::Member => continue,
            received = next => received,
        };
        match received {
            Ok(Some(message)) => {
                let why = if now == Standing::Member { None } else { shown.belies(&message) };
                if let Some(why) = why {
                    let _ = events.send(Event::NotPermitted { connection: id, why }).await;
                    return linger(read).await;
                }
                if events.send(Event::Message { from: id, message }).await.is_err() {
                    return;
                }
                // What follows is read as what the core takes it for; it closes who is still a stranger then.
                if now == Standing::Stranger {
                    tokio::select! {
                        _ = &mut closing => return linger(read).await,
                        Ok(()) = standing.changed() => {}
                    }
                }
            }
            Ok(None) => break None,
            // It was let in at this moment, and may say more than it was judged by.
            Err(_) if standing.has_changed().is_ok_and(|has_changed| has_changed) => {}
            Err(error) => match read.other_version().filter(|_| now == Standing::Stranger) {
                Some(theirs) => {
                    let _ = events.send(Event::OtherVersion { connection: id, theirs }).await;
                    return linger(read).await;
                }
                None => {
                    if is_unreachable(&error) {
                        let _ =
                            events.send(Event::Message { from: id, message: ToScheduler::Abandons }).await;
                    }
                    break fault_of(&error);
                }
            },
        }
    };
    // The core may be gone already; then nobody needs to know.
    let _ = events.send(Event::Closed { connection: id, fault }).await;
    linger(read).await;
}

fn fault_of(error: &FrameError) -> Option<Fault> {
    let fault = |kind, text| Some(Fault { kind, text });
    match error {
        // A process that was killed looks like this.
        FrameError::Cut { .. } | FrameError::Io(_) => None,
        FrameError::Deadline { waited_ms } => fault(
            "handshake",
            format!("it sent nothing for {waited_ms} ms after connecting (deadlines.handshake_ms)"),
        ),
        FrameError::Security(wrong) => fault(wrong.kind(), error.to_string()),
        FrameError::TooLong { .. }
        | FrameError::HttpService
        | FrameError::HttpClient
        | FrameError::Codec(_) => fault("malformed", error.to_string()),
    }
}

/// The peer did not close this connection. Its process may still run, and follow another scheduler.
fn is_unreachable(error: &FrameError) -> bool {
    use ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error, FrameError::Io(error) if matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable))
}

async fn linger(mut read: ReadHalf) {
    let _ = timeout(Duration::from_millis(LINGER_MS), read.drain()).await;
}

async fn write_frames(
    id: ConnectionId,
    mut write: WriteHalf,
    limit: Duration,
    mut queue: mpsc::Receiver<Frame>,
    queued_bytes: Arc<AtomicUsize>,
    events: Events,
) {
    while let Some(frame) = queue.recv().await {
        let written = async {
            for part in frame.bytes.parts().into_iter().filter(|part| !part.is_empty()) {
                write.write_within(part, limit).await?;
            }
            Ok(())
        };
        match written.await {
            Ok(()) => drop(queued_bytes.fetch_sub(frame.bytes.len(), Ordering::Relaxed)),
            Err(FrameError::Deadline { waited_ms }) => {
                let text = format!("it has not read its control connection for {waited_ms} ms");
                let fault = Some(Fault { kind: "slow", text });
                let _ = events.send(Event::Closed { connection: id, fault }).await;
                return;
            }
            // The reading task sees the broken connection as well, and tells.
            Err(_) => return,
        }
    }
    let _ = write.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::limits::PROTOCOL_VERSION;
    use proto_common::message::Register;
    use proto_common::transport::Policies;

    #[tokio::test]
    async fn answers_to_goodbyes_wait_for_what_others_are_told_but_not_for_ever() {
        let frame = |told: Option<&Parting>| Frame {
            bytes: Vec::new().into(),
            _told: told.map(|parting| parting.told.clone()),
        };
        for is_written in [true, false] {
            let (frames, mut queue) = mpsc::channel(1);
            let (mut parting, mut tasks) = (Parting::new(), JoinSet::new());
            let others = frame(Some(&parting));
            parting.answers.push((frames, frame(None)));
            let limit = if is_written { Duration::from_secs(60) } else { Duration::from_millis(20) };
            parting.go(limit, &mut tasks);
            tokio::task::yield_now().await;
            assert!(queue.try_recv().is_err(), "others are not told yet");
            let others = Some(others).filter(|_| !is_written);
            assert!(queue.recv().await.is_some());
            drop(others);
        }
    }

    #[test]
    fn a_peer_whose_connection_has_ended_is_not_accused_of_reading_nothing() {
        let (frames, queue) = mpsc::channel(1);
        let (open, _closing) = oneshot::channel();
        let outbox = Outbox {
            peer: ([127, 0, 0, 1], 1).into(),
            frames,
            queued_bytes: Arc::default(),
            standing: watch::channel(Standing::Stranger).0,
            _open: open,
        };
        assert_eq!(outbox.push(vec![0; 40].into(), None), Ok(()));
        let full = outbox.push(vec![0; 40].into(), None).unwrap_err();
        assert!(full.contains("40 bytes are waiting for it"), "{full}");
        let waiting = outbox.queued_bytes().load(Ordering::Relaxed);
        drop(queue);
        assert_eq!(outbox.push(vec![0; 40].into(), None), Ok(()));
        assert_eq!(outbox.queued_bytes().load(Ordering::Relaxed), waiting, "what is dropped does not wait");
    }

    #[test]
    fn a_connection_that_the_network_cut_does_not_show_that_the_process_exited() {
        let of = |kind: ErrorKind| is_unreachable(&FrameError::Io(kind.into()));
        for kind in [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable] {
            assert!(of(kind), "{kind}");
        }
        for kind in [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe] {
            assert!(!of(kind), "{kind}: its kernel has closed it");
        }
        assert!(!is_unreachable(&FrameError::Cut { got: 0 }));
    }

    fn register(job: u64, role: Role) -> ToScheduler {
        ToScheduler::Register(Register {
            protocol: PROTOCOL_VERSION,
            build: "test".into(),
            job: JobId(job),
            role,
            incarnation: daemon::host::new_incarnation().unwrap(),
            wanted_rank: None,
            data_address: None,
            http_address: None,
            host: None,
            pid: 1,
            offer: daemon::host::offer(Policies::default(), Vec::new()).unwrap(),
            rules: Vec::new(),
            resume: None,
        })
    }

    #[test]
    fn whatever_is_said_the_certificate_is_for_this_job_and_for_the_role_that_is_claimed() {
        let of =
            |names: &[&str]| Shown { identity: Some(Identity::of(names.iter().copied())), job: JobId(7) };
        let order = || ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms: 1 };
        let others = || [order(), ToScheduler::Identify, ToScheduler::Goodbye, register(7, Role::Scheduler)];
        for own in ["gradwire://7/worker", "gradwire://any/server"] {
            assert!(others().iter().all(|message| of(&[own]).belies(message).is_none()), "{own}");
        }
        for strange in [&["gradwire://8/any"][..], &["host-1"], &[]] {
            for message in others() {
                let why = of(strange).belies(&message).unwrap_or_default();
                assert!(why.contains("this is job 7"), "{message:?}: {why}");
            }
        }
        let worker = of(&["gradwire://7/worker"]);
        assert_eq!(worker.belies(&register(7, Role::Worker)), None);
        let why = worker.belies(&register(7, Role::Server)).unwrap_or_default();
        assert!(why.contains("claims to be a server of job 7"), "{why}");
        let other = of(&["gradwire://8/worker"]).belies(&register(8, Role::Worker)).unwrap_or_default();
        assert!(other.contains("this is job 7"), "its own job is not this one: {other}");
        let plain = Shown { identity: None, job: JobId(7) };
        assert_eq!(plain.belies(&order()), None);
    }
}
