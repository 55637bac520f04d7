//! Executes the commands of the worker's membership engine (`engine::member`): connects to servers, each on a thread of its own. It
//! makes lanes close the channels to servers that have failed or left, and send operations to the servers to which chunks have moved. No
//! operation passes through this file.

use super::bootstrap::{Connector, connect_server};
use super::links::Links;
use super::message::LaneMessage;
use super::seat::LaneHandle;
use crate::engine::{Member, MemberCommand, MemberConfig};
use crate::error::{ClientError, OpError};
use fabric::{lock, oneshot};
use proto_common::ids::{Epoch, Key, Rank};
use proto_common::message::{FromScheduler, Member as Entry, Resume};
use proto_common::shard_map::{MapError, MapUpdate, ShardMap};
use proto_common::transport::Choice;
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What happens while servers are connected for the first time.
pub(crate) enum Step {
    /// A connection was made, or could not be.
    Connected(Result<(), ClientError>),
    /// A server is not there any more.
    Gone,
    /// The job ends before we are part of it.
    Dead(OpError),
}

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) struct Members(Arc<Inner>);

/// As a lane has it.
pub(crate) struct WeakMembers(Weak<Inner>);

impl WeakMembers {
    /// A lane's channel has ended.
    pub(crate) fn broken(&self, server: Rank, number: u64, reason: String) {
        if let Some(inner) = self.0.upgrade() {
            Members(inner).broken(server, number, reason);
        }
    }
}

struct Inner {
    state: Mutex<State>,
    /// What the scheduler said was taken.
    changed: Condvar,
    links: Arc<Links>,
    start: Instant,
    on_fatal: Box<dyn Fn(OpError) + Send + Sync>,
    steps: Sender<Step>,
}

#[derive(Default)]
struct State {
    /// From the registration on.
    engine: Option<Member>,
    lanes: Vec<LaneHandle>,
    /// While there are lanes to be connected.
    connector: Option<Arc<Connector>>,
    /// What was decided before there were lanes. Bounded: the control plane decides a few things a second, and lanes come
    /// with the first roster, or the process ends.
    waiting: Vec<MemberCommand>,
    /// Dropping it gives the newest connection to a server up.
    dials: BTreeMap<Rank, oneshot::Sender<()>>,
    /// The client leaves: what is decided is taken note of, for the next scheduler, and nothing is done about it.
    leaves: bool,
}

impl Members {
    /// Nothing is known yet. `on_fatal` is called with what ends the job, on any thread; `steps` gets the progress of connecting.
    pub(crate) fn new(
        links: Arc<Links>,
        on_fatal: impl Fn(OpError) + Send + Sync + 'static,
        steps: Sender<Step>,
    ) -> Self {
        let (state, start, on_fatal) = (Mutex::default(), Instant::now(), Box::new(on_fatal));
        Self(Arc::new(Inner { state, changed: Condvar::new(), links, start, on_fatal, steps }))
    }

    /// For lanes, which are not to keep it: the client ends them, not the other way round.
    pub(crate) fn downgrade(&self) -> WeakMembers {
        WeakMembers(Arc::downgrade(&self.0))
    }

    fn now_ms(&self) -> u64 {
        self.0.start.elapsed().as_millis() as u64
    }

    /// The scheduler has registered this worker.
    pub(crate) fn registered(&self, config: MemberConfig) {
        lock(&self.0.state).engine.get_or_insert_with(|| Member::new(config));
    }

    /// The lanes are there: what was decided before is done now.
    pub(crate) fn install(&self, lanes: Vec<LaneHandle>, connector: Connector) {
        let mut state = lock(&self.0.state);
        (state.lanes, state.connector) = (lanes, Some(Arc::new(connector)));
        let waiting = std::mem::take(&mut state.waiting);
        let fatal = self.execute(&mut state, waiting);
        drop(state);
        self.end(fatal);
    }

