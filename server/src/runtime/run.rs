//! A server's life: register, hold shards, take workers' connections, end in order.

use super::HandlerNews;
use super::bootstrap::{Received, Reception, Tries, receive};
use super::error::LaneError;
use super::journals;
use super::lane::{DataLane, LaneConfig};
use super::message::LaneMessage;
use super::news::Board;
use super::serving::{Serving, SharedMember, Work, lock};
use super::standing::Standing;
use super::status::{Sources, collect, metrics, report};
use super::thread::spawn_lane;
use crate::app::Apps;
use crate::checkpoint::{Progress, Restorer, Saver};
use crate::engine::EngineConfig;
use crate::engine::member::{Member, MemberConfig, Peers};
use crate::journal::Books;
use crate::program::Program;
use crate::space::Space;
use daemon::Later;
use daemon::control::{STRANGERS_MAX, SchedulerLink, patience};
use daemon::exit::Failure;
use daemon::flight::Flight;
use daemon::http::{self, HttpState};
use daemon::notify::{Notify, Pulse};
use daemon::port::PortWatch;
use daemon::post::Posts;
use daemon::security::Security;
use daemon::seldom::Seldom;
use daemon::shutdown::Shutdown;
use fabric::{CqHandle, Devices, Mailbox, oneshot};
use proto_common::config::{DeadlineSettings, Settings};
use proto_common::error::ExitCode;
use proto_common::footprint::{self, Limit};
use proto_common::ids::{Incarnation, Lane, Rank, Role};
use proto_common::limits::{CARRIED_BYTES_MAX, PROTOCOL_VERSION, slot_bytes_for};
use proto_common::message::{ClusterShape, Coming, MemberReport, Register, Resume, Welcome};
use proto_common::transport::{Driver, Offer};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

/// Unfinished requests one channel may have.
const SEND_DEPTH: usize = 4096;
/// Connections that may be on their way to ready at once, members' and strangers'; more wait in the listener's backlog.
const HANDSHAKES_MAX: usize = STRANGERS_MAX;

/// The lanes, once there are some.
type Late = Arc<OnceLock<Sources>>;

struct Lanes {
    mailboxes: Vec<Mailbox<LaneMessage>>,
    queues: Vec<CqHandle>,
    threads: Vec<JoinHandle<()>>,
}

/// Runs a server on a bound bootstrap listener until the job ends, a member fails, or `shutdown` fires. `tell` gets the scheduler's welcome.
pub fn run(
    listener: TcpListener,
    http: Option<TcpListener>,
    settings: Settings,
    (program, tell): (Program, impl FnOnce(&Welcome) + Send + 'static),
    shutdown: Shutdown,
    (notify, flight): (Notify, Flight),
) -> Later<'static, anyhow::Result<()>> {
    let scheduler = &settings.scheduler;
    notify.status(&format!("looking for the scheduler at {}:{}", scheduler.host, scheduler.port));
    Box::pin(async {
        let program = (program, Posts::start()?, tell);
        run_with(listener, http, settings, shutdown, program, (notify, flight)).await
    })
}

