//! The thread's side of messages: it runs handlers and callbacks one after the other, keeps what waits for an answer or for a
//! handler, and says when a wait has lasted too long. Callers' threads are not its business: it never waits for one.

use super::room::Place;
use super::way::Way;
use crate::passed::Passed;
use fabric::oneshot;
use proto_common::ids::MemberId;
use proto_common::message::{
    FromScheduler, NodeGroup, POST_BODY_BYTES_MAX, POSTS_ASKED_MAX, PostError, PostMessage, PostReply,
    PostTo, ToScheduler, WaitError,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much later than the scheduler's deadline an answer may arrive.
pub(super) const GRACE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 2_000 });

/// Requests at barriers have this bit, so that their answers are distinguished from those of other callers in this
/// process.
pub(super) const OURS: u64 = 1 << 63;

pub(super) type Handler = Box<dyn FnMut(Post) + Send>;

pub(super) type OnAnswer = Box<dyn FnMut(PostAnswer) + Send>;
/// How long the thread sleeps where nothing has a deadline.
const IDLE: Duration = Duration::from_secs(3600);

/// A received message.
#[derive(Debug)]
pub struct Post {
    /// The sender.
    pub from: MemberId,
    /// The handler's number.
    pub app: u32,
    /// Its head.
    pub head: i32,
    /// Its body.
    pub body: Vec<u8>,
    /// Answers the message. If it is dropped without an answer, the sender gets an error.
    pub reply: Answering,
}

/// Answers one message, once, from any thread.
#[derive(Debug)]
pub struct Answering {
    pub(super) ticket: u64,
    work: Option<Sender<Work>>,
}

impl Answering {
    /// Answers the message, with at most [`POST_BODY_BYTES_MAX`] bytes of body. With more, the sender gets an error.
    pub fn send(mut self, head: i32, body: Vec<u8>) -> Result<(), PostError> {
        let result = bounded(&body).map(|()| PostReply { head, body });
        let told = result.as_ref().map(drop).map_err(Clone::clone);
        self.answer(result);
        told
    }

    fn answer(&mut self, result: Result<PostReply, PostError>) {
        if let Some(work) = self.work.take() {
            // If the thread has ended, nobody waits for this.
            let reply = ToScheduler::PostReply { ticket: self.ticket, result };
            let _ = work.send(Work::Say(Box::new(reply)));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.answer(Err(PostError::NoReply));
    }
}

/// One receiver's answer.
#[derive(Debug)]
pub struct PostAnswer {
    /// The receiver.
    pub from: MemberId,
    /// The number of receivers, and of answers.
    pub of: u32,
    /// The answer, or the reason why there is none.
    pub result: Result<PostReply, PostError>,
}

/// A message that waits for its handler, in the room that it takes.
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) from: MemberId,
    pub(super) message: PostMessage,
    /// Until when somebody waits for the answer. After it the scheduler has told its sender.
    pub(super) deadline: Instant,
    pub(super) place: Place,
}

pub(super) enum Work {
    Register(u32, Handler),
    Unregister(u32, oneshot::Sender<()>),
    /// Says when all work before it is done.
    Flush(oneshot::Sender<()>),
    Ask {
        to: PostTo,
        message: PostMessage,
        within: Duration,
        on_answer: OnAnswer,
        place: Place,
    },
    Barrier {
        name: String,
        group: NodeGroup,
        within: Duration,
        done: oneshot::Sender<Result<(), WaitError>>,
    },
    Deliver(Waiting),
    Heard(FromScheduler),
    Say(Box<ToScheduler>),
    /// There is another scheduler.
    Back,
    /// The way to the scheduler has ended.
    Lost(String),
    End,
}

/// What callers may ask without waiting for the thread.
pub(super) struct Known {
    /// Numbers that have a handler.
    pub(super) apps: Mutex<BTreeSet<u32>>,
    /// The number whose handler runs; [`Known::NOBODY`] while none does.
    pub(super) running: AtomicU64,
}

impl Known {
    pub(super) const NOBODY: u64 = u64::MAX;

