//! A lane's seat: who holds it drives the lane. The data thread takes it when nobody else does; a caller that
//! submits or waits takes it where it is free, which saves two hops between threads per operation. It owns
//! who drives when; what driving does is `lane`'s business, messages other than submissions are `thread`'s.
//!
//! Invariants. A free seat is armed: whatever comes rings the data thread where that sleeps, and all that came
//! before was looked at; or the data thread was summoned, or rung for what is being gathered, and is on its way.
//! The data thread sleeps without the seat, or is parked out of the callers' way: for `thread::PARK_MAX` at most
//! while callers drive, and for a moment when one has come to wait and may drive; then it looks again. Callers that
//! come and go leave it parked, with whatever work is left over, because a wake for each of them costs more than the
//! work. A caller that waits on this lane alone sleeps with the seat, and the data thread is parked for as long as
//! that lasts. A caller that blocks without the seat unparks it, and the last driving caller does while others are
//! blocked.

use super::connections::Connections;
use super::lane::LaneDriver;
use super::op::Submission;
use super::thread::LaneMessage;
use crate::error::OpError;
use fabric::{LaneQueue, Letters, Mailbox, Rest, oneshot};
use proto_common::limits::LANES_MAX;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Turns after which a caller leaves what goes on and on to the data thread.
const SETTLE_TURNS: usize = 8;
/// The clock is looked at once in so many turns: what it is for counts in milliseconds.
const TURNS_PER_CLOCK: u32 = 16;
/// Most pauses of the processor between two idle turns.
const PAUSES_MAX: u32 = 16;
/// Longest sleep: bounds how late deadlines and lost peers are noticed.
const SLEEP_MS: u64 = 100;

/// How the data thread is parked.
#[derive(Clone, Copy)]
enum Parked {
    No,
    /// For a moment: it comes by itself, and soon.
    Short,
    /// Until it is called: a caller sleeps with the seat.
    Long,
}

/// What the holder of the seat drives.
pub(super) struct Core {
    pub(super) driver: LaneDriver<LaneQueue>,
    pub(super) receiver: Letters<LaneMessage>,
    /// A message that a caller met and left to the data thread; those behind it wait, too.
    pub(super) deferred: Option<LaneMessage>,
    pub(super) connections: Connections,
    /// How the data thread sleeps, and until when at most.
    pub(super) rest: Rest,
    pub(super) sleep_until_ms: u64,
    /// Operations wait for the next turn, and the data thread was rung for it.
    gathering: bool,
    start: Instant,
    now_ms: u64,
    turns: u32,
}

impl Core {
    pub(super) fn new(
        driver: LaneDriver<LaneQueue>,
        receiver: Letters<LaneMessage>,
        connections: Connections,
    ) -> Self {
        let (deferred, start) = (None, Instant::now());
        Self {
            driver,
            receiver,
            deferred,
            connections,
            rest: Rest::Word,
            sleep_until_ms: 0,
            gathering: false,
            start,
            now_ms: 0,
            turns: 0,
        }
    }