/// As [`run`], with handlers for workers' calls and own update rules, and a callback that gets the scheduler's welcome.
pub(super) async fn run_with(
    listener: TcpListener,
    http: Option<TcpListener>,
    settings: Settings,
    mut shutdown: Shutdown,
    (program, posts, tell): (Program, Posts, impl FnOnce(&Welcome)),
    (notify, flight): (Notify, Flight),
) -> anyhow::Result<()> {
    let incarnation = daemon::host::new_incarnation()?;
    let security = Security::open(&settings, Some(Role::Server))?;
    let late = Late::default();
    let for_report = late.clone();
    let report_of = |sources: &Sources| report(&collect(sources), sources.port.lately());
    let heartbeat = move || for_report.get().map_or_else(MemberReport::default, report_of);
    let (mut devices, missing) = daemon::devices::open(&settings)?;
    let mut register = register(&settings, incarnation, missing, &listener, http.as_ref())?;
    register.rules = program.rules.kinds();
    let mut offer = register.offer.clone();
    let member: Arc<OnceLock<SharedMember>> = Arc::default();
    let (known, passed) = (member.clone(), posts.passed().clone());
    let resume = move || {
        let mut member = lock(known.get()?);
        member.has_roster().then(|| Resume { barriers: passed.all(), ..member.resume() })
    };
    let connected = tokio::select! {
        connected = SchedulerLink::connect((&settings, &security), register, heartbeat, resume) => connected,
        reason = shutdown.wait() => {
            tracing::info!(reason, "leaving before the scheduler answered");
            return Ok(());
        }
    };
    let (link, welcome) = connected.map_err(|error| Failure::new(error.exit_code(), error))?;
    flight.joined(welcome.rank);
    let (failed, lane_failures) = mpsc::channel(1);
    daemon::devices::settle(&settings, &mut devices, &mut offer, welcome.shape.lanes)?;
    let board = Board::default();
    let saves = checkpoints(&settings, &welcome, incarnation, &late)?;
    let threads = (&failed, &board, &flight);
    let lanes = start_lanes(&settings, (incarnation, &program), &welcome, &devices, threads, &saves)?;
    posts.attach_link(link.sender());
    tell(&welcome);
    let (rank, shape) = (welcome.rank, welcome.shape);
    let config = MemberConfig { rank, incarnation, shape };
    let member = member.get_or_init(|| Arc::new(Mutex::new(Member::new(config)))).clone();
    let (peers, known) = watch::channel(None);
    let standing = Standing::default();
    let (mailboxes, port) = (lanes.mailboxes.clone(), PortWatch::new(&devices));
    let sources = Sources::new(rank, mailboxes, (member.clone(), standing.clone()), port, flight.clone());
    // Set once: this function runs once for this cell.
    let _ = late.set(sources.clone());
    if let Some(http) = http {
        let told = (&settings, &security, &flight);
        serve_http(http, told, sources.clone(), &devices, known.clone(), shutdown.clone())?;
    }
    let deadlines = settings.deadlines.clone();
    let own = (offer, devices, security);
    let reception = Arc::new(reception(&deadlines, &welcome, incarnation, own, &lanes, known));
    tracing::info!(rank = rank.0, lanes = shape.lanes, "server registered");
    let mut tasks = begin_tasks(listener, &reception, &program.apps, &welcome);
    let read = saves.1.as_ref().map(Restorer::progress).unwrap_or_default();
    tell_manager(notify, sources, read.clone());
    let (used, work) = (&posts, Work::none(saves.0, read));
    let serving =
        Serving { member, link, reception, peers, board, lane_failures, posts: used, standing, work, flight };
    let ended = serving.until_end(&mut shutdown, &deadlines).await;
    tasks.abort_all();
    posts.lose("the server has left the job");
    stop(lanes);
    // What failed before is the reason; else it is that a handler of the program's is left behind.
    let returned = program.apps.end().map_err(|stuck| Failure::new(ExitCode::Deadline, stuck));
    ended.and(returned.map_err(Into::into))
}

/// Takes connections, and writes the journals of this server's handlers, where the job keeps any.
fn begin_tasks(
    listener: TcpListener,
    reception: &Arc<Reception>,
    apps: &Apps,
    welcome: &Welcome,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(listener, reception.clone()));
    if welcome.shape.replicas == 0 {
        apps.desk().without();
    } else {
        let comes_again = welcome.coming == Coming::Again;
        tasks.spawn(journals::begin(reception.clone(), apps.desk(), comes_again));
    }
    tasks
}

/// What whoever says hello is measured by, and given.
fn reception(
    deadlines: &DeadlineSettings,
    welcome: &Welcome,
    incarnation: Incarnation,
    (offer, devices, security): (Offer, Devices, Security),
    lanes: &Lanes,
    peers: watch::Receiver<Option<Peers>>,
) -> Reception {
    Reception {
        job: welcome.job,
        rank: welcome.rank,
        incarnation,
        security,
        offer,
        lanes: lanes.mailboxes.iter().cloned().zip(lanes.queues.iter().cloned()).collect(),
        devices,
        peers,
        handshake: Duration::from_millis(deadlines.handshake_ms),
        connect: Duration::from_millis(deadlines.connect_ms),
        tries: Tries::default(),
        books: Arc::new(Mutex::new(Books::new(welcome.rank, fabric::memory_bytes() / 2))),
    }
}

