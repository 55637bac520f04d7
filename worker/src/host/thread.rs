//! The thread that carries out what head or follower decide: it reads and writes letters, adds contributions and copies weights. It
//! must not decide anything.

use super::command::{Asked, Command};
use super::follower::Follower;
use super::head::Head;
use super::letter::{LETTER_BYTES, Letter};
use super::meet::{LETTERS, Met, Peer};
use crate::error::OpError;
use crate::runtime::Answering;
use crate::subject::Subject;
use fabric::{
    Completion, CompletionKind, CompletionQueue, LaneQueue, Letters, Mailbox, View, Write, lock, oneshot,
};
use proto_common::ids::{Key, Rank};
use rustc_hash::FxHashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest sleep while something waits for the others.
const SLEEP: Duration = Duration::from_millis(100);
/// The longest sleep otherwise. Whatever happens wakes the thread.
const IDLE_SLEEP: Duration = Duration::from_secs(60);
/// If the head fails an operation, the follower waits this long for the scheduler's report, which has the cause. Then the operation
/// fails with [`OpError::Unshared`].
const NEWS_WITHIN: Duration = Duration::from_secs(2);
/// How long a worker that leaves waits for others that read its memory, and for servers that have not answered a sum.
const LEAVE_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 5_000 });
/// The interval between looks for what has waited for too long.
const TICK: Duration = Duration::from_millis(50);

/// An operation at its gate, as its client does it. If it is dropped before its end, it goes alone.
pub(crate) trait Passing: Send + 'static {
    /// Its tensor, for errors.
    fn key(&self) -> Key;
    /// It goes to the servers with its own payload.
    fn open_alone(&mut self);
    /// It goes to the servers without a payload.
    fn open_merged(&mut self);
    /// It goes to the servers with the sum of its own payload and of these, added in this order.
    fn open_sum(&mut self, others: &[View]);
    /// What the servers returned to another worker is here.
    fn land(&mut self, weights: &View);
    /// If it has not gone to the servers, it never will: it fails.
    fn refuse(&mut self, error: &OpError);
    /// The host has done its share, or failed to.
    fn end(self, failure: Option<OpError>);
}

enum Message<P> {
    Submitted(Asked, P),
    /// All lanes are done with this operation.
    Answered {
        op: u64,
        is_good: bool,
    },
    /// The job cannot continue.
    Fail(OpError),
    /// The answer: nothing waits for this worker any more.
    Leave(oneshot::Sender<bool>),
}

/// An operation that comes to its gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coming {
    pub(crate) op: u64,
    pub(crate) key: u64,
    pub(crate) round: u64,
    /// Of the gradient, and of what returns.
    pub(crate) bytes: u64,
    /// Where the gradient is in this worker's memory.
    pub(crate) offset: u64,
    /// Where weights return to in this worker's memory.
    pub(crate) weights: Option<u64>,
    /// Is there memory for a sum?
    pub(crate) sums: bool,
}

/// The gate of a worker's operations.
pub(crate) struct Host<P: Passing> {
    mailbox: Mailbox<Message<P>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    answering: Answering,
    is_head: bool,
    /// From now on every operation goes alone.
    is_off: Arc<AtomicBool>,
}

impl<P: Passing> std::fmt::Debug for Host<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("is_head", &self.is_head).finish_non_exhaustive()
    }
}

impl<P: Passing> Host<P> {
    /// Starts the thread.
    pub(crate) fn start(met: Met, spin: Duration) -> std::io::Result<Self> {
        let is_head = met.is_head;
        let (mailbox, messages) = Mailbox::new(met.queue.waker());
        let is_off = Arc::<AtomicBool>::default();
        let run = Run::new((met, messages), spin, is_off.clone());
        let thread = std::thread::Builder::new().name("gradwire-host".into()).spawn(move || guarded(run))?;
        let answers = mailbox.clone();
        let answering = Answering(Arc::new(move |op, is_good| {
            answers.send(Message::Answered { op, is_good });
        }));
        Ok(Self { mailbox, thread: Mutex::new(Some(thread)), answering, is_head, is_off })
    }

    /// Does this worker send for the others?
    pub(crate) fn is_head(&self) -> bool {
        self.is_head
    }