    /// Milliseconds since the lane began, late by some turns.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn take(&mut self) {
        self.driver.queue_mut().disarm();
        self.look_at_clock();
    }

    pub(super) fn look_at_clock(&mut self) {
        self.turns = 0;
        let now = Instant::now();
        self.now_ms = now.saturating_duration_since(self.start).as_millis() as u64;
        self.driver.saw(now);
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        self.driver.submit(submission, self.now_ms);
    }

    /// Takes submissions, up to the first message that is the data thread's.
    fn take_submissions(&mut self) -> bool {
        let mut any = false;
        while self.deferred.is_none() {
            match self.receiver.try_recv() {
                Ok(LaneMessage::Submit(submission)) => self.submit(submission),
                Ok(other) => self.deferred = Some(other),
                // A lane that nobody can reach any more is ended by its data thread.
                Err(_) => break,
            }
            any = true;
        }
        any
    }

    /// One turn of the lane. True when something had happened.
    pub(super) fn step(&mut self) -> bool {
        self.gathering = false;
        self.turns += 1;
        if self.turns >= TURNS_PER_CLOCK {
            self.look_at_clock();
        }
        let busy = self.driver.step(self.now_ms);
        self.connections.look(&mut self.driver);
        busy
    }

    /// A caller's turn.
    fn drive(&mut self) -> bool {
        let taken = self.driver.queue_mut().take_wake() && self.take_submissions();
        self.step() | taken
    }

    /// A turn that starts operations and ends none where `may_step` says so.
    fn start(&mut self, may_step: bool) {
        if may_step {
            self.step();
            return;
        }
        self.gathering = false;
        self.driver.post(self.now_ms);
    }

    /// Leaves small operations to the next turn while earlier ones are on their way: then many go as one batch.
    /// True when the data thread is to be rung, because a caller need not come back.
    fn gather(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.gathering, true);
        if first {
            let rest = self.rest;
            self.driver.queue_mut().lie_down(rest);
        }
        first
    }

    /// How long the engine has nothing to do by itself, at most [`SLEEP_MS`].
    pub(super) fn idle_ms(&self) -> u64 {
        let due = self.driver.engine().next_retry_ms();
        due.map_or(SLEEP_MS, |due| due.saturating_sub(self.now_ms).max(1)).min(SLEEP_MS)
    }

    /// A caller sleeps in the data thread's place: until something came, or until the time is over.
    fn lead(&mut self, until: Instant) {
        self.look_at_clock();
        let time = Duration::from_millis(self.idle_ms()).min(until.saturating_duration_since(Instant::now()));
        self.driver.queue_mut().wait(time);
        self.look_at_clock();
    }

    /// Arms the lane before a caller leaves the seat.
    fn settle(&mut self, may_step: bool) -> Left {
        let rest = self.rest;
        for _ in 0..SETTLE_TURNS {
            if self.deferred.is_some() {
                break;
            }
            if self.driver.queue_mut().rearm(rest) {
                // It went to sleep without knowing of what is to be done sooner.
                let sooner =
                    self.driver.engine().next_retry_ms().is_some_and(|due| due < self.sleep_until_ms);
                return if sooner { Left::Work } else { Left::Nothing };
            }
            if !may_step {
                break;
            }
            self.drive();
        }
        self.driver.queue_mut().lie_down(rest);
        if self.deferred.is_some() { Left::Message } else { Left::Work }
    }
}

/// What a caller leaves to the data thread.
enum Left {
    Nothing,
    /// What any other caller may do as well.
    Work,
    /// What only the data thread does, and callers wait for.
    Message,
}

/// See the module.
pub(super) struct Seat {
    /// `None` once the lane has ended.
    pub(super) core: Mutex<Option<Core>>,
    /// Callers that drive, or are about to.
    callers: AtomicU32,
    /// Callers asleep until an operation of theirs ends.
    blocked: AtomicU32,
    /// Something is the data thread's to do: callers stay off until it has.
    pub(super) summoned: AtomicBool,
    /// So many operations have callbacks, which must not run in a thread that only submits.
    callbacks: AtomicU32,
    /// A caller submits, and may not know of callbacks yet.
    kicking: AtomicBool,
    /// Set before the lane takes its last look at what was submitted: the error of what comes after.
    pub(super) ended: OnceLock<OpError>,
    /// A [`Parked`].
    parked: AtomicU32,
    /// A caller sleeps with the seat.
    led: AtomicBool,
    /// Callers that came to wait, round and round.
    visits: AtomicU32,
    /// Callers that took the seat to drive, round and round.
    drives: AtomicU32,
    pub(super) thread: OnceLock<Thread>,
    spin: Duration,
}

