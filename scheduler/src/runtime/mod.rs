//! The scheduler's runtime: sockets, clock and tasks around the engine. It executes commands. It decides only how much a connection may
//! cost: how many connections there are, how long an unregistered peer may be silent, and how many bytes may wait for a peer that does not
//! read.

mod connection;
mod embed;
mod frames;
mod keeper;
mod listeners;
mod metrics;
mod ownership;
mod view;
mod words;

use crate::engine::{Command, ConnectionId, Engine, EngineConfig, Input, LOCAL, Outcome, Standing, Unusable};
use anyhow::Context as _;
use connection::{Event, Events, Limits, Outbox, Parting};
use daemon::Later;
use daemon::control::{STRANGERS_MAX, frame_of, patience};
use daemon::exit::Failure;
use daemon::flight::Flight;
use daemon::http::{self, HttpState};
use daemon::notify::Notify;
use daemon::post::Posts;
use daemon::security::Security;
use daemon::seldom::Seldom;
use daemon::shutdown::Shutdown;
pub use embed::Scheduler;
use frames::Frames;
use keeper::{Done, Keeper, Task};
pub use listeners::{Listeners, bind};
use metrics::Metrics;
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, MemberId, Rank, Role};
use proto_common::message::{Build, FromScheduler, PostError, RefusalReason, ToScheduler};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until, timeout};
use view::{Publisher, View};

/// Milliseconds until a connection is taken again, where one could not be: out of descriptors, of which no event tells when there
/// are some again.
const ACCEPT_AGAIN_MS: u64 = 50;
/// Events that wait for the engine; more wait in the sockets.
const EVENTS_MAX: usize = 1024;
/// Milliseconds that closed connections get at the end to take what was sent to them.
const FLUSH_MS: u64 = 1_000;

/// Runs a job from its first registration to its end, or until `shutdown` fires.
pub fn run(
    listeners: Listeners,
    settings: &Settings,
    shutdown: Shutdown,
    told: (Notify, Flight),
) -> Later<'_, Result<Outcome, anyhow::Error>> {
    Box::pin(run_with(listeners, settings, shutdown, (None, Follows::Nobody), told))
}

/// Whether a scheduler takes over a job whose scheduler is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// It begins a job, unless a member of one comes.
    Nobody,
    /// It does, when a majority of the members has come.
    Majority,
    /// It does with those that come: by an operator's word the others have exited.
    Whoever,
}

/// As [`run`], for a job whose scheduler is gone: its members come again, and nobody else is let in before.
pub fn resume(
    listeners: Listeners,
    settings: &Settings,
    shutdown: Shutdown,
    told: (Notify, Flight),
    follows: Follows,
) -> Later<'_, Result<Outcome, anyhow::Error>> {
    Box::pin(run_with(listeners, settings, shutdown, (None, follows), told))
}

/// As [`run`] or [`resume`], with the messages of this process's program, where there is one.
async fn run_with(
    listeners: Listeners,
    settings: &Settings,
    shutdown: Shutdown,
    (program, follows): (Option<Posts>, Follows),
    (notify, flight): (Notify, Flight),
) -> Result<Outcome, anyhow::Error> {
    let incarnation = daemon::host::new_incarnation()?;
    let (resume, force) = (follows != Follows::Nobody, follows == Follows::Whoever);
    let own = (incarnation, listeners.control.local_addr()?.port());
    let started = keeper::start(settings, resume, own, shutdown.clone()).await;
    let (keeper, checkpoints) = started.map_err(|error| Failure::new(error.exit_code(), error))?;
    let pid = std::process::id();
    let config = EngineConfig { resume, force, pid, checkpoints, ..EngineConfig::new(settings, incarnation) };
    let engine = Engine::new(config, 0);
    let (engine, posts) = match program {
        Some(posts) => (engine.with_program(), posts),
        None => (engine, Posts::start()?),
    };
    let core = Core::new((settings, listeners.security), engine, (posts, flight.clone()), keeper.clone())?;
    if let Some(listener) = listeners.http {
        let (ready, status, targets) = (core.view(), core.view(), core.view());
        let own = daemon::targets::reachable(Some(&listener), &settings.scheduler.host);
        let state = HttpState::new(
            core.metrics.registry().clone(),
            move || ready.ready(),
            move || serde_json::to_value(&status.get().status).unwrap_or_default(),
        )
        .with_targets(move || daemon::targets::groups(&targets.get().status, own.as_deref()))
        .with_tls(settings.security.is_tls())
        .with_flight(flight)
        .with_documents(&crate::page::DOCUMENTS);
        http::spawn(listener, state, shutdown.clone());
    }
    let outcome = core.run(listeners.control, shutdown, &notify).await;
    if let Some(keeper) = keeper {
        keeper.end_within(Duration::from_millis(FLUSH_MS)).await;
    }
    outcome
}