    /// The client leaves: nobody is connected any more. What is known stays, because the goodbye may have to be said to a
    /// scheduler that has to be told it.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0.state);
        (state.connector, state.leaves) = (None, true);
        state.lanes.clear();
        state.dials.clear();
        state.waiting.clear();
        drop(state);
        self.0.changed.notify_all();
    }

    /// Takes what the scheduler said on its own account; returns what ends the job.
    pub(crate) fn heard(&self, message: &FromScheduler) -> Option<OpError> {
        let mut state = lock(&self.0.state);
        let mut out = Vec::new();
        let engine = state.engine.as_mut()?;
        engine.heard(message, &mut out);
        self.0.links.set_failovers(engine.failovers());
        let fatal = self.execute(&mut state, out);
        drop(state);
        self.0.changed.notify_all();
        fatal
    }

    /// Takes the answer to a declaration, in its place among what the scheduler says.
    pub(crate) fn declared(&self, update: &MapUpdate) -> Result<(), MapError> {
        let mut state = lock(&self.0.state);
        let mut out = Vec::new();
        let Some(engine) = state.engine.as_mut() else { return Ok(()) };
        engine.declared(update, &mut out)?;
        let fatal = self.execute(&mut state, out);
        drop(state);
        self.end(fatal);
        Ok(())
    }

    /// What a scheduler that knows nothing is to know; barriers are to be added.
    pub(crate) fn resume(&self) -> Option<Resume> {
        lock(&self.0.state).engine.as_ref().and_then(Member::resume)
    }

    /// Servers of the roster that are not connected; none before the first roster.
    pub(crate) fn missing(&self) -> Vec<Rank> {
        lock(&self.0.state).engine.as_ref().map_or_else(Vec::new, Member::missing)
    }

    /// From which round of each tensor on this worker counts, which came in between; waits for that to be decided, within a
    /// limit.
    pub(crate) fn counts(&self, within: Duration) -> Option<BTreeMap<Key, u64>> {
        let undecided = |state: &mut State| {
            !state.leaves && state.engine.as_ref().is_some_and(|engine| engine.counts().is_none())
        };
        let waited = self.0.changed.wait_timeout_while(lock(&self.0.state), within, undecided);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.engine.as_ref()?.counts().cloned()
    }

    /// Looks at the shard map in force.
    pub(crate) fn with_map<R>(&self, look: impl FnOnce(&ShardMap) -> R) -> Option<R> {
        lock(&self.0.state).engine.as_ref().map(|engine| look(engine.map()))
    }

    fn broken(&self, server: Rank, number: u64, reason: String) {
        let (mut state, now_ms, mut out) = (lock(&self.0.state), self.now_ms(), Vec::new());
        let Some(engine) = state.engine.as_mut() else { return };
        engine.broken(server, number, reason, now_ms, &mut out);
        let fatal = self.execute(&mut state, out);
        drop(state);
        self.end(fatal);
    }

    fn connected(&self, number: u64, server: Rank, result: Result<Choice, ClientError>) {
        let (mut state, now_ms, mut out) = (lock(&self.0.state), self.now_ms(), Vec::new());
        let Some(engine) = state.engine.as_mut() else { return };
        let told = result.as_ref().map(drop).map_err(ToString::to_string);
        if !engine.connected(number, told, now_ms, &mut out) {
            // There is a newer connection, or the server's process has failed.
            return;
        }
        if state.leaves {
            return;
        }
        let fatal = self.execute(&mut state, out);
        match &result {
            Ok(choice) => {
                tracing::info!(server = server.0, driver = %choice.driver, why = choice.why, "data path ready");
                self.0.links.set(server, choice.clone());
            }
            Err(error) => tracing::warn!(server = server.0, %error, "cannot connect to a server"),
        }
        drop(state);
        // Nobody listens any more once all servers of the first roster are connected.
        let _ = self.0.steps.send(Step::Connected(result.map(drop)));
        self.end(fatal);
    }

    fn end(&self, fatal: Option<OpError>) {
        if let Some(error) = fatal {
            (self.0.on_fatal)(error);
        }
    }

    /// Says what ends the job, if something does.
    fn execute(&self, state: &mut State, commands: Vec<MemberCommand>) -> Option<OpError> {
        let mut fatal = None;
        if state.leaves {
            return fatal;
        }
        for command in commands {
            match command {
                MemberCommand::Leave(error) => fatal = fatal.or(Some(error)),
                command if state.connector.is_none() => state.waiting.push(command),
                MemberCommand::Connect { number, server, epoch, after_ms } => {
                    fatal = fatal.or(self.dial(state, number, server, epoch, after_ms).err());
                }
                MemberCommand::End { server } => {
                    tell(&state.lanes, || LaneMessage::End { server });
                    state.dials.remove(&server);
                    self.0.links.remove(server);
                    let _ = self.0.steps.send(Step::Gone);
                }
                MemberCommand::Remap { epoch, lanes } => {
                    for (lane, moves) in state.lanes.iter().zip(lanes) {
                        lane.send(LaneMessage::Remap { epoch, moves });
                    }
                }
                MemberCommand::Epoch(epoch) => tell(&state.lanes, || LaneMessage::Epoch(epoch)),
            }
        }
        fatal
    }

    /// Connects on a thread of its own: a server that is slow does not hold up the others. Without a thread nobody connects this
    /// server again, so the client fails at once: otherwise operations would end at their deadlines, without this reason.
    fn dial(
        &self,
        state: &mut State,
        number: u64,
        server: Entry,
        epoch: Epoch,
        after_ms: u64,
    ) -> Result<(), OpError> {
        let Some(connector) = state.connector.clone() else { return Ok(()) };
        let rank = server.id.rank;
        tell(&state.lanes, || LaneMessage::Expect { server: rank, number });
        let (given_up, wait) = oneshot::channel::<()>();
        state.dials.insert(rank, given_up);
        let members = Arc::downgrade(&self.0);
        let work = move || {
            if wait.recv_timeout(Duration::from_millis(after_ms)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let result = connect_server(&connector, &server, number, epoch);
            drop(connector);
            if let Some(inner) = members.upgrade() {
                Self(inner).connected(number, rank, result);
            }
        };
        let thread = std::thread::Builder::new().name("gradwire-connect".into()).spawn(work);
        let failed =
            |error| OpError::Closed(format!("cannot start a thread to connect server {rank}: {error}"));
        thread.map(drop).map_err(failed)
    }
}

fn tell(lanes: &[LaneHandle], message: impl Fn() -> LaneMessage) {
    for lane in lanes {
        lane.send(message());
    }
}