impl Seat {
    pub(super) fn new(core: Core, spin: Duration) -> Self {
        Self {
            core: Mutex::new(Some(core)),
            callers: AtomicU32::new(0),
            blocked: AtomicU32::new(0),
            summoned: AtomicBool::new(false),
            callbacks: AtomicU32::new(0),
            kicking: AtomicBool::new(false),
            ended: OnceLock::new(),
            parked: AtomicU32::new(Parked::No as u32),
            led: AtomicBool::new(false),
            visits: AtomicU32::new(0),
            drives: AtomicU32::new(0),
            thread: OnceLock::new(),
            spin,
        }
    }

    fn try_take(&self) -> Option<MutexGuard<'_, Option<Core>>> {
        if self.summoned.load(Ordering::SeqCst) {
            return None;
        }
        // A seat whose holder panicked is the data thread's to end.
        let mut guard = self.core.try_lock().ok()?;
        guard.as_mut()?.take();
        Some(guard)
    }

    /// Do callers drive at this moment?
    pub(super) fn is_driven(&self) -> bool {
        self.callers.load(Ordering::SeqCst) > 0
    }

    /// Changes with each caller that comes to wait, whether or not it finds anything left to drive for. The data
    /// thread then lets it have the seat for a moment: otherwise whoever waits for every operation would find each
    /// of them done already, by a third thread that its work does not need.
    pub(super) fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Changes with each caller that takes the seat to drive.
    pub(super) fn drives(&self) -> u32 {
        self.drives.load(Ordering::Relaxed)
    }

    /// Do callers sleep until the data thread has done something?
    pub(super) fn is_waited_for(&self) -> bool {
        self.blocked.load(Ordering::SeqCst) > 0
    }

    /// The data thread out of the callers' way: until it is called, at most for this time, or as long as a caller
    /// sleeps with the seat.
    pub(super) fn park(&self, time: Duration) {
        // Who stops leading, or summons, after this sees how it parks; what was before is seen here.
        self.parked.store(Parked::Long as u32, Ordering::SeqCst);
        let time = if self.led.load(Ordering::SeqCst) {
            Duration::from_millis(SLEEP_MS)
        } else {
            self.parked.store(Parked::Short as u32, Ordering::SeqCst);
            time
        };
        if !self.summoned.load(Ordering::SeqCst) {
            std::thread::park_timeout(time);
        }
        self.parked.store(Parked::No as u32, Ordering::SeqCst);
    }

    fn unpark(&self) {
        self.thread.get().into_iter().for_each(Thread::unpark);
    }
}

/// The other threads' end of a lane.
#[derive(Clone)]
pub(crate) struct LaneHandle {
    seat: Arc<Seat>,
    mailbox: Mailbox<LaneMessage>,
}

impl std::fmt::Debug for LaneHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneHandle").field("ended", &self.seat.ended).finish_non_exhaustive()
    }
}

impl LaneHandle {
    pub(super) fn new(seat: Arc<Seat>, mailbox: Mailbox<LaneMessage>) -> Self {
        Self { seat, mailbox }
    }

    /// Hands a message over; false when the lane has ended.
    pub(crate) fn send(&self, message: LaneMessage) -> bool {
        let sent = self.mailbox.send(message);
        self.seat.unpark();
        sent
    }

    /// Hands a message over that can wait until callers who drive let the data thread.
    pub(crate) fn send_beside(&self, message: LaneMessage) {
        self.mailbox.send(message);
    }

    /// Asks and waits for the answer, at most this long; `None` when the lane has ended or is stuck.
    pub(crate) fn ask<R>(
        &self,
        within: Duration,
        message: impl FnOnce(oneshot::Sender<R>) -> LaneMessage,
    ) -> Option<R> {
        self.mailbox.ask(within, message)
    }

    /// Hands an operation over; [`LaneHandle::kick`] is to follow, and knows whether the lane has ended.
    pub(crate) fn submit(&self, submission: Submission) {
        self.mailbox.post(LaneMessage::Submit(submission));
    }

