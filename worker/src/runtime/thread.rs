//! The data thread of a lane: takes messages, steps, spins briefly, then sleeps until an event. It leaves the
//! driving to callers while they do it (see `seat`); messages other than submissions are always its own.

use super::connections::{Connections, OnBroken};
use super::lane::LaneDriver;
use super::message::{LaneMessage, LaneReport};
use super::seat::{Core, Lane, LaneHandle};
use crate::error::{ClientError, OpError};
use fabric::seat::{Away, Left, Seat};
use fabric::{CompletionQueue, LaneQueue, Rest, Sleeper};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A lane that ends looks at pending fences this often.
const FENCE_SLEEP: Duration = Duration::from_millis(100);

/// What to do about a panic.
const BUG: &str = "please report it with the log lines before";

/// Starts a lane's thread.
pub(crate) fn spawn_lane(
    driver: LaneDriver<LaneQueue>,
    index: u16,
    spin: Duration,
    on_broken: OnBroken,
) -> Result<(LaneHandle, JoinHandle<()>), ClientError> {
    let mut driver = driver;
    let sleeper = driver.queue_mut().sleeper()?;
    let handle = LaneHandle::new(driver, Connections::new(on_broken), spin);
    let lane = handle.lane();
    let thread = std::thread::Builder::new()
        .name(format!("gradwire-lane-{index}"))
        .spawn(move || guarded(&lane, index, || run(&lane.seat, &sleeper, spin)))
        .map_err(|error| ClientError::Internal(format!("cannot start a data thread: {error}")))?;
    Ok((handle, thread))
}

/// However the work ends, the lane ends with it, and says why to whoever waits or comes.
fn guarded(lane: &Lane, index: u16, work: impl FnOnce() -> Ended) {
    // Whatever it left half done is not used any more, but for telling those who wait.
    let why = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ended::Asked) => "the client was dropped".to_owned(),
        Ok(Ended::Broken) => format!("a thread panicked while it drove lane {index}; {BUG}"),
        Err(_) => format!("the data thread of lane {index} panicked; {BUG}"),
    };
    tracing::debug!(lane = index, why, "lane stopped");
    end(lane, &why);
}

/// Why a data thread has ended.
enum Ended {
    Asked,
    /// A caller panicked with the seat.
    Broken,
}

fn run(seat: &Seat<Core>, sleeper: &Sleeper, spin: Duration) -> Ended {
    let mut away = Away::default();
    loop {
        if seat.stay_away(&mut away) {
            continue;
        }
        let Some(mut held) = seat.lock() else {
            tracing::error!("a thread panicked while it drove a lane; the lane stops");
            return Ended::Broken;
        };
        let Some((rest, timeout)) = held.hold(seat, spin) else { return Ended::Asked };
        held.give_back(Left::Nothing);
        match rest {
            // A caller that drives meanwhile leaves the sleep alone, but for one that sleeps in our place.
            Some(Rest::Word) => sleeper.sleep(Rest::Word, timeout),
            // Each arrival would wake us, so rather park.
            Some(Rest::Sockets) if !seat.is_driven() => {
                sleeper.sleep(Rest::Sockets, timeout);
            }
            _ => {}
        }
    }
}

/// Fails what is in progress, and whatever still comes.
fn end(lane: &Lane, why: &str) {
    let error = OpError::Closed(why.to_owned());
    // Set once: a lane has one data thread.
    let _ = lane.ended.set(error.clone());
    let Some(mut core) = lane.seat.end() else { return };
    core.gathers_no_more();
    core.look_at_clock();
    core.driver.end(&error, core.now_ms());
    // What is submitted after this is refused, and finds the error.
    for message in core.receiver.close() {
        if let LaneMessage::Submit(submission) = message {
            // A callback may panic; nobody is to wait for that.
            let _ = catch_unwind(AssertUnwindSafe(|| core.submit(submission)));
        }
    }
    while core.driver.tell_ended(core.now_ms()) {
        core.driver.queue_mut().take_wake();
        core.driver.queue_mut().wait(FENCE_SLEEP);
        core.look_at_clock();
    }
}

