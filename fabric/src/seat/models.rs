//! Checked by loom: every operation is driven to its end by somebody, whoever takes the core, sleeps, parks, fails or
//! ends the lane meanwhile. A thread that nobody wakes is a deadlock, which loom reports.
//!
//! The core of these models is a lane in small: a mailbox, operations that end when a server has answered, and the
//! real doorbell. Callers and lane thread do what those of the worker do, without spinning.

use super::modelled::Modelled;
use super::platform::{Wake, Word};
use super::{Away, Callbacks, Driven, Held, Left, SUMMONED};
use crate::shm::ModelledBell as Bell;
use crate::shm::word::{explore, explore_large};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// The mailbox is a word with a bit for each message: this one for the submission of operation 0, the next for that of
/// operation 1.
const SUBMIT: u64 = 1;
const SUBMISSIONS: u64 = 3;
/// Ends operation 1, and only the lane thread may take it.
const END_1: u64 = 4;
const STOP: u64 = 8;
const CLOSED: u64 = 16;

/// What all threads share.
pub(super) struct World {
    bell: Bell,
    /// As in the bell of a lane: a wake that nobody has taken yet.
    pending: AtomicBool,
    mail: AtomicU64,
    /// What was gathered waits for the next turn, and somebody will do that turn.
    is_gathering: AtomicBool,
    ops: [Op; 2],
}

#[derive(Default)]
struct Op {
    is_answered: AtomicBool,
    has_ended: AtomicBool,
    lock: Mutex<()>,
    ended: Condvar,
}

impl Op {
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        drop(self.lock.lock().unwrap());
        self.ended.notify_one();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn wait(&self) {
        let mut guard = self.lock.lock().unwrap();
        while !self.has_ended() {
            guard = self.ended.wait(guard).unwrap();
        }
    }
}

