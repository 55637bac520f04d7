//! Messages between programs: handlers of this process, and the answers that it waits for. One thread runs all of its
//! handlers and callbacks, one after the other. It must not know how messages reach the scheduler.

mod hub;
mod room;
mod way;

use crate::control::LinkSender;
use crate::passed::Passed;
use fabric::oneshot;
pub use hub::{Answering, Post, PostAnswer};
use hub::{GRACE, Hub, Known, OURS, Waiting, Work};
use proto_common::ids::MemberId;
use proto_common::message::{
    FromScheduler, NodeGroup, POSTS_ASKED_MAX, POSTS_OWED_BYTES_MAX, POSTS_OWED_MAX, PostError, PostMessage,
    PostTo, ToScheduler, WaitError,
};
use room::{Place, Room};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::mpsc::error::TrySendError;
use way::Way;

/// Messages that wait for a handler: as many as the scheduler lets one member owe, and as many whose deadline has
/// passed there but not yet here.
const WAITING_MAX: usize = 2 * POSTS_OWED_MAX;
/// Bytes of these messages, at most.
const WAITING_BYTES_MAX: usize = 2 * POSTS_OWED_BYTES_MAX;
/// What may wait for the connection to the scheduler: questions of this process, answers that it owes, as many again
/// whose deadline has passed since, and waits at barriers.
const LINK_MAX: usize = 2 * (POSTS_ASKED_MAX + POSTS_OWED_MAX);
/// A message to a group counts as so many: the scheduler counts its receivers, whose number is not known here.
const GROUP_COUNT: usize = 64;
/// The longest wait, whatever was requested: seven weeks.
const WITHIN_MAX: Duration = Duration::from_millis(u32::MAX as u64);
/// How long the end waits for a running handler, and how long a goodbye waits for messages before it.
const END_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 3_000 });
/// A handler of messages that did not return in time; messages that waited for it were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "message handler {app} did not return within {waited_ms} ms: check what it waits for (it must not wait for replies)"
)]
pub struct Stuck {
    /// Its number.
    pub app: u32,
    /// How long it had to return.
    pub waited_ms: u64,
}

impl Stuck {
    /// The handler that kept a caller waiting until the end of its wait. Between two handlers there is none.
    fn of(known: &Known) -> Option<Self> {
        let app = u32::try_from(known.running.load(Ordering::Relaxed)).ok()?;
        Some(Self { app, waited_ms: END_WITHIN.as_millis() as u64 })
    }
}

/// The messages of one member. Clones share them. When the last clone is dropped, its thread ends.
#[derive(Clone)]
pub struct Posts(Arc<Inner>);

struct Inner {
    work: Sender<Work>,
    way: Arc<Way>,
    room: Arc<Room>,
    /// For messages that are not answered.
    asking: Arc<Room>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Nothing comes out of it: the other end goes with the thread.
    ended: oneshot::Receiver<()>,
    known: Arc<Known>,
    passed: Passed,
    /// For messages between the way and the link. Whoever waits for room waits until there are none.
    unsent: Arc<Room>,
}

impl std::fmt::Debug for Posts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Posts")
    }
}

impl Posts {
    /// Without handlers, and with no way to the scheduler yet: what is sent waits for it.
    pub fn start() -> std::io::Result<Self> {
        let ((work, queue), (alive, ended)) = (channel(), oneshot::channel());
        let known = Known { apps: Mutex::default(), running: AtomicU64::new(Known::NOBODY) };
        let (known, way, passed) = (Arc::new(known), Arc::<Way>::default(), Passed::default());
        let hub = Hub::new((work.clone(), queue), known.clone(), way.clone(), passed.clone());
        let thread = std::thread::Builder::new().name("gradwire-posts".into()).spawn(move || {
            let _alive: oneshot::Sender<()> = alive;
            hub.run();
        })?;
        let thread = Mutex::new(Some(thread));
        let room = Room::new(WAITING_MAX, WAITING_BYTES_MAX);
        let asking = Room::new(POSTS_ASKED_MAX / 2, POSTS_OWED_BYTES_MAX / 2);
        let unsent = Room::new(1, usize::MAX);
        Ok(Self(Arc::new(Inner { work, way, room, asking, thread, ended, known, passed, unsent })))
    }

