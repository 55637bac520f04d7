//! A server's life: register, hold shards, take workers' connections, end in order.

use super::HandlerNews;
use super::bootstrap::{Reception, Tries, Workers, receive};
use super::lane::{DataLane, LaneConfig, LaneError};
use super::status::{ServerMetrics, collect, report};
use super::thread::{LaneMessage, spawn_lane};
use crate::app::Apps;
use crate::engine::{ChunkSpec, EngineConfig};
use daemon::control::{LinkEvent, SchedulerLink, code_of_refusal};
use daemon::exit::Failure;
use daemon::http::{self, HttpState};
use daemon::post::Posts;
use daemon::shutdown::{Shutdown, TOGETHER_MS};
use fabric::{CqHandle, Devices, Mailbox};
use proto_common::config::{Settings, WorkerLoss};
use proto_common::error::{Death, ExitCode};
use proto_common::footprint::{self, Limit};
use proto_common::ids::{Incarnation, Lane, Rank, Role};
use proto_common::limits::{PROTOCOL_VERSION, RESULT_SLOT_BYTES};
use proto_common::message::{
    ClusterShape, FromScheduler, Member, MemberReport, RefusalReason, Register, ToScheduler, Welcome,
};
use proto_common::shard_map::{MapUpdate, ShardMap};
use proto_common::tensor::RuleChange;
use proto_common::transport::Driver;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

/// Unfinished requests one channel may have.
const SEND_DEPTH: usize = 4096;
/// Connections that may be between hello and ready at once; more wait in the listener's backlog.
const HANDSHAKES_MAX: usize = 256;
/// How long allocating and touching new chunks may take.
const ASSIGN_WITHIN: Duration = Duration::from_secs(60);

