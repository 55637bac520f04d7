//! The data thread of a lane: takes messages, steps, spins briefly, then sleeps until an event.

use super::calls::CallEvent;
use super::error::LaneError;
use super::lane::DataLane;
use super::message::{Answers, LaneMessage, LaneNews, LaneReport, Restored};
use crate::app::{Apps, Call, Origin, Queue, Reply, ReplyMemory};
use fabric::{ChannelId, ChannelSetup, CompletionQueue, LaneQueue, Letters, Mailbox};
use proto_common::message::NotTaken;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep: bounds how late deadlines and lost peers are noticed.
const SLEEP: Duration = Duration::from_millis(100);
/// The same while no operation is in progress, and there are no replicas. The scheduler reports lost peers, too.
const IDLE_SLEEP: Duration = Duration::from_secs(1);
/// The same while a complete round waits for workers.
const SHORT_SLEEP: Duration = Duration::from_millis(1);
/// It offers its core to others once in so many spins.
const SPINS_PER_YIELD: u32 = 16;

/// Starts a lane's thread. `failed` is called once if it cannot continue; `news` whenever the control side is to know something,
/// from the lane's thread: it must return at once.
pub(super) fn spawn_lane(
    lane: DataLane<LaneQueue>,
    index: u16,
    (spin, apps): (Duration, Apps),
    failed: impl FnOnce(LaneError) + Send + 'static,
    news: impl Fn(LaneNews) + Send + 'static,
) -> std::io::Result<(Mailbox<LaneMessage>, JoinHandle<()>)> {
    let mut lane = lane;
    let waker = lane.queue_mut().waker();
    lane.wake_by(waker.clone());
    let (mailbox, receiver) = Mailbox::new(waker);
    let callers = Callers { apps, queues: HashMap::new(), answers: Answers(mailbox.clone()), lane: index };
    let news: Box<dyn Fn(LaneNews) + Send> = Box::new(news);
    let work = move || (Loop { lane, receiver, spin, start: Instant::now(), callers, news }).run();
    Ok((mailbox, start(index, work, failed)?))
}

/// Starts a thread that reports why its work failed, also after a panic. The server then exits: it must not continue without a lane.
fn start(
    index: u16,
    work: impl FnOnce() -> Result<(), LaneError> + Send + 'static,
    failed: impl FnOnce(LaneError) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("gradwire-data-{index}")).spawn(move || {
        // A panic drops the lane, and with it everything that it left half done.
        let ended = catch_unwind(AssertUnwindSafe(work));
        if let Err(error) = ended.unwrap_or(Err(LaneError::Panicked { lane: index })) {
            failed(error);
        }
    })
}

struct Loop {
    lane: DataLane<LaneQueue>,
    receiver: Letters<LaneMessage>,
    spin: Duration,
    start: Instant,
    callers: Callers,
    news: Box<dyn Fn(LaneNews) + Send>,
}

/// What the lane needs of handlers: their queues, and the way back.
struct Callers {
    apps: Apps,
    /// By handler; as many as the server's workers call.
    queues: HashMap<u32, Arc<Queue>>,
    answers: Answers,
    lane: u16,
}

impl Callers {
    fn queue(&mut self, app: u32) -> &Queue {
        let Self { apps, queues, .. } = self;
        queues.entry(app).or_insert_with(|| apps.queue(app))
    }

    fn dispatch(&mut self, event: CallEvent, memory: &ReplyMemory) {
        match event {
            CallEvent::Deliver { call: id, app, from, origin, head, body, place } => {
                let reply = Reply::new(self.answers.clone(), id, memory.clone());
                let origin = Origin { lane: self.lane, ..origin };
                self.queue(app).push(id, Call { from, app, head, body, reply, origin }, place);
            }
            CallEvent::Cancel { call, app, from } => self.queue(app).cancel((from, call)),
        }
    }
}

impl Loop {
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// The moment, and the lane's milliseconds; what it records has the same moment.
    fn look_at_clock(&mut self) -> (Instant, u64) {
        let now = Instant::now();
        let now_ms = now.saturating_duration_since(self.start).as_millis() as u64;
        self.lane.saw(now, now_ms);
        (now, now_ms)
    }