    /// Do others still add their contributions?
    pub(crate) fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::Acquire)
    }

    /// An operation has come to its gate. If the thread has ended, `passing` is dropped, so the operation goes alone.
    pub(crate) fn submit(&self, coming: Coming, passing: P) {
        let Coming { op, key, round, bytes, offset, weights, sums } = coming;
        let (part, lands, weights) = ((key, round), weights.is_some(), weights.unwrap_or(0));
        let asked = Asked { op, part, bytes, offset, weights, lands, sums };
        self.mailbox.send(Message::Submitted(asked, passing));
    }

    /// To be called when all lanes are done with an operation, with its number, and whether it has succeeded.
    pub(crate) fn answering(&self) -> Answering {
        self.answering.clone()
    }

    /// The job cannot continue: whatever waits fails.
    pub(crate) fn fail(&self, error: &OpError) {
        self.mailbox.send(Message::Fail(error.clone()));
    }

    /// Leaves the others. Nothing waits at the gate any more. False: contributions of the others are in a sum of this worker's that was
    /// not answered, or the other way round, so the job cannot continue without it.
    pub(crate) fn leave(&self) -> bool {
        // A thread that has panicked has failed its operations.
        if lock(&self.thread).as_ref().is_none_or(JoinHandle::is_finished) {
            return true;
        }
        // If the thread is stuck, it ends with the process.
        let left = self.mailbox.ask(2 * LEAVE_WITHIN, Message::Leave);
        if let (Some(_), Some(thread)) = (left, lock(&self.thread).take()) {
            let _ = thread.join();
        }
        left.unwrap_or(false)
    }
}

/// Fails operations. One callback that panics keeps no other operation from its end.
fn fail_each<P: Passing>(all: impl Iterator<Item = P>, error: &OpError) {
    for mut passing in all {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            passing.refuse(error);
            passing.end(Some(error.clone()));
        }));
        if failed.is_err() {
            tracing::error!("the callback of an operation panicked");
        }
    }
}

/// A user callback may panic on this thread. Then the operations at the gate fail, so that no caller waits for ever, and later ones go
/// alone.
fn guarded<P: Passing>(mut run: Run<P>) {
    if catch_unwind(AssertUnwindSafe(|| run.run())).is_err() {
        tracing::error!(
            "the thread for the workers of this host panicked; contributions are sent one by one"
        );
        run.break_down();
    }
}

#[derive(Debug)]
enum Role {
    Head(Head),
    Follower(Follower),
}

struct Run<P> {
    role: Role,
    queue: LaneQueue,
    peers: Vec<Peer>,
    messages: Letters<Message<P>>,
    passing: FxHashMap<u64, P>,
    commands: Vec<Command>,
    completions: Vec<Completion>,
    failed: Option<OpError>,
    /// Operations that fail, and since when.
    failing: Vec<(Instant, u64)>,
    start: Instant,
    spin: Duration,
    is_off: Arc<AtomicBool>,
}

