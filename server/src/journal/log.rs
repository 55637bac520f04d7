//! The journal of one handler, as its server writes it. Owns the records that the keeper may not have, and the answers that wait for
//! them: a worker must not see the effect of a request that would be lost with this process. It must not know who the keeper is.
//!
//! ```text
//!            keeper                      saved
//!   Alone ───────────▶ Behind ────────────────────────────▶ Along ──requests: records──▶
//!     ▲                  ▲ │                                  │
//!     └──── alone ───────┼─┴──────────────────────────────────┤
//!                        └── connected, to one that lacks records that are gone here
//! ```
//!
//! - *Alone*: there is no other server. Nothing is written, and answers go at once.
//! - *Behind*: the keeper needs a new state. Requests are not written, since that state will include them. Answers wait for it.
//! - *Along*: the keeper has a state or is being sent one. Each request is a record, and an answer waits until the keeper has all
//!   requests that the handler had got before it answered.

use crate::app::{Answer, AnswerBody, Origin};
use crate::runtime::Answers;
use proto_common::ids::{Incarnation, Rank};
use proto_common::message::{JournalLine, JournalRecord};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::Notify;

/// Bytes of requests after which the keeper gets a new state, unless the state is larger.
const SINCE_BYTES: u64 = 64 << 20;
/// Instead of a record's number: that of the state which is to come.
const NEXT_STATE: u64 = u64::MAX;
/// What a record costs beside its bytes.
pub(super) const RECORD_BYTES: u64 = 128;

/// A record and its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) record: JournalRecord,
    pub(crate) body: Vec<u8>,
}

impl Record {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        RECORD_BYTES + (self.record.head_bytes() + self.body.len()) as u64
    }
}

/// A request that the handler has, and what its answer needs.
#[derive(Debug)]
pub(crate) struct Noted {
    log: Arc<Log>,
    line: JournalLine,
    operation: u64,
}

impl Noted {
    /// The handler has answered it, or (`answer` is none) dropped it. Without a lane the answer goes nowhere: its worker has it already.
    pub(crate) fn answer(self, lane: Option<(Answers, u64)>, answer: Option<AnswerBody>) {
        self.log.answered(self.line, self.operation, lane, answer);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alone,
    Behind,
    Along,
}

/// An answer that waits until all records up to one are kept.
#[derive(Debug)]
struct Held {
    after: u64,
    /// Whose call, and its number.
    of: (JournalLine, u64),
    lane: Option<(Answers, u64)>,
    answer: Option<Arc<AnswerBody>>,
}

impl Held {
    fn release(self) {
        if let Some((answers, call)) = self.lane {
            // A lane that has ended needs no answer.
            let _ = answers.send(call, self.answer.map(Answer::Shared));
        }
    }
}

/// What the journal knows of one worker's calls.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    first_open: u64,
    /// Replies, as long as the lane keeps them for its worker.
    replies: VecDeque<(u64, Weak<AnswerBody>)>,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Number of the next record.
    next: u64,
    /// The keeper has all records up to this one.
    kept: u64,
    /// Records up to this one were sent over the present connection.
    sent: u64,
    /// Records that the keeper may not have, with consecutive numbers; the last is `next - 1`.
    unkept: VecDeque<Arc<Record>>,
    /// The number of the newest state's first record.
    state_from: u64,
    held: VecDeque<Held>,
    /// No process of this handler has answered a call.
    is_new: bool,
    /// Requests that the handler has and has not answered.
    open: usize,
    lines: BTreeMap<JournalLine, Line>,
    /// Bytes of requests since the state, and of that state.
    since_bytes: u64,
    state_bytes: u64,
}

impl State {
    fn first_unkept(&self) -> u64 {
        self.next - self.unkept.len() as u64
    }

    fn push(&mut self, record: Record) {
        self.next += 1;
        self.unkept.push_back(Arc::new(record));
    }

