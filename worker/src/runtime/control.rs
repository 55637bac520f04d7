//! The client's end of the control plane: a thread with a tokio runtime that owns the link to the scheduler
//! and bridges it to blocking callers.

use super::members::Members;
use crate::engine::MemberConfig;
use crate::error::{ClientError, OpError};
use daemon::control::{LinkError, LinkEvent, SchedulerLink, code_of_refusal};
use daemon::flight::Flight;
use daemon::http::HttpState;
use daemon::notify::{Notify, Pulse};
use daemon::post::Posts;
use daemon::security::Security;
use fabric::{lock, oneshot};
use proto_common::config::Settings;
use proto_common::error::{Death, DeathCause, ExitCode};
use proto_common::ids::{Epoch, MemberId, Rank, Role};
use proto_common::message::{
    DeclareError, FromScheduler, Member, MemberReport, NodeGroup, Register, Resume, SaveError, ToScheduler,
    WaitError, Welcome,
};
use proto_common::shard_map::MapUpdate;
use proto_common::tensor::{RuleChange, TensorSpec};
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// An answer may come this much after the deadline that the scheduler keeps itself.
const GRACE: Duration = Duration::from_secs(2);

/// What the control thread is started with.
pub(crate) struct ControlStart {
    pub(crate) settings: Settings,
    pub(crate) security: Security,
    pub(crate) register: Register,
    pub(crate) members: Members,
    pub(crate) http: HttpState,
    pub(crate) report: Box<dyn FnMut() -> MemberReport + Send>,
    /// Hears why the job cannot continue.
    pub(crate) on_fatal: Box<dyn Fn(OpError) + Send>,
    pub(crate) told: Told,
    pub(crate) flight: Flight,
}

/// Notifications for the service manager.
pub(crate) struct Told {
    pub(crate) notify: Notify,
    pub(crate) pulse: Pulse,
    pub(crate) line: Box<dyn Fn() -> String + Send>,
}

impl Told {
    /// From now on: that it is registered, and how it is.
    fn registered(self, rank: Rank, flight: &Flight) {
        let Self { notify, pulse, line } = self;
        flight.joined(rank);
        notify.ready(&format!("registered as worker {rank}"));
        let line = move || format!("worker {rank}: {}", line());
        // Until this runtime ends, with the data threads.
        tokio::spawn(notify.keep(pulse, || 0, line));
    }
}

/// The complete cluster as the scheduler announced it.
#[derive(Clone, Debug)]
pub(crate) struct Roster {
    pub(crate) welcome: Welcome,
    pub(crate) epoch: Epoch,
    /// Servers and workers.
    pub(crate) members: Vec<Member>,
}

enum Ask {
    Declare(oneshot::Sender<Result<MapUpdate, DeclareError>>),
    Barrier(oneshot::Sender<Result<(), WaitError>>),
    Save(oneshot::Sender<Result<String, SaveError>>),
}

/// A request that is not answered. The next scheduler has not heard of it.
struct Open {
    ask: Ask,
    message: ToScheduler,
    deadline: Instant,
}

#[derive(Default)]
struct Shared {
    asked: HashMap<u64, Open>,
    next: u64,
    fatal: Option<OpError>,
}

enum Outgoing {
    Message(ToScheduler),
    Finish(ToScheduler, Duration),
}

/// See the module.
pub(crate) struct Control {
    requests: Requests,
    thread: Option<JoinHandle<()>>,
}

/// How the scheduler is asked; clones ask at the same time, and are told when the control plane ends meanwhile.
#[derive(Clone)]
pub(crate) struct Requests {
    /// Unbounded, but every message waits for its answer in its caller, or is sent once per process.
    outgoing: UnboundedSender<Outgoing>,
    posts: Posts,
    shared: Arc<Mutex<Shared>>,
}