impl Wake for Arc<World> {
    fn wake(&self) {
        self.pending.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl World {
    /// False: the mailbox is closed.
    fn post(&self, message: u64) -> bool {
        self.mail.fetch_or(message, Ordering::SeqCst) & CLOSED == 0
    }

    /// A server.
    fn answer(&self, op: usize) {
        self.ops[op].is_answered.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// What kicks do besides taking submissions.
#[derive(Clone, Copy, PartialEq)]
enum Kick {
    /// A whole turn.
    Turn,
    /// No turn, because operations have callbacks.
    Post,
    /// Nothing: the next turn has more to do at once.
    Gather,
}

struct Core {
    world: Arc<World>,
    in_flight: Vec<usize>,
    deferred: u64,
}

impl Core {
    fn take_wake(&self) -> bool {
        self.world.pending.load(Ordering::Relaxed) && self.world.pending.swap(false, Ordering::Acquire)
    }

    fn is_restless(&self) -> bool {
        let is_answered = |op: &usize| self.world.ops[*op].is_answered.load(Ordering::Acquire);
        self.world.pending.load(Ordering::Acquire) || self.in_flight.iter().any(is_answered)
    }

    fn take_submissions(&mut self) {
        if self.deferred == 0 {
            let mail = self.world.mail.swap(0, Ordering::SeqCst);
            self.in_flight.extend(submitted(mail));
            self.deferred = mail & !SUBMISSIONS;
        }
    }

    /// False: the lane is to end.
    fn take_messages(&mut self) -> bool {
        let mail = std::mem::take(&mut self.deferred) | self.world.mail.swap(0, Ordering::SeqCst);
        self.in_flight.extend(submitted(mail));
        if mail & END_1 != 0 {
            self.world.ops[1].end();
        }
        mail & STOP == 0
    }

    fn step(&mut self) -> bool {
        // In this order: a caller that posts, and then finds the flag set, wakes nobody.
        if self.world.is_gathering.swap(false, Ordering::SeqCst) {
            self.take_submissions();
        }
        let before = self.in_flight.len();
        let world = &self.world;
        self.in_flight.retain(|op| {
            let is_answered = world.ops[*op].is_answered.load(Ordering::Acquire);
            if is_answered {
                world.ops[*op].end();
            }
            !is_answered
        });
        self.in_flight.len() < before
    }

    fn drive(&mut self) {
        if self.take_wake() {
            self.take_submissions();
        }
        self.step();
    }

    /// Arms it. False: there is something to do.
    fn arm(&mut self) -> bool {
        self.world.bell.lie_down();
        let is_restless = self.is_restless();
        if is_restless {
            self.world.bell.get_up();
        }
        !is_restless
    }
}

fn submitted(mail: u64) -> impl Iterator<Item = usize> {
    (0..2).filter(move |op| mail & SUBMIT << op != 0)
}

impl Driven for Core {
    fn take(&mut self) {
        self.world.bell.get_up();
    }

    fn settle(&mut self) -> Left {
        for _ in 0..2 {
            if self.deferred != 0 {
                break;
            }
            if self.arm() {
                return Left::Nothing;
            }
            self.drive();
        }
        self.world.bell.lie_down();
        if self.deferred != 0 { Left::Message } else { Left::Work }
    }

    fn lie_down(&mut self) {
        self.world.bell.lie_down();
    }
}

type Seat<const TIMERS: bool> = super::Seat<Core, Modelled<TIMERS>>;

/// A lane, as everybody has it.
struct Lane<const TIMERS: bool> {
    world: Arc<World>,
    seat: Arc<Seat<TIMERS>>,
}

impl<const TIMERS: bool> Clone for Lane<TIMERS> {
    fn clone(&self) -> Self {
        Self { world: self.world.clone(), seat: self.seat.clone() }
    }
}

impl<const TIMERS: bool> Lane<TIMERS> {
    /// These operations are in flight; a server has answered those, or will before they are submitted.
    fn new(in_flight: impl IntoIterator<Item = usize>, answered: [bool; 2]) -> Self {
        let ops = answered.map(|answered| Op { is_answered: AtomicBool::new(answered), ..Op::default() });
        let (bell, pending, mail) = (Bell::default(), AtomicBool::new(false), AtomicU64::new(0));
        let is_gathering = AtomicBool::new(false);
        let world = Arc::new(World { bell, pending, mail, is_gathering, ops });
        let in_flight = in_flight.into_iter().collect();
        let core = Core { world: world.clone(), in_flight, deferred: 0 };
        let seat = Arc::new(Seat::new(core, world.clone()));
        Self { world, seat }
    }

    fn spawn(&self, work: impl FnOnce(Self) + 'static) -> thread::JoinHandle<()> {
        let lane = self.clone();
        thread::spawn(move || work(lane))
    }

    /// The lane thread.
    fn run(self) {
        let mut away = Away::default();
        loop {
            if self.seat.stay_away(&mut away) {
                continue;
            }
            let Some(mut held) = self.seat.lock() else { break };
            let Some(sleeps) = self.hold(&mut held) else { break };
            held.give_back(Left::Nothing);
            if sleeps {
                self.world.bell.sleep_on_word();
            }
        }
        self.end();
    }

    /// Whether to sleep on the bell; `None`: the lane is to end.
    fn hold(&self, held: &mut Held<'_, Core, Modelled<TIMERS>>) -> Option<bool> {
        let visits = self.seat.visits();
        held.take_messages().then_some(())?;
        loop {
            if held.take_wake() {
                held.take_messages().then_some(())?;
            }
            let is_busy = held.step();
            let is_wanted = self.seat.is_wanted(visits);
            if is_busy && !is_wanted {
                continue;
            }
            if held.arm() {
                return Some(true);
            }
            if is_wanted {
                held.lie_down();
                return Some(false);
            }
        }
    }

    fn end(&self) {
        let Some(core) = self.seat.end() else { return };
        self.world.is_gathering.store(false, Ordering::SeqCst);
        let mail = self.world.mail.swap(CLOSED, Ordering::AcqRel);
        core.in_flight.into_iter().chain(submitted(mail)).for_each(|op| self.world.ops[op].end());
    }

    /// Submits an operation. False: the lane has ended.
    fn submit(&self, op: usize, how: Kick) -> bool {
        let is_posted = self.world.post(SUBMIT << op);
        if how == Kick::Gather && self.world.is_gathering.load(Ordering::SeqCst) {
            return is_posted;
        }
        let Some(mut held) = self.seat.try_take() else {
            self.world.wake();
            return is_posted;
        };
        held.take_submissions();
        let left = match how {
            Kick::Gather if held.deferred == 0 => {
                let first = !held.world.is_gathering.swap(true, Ordering::SeqCst);
                if first {
                    held.lie_down();
                    Left::Gathered
                } else {
                    Left::Nothing
                }
            }
            Kick::Post if held.deferred == 0 => {
                if held.arm() {
                    Left::Nothing
                } else {
                    held.lie_down();
                    Left::Work
                }
            }
            _ => {
                held.step();
                held.settle()
            }
        };
        held.give_back(left);
        is_posted
    }

    /// A caller that waits for an operation.
    fn wait(&self, op: usize) {
        let op = &self.world.ops[op];
        self.seat.visit();
        if !op.has_ended() {
            self.drive_until(|| op.has_ended());
        }
        if !op.has_ended() {
            self.seat.block();
            op.wait();
            self.seat.unblock();
        }
    }

    fn drive_until(&self, told: impl Fn() -> bool) {
        let mut caller = self.seat.announce();
        loop {
            if let Some(core) = caller.core() {
                core.drive();
                if core.deferred != 0 {
                    caller.let_go();
                }
            }
            if told() {
                return;
            }
            let Some(core) = caller.lead() else { return };
            core.world.clone().bell.sleep_unless(|| core.is_restless());
            core.take_submissions();
            if core.deferred != 0 {
                caller.let_go();
            }
        }
    }

    fn send(&self, message: u64) {
        self.world.post(message);
        self.seat.summon();
    }

    /// Ends the lane after all threads of a model but the lane thread have ended. Whatever summons there were, the lane
    /// thread answers them.
    fn stop(&self, lane_thread: thread::JoinHandle<()>) {
        while Word::load(&self.seat.word) & SUMMONED != 0 {
            thread::yield_now();
        }
        self.send(STOP);
        lane_thread.join().unwrap();
    }
}

/// Two threads submit, and nobody else drives but the lane thread.
fn submit_from_two_threads(how: Kick) {
    let lane = Lane::<true>::new([], [true, true]);
    let lane_thread = lane.spawn(Lane::run);
    let other = lane.spawn(move |lane| assert!(lane.submit(0, how)));
    // The lane thread is asleep, or about to be.
    thread::yield_now();
    assert!(lane.submit(1, how));
    lane.world.ops.iter().for_each(Op::wait);
    other.join().unwrap();
    lane.stop(lane_thread);
}

#[test]
fn what_is_submitted_is_driven_to_its_end() {
    explore_large(|| submit_from_two_threads(Kick::Turn));
}

#[test]
fn what_a_submitter_leaves_is_driven_by_another_thread() {
    explore_large(|| submit_from_two_threads(Kick::Post));
}

#[test]
fn what_is_gathered_is_driven_by_another_thread() {
    explore_large(|| submit_from_two_threads(Kick::Gather));
}

/// No timer helps: the caller drives its operation itself, or the lane thread does.
#[test]
fn a_caller_that_sleeps_with_the_core_is_woken_by_the_answer() {
    explore_large(|| {
        let lane = Lane::<false>::new([0], [false, true]);
        let lane_thread = lane.spawn(Lane::run);
        let server = lane.spawn(|lane| lane.world.answer(0));
        lane.wait(0);
        server.join().unwrap();
        lane.stop(lane_thread);
    });
}

/// Only short parks end by themselves.
#[test]
fn what_comes_after_the_last_caller_is_for_the_lane_thread() {
    explore_large(|| {
        let lane = Lane::<true>::new([0, 1], [false, false]);
        let lane_thread = lane.spawn(Lane::run);
        let server = lane.spawn(|lane| (0..2).for_each(|op| lane.world.answer(op)));
        lane.wait(0);
        lane.world.ops[1].wait();
        server.join().unwrap();
        lane.stop(lane_thread);
    });
}

/// Two callers wait, and only one can have the core. No timer helps.
#[test]
fn a_caller_without_the_core_is_not_left_alone() {
    explore_large(|| {
        let lane = Lane::<false>::new([0, 1], [true, false]);
        let lane_thread = lane.spawn(Lane::run);
        let other = lane.spawn(|lane| lane.wait(1));
        lane.wait(0);
        lane.world.answer(1);
        other.join().unwrap();
        lane.stop(lane_thread);
    });
}

/// A holder leaves work. Before it summons the lane thread, another one has the core, and takes the wake for its own.
#[test]
fn a_summons_that_rings_a_disarmed_bell_is_answered() {
    explore_large(|| {
        let lane = Lane::<true>::new([], [false, false]);
        let lane_thread = lane.spawn(Lane::run);
        let other = lane.spawn(|lane| {
            if let Some(mut held) = lane.seat.try_take() {
                held.lie_down();
                held.give_back(Left::Work);
            }
        });
        // The lane thread and the other one have begun.
        thread::yield_now();
        if let Some(mut held) = lane.seat.try_take() {
            held.drive();
            let left = held.settle();
            held.give_back(left);
        }
        other.join().unwrap();
        lane.stop(lane_thread);
    });
}

/// A message that only the lane thread may take, while a caller sleeps with the core. No timer helps.
#[test]
fn a_message_gets_through_to_the_lane_thread() {
    explore_large(|| {
        let lane = Lane::<false>::new([0], [false, true]);
        let lane_thread = lane.spawn(Lane::run);
        let caller = lane.spawn(|lane| lane.wait(0));
        lane.send(END_1);
        lane.world.ops[1].wait();
        lane.world.answer(0);
        caller.join().unwrap();
        lane.stop(lane_thread);
    });
}

/// A holder panics. The lane thread notices without any timer, and ends what was submitted.
#[test]
fn a_holder_that_fails_ends_the_lane() {
    explore_large(|| {
        let lane = Lane::<false>::new([0], [false, false]);
        let lane_thread = lane.spawn(Lane::run);
        let failing = lane.spawn(|lane| match lane.seat.try_take() {
            Some(held) => drop(held),
            None => lane.send(STOP),
        });
        if lane.submit(1, Kick::Gather) {
            lane.world.ops[1].wait();
        }
        lane.world.ops[0].wait();
        failing.join().unwrap();
        lane_thread.join().unwrap();
    });
}

#[test]
fn a_submission_meets_the_end_of_the_lane_or_is_refused() {
    explore_large(|| {
        let lane = Lane::<false>::new([], [false, false]);
        let lane_thread = lane.spawn(Lane::run);
        let submitter = lane.spawn(|lane| {
            if lane.submit(0, Kick::Gather) {
                lane.world.ops[0].wait();
            }
        });
        lane.stop(lane_thread);
        submitter.join().unwrap();
        assert!(!lane.submit(1, Kick::Gather));
    });
}

/// A submitter that found no callback is done before a thread that registers one goes on.
#[test]
fn a_submitter_does_not_end_what_has_a_callback() {
    explore(true, || {
        let callbacks = Arc::new(Callbacks::<Modelled<true>>::default());
        let ends = Arc::new(AtomicBool::new(false));
        let submitter = {
            let (callbacks, ends) = (callbacks.clone(), ends.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let submitting = callbacks.submitting();
                    if submitting.may_end() {
                        ends.store(true, Ordering::Relaxed);
                        ends.store(false, Ordering::Relaxed);
                    }
                }
            })
        };
        callbacks.register();
        assert!(!ends.load(Ordering::Relaxed), "it ends operations");
        callbacks.forget();
        submitter.join().unwrap();
        assert!(callbacks.submitting().may_end());
    });
}