impl Core {
    /// The data thread with the seat: drives until there is nothing to do, or a caller wants the seat and
    /// there is nothing at the moment. Says how to sleep (not at all: callers are to drive) and for how long;
    /// `None` when the lane is to end.
    fn hold(&mut self, seat: &Seat<Core>, spin: Duration) -> Option<(Option<Rest>, Duration)> {
        self.driver.queue_mut().slept();
        // Even without a wake: the senders may be gone.
        self.take_messages()?;
        // Woken for nothing, it sleeps again at once: only work is worth spinning after.
        let mut worked_at: Option<Instant> = None;
        let visits = seat.visits();
        loop {
            let mut busy = self.driver.queue_mut().take_wake() && self.take_messages()?;
            busy |= self.step();
            let wanted = seat.is_wanted(visits);
            if busy {
                worked_at = Some(Instant::now());
            } else if !wanted && worked_at.is_some_and(|at| at.elapsed() < spin) {
                std::hint::spin_loop();
                continue;
            }
            if busy && !wanted {
                continue;
            }
            self.look_at_clock();
            let wait_ms = self.idle_ms();
            self.sleep_until_ms = self.now_ms() + wait_ms;
            match self.driver.queue_mut().arm() {
                Some(rest) => {
                    self.rest = rest;
                    return Some((Some(rest), Duration::from_millis(wait_ms)));
                }
                // Announced callers take over what is there; should they not, we look again after a park.
                None if wanted => {
                    let rest = self.rest;
                    self.driver.queue_mut().lie_down(rest);
                    return Some((None, Duration::ZERO));
                }
                None => {}
            }
        }
    }

    /// Takes all messages. True when there were some; `None` when the lane is to end.
    fn take_messages(&mut self) -> Option<bool> {
        let mut any = false;
        loop {
            let message = match self.deferred.take() {
                Some(message) => Ok(message),
                None => self.receiver.try_recv(),
            };
            match message {
                Ok(LaneMessage::Stop) | Err(TryRecvError::Disconnected) => return None,
                Ok(message) => self.message(message),
                Err(TryRecvError::Empty) => return Some(any),
            }
            any = true;
        }
    }

