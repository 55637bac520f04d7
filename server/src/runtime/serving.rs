//! The server's control side while it serves: hands what happens to the member engine, and executes what that decides, on
//! lanes, streams and the link to the scheduler. It decides nothing itself.

use super::bootstrap::{Reception, answers_of, answers_while, blocking};
use super::draining::{LOOKS_MAX, while_chunks_leave};
use super::error::LaneError;
use super::message::{LaneMessage, LaneNews};
use super::news::Board;
use super::standing::Standing;
use super::streams::{Target, dial};
use crate::checkpoint::{Progress, Saver};
use crate::engine::member::{Departure, Holdings, Left, Member, MemberCommand, Peers};
use crate::storage::StorageError;
use daemon::control::{LinkError, LinkEvent, SchedulerLink, code_of_refusal};
use daemon::exit::Failure;
use daemon::flight::Flight;
use daemon::post::Posts;
use daemon::shutdown::{Shutdown, TOGETHER_MS};
use fabric::{FabricError, oneshot};
use proto_common::config::DeadlineSettings;
use proto_common::error::{Death, ExitCode};
use proto_common::ids::{Epoch, Incarnation, Key, Rank};
use proto_common::message::{
    CheckpointNews, CheckpointOrder, FromScheduler, NotTaken, RefusalReason, ToScheduler,
};
use proto_common::transport::Choice;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// How long allocating and touching new chunks may take; and how long no chunk of a checkpoint is read before a lane counts as
/// one that does not answer.
const ASSIGN_WITHIN: Duration = Duration::from_secs(60);

/// A member that its runtime, and those who ask for its state, share. Nothing waits while it is held.
pub(super) type SharedMember = Arc<Mutex<Member>>;

pub(super) fn lock(member: &SharedMember) -> MutexGuard<'_, Member> {
    // An engine that panicked has ended the control side with it.
    member.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was begun and has ended.
enum Done {
    Lanes { number: u64, result: Result<(), NotTaken> },
    Dialled { number: u64, to: Rank, result: Result<Choice, String> },
    Rounds { rank: Rank, incarnation: Incarnation, lanes: Result<Vec<Vec<(Key, u64)>>, String> },
}

/// Why a server ended before its time.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum RunError {
    /// A member has failed, and the job cannot continue without it.
    #[error("{0}")]
    Died(Death),
    /// The scheduler is gone.
    #[error("{0}")]
    SchedulerLost(String),
    /// The scheduler has no use for us any more: the job never became complete.
    #[error("the scheduler refused this server: {0}")]
    Refused(RefusalReason),
    /// The scheduler has declared this incarnation failed: other servers serve its chunks.
    #[error(
        "the scheduler has declared this server dead in epoch {epoch}: it sent no heartbeat for deadlines.silence_ms, or its connection broke; restart it, and it rejoins as a new process"
    )]
    Deposed { epoch: Epoch },
    /// It was to go, and others have not taken over in time what it has.
    #[error(
        "draining this server timed out: for {waited_ms} ms other servers have taken over none of the {chunks} chunks that it has left; it waits for {on}. Start another server if none is left, check the servers that it names, or raise deadlines.operation_ms"
    )]
    NotDrained { chunks: u64, waited_ms: u64, on: Left },
    /// A data thread cannot continue.
    #[error("data thread failed: {0}")]
    Lane(#[from] LaneError),
}

impl RunError {
    pub(super) fn code(&self) -> ExitCode {
        match self {
            Self::Died(_) => ExitCode::MemberDied,
            Self::SchedulerLost(_) => ExitCode::SchedulerUnreachable,
            Self::Refused(reason) => code_of_refusal(reason),
            Self::Deposed { .. } => ExitCode::Refused,
            Self::NotDrained { .. } => ExitCode::Deadline,
            Self::Lane(LaneError::Unregistered(_) | LaneError::Copy(_)) => ExitCode::Transport,
            Self::Lane(
                LaneError::Fabric(FabricError::AddressSpace { .. })
                | LaneError::Storage(StorageError::Fabric(FabricError::AddressSpace { .. })),
            ) => ExitCode::Transport,
            Self::Lane(_) => ExitCode::Internal,
        }
    }
}