/// Why a server ended before its time.
#[derive(Debug, Error)]
pub enum RunError {
    /// A member died; nobody can go on without it yet.
    #[error("{0}")]
    Died(Death),
    /// The scheduler is gone.
    #[error("{0}")]
    SchedulerLost(String),
    /// The scheduler has no use for us any more: the job never became complete.
    #[error("the scheduler refused this server: {0}")]
    Refused(RefusalReason),
    /// A data thread cannot go on.
    #[error("data thread failed: {0}")]
    Lane(#[from] LaneError),
}

impl RunError {
    fn code(&self) -> ExitCode {
        match self {
            Self::Died(_) => ExitCode::MemberDied,
            Self::SchedulerLost(_) => ExitCode::SchedulerUnreachable,
            Self::Refused(reason) => code_of_refusal(reason),
            Self::Lane(LaneError::Unregistered(_)) => ExitCode::Transport,
            Self::Lane(_) => ExitCode::Internal,
        }
    }
}

struct Lanes {
    mailboxes: Vec<Mailbox<LaneMessage>>,
    queues: Vec<CqHandle>,
    threads: Vec<JoinHandle<()>>,
}

/// Runs a server on a bound bootstrap listener until the job ends, a member dies, or `shutdown` fires.
pub async fn run(
    listener: TcpListener,
    http: Option<TcpListener>,
    settings: Settings,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    run_with(listener, http, settings, shutdown, (Apps::default(), Posts::start()?, |_, _| {})).await
}

/// As [`run`], with handlers for workers' calls, and somebody to tell rank and shape to.
pub(super) async fn run_with(
    listener: TcpListener,
    http: Option<TcpListener>,
    settings: Settings,
    mut shutdown: Shutdown,
    (apps, posts, tell): (Apps, Posts, impl FnOnce(Rank, ClusterShape)),
) -> anyhow::Result<()> {
    let incarnation = daemon::host::new_incarnation()?;
    let late: Arc<OnceLock<(Rank, Vec<Mailbox<LaneMessage>>)>> = Arc::default();
    let for_report = late.clone();
    let heartbeat = move || {
        for_report.get().map_or_else(MemberReport::default, |(rank, lanes)| report(&collect(*rank, lanes)))
    };
    let (mut devices, missing) = daemon::devices::open(&settings)?;
    let register = register(&settings, incarnation, missing, &listener, http.as_ref())?;
    let mut offer = register.offer.clone();
    let connected = tokio::select! {
        connected = SchedulerLink::connect(&settings, register, heartbeat, || None) => connected,
        reason = shutdown.wait() => {
            tracing::info!(reason, "leaving before the scheduler has answered");
            return Ok(());
        }
    };
    let (link, welcome) = connected.map_err(|error| {
        let code = error.exit_code();
        Failure::new(code, error)
    })?;
    let (failed, lane_failures) = mpsc::channel(1);
    daemon::devices::settle(&settings, &mut devices, &mut offer, welcome.shape.lanes)?;
    let lanes = start_lanes(&settings, (incarnation, &apps), &welcome, &devices, &failed)?;
    posts.attach_link(link.sender());
    tell(welcome.rank, welcome.shape);
    // Set once: this function runs once for this cell.
    let _ = late.set((welcome.rank, lanes.mailboxes.clone()));
    let (workers, known) = watch::channel(None);
    if let Some(http) = http {
        serve_http(http, welcome.rank, (&lanes, &devices), known.clone(), shutdown.clone())?;
    }
    let reception = Arc::new(Reception {
        job: welcome.job,
        incarnation,
        offer,
        lanes: lanes.mailboxes.iter().cloned().zip(lanes.queues.iter().cloned()).collect(),
        devices,
        workers: known,
        handshake: Duration::from_millis(settings.deadlines.handshake_ms),
        connect: Duration::from_millis(settings.deadlines.connect_ms),
        tries: Tries::default(),
    });
    tracing::info!(rank = welcome.rank.0, lanes = welcome.shape.lanes, "server registered");
    let accepting = tokio::spawn(accept(listener, reception));
    let serving = Serving { welcome, link, lanes: &lanes, workers, lane_failures, posts: &posts };
    let ended = serving.until_end(&mut shutdown, Duration::from_millis(settings.deadlines.drain_ms)).await;
    accepting.abort();
    posts.lose("the server has left the job");
    stop(lanes);
    // What failed before is the reason; else it is that a handler of the program's is left behind.
    let returned = apps.end().map_err(|stuck| Failure::new(ExitCode::Deadline, stuck));
    ended.and(returned.map_err(Into::into))
}

fn register(
    settings: &Settings,
    incarnation: Incarnation,
    missing: Vec<(Driver, String)>,
    listener: &TcpListener,
    http: Option<&TcpListener>,
) -> anyhow::Result<Register> {
    let port = listener.local_addr()?.port();
    let host = daemon::devices::advertised(settings);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(Register {
        protocol: PROTOCOL_VERSION,
        build: env!("CARGO_PKG_VERSION").into(),
        job: settings.job,
        role: Role::Server,
        incarnation,
        wanted_rank: settings.node.rank.map(Rank),
        data_address: Some(format!("{host}:{port}")),
        http_address: http::address_of(http),
        pid: std::process::id(),
        offer: daemon::host::offer(settings.transport, missing)?,
        resume: None,
    })
}

fn start_lanes(
    settings: &Settings,
    (incarnation, apps): (Incarnation, &Apps),
    welcome: &Welcome,
    devices: &Devices,
    failed: &mpsc::Sender<LaneError>,
) -> anyhow::Result<Lanes> {
    let shape = welcome.shape;
    let mut lanes = Lanes { mailboxes: Vec::new(), queues: Vec::new(), threads: Vec::new() };
    let inbox_slots = inbox_slots(settings, &shape, devices);
    for index in 0..shape.lanes {
        let queue = devices.lane(SEND_DEPTH)?;
        lanes.queues.push(queue.handle());
        let engine = EngineConfig {
            job: welcome.job,
            incarnation,
            lane: Lane(index),
            workers: shape.workers,
            deterministic: shape.deterministic,
            inbox_slots,
            result_slot_bytes: RESULT_SLOT_BYTES,
            spill_blocks: footprint::spill_blocks(&settings.memory, shape.chunk_bytes),
            keep_previous: shape.worker_loss == WorkerLoss::Wait,
            worker_loss: shape.worker_loss,
        };
        let mut lane =
            DataLane::new(queue, LaneConfig { engine, rank: welcome.rank, chunk_bytes: shape.chunk_bytes })?;
        lane.limit_calls(settings.memory.call_bytes)?;
        if devices.verbs.is_some() {
            lane.register_replies();
        }
        lane.limit_tables(table_bytes(settings, &shape));
        let failed = failed.clone();
        let spin = Duration::from_micros(settings.memory.spin_us);
        // One place is enough: the first failure ends the server.
        let (mailbox, thread) =
            spawn_lane(lane, index, (spin, apps.clone()), move |error| drop(failed.try_send(error)), |_| {})?;
        lanes.mailboxes.push(mailbox);
        lanes.threads.push(thread);
    }
    let spin = Duration::from_micros(settings.memory.spin_us);
    let drain = Duration::from_millis(settings.deadlines.drain_ms);
    apps.attach(lanes.mailboxes.iter().cloned().map(HandlerNews).collect(), (spin, drain));
    Ok(lanes)
}

/// Bytes that a lane's sparse tables may take: as set, or its share of half of the memory that there is.
fn table_bytes(settings: &Settings, shape: &ClusterShape) -> u64 {
    match settings.memory.table_bytes {
        0 => fabric::memory_bytes() / 2 / u64::from(shape.lanes.max(1)),
        bytes => bytes,
    }
}

/// As many slots as are set, or as may be registered with a RDMA device beside everything else.
fn inbox_slots(settings: &Settings, shape: &ClusterShape, devices: &Devices) -> u32 {
    let (memory, wanted) = (&settings.memory, settings.memory.inbox_slots);
    if devices.verbs.is_none() {
        return wanted;
    }
    let limit = Limit::of(memory, fabric::memlock::limit_bytes());
    let slots =
        footprint::inbox_slots(memory, (shape.lanes, shape.chunk_bytes), fabric::VERBS_QUEUE_BYTES, limit);
    if slots < wanted {
        let (why, kib) = (lowered_by(limit), limit.bytes() / 1024);
        tracing::warn!(
            "memory.inbox_slots is lowered from {wanted} to {slots}, because this process may {} {kib} KiB only; {}",
            why.0,
            why.1
        );
    }
    slots
}

/// What a limit keeps a process from, and what lifts it.
fn lowered_by(limit: Limit) -> (&'static str, &'static str) {
    match limit {
        Limit::Pinned(_) => ("pin", fabric::memlock::FIX),
        Limit::Registered(_) => ("register", "raise memory.registered_bytes"),
    }
}

fn serve_http(
    listener: TcpListener,
    rank: Rank,
    (lanes, devices): (&Lanes, &Devices),
    known: watch::Receiver<Option<Workers>>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let registry = daemon::metrics::registry(Role::Server)?;
    registry.register(Box::new(ServerMetrics::new(rank, lanes.mailboxes.clone())?))?;
    daemon::metrics::add_devices(&registry, devices)?;
    let ready = move || match known.borrow().is_some() {
        true => Ok(()),
        false => Err("waiting for the scheduler to announce the roster".to_owned()),
    };
    let mailboxes = lanes.mailboxes.clone();
    let status = move || serde_json::to_value(collect(rank, &mailboxes)).unwrap_or_default();
    http::spawn(listener, HttpState::new(registry, ready, status), shutdown);
    Ok(())
}

async fn accept(listener: TcpListener, reception: Arc<Reception>) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    // The semaphore is never closed, so acquiring cannot fail.
    while let Ok(place) = places.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let reception = reception.clone();
                tokio::spawn(async move {
                    match receive(reception, stream).await {
                        Ok((rank, driver, carriers)) => {
                            tracing::info!(worker = rank.0, %driver, carriers, "data path ready");
                        }
                        Err(reason) => {
                            tracing::warn!(%peer, reason, "a connection to the data plane was refused");
                        }
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: waiting for connections to end is all that helps.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn stop(lanes: Lanes) {
    for mailbox in &lanes.mailboxes {
        mailbox.send(LaneMessage::Stop);
    }
    for thread in lanes.threads {
        if thread.join().is_err() {
            tracing::error!("a data thread panicked");
        }
    }
}

struct Serving<'a> {
    welcome: Welcome,
    link: SchedulerLink,
    lanes: &'a Lanes,
    workers: watch::Sender<Option<Workers>>,
    lane_failures: mpsc::Receiver<LaneError>,
    posts: &'a Posts,
}

enum End {
    Orderly(String),
    Failed(RunError),
}

impl Serving<'_> {
    async fn until_end(mut self, shutdown: &mut Shutdown, drain: Duration) -> anyhow::Result<()> {
        let end = tokio::select! {
            end = self.event() => end,
            reason = shutdown.wait() => {
                let together = Duration::from_millis(TOGETHER_MS);
                match tokio::time::timeout(together, self.event()).await {
                    Ok(End::Orderly(word)) => End::Orderly(format!("{reason}; {word}")),
                    // We were asked to go before the others' trouble began: it is not ours to report.
                    Ok(End::Failed(_)) | Err(_) => End::Orderly(reason),
                }
            }
        };
        match end {
            End::Orderly(reason) => {
                tracing::info!(reason, "leaving");
                if let Err(error) = self.link.finish(&ToScheduler::Goodbye, drain).await {
                    tracing::debug!(%error, "saying goodbye");
                }
                Ok(())
            }
            End::Failed(error) => {
                if matches!(error, RunError::Lane(_)) {
                    let last = ToScheduler::Failing { reason: error.to_string() };
                    if let Err(error) = self.link.finish(&last, drain).await {
                        tracing::debug!(%error, "telling the scheduler of our failure");
                    }
                }
                Err(Failure::new(error.code(), error).into())
            }
        }
    }

    /// Serves until something ends it.
    async fn event(&mut self) -> End {
        loop {
            tokio::select! {
                event = self.link.events.recv() => match event {
                    Some(LinkEvent::Message(message)) => {
                        let Some(message) = self.posts.heard(message) else { continue };
                        if let Some(end) = self.message(message).await {
                            return end;
                        }
                    }
                    Some(LinkEvent::Away { .. } | LinkEvent::Back(_)) => {}
                    Some(LinkEvent::Lost(error)) => return End::Failed(RunError::SchedulerLost(error.to_string())),
                    None => return End::Failed(RunError::SchedulerLost("the scheduler is lost: its link ended".into())),
                },
                Some(error) = self.lane_failures.recv() => return End::Failed(error.into()),
            }
        }
    }

    async fn message(&mut self, message: FromScheduler) -> Option<End> {
        match message {
            FromScheduler::Roster { members, .. } => {
                let workers = members.iter().filter(|member| member.id.role == Role::Worker);
                let workers = workers.map(|member: &Member| (member.id.rank, member.incarnation)).collect();
                self.workers.send_replace(Some(workers));
                None
            }
            FromScheduler::Assign(update) => {
                let epoch = update.epoch;
                let error = self.assign(&update).await.err();
                let answer = ToScheduler::Assigned { epoch, error };
                // A lost link reports itself as an event.
                let _ = self.link.sender().send(&answer).await;
                None
            }
            FromScheduler::ChangeRule { epoch, change } => {
                let error = self.change_rule(change).await.err();
                // As above.
                let _ = self.link.sender().send(&ToScheduler::Assigned { epoch, error }).await;
                None
            }
            FromScheduler::MemberDied(death) => Some(End::Failed(RunError::Died(death))),
            FromScheduler::Refused(reason) => Some(End::Failed(RunError::Refused(reason))),
            FromScheduler::Shutdown { reason } => Some(End::Orderly(reason)),
            _ => None,
        }
    }

    /// Tells every lane of a tensor's new rule, and then what the first one that refused had against it: a change that
    /// is asked for again is to find the lanes as alike as they can be.
    async fn change_rule(&self, change: RuleChange) -> Result<(), String> {
        let mut result = Ok(());
        for mailbox in &self.lanes.mailboxes {
            let mailbox = mailbox.clone();
            let ask = move || mailbox.ask(ASSIGN_WITHIN, |reply| LaneMessage::ChangeRule { change, reply });
            let answer = match tokio::task::spawn_blocking(ask).await {
                Ok(answer) => answer.unwrap_or_else(|| Err("a data thread does not answer".to_owned())),
                Err(error) => Err(error.to_string()),
            };
            result = result.and(answer);
        }
        result
    }

    /// Gives each lane its chunks of an update.
    async fn assign(&self, update: &MapUpdate) -> Result<(), String> {
        let shape = self.welcome.shape;
        let mut lanes: Vec<Vec<ChunkSpec>> = vec![Vec::new(); usize::from(shape.lanes)];
        let mut map = ShardMap::new(shape.chunk_bytes, shape.lanes);
        map.apply(update).map_err(|error| error.to_string())?;
        for spec in &update.tensors {
            let mine = map.placed_chunks(spec.key).filter(|(_, server)| *server == self.welcome.rank);
            for (span, _) in mine {
                lanes[usize::from(map.lane_of(span.id).0)].push(ChunkSpec::of(spec, &span));
            }
        }
        let epoch = update.epoch;
        for (mailbox, specs) in self.lanes.mailboxes.iter().cloned().zip(lanes) {
            let ask = move || mailbox.ask(ASSIGN_WITHIN, |reply| LaneMessage::Assign { epoch, specs, reply });
            let answer = tokio::task::spawn_blocking(ask).await.map_err(|error| error.to_string())?;
            answer.ok_or_else(|| "a data thread does not answer".to_owned())??;
        }
        Ok(())
    }
}