impl Control {
    /// Registers and waits until the cluster is complete.
    pub(crate) fn start(start: ControlStart) -> Result<(Self, Roster), ClientError> {
        let (outgoing, queue) = unbounded_channel();
        let (ready, told) = oneshot::channel();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (assemble_ms, connect_ms) =
            (start.settings.deadlines.assemble_ms, start.settings.deadlines.connect_ms);
        let theirs = shared.clone();
        let posts = Posts::start()
            .map_err(|error| ClientError::Internal(format!("cannot start a thread: {error}")))?;
        let own = posts.clone();
        let thread = std::thread::Builder::new()
            .name("gradwire-control".into())
            .spawn(move || run(start, queue, (&ready, &own), &theirs))
            .map_err(|error| ClientError::Internal(format!("cannot start the control thread: {error}")))?;
        let control = Self { requests: Requests { outgoing, posts, shared }, thread: Some(thread) };
        let within = Duration::from_millis(assemble_ms.saturating_add(connect_ms)) + GRACE;
        match told.recv_timeout(within) {
            Ok(Ok(roster)) => Ok((control, roster)),
            Ok(Err(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => {
                let reason =
                    "the scheduler has not announced the roster; `gradwire status` lists the missing members"
                        .into();
                Err(ClientError::Assemble { waited_ms: within.as_millis() as u64, reason })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(ClientError::Internal("the control thread ended".into()))
            }
        }
    }

    /// For whoever asks and waits.
    pub(crate) fn requests(&self) -> Requests {
        self.requests.clone()
    }

    pub(crate) fn links_ready(&self) {
        // A lost scheduler is reported by its own event.
        let _ = self.requests.outgoing.send(Outgoing::Message(ToScheduler::LinksReady));
    }

    /// Says the last word and ends the thread, within `limit`; a goodbye is waited for until a scheduler has heard it.
    pub(crate) fn finish(&mut self, last: ToScheduler, limit: Duration) {
        let _ = self.requests.outgoing.send(Outgoing::Finish(last, limit));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
    }
}

impl Requests {
    fn ask<T>(
        &self,
        within: Duration,
        ask: impl FnOnce(oneshot::Sender<T>) -> Ask,
        message: impl FnOnce(u64) -> ToScheduler,
    ) -> Result<T, ClientError> {
        let (reply, answer) = oneshot::channel();
        let (request, message) = {
            let mut shared = lock(&self.shared);
            if let Some(error) = &shared.fatal {
                return Err(error.clone().into());
            }
            shared.next += 1;
            let request = shared.next;
            let (ask, message) = (ask(reply), message(request));
            let open = Open { ask, message: message.clone(), deadline: Instant::now() + within };
            shared.asked.insert(request, open);
            (request, message)
        };
        if self.outgoing.send(Outgoing::Message(message)).is_err() {
            return Err(self.fatal());
        }
        match answer.recv_timeout(within + GRACE) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(self.fatal()),
            Err(RecvTimeoutError::Timeout) => {
                lock(&self.shared).asked.remove(&request);
                let waited = within + GRACE;
                let text = format!(
                    "the scheduler did not answer within {} ms: it is stuck or overloaded, or has failed and was not restarted",
                    waited.as_millis()
                );
                Err(ClientError::Scheduler(text, ExitCode::Deadline))
            }
        }
    }

    fn fatal(&self) -> ClientError {
        let fatal = lock(&self.shared).fatal.clone();
        fatal.unwrap_or_else(|| OpError::Closed("the control thread ended".into())).into()
    }

    pub(crate) fn declare(
        &self,
        tensors: Vec<TensorSpec>,
        within: Duration,
    ) -> Result<MapUpdate, ClientError> {
        let timeout_ms = within.as_millis() as u64;
        let message = |request| ToScheduler::Declare { request, tensors, timeout_ms };
        Ok(self.ask(within, Ask::Declare, message)??)
    }

    pub(crate) fn change_rule(&self, change: RuleChange, within: Duration) -> Result<(), ClientError> {
        let timeout_ms = within.as_millis() as u64;
        let message = |request| ToScheduler::ChangeRule { request, change, timeout_ms };
        // Nothing is declared by it.
        self.ask(within, Ask::Declare, message)?.map(drop).map_err(ClientError::from)
    }

    pub(crate) fn barrier(&self, name: &str, group: NodeGroup, within: Duration) -> Result<(), ClientError> {
        let (passed, timeout_ms) = (self.posts.passed().times(name, group), within.as_millis() as u64);
        let message = |request| {
            let name = name.to_owned();
            ToScheduler::Barrier { request, name, group, passed, timeout_ms }
        };
        self.ask(within, Ask::Barrier, message)??;
        self.posts.passed().count(name, group);
        Ok(())
    }

    pub(crate) fn save(&self, round: u64, within: Duration) -> Result<String, ClientError> {
        let timeout_ms = within.as_millis() as u64;
        let message = |request| ToScheduler::SaveCheckpoint { request, round, timeout_ms };
        Ok(self.ask(within, Ask::Save, message)??)
    }

    /// Messages to and from other members' programs.
    pub(crate) fn posts(&self) -> &Posts {
        &self.posts
    }
}

type Ready = oneshot::Sender<Result<Roster, ClientError>>;

fn run(
    start: ControlStart,
    queue: UnboundedReceiver<Outgoing>,
    (ready, posts): (&Ready, &Posts),
    shared: &Mutex<Shared>,
) {
    let notify = start.told.notify.clone();
    match daemon::process::control_runtime() {
        Ok(runtime) => runtime.block_on(session(start, queue, (ready, posts), shared)),
        Err(error) => {
            ready.send(Err(ClientError::Internal(format!("cannot start a runtime: {error}"))));
        }
    }
    notify.unwatch("left the cluster");
    posts.lose("the link to the scheduler has ended");
    // Callers that still wait see their channel end.
    lock(shared).asked.clear();
}

async fn session(
    start: ControlStart,
    mut queue: UnboundedReceiver<Outgoing>,
    (ready, posts): (&Ready, &Posts),
    shared: &Mutex<Shared>,
) {
    let ControlStart { settings, security, mut register, members, http, report, on_fatal, told, flight } =
        start;
    let scheduler = &settings.scheduler;
    told.notify.status(&format!("looking for the scheduler at {}:{}", scheduler.host, scheduler.port));
    let incarnation = register.incarnation;
    let failed = |text: String, code| ready.send(Err(ClientError::Scheduler(text, code)));
    // Lives as long as this session: dropping the trigger ends the endpoints.
    let _endpoints = match serve(&settings, &mut register, http).await {
        Ok(trigger) => trigger,
        Err(error) => return failed(format!("{error:#}"), daemon::exit::code_of(&error)),
    };
    let (known, passed) = (members.clone(), posts.passed().clone());
    let resume = move || Some(Resume { barriers: passed.all(), ..known.resume()? });
    let (mut link, welcome) =
        match SchedulerLink::connect((&settings, &security), register, report, resume).await {
            Ok(connected) => connected,
            Err(error) => {
                let code = error.exit_code();
                return failed(describe(error), code);
            }
        };
    let (rank, shape) = (welcome.rank, welcome.shape);
    let reach_ms = settings.deadlines.connect_ms.saturating_add(shape.silence_ms);
    members.registered(MemberConfig { rank, incarnation, shape, reach_ms });
    told.registered(rank, &flight);
    let sender = link.sender();
    posts.attach_link(link.sender());
    let mut start = Starting::new((welcome, members, flight), (ready, posts));
    // Handed over beside everything else: while there is no scheduler the link takes so much and no more, and what the last one
    // said is to be heard all the same. As many as there are requests open.
    let mut unsaid = VecDeque::new();
    let error = loop {
        tokio::select! {
            event = link.events.recv() => {
                let is_back = matches!(event, Some(LinkEvent::Back(_)));
                if let Some(error) = start.event(event, shared) {
                    break error;
                }
                if is_back {
                    unsaid = start.open(shared);
                }
            }
            said = sender.send_next(unsaid.front()), if !unsaid.is_empty() => {
                heard(said, unsaid.pop_front(), shared);
            }
            outgoing = queue.recv() => match outgoing {
                Some(Outgoing::Message(message)) => {
                    start.are_links_ready |= matches!(message, ToScheduler::LinksReady);
                    unsaid.push_back(message);
                }
                Some(Outgoing::Finish(last, limit)) => {
                    return finish(link, &last, limit).await;
                }
                None => return,
            },
        }
    };
    let why = error.to_string();
    // First: whoever is let go of by what is lost asks how it ended.
    fatal(error, shared, &*on_fatal);
    posts.lose(&why);
    // Go on only to end in order.
    while let Some(outgoing) = queue.recv().await {
        if matches!(outgoing, Outgoing::Finish(..)) {
            return;
        }
    }
}

/// What became of a message: too large a one is the caller's; a lost link reports itself.
fn heard(said: Result<(), LinkError>, message: Option<ToScheduler>, shared: &Mutex<Shared>) {
    if let (Err(error), Some(message)) = (said, message) {
        tracing::warn!(%error, "cannot send a message to the scheduler");
        refuse(&message, &describe(error), shared);
    }
}

/// Says the last word.
async fn finish(link: SchedulerLink, last: &ToScheduler, limit: Duration) {
    let is_goodbye = *last == ToScheduler::Goodbye;
    let said = if is_goodbye { link.goodbye(limit).await } else { link.finish(last, limit).await };
    match said {
        Err(error) if is_goodbye => {
            tracing::error!(%error, "cannot notify a scheduler that this worker leaves: the next scheduler will treat it as failed");
        }
        Err(error) => tracing::debug!(%error, "cannot notify the scheduler that this worker leaves"),
        Ok(()) => {}
    }
}

/// A session on its way to the complete roster, and beyond.
struct Starting<'a> {
    welcome: Welcome,
    ready: &'a Ready,
    posts: &'a Posts,
    members: Members,
    assembled: bool,
    are_links_ready: bool,
    flight: Flight,
}