    fn tell(&self, work: Work) {
        // The thread outlives every clone.
        let _ = self.0.work.send(work);
    }

    /// The way to the scheduler is there: `out` hands over without waiting.
    pub fn attach(&self, out: impl Fn(ToScheduler) -> bool + Send + 'static) {
        self.0.way.attach(Box::new(out));
    }

    /// As [`Posts::attach`] over a link, by a task of the current tokio runtime.
    pub fn attach_link(&self, link: LinkSender) {
        let (out, mut queue) = tokio::sync::mpsc::channel::<(ToScheduler, Place)>(LINK_MAX);
        tokio::spawn(async move {
            while let Some((message, place)) = queue.recv().await {
                if let Err(error) = link.send(&message).await {
                    tracing::debug!(%error, "cannot send a message to other members");
                }
                drop(place);
            }
        });
        let unsent = self.0.unsent.clone();
        self.attach(move |message| match out.try_send((message, unsent.take(1, 0))) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                tracing::warn!(waiting = LINK_MAX, "too many messages wait for a scheduler; dropped one");
                false
            }
            // The link has ended, which everyone hears of as a loss, with its reason.
            Err(TrySendError::Closed(_)) => true,
        });
    }

    /// Waits, within a limit, until all messages and answers of this member are with the link. To be called before a goodbye: the
    /// scheduler drops the answers of a member that has left. A handler cannot wait for this.
    pub fn flush(&self) {
        let (done, answer) = oneshot::channel();
        self.tell(Work::Flush(done));
        if !self.is_own_thread() && answer.recv_timeout(END_WITHIN).is_ok() {
            // If it takes longer, there is no scheduler.
            let _ = self.0.unsent.wait(END_WITHIN);
        }
    }

    /// Takes what the scheduler said of messages; gives back what is of something else.
    pub fn heard(&self, message: FromScheduler) -> Option<FromScheduler> {
        match message {
            FromScheduler::Released { request, .. } if request & OURS == 0 => Some(message),
            FromScheduler::Posted { ticket, from, message, timeout_ms } => {
                self.come(ticket, from, message, timeout_ms);
                None
            }
            FromScheduler::PostAnswered { .. } | FromScheduler::Released { .. } => {
                self.tell(Work::Heard(message));
                None
            }
            other => Some(other),
        }
    }

    /// A message came. Where a handler is behind with too many its sender is told at once, past that handler.
    fn come(&self, ticket: u64, from: MemberId, message: PostMessage, timeout_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms).min(WITHIN_MAX);
        match self.0.room.place(message.body.len()) {
            Some(place) => self.tell(Work::Deliver(Waiting { ticket, from, message, deadline, place })),
            None => {
                let result = Err(PostError::Busy);
                self.0.way.say(ToScheduler::PostReply { ticket, result });
            }
        }
    }

    /// How often this member has come through each barrier; whoever comes to barriers past this counts here, too.
    #[must_use]
    pub fn passed(&self) -> &Passed {
        &self.0.passed
    }

    /// Another scheduler has taken over: waits at barriers go on there; messages that were under way are answered with an
    /// error, because nobody knows whether they arrived.
    pub fn back(&self) {
        self.tell(Work::Back);
    }

    /// The way to the scheduler has ended: what is asked is answered with an error.
    pub fn lose(&self, why: &str) {
        self.tell(Work::Lost(why.to_owned()));
    }

    /// Registers a handler for messages to this number; earlier ones have waited for it. It runs on the thread of all
    /// handlers of this process, so it must not wait for an answer. False if the number has a handler already.
    pub fn register(&self, app: u32, handler: impl FnMut(Post) + Send + 'static) -> bool {
        let is_free = self.0.known.apps().insert(app);
        if is_free {
            self.tell(Work::Register(app, Box::new(handler)));
        }
        is_free
    }

    /// Unregisters a handler, and waits until it has finished its current message, within a limit and not if a handler
    /// makes this call. False if there is no handler.
    pub fn unregister(&self, app: u32) -> Result<bool, Stuck> {
        if !self.0.known.apps().remove(&app) {
            return Ok(false);
        }
        let (done, answer) = oneshot::channel();
        self.tell(Work::Unregister(app, done));
        // A handler that asks would wait for itself: its wish is granted after it.
        if !self.is_own_thread() && answer.recv_timeout(END_WITHIN) == Err(RecvTimeoutError::Timeout) {
            return Err(
                Stuck::of(&self.0.known).unwrap_or(Stuck { app, waited_ms: END_WITHIN.as_millis() as u64 })
            );
        }
        Ok(true)
    }

    fn is_own_thread(&self) -> bool {
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }

    /// Waits while half of the messages are unanswered that this member may have in flight, at most so long. Who then sends one
    /// leaves the other half to handlers, which must not wait: two members whose handlers wait for each other would wait for
    /// ever. An error is the number of unanswered messages.
    pub fn wait_for_room(&self, within: Duration) -> Result<(), usize> {
        self.0.asking.wait(if self.is_own_thread() { Duration::ZERO } else { within.min(WITHIN_MAX) })
    }

    /// Sends a message. `on_answer` is called for each receiver's answer, or once with the reason why there is none,
    /// on the thread of all handlers. All answers have arrived shortly after `within`.
    pub fn post(
        &self,
        to: PostTo,
        message: PostMessage,
        within: Duration,
        on_answer: impl FnMut(PostAnswer) + Send + 'static,
    ) {
        let within = within.min(WITHIN_MAX);
        let scheduler = NodeGroup { scheduler: true, servers: false, workers: false };
        let has_one = matches!(to, PostTo::One(_)) || to == PostTo::Group(scheduler);
        let count = if has_one { 1 } else { GROUP_COUNT };
        let place = self.0.asking.take(count, message.body.len());
        self.tell(Work::Ask { to, message, within, on_answer: Box::new(on_answer), place });
    }

    /// Waits at the barrier with this name until all members of the group have arrived, within this limit. The error
    /// names the missing members. Handlers may not call it.
    pub fn barrier(&self, name: &str, group: NodeGroup, within: Duration) -> Result<(), WaitError> {
        if self.is_own_thread() {
            return Err(WaitError::Refused {
                name: name.to_owned(),
                reason: PostError::OwnThread.to_string(),
            });
        }
        let (done, answer) = oneshot::channel();
        let within = within.min(WITHIN_MAX);
        self.tell(Work::Barrier { name: name.to_owned(), group, within, done });
        let refused = |reason: &str| WaitError::Refused { name: name.to_owned(), reason: reason.into() };
        match answer.recv_timeout(within.saturating_add(GRACE)) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(refused("the scheduler did not answer in time: it is stuck or overloaded"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(refused("this member has left the job, or the job has ended"))
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.work.send(Work::End);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) else {
            return;
        };
        if self.ended.recv_timeout(END_WITHIN) == Err(RecvTimeoutError::Timeout) {
            let stuck =
                Stuck::of(&self.known).map_or_else(|| "a callback did not return".into(), |s| s.to_string());
            tracing::error!("abandoned the message thread: {stuck}");
        } else if thread.join().is_err() {
            tracing::error!("the message thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{Rank, Role};
    use proto_common::message::{POST_BODY_BYTES_MAX, PostReply};
    use std::sync::mpsc::Receiver;

    const APP: u32 = 4;

    fn message(bytes: usize) -> PostMessage {
        PostMessage { app: APP, head: 1, body: vec![0; bytes] }
    }

    fn server() -> MemberId {
        MemberId { role: Role::Server, rank: Rank(0) }
    }

    /// A message comes, as the scheduler passes it on.
    fn come(posts: &Posts, ticket: u64) {
        let posted =
            FromScheduler::Posted { ticket, from: server(), message: message(0), timeout_ms: 60_000 };
        assert!(posts.heard(posted).is_none());
    }

    #[test]
    fn a_handler_that_does_not_return_holds_up_no_registration_and_no_end() {
        let posts = Posts::start().unwrap();
        let ((go_on, blocked), (tell, told)) = (channel::<()>(), channel());
        assert!(posts.register(APP, move |_| {
            tell.send(()).unwrap();
            let _ = blocked.recv();
        }));
        come(&posts, 1);
        told.recv().unwrap();
        assert!(posts.register(APP + 1, drop), "it does not wait for another handler");
        assert!(!posts.register(APP + 1, drop), "there is one");
        let stuck = posts.unregister(APP + 1).unwrap_err();
        assert_eq!(stuck.app, APP, "who is in the way");
        drop(posts);
        drop(go_on);
    }

    #[test]
    fn a_message_that_no_handler_came_for_is_left_to_its_deadline() {
        let posts = Posts::start().unwrap();
        let (say, said) = channel();
        posts.attach(move |message| say.send(message).is_ok());
        let posted = FromScheduler::Posted { ticket: 1, from: server(), message: message(0), timeout_ms: 0 };
        assert!(posts.heard(posted).is_none());
        // The thread takes one thing after the other: the message is over before this one is there.
        posts.unregister(APP).unwrap();
        posts.register(APP, drop);
        come(&posts, 2);
        let reply = ToScheduler::PostReply { ticket: 2, result: Err(PostError::NoReply) };
        assert_eq!(said.recv().unwrap(), reply, "of the first nothing is said");
        posts.unregister(APP).unwrap();
    }

    fn posted(ticket: u64, bytes: usize, timeout_ms: u64) -> FromScheduler {
        FromScheduler::Posted { ticket, from: server(), message: message(bytes), timeout_ms }
    }

    /// A handler that has a message and does not return until the sender is dropped, and then tells of all others.
    fn held(posts: &Posts) -> (Sender<()>, Receiver<u64>) {
        let ((go_on, blocked), (tell, told)) = (channel::<()>(), channel());
        assert!(posts.register(APP, move |post| {
            tell.send(post.reply.ticket).unwrap();
            let _ = blocked.recv();
        }));
        come(posts, 0);
        told.recv().unwrap();
        (go_on, told)
    }

    #[test]
    fn what_waits_for_a_handler_is_bounded_and_what_is_late_is_dropped() {
        let posts = Posts::start().unwrap();
        let (say, said) = channel();
        posts.attach(move |message| say.send(message).is_ok());
        let (go_on, told) = held(&posts);
        // By their bytes. The handler holds the thread all the time.
        let whole = (WAITING_BYTES_MAX / POST_BODY_BYTES_MAX) as u64;
        (1..=whole).for_each(|ticket| drop(posts.heard(posted(ticket, POST_BODY_BYTES_MAX, 0))));
        assert!(said.try_recv().is_err(), "there is room");
        posts.heard(posted(u64::MAX, 1, 60_000));
        let busy = ToScheduler::PostReply { ticket: u64::MAX, result: Err(PostError::Busy) };
        assert_eq!(said.try_recv().unwrap(), busy, "at once");
        // By their number.
        let count = WAITING_MAX as u64 - whole;
        (1..=count).for_each(|ticket| drop(posts.heard(posted(whole + ticket, 0, 0))));
        assert!(said.try_recv().is_err(), "there is room");
        posts.heard(posted(u64::MAX, 0, 60_000));
        assert_eq!(said.try_recv().unwrap(), busy);
        drop(go_on);
        assert_eq!(
            said.recv().unwrap(),
            ToScheduler::PostReply { ticket: 0, result: Err(PostError::NoReply) }
        );
        let last = 2 * WAITING_MAX as u64;
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            posts.heard(posted(last, POST_BODY_BYTES_MAX, 60_000));
            let ToScheduler::PostReply { ticket, result } = said.recv().unwrap() else { panic!("no answer") };
            assert_eq!(ticket, last, "of those that are late nothing is said");
            if result == Err(PostError::NoReply) {
                break;
            }
            assert!(Instant::now() < until, "there is room again");
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [last], "the handler sees none that is late");
        posts.unregister(APP).unwrap();
    }

    /// The answer to a message for the server.
    fn asked(posts: &Posts, message: PostMessage) -> Result<PostReply, PostError> {
        let (tell, told) = channel();
        let within = Duration::from_secs(3600);
        posts.post(PostTo::One(server()), message, within, move |answer| tell.send(answer).unwrap());
        told.recv_timeout(Duration::from_secs(60)).expect("at once").result
    }

    #[test]
    fn a_handler_is_told_that_it_cannot_wait() {
        let posts = Posts::start().unwrap();
        let (tell, told) = channel();
        let inside = posts.clone();
        posts.register(APP, move |_| {
            tell.send(inside.barrier("b", NodeGroup::WORKERS, Duration::from_secs(60))).unwrap();
        });
        come(&posts, 1);
        let barrier = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(barrier.unwrap_err().to_string().contains("another thread"));
        posts.unregister(APP).unwrap();
    }

    #[test]
    fn bodies_that_no_frame_holds_are_refused_here() {
        let posts = Posts::start().unwrap();
        let (say, said) = channel();
        posts.attach(move |message| say.send(message).is_ok());
        let long = POST_BODY_BYTES_MAX + 1;
        let refusal = || PostError::TooLong { bytes: long as u64 };
        assert_eq!(asked(&posts, message(long)), Err(refusal()));
        let (tell, told) = channel();
        posts.register(APP, move |post: Post| tell.send(post.reply.send(0, vec![0; long])).unwrap());
        come(&posts, 9);
        assert_eq!(told.recv().unwrap(), Err(refusal()));
        let reply = ToScheduler::PostReply { ticket: 9, result: Err(refusal()) };
        assert_eq!(said.recv().unwrap(), reply, "the only thing that was said");
        posts.unregister(APP).unwrap();
    }

    #[test]
    fn what_the_link_has_no_room_for_is_refused_at_once_and_not_left_to_its_deadline() {
        let posts = Posts::start().unwrap();
        posts.attach(|_| false);
        assert_eq!(asked(&posts, message(0)), Err(PostError::Busy));
        let refused = posts.barrier("b", NodeGroup::ALL, Duration::from_secs(3600)).unwrap_err().to_string();
        assert!(refused.contains("barrier \"b\" refused: too many messages in flight"), "{refused}");
    }

    #[test]
    fn another_scheduler_hears_of_waits_at_barriers_and_messages_under_way_are_given_up() {
        let posts = Posts::start().unwrap();
        let (say, said) = channel();
        posts.attach(move |message| say.send(message).is_ok());
        posts.passed().count("b", NodeGroup::ALL);
        let waiter = posts.clone();
        let thread = std::thread::spawn(move || waiter.barrier("b", NodeGroup::ALL, Duration::from_secs(60)));
        let ToScheduler::Barrier { request, passed: 1, .. } = said.recv().unwrap() else { panic!("no wait") };
        let (tell, told) = channel();
        posts.post(PostTo::One(server()), message(0), Duration::from_secs(60), move |answer| {
            tell.send(answer.result).unwrap();
        });
        assert!(matches!(said.recv().unwrap(), ToScheduler::Post { .. }));
        posts.back();
        assert!(matches!(told.recv().unwrap(), Err(PostError::NotNow(why)) if why.contains("send it again")));
        let again = said.recv().unwrap();
        assert!(
            matches!(&again, ToScheduler::Barrier { request: r, passed: 1, .. } if *r == request),
            "{again:?}"
        );
        assert!(posts.heard(FromScheduler::Released { request, result: Ok(()) }).is_none());
        thread.join().unwrap().unwrap();
        assert_eq!(posts.passed().times("b", NodeGroup::ALL), 2);
    }
}