/// See the module.
pub(super) struct Serving<'a> {
    pub(super) member: SharedMember,
    pub(super) link: SchedulerLink,
    pub(super) reception: Arc<Reception>,
    pub(super) peers: watch::Sender<Option<Peers>>,
    pub(super) board: Board,
    pub(super) lane_failures: mpsc::Receiver<LaneError>,
    pub(super) posts: &'a Posts,
    pub(super) standing: Standing,
    pub(super) work: Work,
    pub(super) flight: Flight,
}

/// What is under way.
pub(super) struct Work {
    done: mpsc::UnboundedSender<Done>,
    /// As many as there are answers of lanes and dials under way.
    ended: mpsc::UnboundedReceiver<Done>,
    dials: HashMap<Rank, JoinHandle<()>>,
    saver: Saver,
    /// Of what lanes read before they answer.
    read: Progress,
    /// Reports that could not be sent to the scheduler yet. As many as it asked for, and a few.
    unsaid: VecDeque<ToScheduler>,
}

impl Work {
    pub(super) fn none(saver: Saver, read: Progress) -> Self {
        let (done, ended) = mpsc::unbounded_channel();
        Self { done, ended, dials: HashMap::new(), saver, read, unsaid: VecDeque::new() }
    }
}

enum End {
    Orderly(String),
    Failed(RunError),
}