    fn message(&mut self, message: LaneMessage) {
        let now_ms = self.now_ms();
        match message {
            LaneMessage::Submit(submission) => self.submit(submission),
            LaneMessage::Epoch(epoch) => self.driver.set_epoch(epoch),
            LaneMessage::Remap { epoch, moves } => self.driver.remap(epoch, &moves),
            LaneMessage::Expect { server, number } => self.connections.want(server, number),
            LaneMessage::End { server } => {
                self.connections.end(server);
                self.driver.end_server(server);
            }
            LaneMessage::Attach { server, number, setup, reply } => {
                let wanted = self.connections.check(server, number);
                let attached =
                    wanted.and_then(|()| self.driver.queue_mut().attach(setup).map_err(|e| e.to_string()));
                let grant = attached.and_then(|channel| {
                    self.driver.attach(server, number, channel).map_err(|e| e.to_string())
                });
                reply.send(grant);
            }
            LaneMessage::Activate { server, number, incarnation, inbox, sum_payloads, reply } => {
                let wanted = self.connections.check(server, number);
                if sum_payloads && wanted.is_ok() {
                    self.driver.sum_payloads(server);
                }
                let active = wanted.and_then(|()| {
                    self.driver.activate(server, incarnation, inbox).map_err(|error| error.to_string())
                });
                match active {
                    Ok(()) => self.connections.probing(server, reply),
                    Err(reason) => {
                        reply.send(Err(reason));
                    }
                }
            }
            LaneMessage::Fail(error) => self.driver.fail(error),
            LaneMessage::Report(reply) => {
                let engine = self.driver.engine();
                let report = LaneReport {
                    stats: engine.stats(),
                    traffic: engine.traffic().to_vec(),
                    in_flight: engine.in_flight(),
                    oldest: engine.oldest(now_ms),
                };
                reply.send(report);
            }
            LaneMessage::Beat(reply) => reply.send(()),
            LaneMessage::Stop => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::OpState;
    use crate::runtime::rig::{driver, submission};
    use crate::runtime::seat::drive_until;
    use std::sync::Arc;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn submit(lane: &LaneHandle, op: u64) -> Arc<OpState> {
        let state = OpState::new(1);
        lane.submit(submission(op, state.clone()));
        lane.kick().unwrap();
        state
    }

    #[test]
    fn a_panic_of_the_data_thread_ends_what_waits_with_an_error_that_names_the_lane() {
        let (lane, thread) = spawn_lane(driver(3), 3, Duration::ZERO, Box::new(|_, _, _| {})).unwrap();
        let (first, second) = (submit(&lane, 1), submit(&lane, 2));
        // The first word of its end makes the data thread panic.
        for state in [&first, &second] {
            state.on_end(Box::new(|_| panic!("a trainer's callback")));
        }
        let third = submit(&lane, 3);
        lane.send(LaneMessage::Fail(OpError::Closed("a test".into())));
        let told = third.wait(Instant::now() + PATIENCE).then(|| third.poll()).flatten();
        let told = told.expect("it hangs").unwrap_err().to_string();
        assert!(told.contains("the data thread of lane 3 panicked"), "{told}");
        thread.join().unwrap();
        let told = lane.kick().unwrap_err().to_string();
        assert!(told.contains("the data thread of lane 3 panicked"), "{told}");
    }

    #[test]
    fn a_panic_of_a_caller_that_drives_ends_what_waits_with_an_error_that_names_the_lane() {
        let mut driver = driver(3);
        let sleeper = driver.queue_mut().sleeper().unwrap();
        let handle = LaneHandle::new(driver, Connections::new(Box::new(|_, _, _| {})), Duration::ZERO);
        let (waiting, lane) = (submit(&handle, 1), handle.lane());
        let drive =
            || drive_until(std::iter::once(&handle), Instant::now() + PATIENCE, || panic!("a caller"));
        assert!(catch_unwind(AssertUnwindSafe(drive)).is_err());
        handle.kick().unwrap();
        guarded(&lane, 3, || run(&lane.seat, &sleeper, Duration::ZERO));
        let told = waiting.poll().expect("it hangs").unwrap_err().to_string();
        assert!(told.contains("a thread panicked while it drove lane 3"), "{told}");
        assert!(handle.kick().is_err());
    }

    /// Two callbacks panic: the second one while the lane tells those who came after the first.
    #[test]
    fn whoever_comes_behind_a_panic_is_told_too() {
        let (lane, thread) = spawn_lane(driver(3), 3, Duration::ZERO, Box::new(|_, _, _| {})).unwrap();
        let first = submit(&lane, 1);
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (on, reached) = std::sync::mpsc::channel::<()>();
        first.on_end(Box::new(move |_| {
            on.send(()).unwrap();
            gone.recv().unwrap();
            panic!("a trainer's callback")
        }));
        lane.send(LaneMessage::Fail(OpError::Closed("a test".into())));
        reached.recv().unwrap();
        let (second, third) = (submit(&lane, 2), submit(&lane, 3));
        second.on_end(Box::new(|_| panic!("a trainer's second callback")));
        go.send(()).unwrap();
        let _ = thread.join();
        for state in [second, third] {
            let ended = state.wait(Instant::now() + Duration::from_secs(20)).then(|| state.poll()).flatten();
            assert!(matches!(ended, Some(Err(OpError::Closed(_)))), "{ended:?}");
        }
    }
}