    fn run(mut self) -> Result<(), LaneError> {
        let mut idle_since: Option<Instant> = None;
        let mut spins = 0u32;
        loop {
            let mut busy = false;
            loop {
                match self.receiver.try_recv() {
                    Ok(LaneMessage::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
                    Ok(message) => {
                        busy = true;
                        self.message(message)?;
                    }
                    Err(TryRecvError::Empty) => break,
                }
            }
            let (now, now_ms) = self.look_at_clock();
            busy |= self.lane.take(now_ms)?;
            // Before answers are sent: a handler must not begin a call after its worker was told that the call has ended.
            while let Some(event) = self.lane.next_call_event() {
                self.callers.dispatch(event, self.lane.reply_memory());
            }
            self.lane.send()?;
            self.lane.answer_changes();
            while let Some(news) = self.lane.next_news() {
                (self.news)(news);
            }
            if busy {
                idle_since = None;
                continue;
            }
            if now.saturating_duration_since(*idle_since.get_or_insert(now)) < self.spin {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(SPINS_PER_YIELD) {
                    // A worker on this host may be waiting for this very core.
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
                continue;
            }
            let sleep = match self.lane.engine().is_stuck() || self.lane.has_unreleased() {
                true => SHORT_SLEEP,
                false if self.lane.is_idle() => IDLE_SLEEP,
                false => SLEEP,
            };
            self.lane.queue_mut().wait(sleep);
            // Woken for nothing, it sleeps again at once: only work is worth spinning after.
        }
    }

    fn message(&mut self, message: LaneMessage) -> Result<(), LaneError> {
        match message {
            LaneMessage::Attach { rank, incarnation, setup, inbox, reply } => {
                let channel = self.channel(setup);
                let grant = channel.and_then(|channel| self.lane.adopt(rank, incarnation, channel, inbox));
                // Nobody listens any more where the bootstrap's deadline has passed.
                reply.send(grant.map_err(|error| error.to_string()));
            }
            LaneMessage::Assign { epoch, specs, reply } => {
                reply.send(self.lane.assign(epoch, &specs).map_err(NotTaken::from));
            }
            LaneMessage::ChangeRule { change, reply } => {
                self.lane.take_change(&change, reply);
            }
            LaneMessage::Workers { epoch, present, left } => self.lane.workers(epoch, &present, &left),
            LaneMessage::AskRounds { rank, incarnation, reply } => {
                reply.send(self.lane.ask_rounds(rank, incarnation));
            }
            LaneMessage::CountFrom { rank, incarnation, rounds } => {
                self.lane.count_from(rank, incarnation, &rounds);
            }
            LaneMessage::Answer { call, answer } => {
                self.lane.note_answer(call, answer);
                self.lane.execute();
            }
            LaneMessage::RestoreCalls { app, lines, reply } => {
                let calls = self.lane.restore_calls(app, lines, self.now_ms());
                let (answers, memory) = (self.callers.answers.clone(), self.lane.reply_memory().clone());
                reply.send(Restored { calls, answers, memory });
            }
            LaneMessage::LoseCalls { app } => self.lane.lose_calls(app),
            LaneMessage::Handler { app, handling } => self.lane.set_handler(app, handling),
            LaneMessage::Roles { epoch, chunks, reply } => {
                self.lane.take_roles(epoch, chunks, reply);
            }
            LaneMessage::AttachStream { to, incarnation, number, setup, inbox, reply } => {
                let channel = self.channel(setup);
                let attached = channel
                    .and_then(|channel| self.lane.adopt_stream((to, number), incarnation, channel, inbox));
                reply.send(attached.map_err(|error| error.to_string()));
            }
            LaneMessage::AttachCopy { from, incarnation, setup, reply } => {
                let channel = self.channel(setup);
                let grant = channel.and_then(|channel| self.lane.adopt_copy(from, incarnation, channel));
                reply.send(grant.map_err(|error| error.to_string()));
            }
            LaneMessage::EndStream { to } => self.lane.hang_up(to),
            LaneMessage::EndServer { rank } => self.lane.end_server(rank),
            LaneMessage::Report(reply) => {
                reply.send(self.report());
            }
            LaneMessage::Beat(reply) => reply.send(()),
            LaneMessage::Checkpoint(order) => self.lane.checkpoint_order(&order)?,
            LaneMessage::SaveRoom | LaneMessage::Stop => {}
        }
        self.lane.check()
    }

    fn channel(&mut self, setup: ChannelSetup) -> Result<ChannelId, LaneError> {
        Ok(self.lane.queue_mut().attach(setup)?)
    }

    fn report(&mut self) -> LaneReport {
        let waits = self.lane.engine().waits(self.now_ms());
        self.lane.flight.oldest(waits.first());
        let engine = self.lane.engine();
        LaneReport {
            stats: engine.stats(),
            under_way: engine.under_way() as u64,
            waits,
            credits: engine.credits(),
            spills: engine.spills(),
            key_buffers: engine.key_buffers(),
            quarantined: (self.lane.quarantined_bytes(), engine.fencing().collect()),
            stored_bytes: self.lane.stored_bytes(),
            expelled: self.lane.expelled(),
            calls: (engine.calls() as u64, engine.call_bytes()),
            lent: self.lane.lent(),
            tables: self.lane.table_stats(),
            saving: self.lane.saving_report(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_that_names_the_lane() {
        let (sender, failures) = std::sync::mpsc::channel();
        let failed = move |error| sender.send(error).unwrap();
        start(3, || panic!("a bug"), failed).unwrap().join().unwrap();
        let failure = failures.recv().unwrap();
        assert!(matches!(failure, LaneError::Panicked { lane: 3 }), "{failure}");
        assert!(failure.to_string().contains("lane 3"));
    }
}
