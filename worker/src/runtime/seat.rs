//! Who drives a lane, and how: the core that the holder of the lane's seat drives, and what callers do with it. A caller
//! that submits or waits drives where the seat is free. Who may hold the seat, and who wakes whom, is the business of
//! [`fabric::seat`]; what a turn does is `lane`'s; messages other than submissions are `thread`'s.

use super::connections::Connections;
use super::lane::LaneDriver;
use super::message::LaneMessage;
use super::op::Submission;
use crate::engine::GATHER_PARTS_MAX;
use crate::error::OpError;
use fabric::seat::{Callbacks, Caller, Driven, Left, Seat};
use fabric::{LaneQueue, Letters, Mailbox, Rest, oneshot};
use proto_common::limits::LANES_MAX;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// After this many turns a caller leaves the lane to the data thread, even if there is more work.
const SETTLE_TURNS: usize = 8;
/// The clock is read once in so many turns: its readers count in milliseconds.
const TURNS_PER_CLOCK: u32 = 16;
/// Most pauses of the processor between two idle turns.
const PAUSES_MAX: u32 = 16;
/// Longest sleep: bounds how late deadlines and lost peers are noticed.
const SLEEP_MS: u64 = 100;
/// The same while no operation is in progress. The scheduler reports lost peers, too.
const IDLE_SLEEP_MS: u64 = 1_000;

/// What the holder of the seat drives.
pub(super) struct Core {
    pub(super) driver: LaneDriver<LaneQueue>,
    pub(super) receiver: Letters<LaneMessage>,
    /// A message that a caller found and that only the data thread handles. Later messages wait behind it.
    pub(super) deferred: Option<LaneMessage>,
    pub(super) connections: Connections,
    /// How the data thread sleeps, and until when at most.
    pub(super) rest: Rest,
    pub(super) sleep_until_ms: u64,
    glance: Arc<Glance>,
    start: Instant,
    now_ms: u64,
    turns: u32,
}

/// What callers see of the core without the seat.
struct Glance {
    /// Operations wait for the next turn, and somebody will do it. A caller that posts an operation and then sees this leaves the
    /// operation to that turn: the turn's holder ends the gathering first, and takes what was posted after it.
    is_gathering: AtomicBool,
    start: Instant,
    /// The last look at the clock, since `start`.
    now_ns: AtomicU64,
}

impl Glance {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }
}

impl Core {
    pub(super) fn new(
        driver: LaneDriver<LaneQueue>,
        receiver: Letters<LaneMessage>,
        connections: Connections,
    ) -> Self {
        let (deferred, start) = (None, Instant::now());
        let glance = Glance { is_gathering: AtomicBool::new(false), start, now_ns: AtomicU64::new(0) };
        Self {
            driver,
            receiver,
            deferred,
            connections,
            rest: Rest::Word,
            sleep_until_ms: 0,
            glance: Arc::new(glance),
            start,
            now_ms: 0,
            turns: 0,
        }
    }