    fn wants_state(&self) -> bool {
        let is_long = self.since_bytes > SINCE_BYTES.max(self.state_bytes);
        self.open == 0 && (self.stage == Stage::Behind || self.stage == Stage::Along && is_long)
    }

    fn fall_behind(&mut self) {
        self.stage = Stage::Behind;
        self.unkept.clear();
    }

    /// Answers that wait no more.
    fn released(&mut self) -> Vec<Held> {
        let (is_alone, kept) = (self.stage == Stage::Alone, self.kept);
        // In order: what waits for an earlier record came earlier.
        let free = self.held.partition_point(|held| is_alone || held.after <= kept);
        self.is_new &= free == 0;
        self.held.drain(..free).collect()
    }
}

/// See the module.
pub(crate) struct Log {
    /// This server.
    pub(crate) own: Rank,
    pub(crate) app: u32,
    /// How many processes have had the handler, this one included.
    pub(crate) generation: u64,
    /// The server that had the journal when this process began. It stays the keeper: if another one became it, this one would have an
    /// older journal, which a later process could take for the newest.
    pub(crate) keeper: Option<(Rank, Incarnation)>,
    state: Mutex<State>,
    /// There is something to send.
    news: Notify,
    /// Wakes the handler's thread: a state is wanted.
    poke: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("app", &self.app).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Log {
    pub(crate) fn new(
        (own, app): (Rank, u32),
        (generation, is_new): (u64, bool),
        keeper: Option<(Rank, Incarnation)>,
        poke: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            is_new,
            stage: Stage::Behind,
            next: 1,
            kept: 0,
            sent: 0,
            unkept: VecDeque::new(),
            state_from: 0,
            held: VecDeque::new(),
            open: 0,
            lines: BTreeMap::new(),
            since_bytes: 0,
            state_bytes: 0,
        };
        Self {
            own,
            app,
            generation,
            keeper,
            state: Mutex::new(state),
            news: Notify::new(),
            poke: Box::new(poke),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler gets this request now. Only its thread calls this.
    pub(crate) fn request(self: &Arc<Self>, from: Rank, origin: Origin, head: &[u8], body: &[u8]) -> Noted {
        let Origin { lane, life, operation, first_open } = origin;
        let line = JournalLine { worker: from, life, lane };
        let noted = self.note(line, operation, first_open);
        if self.lock().stage != Stage::Along {
            return noted;
        }
        // The one copy of a request that a journal costs here; without the lock, since answers of other calls need it.
        let record = JournalRecord::Request { line, operation, first_open, head: head.to_vec() };
        let record = Record { record, body: body.to_vec() };
        let mut state = self.lock();
        // Only this thread ends the stage Behind. So if it began meanwhile, the state that is to come includes this request.
        if state.stage == Stage::Along {
            state.since_bytes = state.since_bytes.saturating_add(record.bytes());
            state.push(record);
            drop(state);
            self.news.notify_one();
        }
        noted
    }

    /// The handler gets a request that is not written: a journal has it.
    pub(super) fn note(self: &Arc<Self>, line: JournalLine, operation: u64, first_open: u64) -> Noted {
        let mut state = self.lock();
        state.open += 1;
        if !state.lines.contains_key(&line) {
            // Of another process of this worker nothing is asked for again.
            state.lines.retain(|other, _| other.worker != line.worker || other.life == line.life);
        }
        let known = state.lines.entry(line).or_default();
        known.next = known.next.max(operation.saturating_add(1));
        known.first_open = known.first_open.max(first_open);
        // Calls that have ended at their deadlines: their answers would add up as long as no keeper takes a state.
        state.held.retain(|held| held.of.0 != line || held.of.1 >= first_open);
        drop(state);
        Noted { log: self.clone(), line, operation }
    }

    /// What an earlier process had of a line when it saved its state.
    pub(super) fn line(&self, line: JournalLine, (next, first_open): (u64, u64)) {
        let known = Line { next, first_open, ..Line::default() };
        self.lock().lines.insert(line, known);
    }

    /// A reply of an earlier process.
    pub(super) fn reply(&self, line: JournalLine, operation: u64, reply: &Arc<AnswerBody>) {
        let mut state = self.lock();
        state.lines.entry(line).or_default().replies.push_back((operation, Arc::downgrade(reply)));
    }

    fn answered(
        &self,
        line: JournalLine,
        operation: u64,
        lane: Option<(Answers, u64)>,
        answer: Option<AnswerBody>,
    ) {
        let answer = answer.map(Arc::new);
        let mut state = self.lock();
        state.open = state.open.saturating_sub(1);
        if let (Some(reply), Some(known)) = (&answer, state.lines.get_mut(&line)) {
            while known.replies.front().is_some_and(|(_, reply)| reply.strong_count() == 0) {
                known.replies.pop_front();
            }
            known.replies.push_back((operation, Arc::downgrade(reply)));
        }
        let after = if state.stage == Stage::Along { state.next - 1 } else { NEXT_STATE };
        let held = Held { after, of: (line, operation), lane, answer };
        state.held.push_back(held);
        let (free, wants_state) = (state.released(), state.wants_state());
        drop(state);
        free.into_iter().for_each(Held::release);
        if wants_state {
            (self.poke)();
        }
    }

    /// Is the handler's state to be saved now? Only its thread asks.
    pub(crate) fn wants_state(&self) -> bool {
        self.lock().wants_state()
    }

    /// The handler has saved its state, which includes all requests so far. Only its thread calls this, and all are answered.
    pub(crate) fn saved(&self, saved: Vec<u8>) {
        let mut records = Vec::new();
        let state = self.lock();
        let lines: Vec<_> =
            state.lines.iter().map(|(line, known)| (*line, known.next, known.first_open)).collect();
        let of = |(line, known): (&JournalLine, &Line)| {
            let (line, open) = (*line, known.first_open);
            let replies = known.replies.iter().filter(move |(operation, _)| *operation >= open);
            replies
                .filter_map(move |(operation, reply)| Some((line, *operation, reply.upgrade()?)))
                .collect::<Vec<_>>()
        };
        let replies: Vec<_> = state.lines.iter().flat_map(of).collect();
        drop(state);
        for (line, next, first_open) in lines {
            let record = JournalRecord::Line { line, next, first_open };
            records.push(Record { record, body: Vec::new() });
        }
        for (line, operation, reply) in replies {
            let (head, body) = reply.copied();
            records.push(Record { record: JournalRecord::Reply { line, operation, head }, body });
        }
        let bytes = saved.len() as u64;
        records.push(Record { record: JournalRecord::State, body: saved });
        let mut state = self.lock();
        if state.stage == Stage::Alone {
            return;
        }
        state.unkept.clear();
        (state.state_from, state.since_bytes, state.state_bytes) = (state.next, 0, bytes);
        records.into_iter().for_each(|record| state.push(record));
        let number = state.next - 1;
        state.stage = Stage::Along;
        state.held.iter_mut().for_each(|held| held.after = held.after.min(number));
        drop(state);
        self.news.notify_one();
    }

    /// There is no other server to keep anything.
    pub(crate) fn alone(&self) {
        let mut state = self.lock();
        state.fall_behind();
        state.stage = Stage::Alone;
        let free = state.released();
        drop(state);
        free.into_iter().for_each(Held::release);
    }

    /// There will be a keeper, or another handler has the number now: a new state is needed.
    pub(crate) fn begin_anew(&self) {
        let mut state = self.lock();
        state.fall_behind();
        let wants_state = state.wants_state();
        drop(state);
        if wants_state {
            (self.poke)();
        }
    }

    /// A keeper is connected, and wants this record next; 0: it has no state of this process.
    pub(crate) fn connected(&self, next: u64) {
        let mut state = self.lock();
        let first = state.first_unkept();
        let has_state = state.stage == Stage::Along && !state.unkept.is_empty() && first == state.state_from;
        let continues = state.stage == Stage::Along && (first..=state.next).contains(&next);
        if !(has_state || continues) {
            drop(state);
            return self.begin_anew();
        }
        state.sent = if continues { next - 1 } else { first - 1 };
        drop(state);
        if continues && next > 1 {
            self.kept(next - 1);
        }
        self.news.notify_one();
    }

    /// The next record to send over the present connection.
    pub(crate) fn to_send(&self) -> Option<(u64, Arc<Record>)> {
        let mut state = self.lock();
        let number = state.first_unkept().max(state.sent.saturating_add(1));
        let at = usize::try_from(number - state.first_unkept()).ok()?;
        let record = state.unkept.get(at)?.clone();
        state.sent = number;
        Some((number, record))
    }

    /// Waits until there may be something to send.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// The keeper has all records up to this one.
    pub(crate) fn kept(&self, number: u64) {
        let mut state = self.lock();
        let number = number.min(state.next - 1);
        state.kept = state.kept.max(number);
        while state.first_unkept() <= number && state.unkept.pop_front().is_some() {}
        let free = state.released();
        drop(state);
        free.into_iter().for_each(Held::release);
    }

    /// Has no process of this handler answered a call?
    pub(crate) fn is_new(&self) -> bool {
        self.lock().is_new
    }

    /// The oldest record that is not kept.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let state = self.lock();
        (!state.unkept.is_empty()).then(|| state.first_unkept())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Rig {
        log: Arc<Log>,
        poked: Arc<AtomicU32>,
        operation: u64,
    }

    impl Rig {
        fn new() -> Self {
            let poked = Arc::new(AtomicU32::new(0));
            let counted = poked.clone();
            let poke = move || _ = counted.fetch_add(1, Ordering::SeqCst);
            Self { log: Arc::new(Log::new((Rank(0), 7), (1, true), None, poke)), poked, operation: 0 }
        }

        fn request(&mut self) -> Noted {
            self.operation += 1;
            let origin = Origin { lane: 0, life: Incarnation(3), operation: self.operation, first_open: 1 };
            self.log.request(Rank(1), origin, b"head", b"body")
        }

        fn answer(noted: Noted) {
            noted.answer(None, Some(AnswerBody::new(b"ok", vec![7].into())));
        }

        /// Answers that wait.
        fn held(&self) -> usize {
            self.log.lock().held.len()
        }

        /// What is sent now: numbers, and what it is.
        fn sent(&self) -> Vec<(u64, char)> {
            let all = std::iter::from_fn(|| self.log.to_send());
            let kind = |record: &Record| match record.record {
                JournalRecord::Line { .. } => 'l',
                JournalRecord::Reply { .. } => 'r',
                JournalRecord::State => 's',
                JournalRecord::Request { .. } => 'q',
            };
            all.map(|(number, record)| (number, kind(&record))).collect()
        }
    }

    #[test]
    fn an_answer_waits_until_its_request_is_kept() {
        let mut rig = Rig::new();
        assert!(rig.log.wants_state());
        rig.log.saved(vec![1]);
        rig.log.connected(0);
        assert_eq!(rig.sent(), [(1, 's')]);
        rig.log.kept(1);
        assert!(rig.log.is_new() && !rig.log.wants_state());
        let (first, second) = (rig.request(), rig.request());
        assert_eq!(rig.sent(), [(2, 'q'), (3, 'q')]);
        Rig::answer(second);
        Rig::answer(first);
        assert_eq!(rig.held(), 2, "both may show the effect of both");
        rig.log.kept(2);
        assert_eq!(rig.held(), 2);
        rig.log.kept(3);
        assert_eq!((rig.held(), rig.sent()), (0, Vec::new()));
    }

    #[test]
    fn behind_requests_are_part_of_the_state_and_answers_wait_for_it() {
        let mut rig = Rig::new();
        let (first, second) = (rig.request(), rig.request());
        assert!(!rig.log.wants_state(), "the handler has requests");
        Rig::answer(first);
        assert_eq!(rig.poked.load(Ordering::SeqCst), 0);
        Rig::answer(second);
        assert_eq!((rig.poked.load(Ordering::SeqCst), rig.log.wants_state()), (1, true));
        rig.log.saved(vec![1]);
        rig.log.connected(0);
        assert_eq!(rig.sent(), [(1, 'l'), (2, 'r'), (3, 'r'), (4, 's')]);
        rig.log.kept(3);
        assert_eq!(rig.held(), 2, "a state that is not complete is none");
        rig.log.kept(4);
        assert_eq!(rig.held(), 0);
        // The lane keeps no reply any more, so none is part of the next state.
        rig.log.begin_anew();
        rig.log.saved(vec![2]);
        assert_eq!(rig.sent(), [(5, 'l'), (6, 's')]);
    }

    #[test]
    fn over_a_new_connection_comes_what_is_missing_or_a_new_state() {
        let mut rig = Rig::new();
        rig.log.saved(vec![1]);
        rig.log.connected(0);
        Rig::answer(rig.request());
        assert_eq!(rig.sent(), [(1, 's'), (2, 'q')]);
        rig.log.connected(0);
        assert_eq!(rig.sent(), [(1, 's'), (2, 'q')], "it has nothing");
        rig.log.connected(2);
        assert_eq!(rig.sent(), [(2, 'q')], "it has the state");
        assert_eq!(rig.held(), 1);
        rig.log.connected(3);
        assert_eq!((rig.sent(), rig.held()), (Vec::new(), 0), "it has all");
        rig.log.connected(0);
        assert!(rig.log.wants_state(), "another server");
        rig.log.saved(vec![2]);
        rig.log.connected(0);
        assert_eq!(rig.sent(), [(3, 'l'), (4, 's')]);
    }

    #[test]
    fn answers_of_calls_that_have_ended_do_not_add_up_and_others_wait_on() {
        let mut rig = Rig::new();
        for _ in 0..3 {
            Rig::answer(rig.request());
        }
        let origin = Origin { lane: 0, life: Incarnation(3), operation: 4, first_open: 3 };
        let noted = rig.log.request(Rank(1), origin, b"", b"");
        assert_eq!(rig.held(), 1, "its worker knows how the first two have ended");
        Rig::answer(noted);
        assert_eq!((rig.held(), rig.log.is_new()), (2, true));
    }

    #[test]
    fn alone_nothing_waits_and_a_keeper_that_comes_gets_a_state() {
        let mut rig = Rig::new();
        let noted = rig.request();
        Rig::answer(noted);
        assert_eq!(rig.held(), 1);
        rig.log.alone();
        assert_eq!((rig.held(), rig.log.wants_state()), (0, false));
        let noted = rig.request();
        Rig::answer(noted);
        assert_eq!((rig.held(), rig.sent()), (0, Vec::new()));
        rig.log.connected(0);
        assert!(rig.log.wants_state());
        let noted = rig.request();
        rig.log.alone();
        rig.log.saved(vec![1]);
        assert_eq!(rig.sent(), [], "it is alone again");
        drop(noted);
    }

    #[test]
    fn requests_that_outgrow_the_state_bring_a_new_one() {
        let mut rig = Rig::new();
        rig.log.saved(vec![1]);
        rig.log.lock().since_bytes = SINCE_BYTES;
        let noted = rig.request();
        assert!(!rig.log.wants_state());
        Rig::answer(noted);
        assert!(rig.log.wants_state());
        rig.log.saved(vec![1]);
        assert!(!rig.log.wants_state());
    }
}