impl<'a> Starting<'a> {
    fn new(
        (welcome, members, flight): (Welcome, Members, Flight),
        (ready, posts): (&'a Ready, &'a Posts),
    ) -> Self {
        Self { welcome, ready, posts, members, assembled: false, are_links_ready: false, flight }
    }

    /// Takes what came over the link; returns what ends the job.
    fn event(&mut self, event: Option<LinkEvent>, shared: &Mutex<Shared>) -> Option<OpError> {
        if let Some(LinkEvent::Message(message)) = &event {
            self.flight.told(message);
        }
        let error = match event {
            Some(LinkEvent::Message(first @ FromScheduler::Roster { epoch, .. })) if !self.assembled => {
                self.assembled = true;
                if let Some(error) = self.members.heard(&first) {
                    return Some(error);
                }
                let FromScheduler::Roster { members, .. } = first else { return None };
                let roster = Roster { welcome: self.welcome.clone(), epoch, members };
                self.ready.send(Ok(roster));
                return None;
            }
            Some(LinkEvent::Message(FromScheduler::Refused(reason))) if !self.assembled => {
                let text = format!("the scheduler refused this process: {reason}");
                self.ready.send(Err(ClientError::Scheduler(text, code_of_refusal(&reason))));
                OpError::Closed(format!("the scheduler refused this worker: {reason}"))
            }
            Some(LinkEvent::Message(message)) => answer(self.posts.heard(message)?, &self.members, shared)?,
            Some(LinkEvent::Away { why, .. }) => {
                self.flight.note("away", format!("no scheduler: {why}"));
                return None;
            }
            Some(LinkEvent::Back(_)) => {
                self.flight.note("back", "scheduler reconnected");
                self.posts.back();
                return None;
            }
            Some(LinkEvent::Lost(lost)) => {
                let member = MemberId { role: Role::Scheduler, rank: Rank(0) };
                OpError::Died(Death { member, cause: DeathCause::Failed { reason: describe(lost) } })
            }
            None => OpError::Closed("the link to the scheduler ended".into()),
        };
        if !self.assembled {
            self.ready.send(Err(error.clone().into()));
        }
        Some(error)
    }