    /// Milliseconds since the lane began, late by some turns.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(super) fn look_at_clock(&mut self) {
        self.turns = 0;
        let now = Instant::now();
        let since = now.saturating_duration_since(self.start);
        self.now_ms = since.as_millis() as u64;
        self.glance.now_ns.store(since.as_nanos() as u64, Ordering::Relaxed);
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
                // If all senders are gone, the data thread ends the lane.
                Err(_) => break,
            }
            any = true;
        }
        any
    }

    /// In this order: a caller that posts an operation, and then finds the flag set, wakes nobody.
    fn end_gathering(&mut self) {
        if self.glance.is_gathering.swap(false, Ordering::SeqCst) {
            self.take_submissions();
        }
    }

    /// The lane has ended: whoever posts an operation is to find that out.
    pub(super) fn gathers_no_more(&self) {
        self.glance.is_gathering.store(false, Ordering::SeqCst);
    }

    /// One turn of the lane. True when something had happened.
    pub(super) fn step(&mut self) -> bool {
        self.end_gathering();
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

    /// Starts what was submitted, and ends no operation unless it `may_end` some.
    fn kick(&mut self, may_end: bool) -> Left {
        self.take_submissions();
        if self.deferred.is_none() && self.driver.engine().may_gather() {
            return self.gather();
        }
        if may_end {
            self.step();
            return self.settle();
        }
        self.end_gathering();
        self.driver.post(self.now_ms);
        if self.deferred.is_none() && self.rearm() { self.armed() } else { self.leave() }
    }

    /// Leaves small operations to the next turn while earlier ones are on their way: then many go as one batch. The data
    /// thread is rung once, because a caller need not come back.
    fn gather(&mut self) -> Left {
        if self.glance.is_gathering.swap(true, Ordering::SeqCst) {
            // The data thread has been woken already, and the lane stays disarmed. If the lane were armed again, a data thread
            // that was woken just before it sleeps would sleep nevertheless.
            return Left::Nothing;
        }
        self.lie_down();
        Left::Gathered
    }

    /// How long the engine has nothing to do by itself, at most [`SLEEP_MS`] or [`IDLE_SLEEP_MS`].
    pub(super) fn idle_ms(&self) -> u64 {
        let most_ms = if self.driver.is_idle() { IDLE_SLEEP_MS } else { SLEEP_MS };
        let due = self.driver.engine().next_retry_ms();
        due.map_or(most_ms, |due| due.saturating_sub(self.now_ms).max(1)).min(most_ms)
    }

    /// A caller sleeps in the data thread's place: until something came, or until the time is over.
    fn lead(&mut self, until: Instant) {
        self.look_at_clock();
        let time = Duration::from_millis(self.idle_ms()).min(until.saturating_duration_since(Instant::now()));
        self.driver.queue_mut().wait(time);
        self.look_at_clock();
    }

    fn rearm(&mut self) -> bool {
        let rest = self.rest;
        self.driver.queue_mut().rearm(rest)
    }

    /// What is left in an armed lane.
    fn armed(&self) -> Left {
        // Something may be due before the time until which the data thread sleeps. It may have lain down when nothing was in progress.
        let retries = self.driver.engine().next_retry_ms().is_some_and(|due| due < self.sleep_until_ms);
        let sleeps_idly = self.sleep_until_ms > self.now_ms + SLEEP_MS && !self.driver.is_idle();
        if retries || sleeps_idly { Left::Work } else { Left::Nothing }
    }

    /// Arms a lane that has something to do.
    fn leave(&mut self) -> Left {
        self.lie_down();
        if self.deferred.is_some() { Left::Message } else { Left::Work }
    }
}

impl Driven for Core {
    fn take(&mut self) {
        self.driver.queue_mut().disarm();
        self.look_at_clock();
    }

    fn settle(&mut self) -> Left {
        for _ in 0..SETTLE_TURNS {
            if self.deferred.is_some() {
                break;
            }
            if self.rearm() {
                return self.armed();
            }
            self.drive();
        }
        self.leave()
    }

    fn lie_down(&mut self) {
        let rest = self.rest;
        self.driver.queue_mut().lie_down(rest);
    }
}

/// What all threads share of a lane.
pub(super) struct Lane {
    pub(super) seat: Seat<Core>,
    /// Operations with callbacks, which must not run in a thread that only submits.
    callbacks: Callbacks,
    /// The error of what is submitted after the end. Set before the mailbox is closed.
    pub(super) ended: OnceLock<OpError>,
    glance: Arc<Glance>,
    spin: Duration,
}

/// The other threads' end of a lane.
#[derive(Clone)]
pub(crate) struct LaneHandle {
    lane: Arc<Lane>,
    mailbox: Mailbox<LaneMessage>,
}

impl std::fmt::Debug for LaneHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneHandle").field("ended", &self.lane.ended).finish_non_exhaustive()
    }
}

impl LaneHandle {
    /// A lane that nobody drives yet.
    pub(super) fn new(mut driver: LaneDriver<LaneQueue>, connections: Connections, spin: Duration) -> Self {
        let bell = driver.queue_mut().waker();
        let (mailbox, receiver) = Mailbox::new(bell.clone());
        let core = Core::new(driver, receiver, connections);
        let glance = core.glance.clone();
        let seat = Seat::new(core, bell);
        let lane = Lane { seat, callbacks: Callbacks::default(), ended: OnceLock::new(), glance, spin };
        Self { lane: Arc::new(lane), mailbox }
    }

