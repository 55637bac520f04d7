//! Joining a cluster, step by step.

use super::registrations::RegistrationCache;
use super::status::{Late, WorkerMetrics};
use super::together::in_flight_max;
use super::{Client, Inner, lock};
use crate::engine::EngineConfig;
use crate::error::{ClientError, OpError};
use crate::runtime::{
    Connector, Control, ControlEvent, ControlStart, LaneConfig, LaneDriver, LaneHandle, LaneMessage, Roster,
    connect_server, spawn_lane,
};
use daemon::http::HttpState;
use fabric::{CqHandle, Devices, Pool};
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::{Incarnation, Lane, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::Register;
use proto_common::shard_map::ShardMap;
use proto_common::transport::{Choice, Offer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// Unfinished requests one channel may have.
const SEND_DEPTH: usize = 4096;
/// Spans one batch may gather.
const GATHER_MAX: usize = 64;
/// How long a broken connection waits to hear of a death that explains it.
const DEATH_GRACE: Duration = Duration::from_secs(1);

pub(super) fn connect(settings: Settings) -> Result<Client, ClientError> {
    settings.validate()?;
    let incarnation =
        daemon::host::new_incarnation().map_err(|error| ClientError::Internal(error.to_string()))?;
    let (devices, missing) = daemon::devices::open(&settings)?;
    let registrations = Arc::new(RegistrationCache::new(&settings.memory, Some(devices.clone())));
    let offer = daemon::host::offer(settings.transport, missing)
        .map_err(|error| ClientError::Internal(format!("cannot read this host's identity: {error}")))?;
    let (late, dead) = (Arc::new(Late::new(registrations.clone())), Arc::new(Mutex::new(None)));
    let (progress, steps) = channel();
    let start = control_start(&settings, incarnation, (&offer, &devices), &late, &dead, progress.clone())?;
    let (mut control, roster) = Control::start(start)?;
    let joined = join(&settings, incarnation, (offer, devices.clone()), &roster, &late, (progress, steps));
    match joined {
        Ok(joined) => {
            control.links_ready();
            let Joined { pool, lanes, threads, links } = joined;
            let (shape, rank) = (roster.welcome.shape, roster.welcome.rank);
            let map = ShardMap::new(shape.chunk_bytes, shape.lanes);
            Ok(Client(Arc::new(Inner {
                settings,
                shape,
                rank,
                incarnation,
                pool,
                devices,
                lanes: lanes.into(),
                threads: Mutex::new(threads),
                posts: control.requests().posts().clone(),
                control: Mutex::new(Some(control)),
                declaring: Mutex::default(),
                map: RwLock::new(map),
                tensors: RwLock::new(BTreeMap::new()),
                traced: AtomicBool::new(false),
                planned_bytes: AtomicU64::new(0),
                links,
                next_op: AtomicU64::new(1),
                states: Arc::default(),
                dead,
                registrations,
                calls: Default::default(),
                frames: Default::default(),
            })))
        }
        Err(error) => {
            // A death that is known by now says more than the connection that it broke.
            let error = lock(&dead).clone().map_or(error, Into::into);
            for lane in late.lanes.get().into_iter().flatten() {
                lane.send(LaneMessage::Stop);
            }
            let last = proto_common::message::ToScheduler::Failing { reason: error.to_string() };
            control.finish(last, Duration::from_millis(settings.deadlines.drain_ms));
            Err(error)
        }
    }
}

fn control_start(
    settings: &Settings,
    incarnation: Incarnation,
    (offer, devices): (&Offer, &Devices),
    late: &Arc<Late>,
    dead: &Arc<Mutex<Option<OpError>>>,
    progress: Sender<Step>,
) -> Result<ControlStart, ClientError> {
    let register = Register {
        protocol: PROTOCOL_VERSION,
        build: env!("CARGO_PKG_VERSION").into(),
        job: settings.job,
        role: Role::Worker,
        incarnation,
        wanted_rank: settings.node.rank.map(Rank),
        data_address: None,
        http_address: None,
        pid: std::process::id(),
        offer: offer.clone(),
        resume: None,
    };
    let (for_report, for_events, dead) = (late.clone(), late.clone(), dead.clone());
    let registry = daemon::metrics::registry(Role::Worker).map_err(|error| internal(&error))?;
    registry
        .register(Box::new(WorkerMetrics::new(late.clone()).map_err(|error| internal(&error))?))
        .map_err(|error| internal(&error))?;
    daemon::metrics::add_devices(&registry, devices).map_err(|error| internal(&error))?;
    let (ready, status) = (late.clone(), late.clone());
    let http = HttpState::new(registry, move || ready.ready(), move || status.status());
    Ok(ControlStart {
        http,
        settings: settings.clone(),
        register,
        report: Box::new(move || for_report.report()),
        on_event: Box::new(move |ControlEvent::Fatal(error)| {
            lock(&dead).get_or_insert(error.clone());
            // Nobody listens any more once all servers are connected.
            let _ = progress.send(Step::Dead(error.clone()));
            for lane in for_events.lanes.get().into_iter().flatten() {
                lane.send(LaneMessage::Fail(error.clone()));
            }
        }),
    })
}

fn internal(error: &prometheus::Error) -> ClientError {
    ClientError::Internal(format!("metrics: {error}"))
}

struct Joined {
    pool: Pool,
    lanes: Vec<LaneHandle>,
    threads: Vec<std::thread::JoinHandle<()>>,
    links: Vec<(Rank, Choice)>,
}

/// Starts the data threads and connects them to every server.
fn join(
    settings: &Settings,
    incarnation: Incarnation,
    (mut offer, mut devices): (Offer, Devices),
    roster: &Roster,
    late: &Late,
    progress: (Sender<Step>, Receiver<Step>),
) -> Result<Joined, ClientError> {
    let shape = roster.welcome.shape;
    daemon::devices::settle(settings, &mut devices, &mut offer, shape.lanes)?;
    let pages = if settings.memory.huge_pages { fabric::Pages::Huge } else { fabric::Pages::Normal };
    let pool = Pool::with_pages(pages, settings.memory.pool_bytes, "gradwire-buffers")?;
    let (mut lanes, mut queues, mut threads) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..shape.lanes {
        let (handle, queue, thread) = start_lane(settings, incarnation, roster, Lane(lane), &pool, &devices)?;
        lanes.push(handle.clone());
        queues.push((handle, queue));
        threads.push(thread);
    }
    // Set once: `connect` runs once for this `Late`.
    let _ = late.lanes.set(lanes.clone());
    let connector = Connector {
        job: roster.welcome.job,
        rank: roster.welcome.rank,
        incarnation,
        epoch: roster.epoch,
        offer,
        lanes: queues,
        devices,
        within: Duration::from_millis(settings.deadlines.connect_ms),
    };
    let links = connect_servers(connector, roster, progress)?;
    for (server, choice) in &links {
        tracing::info!(server = server.0, driver = %choice.driver, why = choice.why, "data path ready");
    }
    let _ = late.links.set(links.clone());
    Ok(Joined { pool, lanes, threads, links })
}

fn start_lane(
    settings: &Settings,
    incarnation: Incarnation,
    roster: &Roster,
    lane: Lane,
    pool: &Pool,
    devices: &Devices,
) -> Result<(LaneHandle, CqHandle, std::thread::JoinHandle<()>), ClientError> {
    let queue = devices.lane(SEND_DEPTH)?;
    let handle = queue.handle();
    let shape = roster.welcome.shape;
    let config = LaneConfig {
        engine: EngineConfig {
            job: roster.welcome.job,
            incarnation,
            lane,
            servers: shape.servers,
            gather_max: GATHER_MAX,
            in_flight_max: in_flight_max(settings),
        },
        rank: roster.welcome.rank,
        result_slots: settings.memory.result_slots,
    };
    let mut driver = LaneDriver::new(queue, config, pool.region().clone())
        .map_err(|error| ClientError::Internal(format!("cannot set up lane {lane}: {error}")))?;
    driver.set_epoch(roster.epoch);
    driver.set_pool(pool.clone());
    let spin = Duration::from_micros(settings.memory.spin_us);
    let (lane, thread) = spawn_lane(driver, lane.0, spin)?;
    Ok((lane, handle, thread))
}

/// What happens while servers are connected.
enum Step {
    Connected(Rank, Result<Choice, ClientError>),
    /// The job ends before we are part of it.
    Dead(OpError),
}

/// All servers at once, each on a thread of its own: one that is slow does not hold up the others. A death
/// ends it at once; threads that still try then end by their own deadline.
fn connect_servers(
    connector: Connector,
    roster: &Roster,
    (progress, steps): (Sender<Step>, Receiver<Step>),
) -> Result<Vec<(Rank, Choice)>, ClientError> {
    // Each step of a connection has this long, and there may be two tries; a thread that tells nothing at all has
    // panicked.
    let patience = 10 * connector.within + DEATH_GRACE;
    let connector = Arc::new(connector);
    let servers = roster.members.iter().filter(|member| member.id.role == Role::Server);
    let mut missing = 0;
    for server in servers.cloned() {
        let (connector, progress) = (connector.clone(), progress.clone());
        let work = move || {
            let result = connect_server(&connector, &server);
            let _ = progress.send(Step::Connected(server.id.rank, result));
        };
        let thread = std::thread::Builder::new().name("gradwire-connect".into()).spawn(work);
        thread.map_err(|error| ClientError::Internal(format!("cannot start a thread: {error}")))?;
        missing += 1;
    }
    let mut links = Vec::with_capacity(missing);
    while links.len() < missing {
        match steps.recv_timeout(patience) {
            Ok(Step::Connected(rank, Ok(choice))) => links.push((rank, choice)),
            Ok(Step::Connected(_, Err(error))) => return Err(death_or(error, &steps)),
            Ok(Step::Dead(error)) => return Err(error.into()),
            Err(_) => return Err(ClientError::Internal("connecting to a server panicked".into())),
        }
    }
    links.sort_unstable_by_key(|(rank, _)| *rank);
    Ok(links)
}

/// A connection that broke may have broken because its server died: the scheduler gets a moment to say so.
fn death_or(error: ClientError, steps: &Receiver<Step>) -> ClientError {
    let broke = error.exit_code() == ExitCode::Io;
    let mut later = std::iter::from_fn(|| broke.then(|| steps.recv_timeout(DEATH_GRACE).ok()).flatten());
    let death = later.find_map(|step| match step {
        Step::Dead(error) => Some(error.into()),
        Step::Connected(..) => None,
    });
    death.unwrap_or(error)
}