    /// What the scheduler before has not answered, and this one does not know.
    fn open(&self, shared: &Mutex<Shared>) -> VecDeque<ToScheduler> {
        let (now, shared) = (Instant::now(), lock(shared));
        let left = |open: &Open| open.deadline.saturating_duration_since(now).as_millis() as u64;
        let open = shared.asked.values().map(|open| within(open.message.clone(), left(open)));
        self.are_links_ready.then_some(ToScheduler::LinksReady).into_iter().chain(open).collect()
    }
}

/// The request with the time that it has left.
fn within(mut message: ToScheduler, left_ms: u64) -> ToScheduler {
    if let ToScheduler::Declare { timeout_ms, .. }
    | ToScheduler::ChangeRule { timeout_ms, .. }
    | ToScheduler::SaveCheckpoint { timeout_ms, .. }
    | ToScheduler::Barrier { timeout_ms, .. } = &mut message
    {
        *timeout_ms = left_ms;
    }
    message
}

/// Opens the HTTP endpoints, where they are not off, and tells their address with the registration.
async fn serve(
    settings: &Settings,
    register: &mut Register,
    state: HttpState,
) -> anyhow::Result<daemon::shutdown::Trigger> {
    let (trigger, shutdown) = daemon::shutdown::channel();
    if let Some(listener) = daemon::http::bind(&settings.node.http).await? {
        let advertised = daemon::devices::advertised(settings);
        register.http_address = daemon::targets::reachable(Some(&listener), &advertised);
        daemon::http::spawn(listener, state, shutdown);
    }
    Ok(trigger)
}