fn register(
    settings: &Settings,
    incarnation: Incarnation,
    missing: Vec<(Driver, String)>,
    listener: &TcpListener,
    http: Option<&TcpListener>,
) -> anyhow::Result<Register> {
    let port = listener.local_addr()?.port();
    let advertised = daemon::devices::advertised(settings);
    let host = if advertised.contains(':') { format!("[{advertised}]") } else { advertised.clone() };
    Ok(Register {
        protocol: PROTOCOL_VERSION,
        build: env!("CARGO_PKG_VERSION").into(),
        job: settings.job,
        role: Role::Server,
        incarnation,
        wanted_rank: settings.node.rank.map(Rank),
        data_address: Some(format!("{host}:{port}")),
        http_address: daemon::targets::reachable(http, &advertised),
        host: daemon::host::name(),
        pid: std::process::id(),
        offer: daemon::host::offer(settings.transport, missing)?,
        rules: Vec::new(),
        resume: None,
    })
}

/// The thread that writes checkpoints, and the one that the job continues from.
fn checkpoints(
    settings: &Settings,
    welcome: &Welcome,
    incarnation: Incarnation,
    late: &Late,
) -> anyhow::Result<(Saver, Option<Restorer>)> {
    let (place, lanes) = (&settings.checkpoint.directory, late.clone());
    let has_room = move || {
        lanes.get().into_iter().flat_map(|sources| &sources.lanes).for_each(|lane| {
            lane.send(LaneMessage::SaveRoom);
        });
    };
    // The server refuses a place that this build cannot reach before training, and not at the first checkpoint.
    let store =
        Some(place).filter(|place| !place.is_empty()).map(|place| checkpoint::open_job(place, welcome.job.0));
    let store = store.transpose().map_err(|error| Failure::new(ExitCode::Config, error))?;
    let own = (welcome.rank, incarnation, welcome.shape.chunk_bytes);
    let drain = Duration::from_millis(settings.deadlines.drain_ms);
    let restore = welcome.restore.as_deref().and_then(|name| checkpoint::own_name(welcome.job.0, name));
    let saver =
        Saver::start(store, &settings.checkpoint, own, (drain, restore.map(str::to_owned)), has_room)?;
    let open = |name: &String| {
        if place.is_empty() {
            let text = format!(
                "the job starts from checkpoint {name}, but checkpoint.directory is not set at this server; set it to that of the scheduler"
            );
            return Err(Failure::message(ExitCode::Config, text));
        }
        Restorer::open(place, name, welcome.shape.lanes)
            .map_err(|error| Failure::new(ExitCode::BadData, error))
    };
    Ok((saver, welcome.restore.as_ref().map(open).transpose()?))
}