impl<P: Passing> Run<P> {
    fn new((met, messages): (Met, Letters<Message<P>>), spin: Duration, is_off: Arc<AtomicBool>) -> Self {
        let ranks = met.ranks();
        let role = match ranks.first() {
            Some(head) if !met.is_head => Role::Follower(Follower::new(*head)),
            _ => Role::Head(Head::new(ranks)),
        };
        Self {
            role,
            queue: met.queue,
            peers: met.peers,
            messages,
            passing: FxHashMap::default(),
            commands: Vec::new(),
            completions: Vec::new(),
            failed: None,
            failing: Vec::new(),
            start: Instant::now(),
            spin,
            is_off,
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn run(&mut self) {
        let (mut idle_since, mut looked) = (Instant::now(), Instant::now());
        let leaving = loop {
            let (worked, leaving) = self.take_messages();
            if leaving.is_some() {
                break leaving;
            }
            if self.turn() | worked {
                idle_since = Instant::now();
            } else if idle_since.elapsed() >= self.spin {
                self.queue.wait(if self.is_idle() { IDLE_SLEEP } else { SLEEP });
                idle_since = Instant::now();
            } else {
                std::hint::spin_loop();
            }
            if looked.elapsed() >= TICK {
                self.tick();
                looked = Instant::now();
            }
        };
        let is_clean = self.leave();
        if let Some(told) = leaving.flatten() {
            told.send(is_clean);
        }
    }

    /// Nothing is done here any more: whatever waits fails.
    fn break_down(&mut self) {
        self.is_off.store(true, Ordering::Release);
        let error =
            OpError::Closed("a thread of it panicked; please report it with the log lines before".into());
        fail_each(self.passing.drain().map(|(_, passing)| passing), &error);
        self.close_messages();
    }

    /// What comes from now on is dropped: it goes alone.
    fn close_messages(&mut self) {
        for message in self.messages.close() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(message)));
        }
    }

    /// True: there were some. Somebody who asks this worker to leave waits for the end of the sender.
    #[allow(clippy::type_complexity, reason = "whether there were some, and who asks to leave, if anybody")]
    fn take_messages(&mut self) -> (bool, Option<Option<oneshot::Sender<bool>>>) {
        let mut worked = false;
        loop {
            match self.messages.try_recv() {
                Ok(Message::Submitted(asked, passing)) => self.submitted(asked, passing),
                Ok(Message::Answered { op, is_good }) => {
                    let now_ms = self.now_ms();
                    match &mut self.role {
                        Role::Head(head) => head.answered(op, is_good, &mut self.commands),
                        Role::Follower(follower) => follower.answered(op, now_ms, &mut self.commands),
                    }
                }
                Ok(Message::Fail(error)) => self.failed = Some(error),
                Ok(Message::Leave(told)) => return (true, Some(Some(told))),
                Err(TryRecvError::Empty) => return (worked, None),
                Err(TryRecvError::Disconnected) => return (worked, Some(None)),
            }
            worked = true;
            self.execute();
            self.fail_all();
        }
    }

    fn submitted(&mut self, asked: Asked, passing: P) {
        self.passing.insert(asked.op, passing);
        let now_ms = self.now_ms();
        match &mut self.role {
            Role::Head(head) => head.submitted(asked, now_ms, &mut self.commands),
            Role::Follower(follower) => follower.submitted(asked, now_ms, &mut self.commands),
        }
    }

    /// If the job has ended, whatever waits fails, and nothing more is done here for what has gone.
    fn fail_all(&mut self) {
        let Some(error) = &self.failed else { return };
        fail_each(self.passing.drain().map(|(_, passing)| passing), error);
    }

    /// Takes what the others say. True if there was something.
    fn turn(&mut self) -> bool {
        self.queue.poll(&mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        let worked = !completions.is_empty();
        for Completion { channel, kind } in completions.drain(..) {
            let Some(at) = self.peers.iter().position(|peer| peer.channel == channel) else { continue };
            match kind {
                CompletionKind::Received { immediate } => self.letter(at, immediate),
                CompletionKind::Disconnected(reason) => self.gone(at, &reason.to_string()),
                CompletionKind::WriteDone { .. } | CompletionKind::ReadDone { .. } => {}
            }
            self.execute();
        }
        self.completions = completions;
        worked
    }

    fn letter(&mut self, at: usize, slot: u32) {
        let peer = &self.peers[at];
        let (rank, mut bytes) = (peer.rank, [0; LETTER_BYTES]);
        let place = u64::from(slot) % LETTERS * LETTER_BYTES as u64;
        let letter = peer.inbox.read(place, &mut bytes).ok().and_then(|()| Letter::decode(&bytes));
        let now_ms = self.now_ms();
        if letter == Some(Letter::Leave) {
            self.is_off.store(true, Ordering::Release);
        }
        let said = match (letter, &mut self.role) {
            (None, _) => Err("it sent a letter that cannot be read"),
            // Its memory is looked at later.
            (Some(Letter::Offer { offset, bytes, .. } | Letter::Result { offset, bytes, .. }), _)
                if peer.memory.slice(offset, bytes).is_err() =>
            {
                Err("what it names is not in its memory")
            }
            (Some(letter), Role::Head(head)) => head.letter(rank, letter, &mut self.commands),
            (Some(letter), Role::Follower(follower)) => follower.letter(letter, now_ms, &mut self.commands),
        };
        if let Err(what) = said {
            self.gone(at, what);
        }
    }

    fn gone(&mut self, at: usize, why: &str) {
        let Peer { rank, channel, .. } = self.peers[at];
        tracing::debug!(
            worker = rank.0,
            why,
            "a worker of this host does not add its contributions to ours any more"
        );
        // What it reads or writes after this is in memory that nobody else uses.
        let _ = self.queue.close(channel);
        self.is_off.store(true, Ordering::Release);
        let now_ms = self.now_ms();
        match &mut self.role {
            Role::Head(head) => head.left(rank, &mut self.commands),
            Role::Follower(follower) => follower.gone(now_ms, &mut self.commands),
        }
    }

    fn execute(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            match command {
                Command::Send { to, letter } => self.send(to, letter),
                Command::OpenAlone { op } => self.with(op, P::open_alone),
                Command::OpenMerged { op } => self.with(op, P::open_merged),
                Command::OpenSum { op, from } => self.sum(op, &from),
                Command::Land { op, from, offset } => self.land(op, from, offset),
                Command::End { op } => self.end(op, None),
                // The head may have heard sooner that the job has ended, and why.
                Command::Fail { op } => self.failing.push((Instant::now(), op)),
            }
        }
        self.commands = commands;
    }

    fn with(&mut self, op: u64, work: impl FnOnce(&mut P)) {
        if let Some(passing) = self.passing.get_mut(&op) {
            work(passing);
        }
    }

    fn end(&mut self, op: u64, failure: Option<OpError>) {
        if let Some(passing) = self.passing.remove(&op) {
            passing.end(failure);
        }
    }

    fn send(&mut self, to: Rank, letter: Letter) {
        let Self { peers, queue, .. } = self;
        let Some(peer) = peers.iter_mut().find(|peer| peer.rank == to) else { return };
        let slot = peer.sent % LETTERS;
        let place = slot * LETTER_BYTES as u64;
        peer.sent += 1;
        let written = peer.outbox.write(place, &letter.encode());
        let span = written.and_then(|()| peer.outbox.span(place, LETTER_BYTES as u64));
        // The memory has room for all slots.
        let Ok(span) = span else { return };
        let remote = fabric::RemoteSpan { offset: peer.remote.offset + place, ..peer.remote };
        let write = Write { id: 0, gather: &[span], remote, immediate: Some(slot as u32), signaled: false };
        // If the channel has ended, the next poll tells. It is never full (see `LETTERS`).
        let posted = queue.post_write(peer.channel, &write);
        debug_assert_ne!(posted, Err(fabric::PostError::Full));
    }

    fn sum(&mut self, op: u64, from: &[(Rank, u64)]) {
        let Self { peers, passing, .. } = self;
        let Some(passing) = passing.get_mut(&op) else { return };
        let view = |(rank, offset): &(Rank, u64)| {
            let peer = peers.iter().find(|peer| peer.rank == *rank)?;
            let bytes = peer.memory.len().saturating_sub(*offset);
            peer.memory.slice(*offset, bytes).ok()
        };
        match from.iter().map(view).collect::<Option<Vec<View>>>() {
            Some(views) => passing.open_sum(&views),
            // The places were checked when the letters came.
            None => {
                let why = "a contribution to its sum is missing; this is a bug";
                passing.refuse(&OpError::Closed(why.into()));
            }
        }
    }

    fn land(&mut self, op: u64, from: Rank, offset: u64) {
        let Self { peers, passing, .. } = self;
        let found = peers.iter().find(|peer| peer.rank == from).zip(passing.get_mut(&op));
        let Some((peer, passing)) = found else { return };
        let bytes = peer.memory.len().saturating_sub(offset);
        // It was checked when the letter came.
        if let Ok(weights) = peer.memory.slice(offset, bytes) {
            passing.land(&weights);
        }
    }

    /// Ends operations whose head has failed them, if nobody has told why.
    fn end_failing(&mut self) {
        let head = self.peers.first().map(|peer| peer.rank).unwrap_or_default();
        let is_over = |(since, _): &mut (Instant, u64)| since.elapsed() >= NEWS_WITHIN;
        let over: Vec<_> = self.failing.extract_if(.., is_over).collect();
        for (_, op) in over {
            if let Some(mut passing) = self.passing.remove(&op) {
                let error = OpError::Unshared { subject: Subject::default(), key: passing.key(), head };
                passing.refuse(&error);
                passing.end(Some(error));
            }
        }
    }

    fn tick(&mut self) {
        let now_ms = self.now_ms();
        match &mut self.role {
            Role::Head(head) => head.tick(now_ms, &mut self.commands),
            Role::Follower(follower) => follower.tick(now_ms, &mut self.commands),
        }
        self.execute();
        self.end_failing();
    }

    fn is_idle(&self) -> bool {
        self.failing.is_empty()
            && match &self.role {
                Role::Head(head) => head.is_idle(),
                Role::Follower(follower) => follower.is_idle(),
            }
    }

    fn may_go(&self) -> bool {
        match &self.role {
            Role::Head(head) => head.may_go(),
            Role::Follower(follower) => follower.may_go(),
        }
    }

    /// Leaves the others. Returns whether nothing waits for this worker any more.
    fn leave(&mut self) -> bool {
        match &mut self.role {
            Role::Head(head) => head.leave(&mut self.commands),
            Role::Follower(follower) => follower.leave(&mut self.commands),
        }
        self.execute();
        let deadline = Instant::now() + LEAVE_WITHIN;
        while self.failed.is_none() && !self.may_go() && Instant::now() < deadline {
            let (worked, _) = self.take_messages();
            self.tick();
            if !self.turn() && !worked {
                self.queue.wait(deadline.saturating_duration_since(Instant::now()).min(SLEEP));
            }
        }
        let is_clean = self.failed.is_some() || self.may_go();
        match &self.role {
            Role::Head(head) => head.say_goodbye(&mut self.commands),
            Role::Follower(follower) => follower.say_goodbye(&mut self.commands),
        }
        self.execute();
        self.failed.get_or_insert_with(|| OpError::Closed("it was closed by this process".into()));
        self.fail_all();
        self.close_messages();
        is_clean
    }
}