/// With its causes.
fn describe(error: LinkError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

fn fatal(error: OpError, shared: &Mutex<Shared>, on_fatal: &dyn Fn(OpError)) {
    {
        let mut shared = lock(shared);
        shared.fatal.get_or_insert(error.clone());
        shared.asked.clear();
    }
    on_fatal(error);
}

/// A request that could not be sent is answered here.
fn refuse(message: &ToScheduler, reason: &str, shared: &Mutex<Shared>) {
    let request = match message {
        ToScheduler::Declare { request, .. }
        | ToScheduler::ChangeRule { request, .. }
        | ToScheduler::SaveCheckpoint { request, .. }
        | ToScheduler::Barrier { request, .. } => *request,
        // No caller waits for an answer to these. `daemon::post` answers for messages between programs.
        ToScheduler::Register(_)
        | ToScheduler::Heartbeat(_)
        | ToScheduler::LinksReady
        | ToScheduler::Assigned { .. }
        | ToScheduler::Goodbye
        | ToScheduler::Failing { .. }
        | ToScheduler::Post { .. }
        | ToScheduler::PostReply { .. }
        | ToScheduler::Seeded { .. }
        | ToScheduler::Resuming { .. }
        | ToScheduler::Identify
        | ToScheduler::Drain
        | ToScheduler::Rounds { .. }
        | ToScheduler::Checkpoint(_)
        | ToScheduler::OrderCheckpoint { .. }
        | ToScheduler::Heard { .. }
        | ToScheduler::Abandons => return,
    };
    let asked = lock(shared).asked.remove(&request);
    match asked.map(|open| open.ask) {
        Some(Ask::Declare(reply)) => reply.send(Err(DeclareError::NotNow(reason.to_owned()))),
        Some(Ask::Barrier(reply)) => {
            let refused = WaitError::Refused { name: String::new(), reason: reason.to_owned() };
            reply.send(Err(refused));
        }
        Some(Ask::Save(reply)) => reply.send(Err(SaveError::NotNow(reason.to_owned()))),
        None => {}
    }
}

/// Passes an answer to who asked; returns what ends the job.
fn answer(message: FromScheduler, members: &Members, shared: &Mutex<Shared>) -> Option<OpError> {
    let asked = |request| lock(shared).asked.remove(&request).map(|open: Open| open.ask);
    match message {
        FromScheduler::Declared { request, result } => {
            // Before anything that the scheduler said later: maps change in one order everywhere.
            let result = result.and_then(|update| match members.declared(&update) {
                Ok(()) => Ok(update.into_inner()),
                Err(error) => Err(DeclareError::NotNow(error.to_string())),
            });
            if let Some(Ask::Declare(reply)) = asked(request) {
                reply.send(result);
            }
            None
        }
        FromScheduler::CheckpointSaved { request, result } => {
            if let Some(Ask::Save(reply)) = asked(request) {
                reply.send(result);
            }
            None
        }
        FromScheduler::Released { request, result } => {
            if let Some(Ask::Barrier(reply)) = asked(request) {
                reply.send(result);
            }
            None
        }
        other => members.heard(&other),
    }
}