    pub(super) fn apps(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // A set that is inserted into and removed from is whole, whatever happened to others.
        self.apps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bounded(body: &[u8]) -> Result<(), PostError> {
    let bytes = body.len();
    if bytes > POST_BODY_BYTES_MAX { Err(PostError::TooLong { bytes: bytes as u64 }) } else { Ok(()) }
}

/// Somebody of this process that waits at a barrier.
struct AtBarrier {
    name: String,
    group: NodeGroup,
    passed: u64,
    deadline: Instant,
    done: oneshot::Sender<Result<(), WaitError>>,
}

struct Asked {
    on_answer: OnAnswer,
    to: PostTo,
    /// How many answers there are in all, and how many of them are still to come: once one has said so.
    answers: Option<(u32, u32)>,
    within: Duration,
    deadline: Instant,
    _place: Place,
}

/// All that only the thread touches.
pub(super) struct Hub {
    known: Arc<Known>,
    queue: Receiver<Work>,
    work: Sender<Work>,
    way: Arc<Way>,
    handlers: HashMap<u32, Handler>,
    /// Messages without a handler.
    waiting: VecDeque<Waiting>,
    asked: HashMap<u64, Asked>,
    barriers: HashMap<u64, AtBarrier>,
    passed: Passed,
    next: u64,
    lost: Option<String>,
}

impl Hub {
    /// Nobody has asked for anything yet; `work` is the other end of `queue`.
    pub(super) fn new(
        (work, queue): (Sender<Work>, Receiver<Work>),
        known: Arc<Known>,
        way: Arc<Way>,
        passed: Passed,
    ) -> Self {
        Self {
            known,
            queue,
            work,
            way,
            handlers: HashMap::new(),
            waiting: VecDeque::new(),
            asked: HashMap::new(),
            barriers: HashMap::new(),
            passed,
            next: 0,
            lost: None,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let waiting = self.waiting.iter().map(|waiting| waiting.deadline);
            let due = self.asked.values().map(|asked| asked.deadline).chain(waiting).min();
            let left = due.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()));
            match self.queue.recv_timeout(left) {
                Ok(Work::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(work) => self.take(work),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.expire(Instant::now());
        }
    }

    fn take(&mut self, work: Work) {
        match work {
            Work::Register(app, handler) => {
                self.handlers.insert(app, handler);
                let (mine, others) = self.waiting.drain(..).partition(|waiting| waiting.message.app == app);
                self.waiting = others;
                let mine: VecDeque<Waiting> = mine;
                mine.into_iter().for_each(|waiting| self.deliver(waiting));
            }
            Work::Unregister(app, done) => {
                drop(self.handlers.remove(&app));
                // Nobody listens any more where it took too long.
                done.send(());
            }
            Work::Flush(done) => done.send(()),
            Work::Ask { to, message, within, on_answer, place } => {
                self.ask((to, message), within, on_answer, place);
            }
            Work::Deliver(waiting) => self.deliver(waiting),
            Work::Barrier { name, group, within, done } => self.come(name, group, within, done),
            Work::Heard(FromScheduler::Released { request, result }) => {
                if let Some(waiting) = self.barriers.remove(&request) {
                    if result.is_ok() {
                        self.passed.count(&waiting.name, waiting.group);
                    }
                    waiting.done.send(result);
                }
            }
            Work::Heard(FromScheduler::PostAnswered { request, from, of, result }) => {
                self.answered(request, PostAnswer { from, of, result });
            }
            Work::Heard(_) | Work::End => {}
            // Whoever waits for this answer hears of its deadline.
            Work::Say(message) => _ = self.way.say(*message),
            Work::Back => self.go_on(),
            Work::Lost(why) => {
                self.lost = Some(why);
                // Whoever waits sees that nobody answers.
                self.barriers.clear();
                let requests: Vec<u64> = self.asked.keys().copied().collect();
                requests.into_iter().for_each(|request| self.refuse(request));
            }
        }
    }

    fn ask(
        &mut self,
        (to, message): (PostTo, PostMessage),
        within: Duration,
        on_answer: OnAnswer,
        place: Place,
    ) {
        self.next += 1;
        let (request, timeout_ms) = (self.next, within.as_millis() as u64);
        let deadline = Instant::now() + within + GRACE;
        self.asked.insert(request, Asked { on_answer, to, answers: None, within, deadline, _place: place });
        if let Err(error) = bounded(&message.body) {
            return self.refuse_with(request, || error.clone());
        }
        if self.lost.is_some() {
            return self.refuse(request);
        }
        // As many as the scheduler would take of them, also while there is none.
        if self.asked.len() > POSTS_ASKED_MAX
            || !self.way.say(ToScheduler::Post { request, to, message, timeout_ms })
        {
            self.refuse_with(request, || PostError::Busy);
        }
    }

    fn come(
        &mut self,
        name: String,
        group: NodeGroup,
        within: Duration,
        done: oneshot::Sender<Result<(), WaitError>>,
    ) {
        if let Some(why) = &self.lost {
            done.send(Err(WaitError::Refused { name, reason: why.clone() }));
            return;
        }
        self.next += 1;
        let request = self.next | OURS;
        let (passed, deadline) = (self.passed.times(&name, group), Instant::now() + within);
        self.barriers.insert(request, AtBarrier { name, group, passed, deadline, done });
        self.wait_at(request);
    }

    fn wait_at(&mut self, request: u64) {
        let Some(AtBarrier { name, group, passed, deadline, .. }) = self.barriers.get(&request) else {
            return;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (name, group, passed, timeout_ms) = (name.clone(), *group, *passed, left.as_millis() as u64);
        if !self.way.say(ToScheduler::Barrier { request, name, group, passed, timeout_ms })
            && let Some(AtBarrier { name, done, .. }) = self.barriers.remove(&request)
        {
            done.send(Err(WaitError::Refused { name, reason: PostError::Busy.to_string() }));
        }
    }

    /// There is another scheduler, which has not heard of anything that was under way.
    fn go_on(&mut self) {
        let waiting: Vec<u64> = self.barriers.keys().copied().collect();
        waiting.into_iter().for_each(|request| self.wait_at(request));
        let why = "the scheduler was lost while this message was in flight, so it may or may not have arrived; send it again \
                   where it may come twice";
        let asked: Vec<u64> = self.asked.keys().copied().collect();
        for request in asked {
            self.refuse_with(request, || PostError::NotNow(why.into()));
        }
    }

    /// A request is answered here, because nobody else will.
    fn refuse(&mut self, request: u64) {
        let Some(Asked { to, within, .. }) = self.asked.get(&request) else { return };
        let error = match &self.lost {
            Some(why) => PostError::NotNow(why.clone()),
            None => {
                PostError::Deadline { member: whose(*to), waited_ms: (*within + GRACE).as_millis() as u64 }
            }
        };
        self.refuse_with(request, || error.clone());
    }

    fn refuse_with(&mut self, request: u64, error: impl Fn() -> PostError) {
        let Some(Asked { mut on_answer, to, answers, .. }) = self.asked.remove(&request) else { return };
        let member = whose(to);
        let (of, left) = answers.unwrap_or((1, 1));
        for _ in 0..left {
            let answer = PostAnswer { from: member, of, result: Err(error()) };
            guarded(|| on_answer(answer));
        }
    }

    fn answered(&mut self, request: u64, answer: PostAnswer) {
        let Some(asked) = self.asked.get_mut(&request) else { return };
        let (of, left) = asked.answers.unwrap_or((answer.of, answer.of));
        let left = left.saturating_sub(1);
        asked.answers = Some((of, left));
        guarded(|| (asked.on_answer)(answer));
        if left == 0 {
            self.asked.remove(&request);
        }
    }

    /// To its handler, or to those that wait for one. Nothing is said of one whose time is up: the scheduler has told its
    /// sender, and that there was no handler is no handler's silence.
    fn deliver(&mut self, waiting: Waiting) {
        if waiting.deadline <= Instant::now() {
            return;
        }
        let app = waiting.message.app;
        let Some(handler) = self.handlers.get_mut(&app) else {
            return self.waiting.push_back(waiting);
        };
        let Waiting { ticket, from, message: PostMessage { app, head, body }, place, .. } = waiting;
        // What it does with it takes none of the room.
        drop(place);
        let reply = Answering { ticket, work: Some(self.work.clone()) };
        let post = Post { from, app, head, body, reply };
        self.known.running.store(u64::from(app), Ordering::Relaxed);
        let is_whole = guarded(|| handler(post));
        self.known.running.store(Known::NOBODY, Ordering::Relaxed);
        if !is_whole {
            tracing::error!(app, "a message handler panicked and was removed");
            self.known.apps().remove(&app);
            self.handlers.remove(&app);
        }
    }

    fn expire(&mut self, now: Instant) {
        self.waiting.retain(|waiting| waiting.deadline > now);
        let late: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.deadline <= now)
            .map(|(request, _)| *request)
            .collect();
        late.into_iter().for_each(|request| self.refuse(request));
    }
}

/// False where it panicked: one program's mistake does not end the others' messages.
fn guarded(work: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_ok()
}

/// Who is named where nobody has answered: the receiver, or of a group the scheduler.
fn whose(to: PostTo) -> MemberId {
    let scheduler = MemberId { role: proto_common::ids::Role::Scheduler, rank: proto_common::ids::Rank(0) };
    if let PostTo::One(one) = to { one } else { scheduler }
}