    /// What the data thread has of it. A mailbox would keep the lane alive.
    pub(super) fn lane(&self) -> Arc<Lane> {
        self.lane.clone()
    }

    /// Hands a message over; false when the lane has ended.
    pub(crate) fn send(&self, message: LaneMessage) -> bool {
        let is_posted = self.mailbox.post(message);
        self.lane.seat.summon();
        is_posted
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

    /// Hands an operation over; [`LaneHandle::kick`] is to follow, and knows whether the lane has ended. Returns false if it has ended
    /// already.
    pub(crate) fn submit(&self, submission: Submission) -> bool {
        self.mailbox.post(LaneMessage::Submit(submission))
    }

    /// Whoever sleeps in it is to look whether what it waits for is over.
    pub(crate) fn nudge(&self) {
        self.mailbox.wake();
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<OpError> {
        self.lane.ended.get().cloned()
    }

    /// A caller comes to wait for an operation.
    pub(crate) fn visit(&self) {
        self.lane.seat.visit();
    }

    /// Starts what was submitted: here where the seat is free, else whoever has it does. Calls no callbacks. Returns the time, which
    /// whoever takes the seat reads anyway. An error when the lane has ended: why.
    pub(crate) fn kick(&self) -> Result<Instant, OpError> {
        let Some(mut held) = self.lane.seat.try_take() else {
            self.mailbox.wake();
            // If the submission was refused, then the error is there.
            return self.lane.ended.get().map_or_else(|| Ok(Instant::now()), |error| Err(error.clone()));
        };
        let now = held.glance.now();
        let submitting = self.lane.callbacks.submitting();
        let left = held.kick(submitting.may_end());
        drop(submitting);
        held.give_back(left);
        Ok(now)
    }

    /// As [`LaneHandle::kick`], for an operation that may be gathered with others: if some are gathered now, it is left to the next turn.
    pub(crate) fn kick_small(&self) -> Result<Instant, OpError> {
        let glance = &self.lane.glance;
        if glance.is_gathering.load(Ordering::SeqCst) && self.mailbox.waiting() < GATHER_PARTS_MAX {
            return Ok(glance.now());
        }
        self.kick()
    }

    /// From here on an operation has a callback, until [`LaneHandle::forget_callback`].
    pub(crate) fn expect_callback(&self) {
        self.lane.callbacks.register();
    }

    /// A callback has run, or never will.
    pub(crate) fn forget_callback(&self) {
        self.lane.callbacks.forget();
    }
}

/// A caller that drives a lane, or would like to, until it is dropped.
struct Turn<'a> {
    caller: Caller<'a, Core>,
    spin: Duration,
}

impl<'a> Turn<'a> {
    fn new(handle: &'a LaneHandle) -> Self {
        Self { caller: handle.lane.seat.announce(), spin: handle.lane.spin }
    }

    /// Drives, where the seat can be had. True when something had happened.
    fn step(&mut self) -> bool {
        let Some(core) = self.caller.core() else { return false };
        let busy = core.drive();
        if core.deferred.is_some() {
            self.caller.let_go();
        }
        busy
    }

    /// Sleeps with the seat. False: it is not ours, or the time is over.
    fn lead(&mut self, until: Instant) -> bool {
        if Instant::now() >= until {
            return false;
        }
        let Some(core) = self.caller.lead() else { return false };
        core.lead(until);
        // The sleep has used up the wake.
        core.take_submissions();
        if core.deferred.is_some() {
            self.caller.let_go();
        }
        true
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
    let Some(spin) = turns.iter().flatten().map(|turn| turn.spin).max() else { return };
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
            if now.duration_since(idle_since) >= spin
                || !turns.iter().flatten().any(|turn| turn.caller.is_hopeful())
            {
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
            lane.lane.seat.block();
        }
        Self(lanes)
    }
}

impl<'a, L: Iterator<Item = &'a LaneHandle> + Clone> Drop for Blocked<'a, L> {
    fn drop(&mut self) {
        for lane in self.0.clone() {
            lane.lane.seat.unblock();
        }
    }
}