/// The exit code and words for how a job ended.
pub fn verdict(outcome: &Outcome) -> Result<(), Failure> {
    let code = match outcome {
        Outcome::Done { .. } => return Ok(()),
        Outcome::Died(_) => ExitCode::MemberDied,
        Outcome::Incomplete { .. } => ExitCode::Deadline,
        Outcome::Misconfigured(_) => ExitCode::Config,
        Outcome::Unusable(unusable) => unusable.code,
    };
    Err(Failure::message(code, outcome.to_string()))
}

/// A stop of everything reaches us and the members at once. Where both show at the same time, our own comes first:
/// else whoever was quicker to leave would count as dead.
fn stop_before(input: &Input, stopping: bool, shutdown: &Shutdown) -> Option<Input> {
    let is_loss = matches!(input, Input::Closed { .. }) && !stopping;
    let reason = shutdown.requested().filter(|_| is_loss)?;
    Some(Input::Stop { reason })
}

struct Core {
    engine: Engine,
    /// The engine's clock.
    start: Instant,
    publisher: Publisher,
    frames: Frames,
    security: Security,
    job: JobId,
    metrics: Metrics,
    limits: Limits,
    /// Connections beyond the members' are strangers, refused ones, those that linger.
    connections_max: usize,
    /// None is taken before.
    accept_from: Option<Instant>,
    connections: BTreeMap<ConnectionId, Outbox>,
    next_connection: u64,
    tasks: JoinSet<()>,
    events: Events,
    received: mpsc::Receiver<Event>,
    /// Heartbeats. They never wait behind messages that take long: members give up a scheduler that does not answer them.
    beats: mpsc::Receiver<Event>,
    crowded: Seldom,
    strangers: Seldom,
    refused: Seldom,
    /// The messages of this process's own program, and what it says.
    posts: Posts,
    said: mpsc::UnboundedReceiver<ToScheduler>,
    keeper: Option<Keeper>,
    flight: Flight,
    /// Who is let go by what is being carried out.
    parting: Option<Parting>,
}

/// Is somebody let go by it?
fn lets_go(command: &Command) -> bool {
    matches!(command, Command::Send { message, .. } if matches!(**message, FromScheduler::GoodbyeAck))
}