    /// A caller comes to wait for an operation.
    pub(crate) fn visit(&self) {
        self.seat.visits.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts what was submitted: here where the seat is free, else whoever has it does. Calls no callbacks.
    /// An error when the lane has ended: why.
    pub(crate) fn kick(&self) -> Result<(), OpError> {
        let Some(mut guard) = self.seat.try_take() else {
            self.mailbox.wake();
            // Either the end of the lane finds the submission, or we find the end.
            fence(Ordering::SeqCst);
            return self.seat.ended.get().map_or(Ok(()), |error| Err(error.clone()));
        };
        let kick = Kick::begin(&self.seat);
        let may_step = self.seat.callbacks.load(Ordering::SeqCst) == 0;
        let (mut ring, mut what) = (false, Left::Nothing);
        if let Some(core) = guard.as_mut() {
            core.take_submissions();
            if core.deferred.is_none() && core.driver.engine().may_gather() {
                ring = core.gather();
            } else {
                core.start(may_step);
                what = core.settle(may_step);
            }
        }
        if ring {
            // Before anybody else disarms the lane.
            self.mailbox.wake();
        }
        drop(kick);
        drop(guard);
        self.left(what);
        Ok(())
    }

    /// From here on an operation has a callback, until [`LaneHandle::forget_callback`].
    pub(crate) fn expect_callback(&self) {
        self.seat.callbacks.fetch_add(1, Ordering::SeqCst);
        // A kick that does not know is soon over. Not by way of the seat: who sleeps or runs callbacks has that.
        while self.seat.kicking.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// A callback has run, or never will.
    pub(crate) fn forget_callback(&self) {
        self.seat.callbacks.fetch_sub(1, Ordering::SeqCst);
    }

    /// After the seat was given back. A summons that came while we had it found the lane disarmed, and so
    /// rang nobody: either it finds the lane armed again, or we find the summons.
    fn left(&self, what: Left) {
        let is_its = match what {
            Left::Nothing => false,
            Left::Work => self.seat.parked.load(Ordering::SeqCst) != Parked::Short as u32,
            Left::Message => true,
        };
        if !is_its && !self.seat.summoned.load(Ordering::SeqCst) {
            return;
        }
        self.seat.summoned.store(true, Ordering::SeqCst);
        self.mailbox.wake();
        self.seat.unpark();
    }
}

/// For as long as a caller submits with the seat, panics included.
struct Kick<'a>(&'a AtomicBool);

impl<'a> Kick<'a> {
    /// Before it asks for callbacks: who expects them from then on sees it.
    fn begin(seat: &'a Seat) -> Self {
        seat.kicking.store(true, Ordering::SeqCst);
        Self(&seat.kicking)
    }
}

impl Drop for Kick<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A caller's wish to drive a lane, from its announcement until it is dropped.
struct Turn<'a> {
    lane: &'a LaneHandle,
    /// No other caller drives: it is worth waiting for the seat.
    first: bool,
    core: Option<MutexGuard<'a, Option<Core>>>,
}

impl<'a> Turn<'a> {
    fn new(lane: &'a LaneHandle) -> Self {
        let first = lane.seat.callers.fetch_add(1, Ordering::SeqCst) == 0;
        Self { lane, first, core: None }
    }

    /// Drives, where the seat can be had. True when something had happened.
    fn step(&mut self) -> bool {
        if self.core.is_none() {
            self.core = self.lane.seat.try_take();
            if self.core.is_some() {
                self.lane.seat.drives.fetch_add(1, Ordering::Relaxed);
            }
        }
        let Some(core) = self.core.as_mut().and_then(|guard| guard.as_mut()) else { return false };
        let busy = core.drive();
        if core.deferred.is_some() {
            self.let_go();
        }
        busy
    }