impl Serving<'_> {
    /// Serves until the job ends, something fails, or somebody asks it to go.
    pub(super) async fn until_end(
        mut self,
        shutdown: &mut Shutdown,
        deadlines: &DeadlineSettings,
    ) -> anyhow::Result<()> {
        let end = tokio::select! {
            end = self.event() => end,
            reason = shutdown.wait() => self.go(reason, deadlines).await,
        };
        self.work.dials.drain().for_each(|(_, dial)| dial.abort());
        let drain = Duration::from_millis(deadlines.drain_ms);
        let (last, result) = match end {
            End::Orderly(reason) => {
                tracing::info!(reason, "leaving");
                (Some(ToScheduler::Goodbye), Ok(()))
            }
            End::Failed(error) => {
                let last = match &error {
                    RunError::Lane(_) => Some(ToScheduler::Failing { reason: error.to_string() }),
                    RunError::NotDrained { .. } => Some(ToScheduler::Goodbye),
                    _ => None,
                };
                (last, Err(Failure::new(error.code(), error).into()))
            }
        };
        if let Some(last) = last
            && let Err(error) = self.link.finish(&last, drain).await
        {
            tracing::debug!(%error, "cannot notify the scheduler that this server leaves");
        }
        result
    }

    /// Somebody has asked this server to go: with all others, or alone. Then others take over what it has, if they can.
    async fn go(&mut self, reason: String, deadlines: &DeadlineSettings) -> End {
        let together = Duration::from_millis(TOGETHER_MS);
        match tokio::time::timeout(together, self.event()).await {
            Ok(End::Orderly(word)) => return End::Orderly(format!("{reason}; {word}")),
            // We were asked to go before the others' trouble began: it is not ours to report.
            Ok(End::Failed(_)) => return End::Orderly(reason),
            Err(_) => {}
        }
        let mut out = Vec::new();
        if !lock(&self.member).drain(&mut out) {
            return End::Orderly(reason);
        }
        tracing::info!(reason, "draining: other servers take over the chunks of this server");
        if let Some(end) = self.execute(out) {
            return end;
        }
        let (member, every_ms) = (self.member.clone(), deadlines.operation_ms);
        let left = || lock(&member).chunks_left();
        let warn = || {
            let on = lock(&member).left();
            tracing::warn!(chunks = left(), waited_ms = every_ms, %on, "draining makes no progress");
        };
        match while_chunks_leave(self.event(), Duration::from_millis(every_ms), left, warn).await {
            Some(End::Orderly(word)) => End::Orderly(format!("{reason}; {word}")),
            Some(failed) => failed,
            None => {
                let (waited_ms, on) = (u64::from(LOOKS_MAX) * every_ms, lock(&member).left());
                End::Failed(RunError::NotDrained { chunks: left(), waited_ms, on })
            }
        }
    }

    /// Serves until something ends it. Cancel-safe: what was taken is executed.
    async fn event(&mut self) -> End {
        loop {
            let sender = self.link.sender();
            let end = tokio::select! {
                () = self.board.written() => self.news(),
                Some(done) = self.work.ended.recv() => self.done(done),
                Some(news) = self.work.saver.news() => {
                    self.work.unsaid.push_back(ToScheduler::Checkpoint(news));
                    None
                }
                event = self.link.events.recv() => self.heard(event),
                Some(error) = self.lane_failures.recv() => Some(End::Failed(error.into())),
                said = sender.send_next(self.work.unsaid.front()), if !self.work.unsaid.is_empty() => {
                    // A lost link reports itself as an event.
                    let unsaid = self.work.unsaid.pop_front();
                    if let Err(error) = said {
                        self.unsaid(unsaid, &error);
                    }
                    None
                }
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// A word was not sent. One that is too large for a frame is never: the scheduler must not wait for it.
    fn unsaid(&mut self, word: Option<ToScheduler>, error: &LinkError) {
        tracing::warn!(%error, "cannot send a message to the scheduler");
        if let (Some(ToScheduler::Checkpoint(CheckpointNews::Part(part))), LinkError::Message(_)) =
            (word, error)
        {
            let reason = format!("lane {} has more ranges than fit into one message: {error}", part.lane);
            let failed = CheckpointNews::Failed { round: part.round, reason };
            self.work.unsaid.push_front(ToScheduler::Checkpoint(failed));
        }
    }

    fn heard(&mut self, event: Option<LinkEvent>) -> Option<End> {
        let lost = |why: String| Some(End::Failed(RunError::SchedulerLost(why)));
        match event {
            Some(LinkEvent::Message(message)) => {
                let message = self.posts.heard(message)?;
                self.message(message)
            }
            Some(LinkEvent::Away { since, why }) => {
                tracing::warn!(error = %why, "lost the scheduler; continuing without it");
                self.flight.note("away", format!("no scheduler: {why}"));
                self.standing.set_away(Some(since));
                None
            }
            Some(LinkEvent::Back(welcome)) => {
                tracing::info!(epoch = %welcome.epoch, "scheduler reconnected");
                self.flight.note("back", format!("scheduler reconnected, epoch {}", welcome.epoch));
                self.standing.set_away(None);
                self.posts.back();
                let mut out = Vec::new();
                lock(&self.member).back(&mut out);
                self.execute(out)
            }
            Some(LinkEvent::Lost(error)) => lost(error.to_string()),
            None => lost("the scheduler is lost: its link ended".into()),
        }
    }

    fn message(&mut self, message: FromScheduler) -> Option<End> {
        self.flight.told(&message);
        match &message {
            FromScheduler::Checkpoint(order) => {
                self.checkpoint(order);
                return None;
            }
            FromScheduler::Assign(update) => self.work.saver.tensors(update.tensors.clone()),
            _ => {}
        }
        let mut out = Vec::new();
        let next = {
            let mut member = lock(&self.member);
            member.heard(message, &mut out);
            member.peers()
        };
        let (mut answers, reception) = (Vec::new(), &self.reception);
        // Lanes hear all of it before hellos are judged by it, and no channel comes to them in between.
        self.peers.send_if_modified(|peers| {
            answers.extend(out.iter().filter_map(|command| pass_to_lanes(reception, command)));
            let is_new = *peers != next;
            *peers = next;
            is_new
        });
        for (number, answers) in answers {
            self.await_lanes(number, answers);
        }
        self.execute(out)
    }

    fn checkpoint(&self, order: &CheckpointOrder) {
        if let CheckpointOrder::Save { round, .. } = order {
            self.work.saver.save(*round);
        }
        self.reception.send_to_all(|| LaneMessage::Checkpoint(order.clone()));
        if let CheckpointOrder::Drop { round } = order {
            self.work.saver.drop_part(*round);
        }
    }

    fn news(&mut self) -> Option<End> {
        let mut out = Vec::new();
        for news in self.board.take() {
            match news {
                LaneNews::Seeded { lane, to, epoch } => {
                    lock(&self.member).seeded(lane, to, epoch, &mut out);
                }
                LaneNews::StreamDown { lane, to, number } => {
                    tracing::warn!(lane, server = to.0, "replication stream to a server ended");
                    self.flight.note("stream down", format!("lane {lane} to server {to}"));
                    self.standing.stream_down(to, number);
                    lock(&self.member).stream_down(to, number, &mut out);
                }
            }
        }
        self.execute(out)
    }

    fn done(&mut self, done: Done) -> Option<End> {
        // What lanes said before they answered comes first.
        let end = self.news();
        let mut out = Vec::new();
        match done {
            Done::Lanes { number, result } => {
                if let Err(NotTaken { reason, .. }) = &result {
                    tracing::error!(
                        reason,
                        "this server cannot take the chunks that the shard map assigns to it"
                    );
                }
                lock(&self.member).lanes_answered(number, result, &mut out);
            }
            Done::Rounds { rank, incarnation, lanes: Ok(lanes) } => {
                lock(&self.member).rounds_answered(rank, incarnation, lanes, &mut out);
            }
            Done::Rounds { rank, incarnation, lanes: Err(reason) } => {
                tracing::error!(
                    worker = rank.0,
                    reason,
                    "asking again from which round on a worker can contribute"
                );
                self.ask_rounds(rank, incarnation);
            }
            Done::Dialled { number, to, result } => {
                match &result {
                    Ok(choice) => {
                        tracing::info!(server = to.0, driver = %choice.driver, why = choice.why, "stream ready");
                    }
                    Err(reason) => {
                        tracing::warn!(
                            server = to.0,
                            reason,
                            "cannot open the replication stream to a server"
                        );
                    }
                }
                let is_up = result.is_ok();
                self.standing.dialled(to, number, result);
                lock(&self.member).dialled(number, is_up, &mut out);
            }
        }
        end.or(self.execute(out))
    }

    /// Executes what the member decided.
    fn execute(&mut self, commands: Vec<MemberCommand>) -> Option<End> {
        let mut end = None;
        for command in commands {
            match command {
                MemberCommand::Say(message) => {
                    if let ToScheduler::Seeded { epoch, to } = &message {
                        tracing::info!(server = to.0, %epoch, "the replicas at a server are complete");
                    }
                    self.work.unsaid.push_back(message);
                }
                MemberCommand::Dial { number, to, incarnation, address, epoch, after_ms } => {
                    let after = Duration::from_millis(after_ms);
                    self.dial(Target { number, to, incarnation, address, epoch, after });
                }
                MemberCommand::HangUp { to } => {
                    self.work.dials.remove(&to).into_iter().for_each(|dial| dial.abort());
                    self.standing.hang_up(to);
                    self.reception.send_to_all(|| LaneMessage::EndStream { to });
                }
                MemberCommand::AskRounds { rank, incarnation } => self.ask_rounds(rank, incarnation),
                MemberCommand::EndServer { rank } => {
                    tracing::info!(server = rank.0, "server process has ended: closed its channels");
                    self.standing.hang_up(rank);
                }
                MemberCommand::Roles { epoch, .. } => {
                    let Holdings { served, copies, arriving, .. } = lock(&self.member).holdings();
                    let (served, copies, arriving) = (served.chunks, copies.chunks, arriving.chunks);
                    tracing::info!(%epoch, served, copies, arriving, "chunks of this server");
                }
                MemberCommand::Leave(departure) => end = end.or(Some(end_of(departure))),
                MemberCommand::Assign { .. }
                | MemberCommand::ChangeRule { .. }
                | MemberCommand::Workers { .. }
                | MemberCommand::CountFrom { .. } => {}
            }
        }
        end
    }

    fn dial(&mut self, target: Target) {
        let (reception, done) = (self.reception.clone(), self.work.done.clone());
        let (number, to) = (target.number, target.to);
        self.standing.dialling(to, number);
        let task = tokio::spawn(async move {
            let result = dial(reception, target).await;
            // Nobody listens where the server has ended.
            let _ = done.send(Done::Dialled { number, to, result });
        });
        if let Some(before) = self.work.dials.insert(to, task) {
            before.abort();
        }
    }

    fn ask_rounds(&self, rank: Rank, incarnation: Incarnation) {
        let answers = self.reception.ask(|_, reply| LaneMessage::AskRounds { rank, incarnation, reply });
        let done = self.work.done.clone();
        tokio::spawn(async move {
            let lanes = blocking(move || answers_of(answers, ASSIGN_WITHIN)).await;
            let _ = done.send(Done::Rounds { rank, incarnation, lanes });
        });
    }

    fn await_lanes(&self, number: u64, answers: Vec<oneshot::Receiver<Result<(), NotTaken>>>) {
        let (done, progress) = (self.work.done.clone(), self.work.read.clone());
        tokio::spawn(async move {
            let answered = move || answers_while(answers, ASSIGN_WITHIN, || progress.read());
            let answers = blocking(answered).await.map_err(NotTaken::from);
            let result = answers.and_then(|answers| answers.into_iter().collect());
            let _ = done.send(Done::Lanes { number, result });
        });
    }
}

type Answers = (u64, Vec<oneshot::Receiver<Result<(), NotTaken>>>);

/// Passes a command's parts to the lanes. Returns the receivers of their answers, if they answer.
fn pass_to_lanes(reception: &Reception, command: &MemberCommand) -> Option<Answers> {
    match command {
        MemberCommand::Assign { number, epoch, lanes } => {
            let specs = |index: usize| lanes.get(index).cloned().unwrap_or_default();
            let assign = |index, reply| LaneMessage::Assign { epoch: *epoch, specs: specs(index), reply };
            Some((*number, reception.ask(assign)))
        }
        MemberCommand::Roles { number, epoch, lanes } => {
            let chunks = |index: usize| lanes.get(index).cloned().unwrap_or_default();
            let roles = |index, reply| LaneMessage::Roles { epoch: *epoch, chunks: chunks(index), reply };
            Some((*number, reception.ask(roles)))
        }
        // All are told, also where one refuses: a change that is asked for again is to find them as alike as they can be.
        MemberCommand::ChangeRule { number, change } => {
            Some((*number, reception.ask(|_, reply| LaneMessage::ChangeRule { change: *change, reply })))
        }
        MemberCommand::EndServer { rank } => {
            reception.send_to_all(|| LaneMessage::EndServer { rank: *rank });
            None
        }
        MemberCommand::Workers { epoch, present, left } => {
            let (epoch, present, left): (_, Arc<[_]>, Arc<[_]>) =
                (*epoch, present[..].into(), left[..].into());
            reception.send_to_all(|| LaneMessage::Workers {
                epoch,
                present: present.clone(),
                left: left.clone(),
            });
            None
        }
        MemberCommand::CountFrom { rank, incarnation, rounds } => {
            let (rank, incarnation, rounds): (_, _, Arc<[_]>) = (*rank, *incarnation, rounds[..].into());
            reception.send_to_all(|| LaneMessage::CountFrom { rank, incarnation, rounds: rounds.clone() });
            None
        }
        MemberCommand::Dial { .. }
        | MemberCommand::HangUp { .. }
        | MemberCommand::AskRounds { .. }
        | MemberCommand::Say(_)
        | MemberCommand::Leave(_) => None,
    }
}

fn end_of(departure: Departure) -> End {
    match departure {
        Departure::Over { reason } => End::Orderly(reason),
        Departure::Drained => End::Orderly("other servers have taken over all chunks of this server".into()),
        Departure::Died(death) => End::Failed(RunError::Died(death)),
        Departure::Refused(reason) => End::Failed(RunError::Refused(reason)),
        Departure::Deposed { epoch } => End::Failed(RunError::Deposed { epoch }),
    }
}