impl Core {
    fn new(
        (settings, security): (&Settings, Security),
        engine: Engine,
        (posts, flight): (Posts, Flight),
        keeper: Option<Keeper>,
    ) -> Result<Self, anyhow::Error> {
        // Unbounded, but the engine bounds what is not answered.
        let (out, said) = mpsc::unbounded_channel();
        posts.attach(move |message| out.send(message).is_ok());
        let members = (settings.cluster.workers + settings.cluster.server_places()) as usize;
        let publisher = Publisher::new(&engine);
        let (events, received, beats) = Events::new(EVENTS_MAX);
        let metrics = Metrics::new((settings, &security), publisher.view());
        Ok(Self {
            metrics: metrics.context("cannot register metrics")?,
            engine,
            start: Instant::now(),
            publisher,
            frames: Frames::default(),
            security,
            job: settings.job,
            limits: Limits {
                handshake: Duration::from_millis(settings.deadlines.handshake_ms),
                write: Duration::from_millis(settings.deadlines.silence_ms),
            },
            connections_max: members + STRANGERS_MAX,
            accept_from: None,
            connections: BTreeMap::new(),
            next_connection: 0,
            tasks: JoinSet::new(),
            events,
            received,
            beats,
            crowded: Seldom::default(),
            strangers: Seldom::default(),
            refused: Seldom::default(),
            posts,
            said,
            keeper,
            flight,
            parting: None,
        })
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn view(&self) -> View {
        self.publisher.view()
    }

    async fn run(
        mut self,
        listener: TcpListener,
        mut shutdown: Shutdown,
        notify: &Notify,
    ) -> Result<Outcome, anyhow::Error> {
        let (mut stopping, mut beats, mut owner_beats) = (false, notify.beats(), interval(ownership::BEAT));
        notify.ready("accepting members");
        let mut tick_ms = self.engine.next_tick_ms(0);
        let outcome = loop {
            let again = self.accept_from.unwrap_or(self.start);
            let publish = self.publisher.due();
            let input = tokio::select! {
                reason = shutdown.wait(), if !stopping => {
                    stopping = true;
                    Some(Input::Stop { reason })
                }
                accepted = listener.accept(), if self.may_accept() => {
                    self.accept(accepted);
                    None
                }
                () = sleep_until(again), if self.accept_from.is_some() => {
                    self.accept_from = None;
                    None
                }
                // The core holds a sender itself, so the queue never ends.
                Some(event) = self.received.recv() => self.input_of(event),
                Some(event) = self.beats.recv() => self.input_of(event),
                Some(message) = self.said.recv() => Some(Input::Message { from: LOCAL, message }),
                () = sleep_until(publish.unwrap_or(self.start)), if publish.is_some() => {
                    self.publisher.publish(&self.engine, self.now_ms());
                    None
                }
                () = sleep_until(self.start + Duration::from_millis(tick_ms)) => {
                    tick_ms = u64::MAX;
                    self.frames.forget();
                    Some(Input::Tick)
                }
                // The loop that decides is what a watchdog watches here.
                () = beats.next() => {
                    notify.feed();
                    notify.status(&self.view().get().status.line());
                    None
                }
                _ = owner_beats.tick(), if self.keeper.is_some() => {
                    self.keep(Task::Beat);
                    None
                }
                // Finished tasks are taken off the list.
                Some(_) = self.tasks.join_next() => None,
            };
            let stop = input.as_ref().and_then(|input| stop_before(input, stopping, &shutdown));
            stopping |= stop.is_some();
            let inputs = self.waiting_beats().into_iter().chain(stop).chain(input);
            if let Some(outcome) = inputs.into_iter().find_map(|input| self.step(input)) {
                break outcome;
            }
            tick_ms = tick_ms.min(self.engine.next_tick_ms(self.now_ms()));
        };
        self.posts.lose("the job has ended");
        self.connections.clear();
        let flushed = async { while self.tasks.join_next().await.is_some() {} };
        // Whoever has not taken the last message by now does not want it.
        let _ = timeout(Duration::from_millis(FLUSH_MS), flushed).await;
        Ok(outcome)
    }

    /// The heartbeats that wait now.
    fn waiting_beats(&mut self) -> Vec<Input> {
        let count = self.beats.len().min(EVENTS_MAX);
        let beats: Vec<Event> = (0..count).map_while(|_| self.beats.try_recv().ok()).collect();
        beats.into_iter().filter_map(|event| self.input_of(event)).collect()
    }

    /// May another connection be taken? Each has a task.
    fn has_place(&self) -> bool {
        self.tasks.len() < self.connections_max
    }

    /// Nor is one taken for a moment after that has failed: whoever decides waits for nothing.
    fn may_accept(&self) -> bool {
        self.accept_from.is_none() && self.has_place()
    }

    fn limits_of_new(&self) -> Limits {
        let places = (self.tasks.len(), self.connections_max);
        Limits { handshake: patience(self.limits.handshake, places), ..self.limits }
    }

    fn accept(&mut self, accepted: std::io::Result<(TcpStream, SocketAddr)>) {
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                self.accept_from = Some(Instant::now() + Duration::from_millis(ACCEPT_AGAIN_MS));
                return;
            }
        };
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let (limits, asked) = (self.limits_of_new(), (self.security.clone(), self.job));
        let outbox = Outbox::open(id, accepted, asked, limits, &self.events, &mut self.tasks);
        self.metrics.watch(outbox.queued_bytes());
        self.connections.insert(id, outbox);
        if !self.has_place() && self.crowded.may_speak().is_some() {
            tracing::warn!(
                limit = self.connections_max,
                "too many control connections; new connections wait"
            );
        }
    }

    /// An event as the engine takes it; those of connections that were closed do not count.
    fn input_of(&mut self, event: Event) -> Option<Input> {
        match event {
            Event::Kept(Done::Written(round, result)) => {
                if result.is_ok() {
                    self.flight.note("checkpoint", format!("round {round} is complete"));
                }
                Some(Input::ManifestWritten { round, result })
            }
            Event::Kept(Done::Cleared(clearing, result)) => Some(Input::ClearedAway { clearing, result }),
            Event::Kept(Done::Deposed(reason)) => {
                Some(Input::Deposed { why: Unusable { code: ExitCode::Refused, reason } })
            }
            Event::Message { from, message } => {
                let outbox = self.connections.get(&from)?;
                match message {
                    // It has not read what it was told: nothing of others comes on top.
                    ToScheduler::Post { request, .. } if outbox.is_crowded() => {
                        self.refuse_post(from, request);
                        None
                    }
                    message => Some(Input::Message { from, message }),
                }
            }
            Event::OtherVersion { connection, theirs } => {
                let outbox = self.connections.remove(&connection)?;
                let reason = RefusalReason::Protocol { theirs, ours: Build::own() };
                let fault = Some(reason.to_string());
                self.turn_away(&outbox, reason, "version");
                Some(Input::Closed { connection, fault })
            }
            Event::NotPermitted { connection, why } => {
                let outbox = self.connections.remove(&connection)?;
                self.turn_away(&outbox, RefusalReason::Certificate(why.clone()), "certificate");
                Some(Input::Closed { connection, fault: Some(why) })
            }
            // A member closes its side of the connection with its goodbye, and reads on. Its answer waits for a proposal: without the
            // answer the member would look for another scheduler, for as long as deadlines.scheduler_ms. The answer closes the rest.
            Event::Closed { connection, fault: None } if self.engine.is_leaving(connection) => None,
            Event::Closed { connection, fault } => {
                let outbox = self.connections.remove(&connection)?;
                if self.engine.member_of(connection).is_none() {
                    let why = fault
                        .as_ref()
                        .map_or("it closed the connection before it registered", |fault| fault.text.as_str());
                    self.drop_stranger(&outbox, why, fault.as_ref().map_or("closed", |fault| fault.kind));
                }
                Some(Input::Closed { connection, fault: fault.map(|fault| fault.text) })
            }
        }
    }

    fn drop_stranger(&self, outbox: &Outbox, why: &str, kind: &'static str) {
        if let Some(others) = self.strangers.may_speak() {
            tracing::warn!(peer = %outbox.peer(), why, others, "dropped an unregistered connection");
        }
        self.metrics.refused(kind);
    }

    /// It is told why, and the engine never hears what it said.
    fn turn_away(&self, outbox: &Outbox, reason: RefusalReason, kind: &'static str) {
        let why = reason.to_string();
        let told = FromScheduler::Refused(reason);
        // Short, and the first thing that waits for it.
        if let Ok(frame) = frame_of(&told) {
            let _ = outbox.push(frame.into(), None);
        }
        self.drop_stranger(outbox, &why, kind);
    }

    /// One decision of the engine and everything that follows from carrying it out.
    fn step(&mut self, input: Input) -> Option<Outcome> {
        self.metrics.count_input(&input);
        let speaker = match &input {
            Input::Message { from, .. } => Some(*from),
            _ => None,
        };
        let mut inputs = vec![input];
        let mut outcome = None;
        while let Some(input) = inputs.pop() {
            let now_ms = self.now_ms();
            let (commands, notes) = (self.engine.handle(now_ms, input), self.engine.take_notes());
            // Before anybody hears of it: whoever is told of another phase finds it in the status.
            self.publisher.changed(&self.engine, now_ms);
            notes.iter().for_each(|note| self.tell(note));
            self.parting = commands.iter().any(lets_go).then(Parting::new);
            for command in commands {
                match command {
                    Command::Send { to, message } => self.send(&to, &message, &mut inputs),
                    Command::Close { connection } => drop(self.connections.remove(&connection)),
                    Command::WriteManifest(completed) => self.keep(Task::Write(completed)),
                    Command::ClearAway(clearing) => self.keep(Task::Clear(clearing)),
                    Command::End(end) => outcome = Some(end),
                }
            }
            if let Some(parting) = self.parting.take() {
                parting.go(self.limits.write / 2, &mut self.tasks);
            }
        }
        speaker.into_iter().for_each(|speaker| self.judge(speaker));
        outcome
    }

    /// Whose is a connection, now that what it said is decided? Nobody's has had its answer, and makes room.
    fn judge(&mut self, speaker: ConnectionId) {
        let Some(outbox) = self.connections.get(&speaker) else { return };
        if outbox.standing() == Standing::Member {
            return;
        }
        outbox.judge(self.engine.standing(speaker));
        if outbox.standing() == Standing::Stranger {
            self.connections.remove(&speaker);
        }
    }

    /// Disks are slow: what is done there is done beside everything else.
    fn keep(&mut self, task: Task) {
        let Some(keeper) = &self.keeper else { return };
        let (kept, events) = (keeper.begin(task), self.events.clone());
        self.tasks.spawn(async move {
            if let Some(done) = kept.await {
                // A core that is gone needs no answer.
                let _ = events.send(Event::Kept(done)).await;
            }
        });
    }

    /// Queues a message; a connection whose queue is full is given up.
    fn send(&mut self, to: &[ConnectionId], message: &FromScheduler, inputs: &mut Vec<Input>) {
        let to = &self.with_room(to, message, inputs)[..];
        if to.contains(&LOCAL) {
            // Of messages: nothing else is said to our own program.
            let _ = self.posts.heard(message.clone());
        }
        if to.iter().all(|to| *to == LOCAL) {
            return;
        }
        self.note(to, message);
        self.metrics.count_message(message, to.iter().filter(|to| **to != LOCAL).count() as u64);
        let refusal = self.without_room(to, message);
        let message = refusal.as_ref().unwrap_or(message);
        let frame = match self.frames.encode(message) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::error!(%error, "cannot encode a message of the scheduler; this is a bug");
                return;
            }
        };
        for connection in to {
            let Some(outbox) = self.connections.get(connection) else { continue };
            if matches!(message, FromScheduler::Welcome(_)) {
                // Before it hears so: what it says then may be long.
                outbox.judge(Standing::Member);
            }
            if let (FromScheduler::GoodbyeAck, Some(parting)) = (message, &mut self.parting) {
                outbox.push_last(frame.clone(), parting);
            } else if let Err(full) = outbox.push(frame.clone(), self.parting.as_ref()) {
                self.connections.remove(connection);
                inputs.push(Input::Closed { connection: *connection, fault: Some(full) });
            }
        }
    }

    /// Whom a message goes to. A member's goes only to those that have room for it beside what they have not read: where its
    /// time is up it waits for them all the same, so that what is owed bounds no queue. The engine hears of the others.
    fn with_room<'a>(
        &self,
        to: &'a [ConnectionId],
        message: &FromScheduler,
        inputs: &mut Vec<Input>,
    ) -> Cow<'a, [ConnectionId]> {
        let FromScheduler::Posted { ticket, message, .. } = message else { return Cow::Borrowed(to) };
        let has_room = |to: &ConnectionId| {
            self.connections.get(to).is_none_or(|outbox| outbox.has_room_for_post(message.body.len()))
        };
        let (told, full): (Vec<_>, Vec<_>) = to.iter().copied().partition(has_room);
        inputs.extend(full.into_iter().map(|to| Input::NotPosted { ticket: *ticket, to }));
        Cow::Owned(told)
    }

    /// An answer of another member that has no room beside what its asker has not read is told as that.
    fn without_room(&self, to: &[ConnectionId], message: &FromScheduler) -> Option<FromScheduler> {
        let FromScheduler::PostAnswered { request, from, of, result: Ok(reply) } = message else {
            return None;
        };
        let outbox = to.first().and_then(|to| self.connections.get(to))?;
        let bytes = reply.body.len();
        let result = Err(PostError::Crowded { bytes: bytes as u64 });
        let refusal = FromScheduler::PostAnswered { request: *request, from: *from, of: *of, result };
        (!outbox.has_room(bytes)).then_some(refusal)
    }

    /// Who does not read may not ask.
    fn refuse_post(&mut self, asker: ConnectionId, request: u64) {
        let from = MemberId { role: Role::Scheduler, rank: Rank(0) };
        let result = Err(PostError::Busy);
        let mut inputs = Vec::new();
        self.send(&[asker], &FromScheduler::PostAnswered { request, from, of: 1, result }, &mut inputs);
        inputs.into_iter().for_each(|input| drop(self.step(input)));
    }
}

#[cfg(test)]
mod tests;