    /// Sleeps with the seat. False: it is not ours, or the time is over.
    fn lead(&mut self, until: Instant) -> bool {
        let Some(core) = self.core.as_mut().and_then(|guard| guard.as_mut()) else { return false };
        if Instant::now() >= until {
            return false;
        }
        self.lane.seat.led.store(true, Ordering::SeqCst);
        core.lead(until);
        self.lane.seat.led.store(false, Ordering::SeqCst);
        // The sleep has used up the wake.
        core.take_submissions();
        if core.deferred.is_some() {
            self.let_go();
        }
        true
    }

    fn is_hopeful(&self) -> bool {
        self.first || self.core.is_some()
    }

    fn let_go(&mut self) {
        let Some(mut guard) = self.core.take() else { return };
        let what = guard.as_mut().map_or(Left::Nothing, |core| core.settle(true));
        drop(guard);
        self.lane.left(what);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A callback's panic: the seat is poisoned, and the data thread ends the lane.
            self.core = None;
        }
        self.let_go();
        let seat = &self.lane.seat;
        let last = seat.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        let is_called_for = seat.is_waited_for() || seat.parked.load(Ordering::SeqCst) == Parked::Long as u32;
        if last && is_called_for {
            seat.unpark();
        }
    }
}

/// Drives the lanes until `told`, or nothing has happened for as long as they spin. A lane that is the only one is
/// then slept on, until `until`.
pub(crate) fn drive_until<'a>(
    mut lanes: impl Iterator<Item = &'a LaneHandle>,
    until: Instant,
    told: impl Fn() -> bool,
) {
    match (lanes.next(), lanes.next()) {
        (None, _) => {}
        (Some(only), None) => drive(&mut [Some(Turn::new(only))], until, told),
        (Some(first), Some(second)) => {
            let mut lanes = [first, second].into_iter().chain(lanes);
            // Room for all that a job can have: a wait allocates no list.
            let mut turns: [Option<Turn<'a>>; LANES_MAX as usize] =
                std::array::from_fn(|_| lanes.next().map(Turn::new));
            let count = turns.iter().flatten().count();
            drive(&mut turns[..count], until, told);
        }
    }
}

fn drive(turns: &mut [Option<Turn<'_>>], until: Instant, told: impl Fn() -> bool) {
    let Some(spin) = turns.iter().flatten().map(|turn| turn.lane.seat.spin).max() else { return };
    let mut idle_since = Instant::now();
    let (mut idle, mut moved) = (0u32, false);
    loop {
        let busy = turns.iter_mut().flatten().fold(false, |busy, turn| turn.step() | busy);
        if told() {
            return;
        }
        moved |= busy;
        idle = if busy { 0 } else { idle + 1 };
        if idle % TURNS_PER_CLOCK == TURNS_PER_CLOCK - 1 {
            let now = Instant::now();
            if std::mem::take(&mut moved) {
                idle_since = now;
            }
            if now.duration_since(idle_since) >= spin || !turns.iter().flatten().any(Turn::is_hopeful) {
                // Woken for nothing, it sleeps again at once.
                if let [Some(turn)] = &mut *turns
                    && turn.lead(until)
                {
                    continue;
                }
                return;
            }
            // The server may be waiting for this very core.
            std::thread::yield_now();
        } else if !busy {
            // Looking at a socket takes the lock that its sender needs: less and less often.
            (0..idle.min(PAUSES_MAX)).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// A caller that blocks until lanes have done something for it: their data threads, or who drives, are in charge.
pub(crate) struct Blocked<'a, L: Iterator<Item = &'a LaneHandle> + Clone>(L);

impl<'a, L: Iterator<Item = &'a LaneHandle> + Clone> Blocked<'a, L> {
    pub(crate) fn new(lanes: L) -> Self {
        for lane in lanes.clone() {
            lane.seat.blocked.fetch_add(1, Ordering::SeqCst);
            lane.seat.unpark();
        }
        Self(lanes)
    }
}

impl<'a, L: Iterator<Item = &'a LaneHandle> + Clone> Drop for Blocked<'a, L> {
    fn drop(&mut self) {
        for lane in self.0.clone() {
            lane.seat.blocked.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