fn start_lanes(
    settings: &Settings,
    (incarnation, Program { apps, rules }): (Incarnation, &Program),
    welcome: &Welcome,
    devices: &Devices,
    (failed, board, flight): (&mpsc::Sender<LaneError>, &Board, &Flight),
    (saver, restorer): &(Saver, Option<Restorer>),
) -> anyhow::Result<Lanes> {
    let shape = welcome.shape;
    let mut lanes = Lanes { mailboxes: Vec::new(), queues: Vec::new(), threads: Vec::new() };
    let inbox_slots = inbox_slots(settings, &shape, devices);
    let spill_blocks = footprint::spill_blocks(&settings.memory, shape.chunk_bytes);
    let cells_bytes = u64::from(inbox_slots).saturating_mul(slot_bytes_for(shape.chunk_bytes));
    let spill_bytes = u64::from(spill_blocks).saturating_mul(shape.chunk_bytes);
    let space = Space::of_each(shape.lanes, cells_bytes.saturating_add(spill_bytes))?;
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
            spill_blocks,
            carried_bytes_max: CARRIED_BYTES_MAX,
            worker_loss: shape.worker_loss,
        };
        let config = LaneConfig { engine, rank: welcome.rank, chunk_bytes: shape.chunk_bytes, space };
        let mut lane = DataLane::new(queue, config)?;
        lane.limit_calls(settings.memory.call_bytes)?;
        if devices.register_memory() {
            lane.register_replies();
        }
        lane.limit_tables(table_bytes(settings, &shape));
        if shape.replicas > 0 && welcome.coming == Coming::Again {
            lane.take_over();
        }
        lane.set_checkpoints(saver.lane(index), restorer.clone());
        lane.set_flight(flight);
        lane.set_rules(rules.clone());
        let failed = failed.clone();
        let spin = Duration::from_micros(settings.memory.spin_us);
        // One place is enough: the first failure ends the server.
        let failed = move |error| drop(failed.try_send(error));
        let board = board.clone();
        let (mailbox, thread) =
            spawn_lane(lane, index, (spin, apps.clone()), failed, move |news| board.write(news))?;
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
    if !devices.register_memory() {
        return wanted;
    }
    let limit = Limit::of(memory, fabric::memlock::limit_bytes());
    let slots =
        footprint::inbox_slots(memory, (shape.lanes, shape.chunk_bytes), fabric::VERBS_QUEUE_BYTES, limit);
    if slots < wanted {
        let (why, kib) = (lowered_by(limit), limit.bytes() / 1024);
        tracing::warn!(
            "memory.inbox_slots is reduced from {wanted} to {slots}, because this process may only {} {kib} KiB; {}",
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
    (settings, security, flight): (&Settings, &Security, &Flight),
    sources: Sources,
    devices: &Devices,
    known: watch::Receiver<Option<Peers>>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let registry = daemon::metrics::registry(Role::Server)?;
    registry.register(Box::new(metrics(sources.clone())?))?;
    daemon::metrics::add_devices(&registry, devices)?;
    daemon::metrics::add_security(&registry, &settings.security, security)?;
    daemon::metrics::add_settings(&registry, Role::Server, settings)?;
    daemon::metrics::add_slow(&registry, flight)?;
    let standing = sources.standing.clone();
    let ready = move || match (known.borrow().is_some(), standing.away_ms()) {
        (true, None) => Ok(()),
        (true, Some(away_ms)) => Err(format!(
            "the scheduler has been lost for {away_ms} ms; training continues, and this server waits for a new scheduler"
        )),
        (false, _) => Err("waiting for the scheduler to announce the roster".to_owned()),
    };
    let status = move || serde_json::to_value(collect(&sources)).unwrap_or_default();
    let state =
        HttpState::new(registry, ready, status).with_tls(security.is_on()).with_flight(flight.clone());
    http::spawn(listener, state, shutdown);
    Ok(())
}

async fn accept(listener: TcpListener, reception: Arc<Reception>) {
    let (places, refused) = (Arc::new(Semaphore::new(HANDSHAKES_MAX)), Arc::new(Seldom::default()));
    // The semaphore is never closed, so acquiring cannot fail.
    while let Ok(place) = places.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (taken_by, refused) = (reception.clone(), refused.clone());
                let taken = HANDSHAKES_MAX - places.available_permits();
                let handshake = patience(reception.handshake, (taken, HANDSHAKES_MAX));
                tokio::spawn(async move {
                    match receive(taken_by.clone(), stream, handshake).await {
                        Ok(Received::Channels(peer, driver, carriers)) => {
                            tracing::info!(%peer, %driver, carriers, "data path ready");
                        }
                        Ok(Received::Journals(link, server, life)) => {
                            // It stays: its place is for those who come.
                            drop(place);
                            return journals::keep(&taken_by, link, (server, life)).await;
                        }
                        Err(reason) => {
                            if let Some(others) = refused.may_speak() {
                                tracing::warn!(%peer, reason, others, "refused a data connection");
                            }
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

/// The service manager hears that this server is registered, and from then on what it does; it is alive while its data threads
/// are, or read a checkpoint.
fn tell_manager(notify: Notify, sources: Sources, read: Progress) {
    notify.ready(&format!("registered as server {}", sources.rank));
    let lanes = sources.lanes.clone();
    let ask = |lane: &Mailbox<LaneMessage>| {
        let (reply, answer) = oneshot::channel();
        lane.send(LaneMessage::Beat(reply));
        answer
    };
    let pulse = Pulse::new(move || lanes.iter().map(ask).collect());
    tokio::spawn(notify.keep(pulse, move || read.read(), move || collect(&sources).line()));
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
