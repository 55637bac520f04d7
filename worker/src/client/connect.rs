//! Joining a cluster, step by step.

use super::gate::Passing;
use super::registrations::RegistrationCache;
use super::state::{Client, Inner, REPORT_WITHIN};
use super::status::{Late, WorkerMetrics};
use crate::engine::EngineConfig;
use crate::error::{ClientError, OpError};
use crate::host::{Host, Listening, Met, Own};
use crate::runtime::{
    Connector, Control, ControlStart, LaneConfig, LaneDriver, LaneHandle, LaneMessage, Links, Members,
    Roster, Step, Told, spawn_lane,
};
use daemon::flight::Flight;
use daemon::http::HttpState;
use daemon::lanes::Reports;
use daemon::notify::{Notify, Pulse};
use daemon::port::PortWatch;
use daemon::security::Security;
use daemon::settings::load_settings;
use fabric::{CqHandle, Devices, Pool, lock, oneshot};
use prometheus::Registry;
use proto_common::config::{Settings, WorkerLoss};
use proto_common::error::ExitCode;
use proto_common::ids::{Incarnation, Lane, Rank, Role};
use proto_common::limits::{IN_FLIGHT_MAX, PROTOCOL_VERSION, RESULT_SLOTS};
use proto_common::message::{Coming, Register, Welcome};
use proto_common::transport::Offer;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

/// Unfinished requests one channel may have.
const SEND_DEPTH: usize = 4096;
/// Spans one batch may gather.
const GATHER_MAX: usize = 64;
/// More than the longest pause between two tries to connect a server.
const REDIAL_MAX: Duration = Duration::from_secs(5);

impl Client {
    /// Joins the cluster that the settings name: registers with the scheduler, waits until all members have
    /// registered, and connects to every server. Each step has a deadline (`deadlines.*`), and its error names the
    /// missing members.
    pub fn connect(settings: Settings) -> Result<Self, ClientError> {
        let flight = Flight::embedded(Role::Worker, &settings);
        Self::connect_told(settings, Notify::default(), flight)
    }

    /// As [`Client::connect`], with notifications to the service manager that started this process: registered, alive
    /// while it has data threads, left. `flight` is the process's recorder.
    pub fn connect_told(settings: Settings, notify: Notify, flight: Flight) -> Result<Self, ClientError> {
        connect(settings, notify, flight)
    }

    /// Joins the cluster that this process's environment names, as [`Client::connect`] does. `gradwire launch` sets that
    /// environment. Settings come from `./gradwire.toml`, or from the file that `GRADWIRE_CONFIG` names. Variables override the
    /// file: `GRADWIRE_SECTION__NAME` for the setting `section.name`, and the `DMLC_*` names of ps-lite.
    pub fn from_env() -> Result<Self, ClientError> {
        let loaded = load_settings(Role::Worker, &daemon::process::environment(), None, &[])?;
        loaded.log();
        Self::connect(loaded.settings)
    }
}

fn connect(settings: Settings, notify: Notify, flight: Flight) -> Result<Client, ClientError> {
    settings.validate_member()?;
    let security = Security::open(&settings, Some(Role::Worker))?;
    let incarnation =
        daemon::host::new_incarnation().map_err(|error| ClientError::Internal(error.to_string()))?;
    let (devices, missing) = daemon::devices::open(&settings)?;
    let registrations = Arc::new(RegistrationCache::new(&settings.memory, Some(devices.clone())));
    let offer = daemon::host::offer(settings.transport, missing)
        .map_err(|error| ClientError::Internal(format!("cannot read this host's identity: {error}")))?;
    let links = Arc::<Links>::default();
    let port = PortWatch::new(&devices);
    let late = Arc::new(Late::new(registrations.clone(), links.clone(), port, flight.clone()));
    let dead = Arc::new(Mutex::new(None));
    let (progress, steps) = channel();
    let (host, listening) = (Arc::<OnceLock<Host<Passing>>>::default(), listen(&settings, incarnation));
    let on_fatal = ending((&late, &host), &dead, progress.clone());
    let members = Members::new(links.clone(), on_fatal.clone(), progress);
    let own = (incarnation, &offer, &devices, &security);
    let told = (notify, flight.clone());
    let start = control_start(&settings, own, &late, (&members, on_fatal), told)?;
    let (mut control, roster) = Control::start(start)?;
    let own = (offer, devices.clone(), security);
    let joined = join(&settings, incarnation, own, &roster, (&late, &flight), (&members, &steps));
    match joined {
        Ok(joined) => {
            control.links_ready();
            links.ready();
            let Joined { pool, lanes, threads } = joined;
            meet(&settings, &roster, (listening, &pool), &host);
            Ok(Client(Arc::new(Inner {
                settings,
                shape: roster.welcome.shape,
                rank: roster.welcome.rank,
                coming: roster.welcome.coming,
                incarnation,
                pool,
                devices,
                lanes: lanes.into(),
                threads: Mutex::new(threads),
                reports: Reports::new(REPORT_WITHIN),
                posts: control.requests().posts().clone(),
                control: Mutex::new(Some(control)),
                declaring: Mutex::default(),
                members,
                tensors: RwLock::new(BTreeMap::new()),
                traced: AtomicBool::new(false),
                planned_bytes: AtomicU64::new(0),
                links,
                next_op: AtomicU64::new(1),
                states: Arc::default(),
                host,
                dead,
                registrations,
                reported: late.reported.clone(),
                calls: Default::default(),
                homes: Mutex::default(),
            })))
        }
        Err(error) => {
            // A death that is known by now says more than the connection that it broke.
            let error = lock(&dead).clone().map_or(error, Into::into);
            members.close();
            for lane in late.lanes.get().into_iter().flatten() {
                lane.send(LaneMessage::Stop);
            }
            let last = proto_common::message::ToScheduler::Failing { reason: error.to_string() };
            control.finish(last, Duration::from_millis(settings.deadlines.drain_ms));
            Err(error)
        }
    }
}

/// From now on other workers of this host find this one.
fn listen(settings: &Settings, incarnation: Incarnation) -> Option<Listening> {
    if !settings.transport.merge {
        return None;
    }
    let listening = Listening::start(settings.job, incarnation);
    listening
        .inspect_err(|error| tracing::debug!(%error, "other workers of this host cannot find this one"))
        .ok()
}

/// Meets the other workers of this host, if their contributions may be added before they are sent: from the beginning of a job whose
/// workers stay, and that has servers on other hosts.
fn meet(
    settings: &Settings,
    roster: &Roster,
    (listening, pool): (Option<Listening>, &Pool),
    host: &OnceLock<Host<Passing>>,
) {
    let Welcome { job, rank, shape, coming, .. } = roster.welcome;
    let of_role = |role| roster.members.iter().filter(move |member| member.id.role == role);
    let stays = coming == Coming::Start && shape.worker_loss == WorkerLoss::Stop;
    let mut addresses =
        of_role(Role::Server).map(|server| server.data_address.as_deref().unwrap_or_default());
    let Some(listening) = listening.filter(|_| stays && addresses.any(daemon::reach::is_elsewhere)) else {
        return;
    };
    let workers: Vec<_> = of_role(Role::Worker).map(|worker| (worker.id.rank, worker.incarnation)).collect();
    let own = Own { job, rank, memory: pool.region(), in_order: shape.deterministic };
    let Some(met) = Met::new(listening, &own, &workers) else { return };
    let (ranks, is_head) = (met.ranks(), met.is_head());
    tracing::info!(workers = ?ranks, is_head, "contributions are added to those of other workers of this host");
    let spin = Duration::from_micros(settings.memory.spin_us);
    match Host::start(met, spin) {
        // Set once: this worker joins once.
        Ok(started) => drop(host.set(started)),
        Err(error) => tracing::warn!(%error, "cannot start a thread: contributions are sent one by one"),
    }
}

/// What is done when the job cannot continue, whoever hears of it.
fn ending(
    (late, host): (&Arc<Late>, &Arc<OnceLock<Host<Passing>>>),
    dead: &Arc<Mutex<Option<OpError>>>,
    progress: Sender<Step>,
) -> impl Fn(OpError) + Clone + Send + Sync + 'static {
    let (late, host, dead) = (late.clone(), host.clone(), dead.clone());
    move |error| {
        lock(&dead).get_or_insert(error.clone());
        // Nobody listens any more once all servers are connected.
        let _ = progress.send(Step::Dead(error.clone()));
        for lane in late.lanes.get().into_iter().flatten() {
            lane.send(LaneMessage::Fail(error.clone()));
        }
        // What waits there goes to the lanes, which know by now.
        if let Some(host) = host.get() {
            host.fail(&error);
        }
    }
}

fn control_start(
    settings: &Settings,
    (incarnation, offer, devices, security): (Incarnation, &Offer, &Devices, &Security),
    late: &Arc<Late>,
    (members, on_fatal): (&Members, impl Fn(OpError) + Send + 'static),
    (notify, flight): (Notify, Flight),
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
        host: daemon::host::name(),
        pid: std::process::id(),
        offer: offer.clone(),
        rules: Vec::new(),
        resume: None,
    };
    let for_report = late.clone();
    let registry = metrics(settings, (devices, security), late, &flight)
        .map_err(|error| ClientError::Internal(format!("metrics: {error}")))?;
    let (ready, status, for_line) = (late.clone(), late.clone(), late.clone());
    let http = HttpState::new(registry, move || ready.ready(), move || status.status());
    let http = http.with_tls(security.is_on()).with_flight(flight.clone());
    Ok(ControlStart {
        http,
        settings: settings.clone(),
        security: security.clone(),
        register,
        members: members.clone(),
        report: Box::new(move || for_report.report()),
        on_fatal: Box::new(on_fatal),
        flight,
        told: Told { notify, pulse: pulse(late.clone()), line: Box::new(move || for_line.line()) },
    })
}

/// Asks the data threads, once there are some.
fn pulse(late: Arc<Late>) -> Pulse {
    let ask = |lane: &LaneHandle| {
        let (reply, answer) = oneshot::channel();
        lane.send(LaneMessage::Beat(reply));
        answer
    };
    Pulse::new(move || late.lanes.get().into_iter().flatten().map(ask).collect())
}

fn metrics(
    settings: &Settings,
    (devices, security): (&Devices, &Security),
    late: &Arc<Late>,
    flight: &Flight,
) -> Result<Registry, prometheus::Error> {
    let registry = daemon::metrics::registry(Role::Worker)?;
    registry.register(Box::new(WorkerMetrics::new(late.clone())?))?;
    daemon::metrics::add_devices(&registry, devices)?;
    daemon::metrics::add_security(&registry, &settings.security, security)?;
    daemon::metrics::add_settings(&registry, Role::Worker, settings)?;
    daemon::metrics::add_slow(&registry, flight)?;
    Ok(registry)
}

struct Joined {
    pool: Pool,
    lanes: Vec<LaneHandle>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Starts the data threads and connects them to every server.
fn join(
    settings: &Settings,
    incarnation: Incarnation,
    (mut offer, mut devices, security): (Offer, Devices, Security),
    roster: &Roster,
    (late, flight): (&Late, &Flight),
    (members, steps): (&Members, &Receiver<Step>),
) -> Result<Joined, ClientError> {
    let shape = roster.welcome.shape;
    daemon::devices::settle(settings, &mut devices, &mut offer, shape.lanes)?;
    let pages = if settings.memory.huge_pages { fabric::Pages::Huge } else { fabric::Pages::Normal };
    let pool_bytes = pool_bytes(settings.memory.pool_bytes);
    // Huge pages are reserved as a whole.
    let kept_bytes = if settings.memory.huge_pages { 0 } else { pool_bytes };
    let pool = Pool::with_kept(pages, (pool_bytes, kept_bytes), "gradwire-buffers")?;
    let (mut lanes, mut queues, mut threads) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..shape.lanes {
        let (handle, queue, thread) =
            start_lane(settings, (incarnation, Lane(lane)), roster, (&pool, &devices), (members, flight))?;
        lanes.push(handle.clone());
        queues.push((handle, queue));
        threads.push(thread);
    }
    // Set once: `connect` runs once for this `Late`.
    let _ = (late.lanes.set(lanes.clone()), late.pool.set(pool.clone()));
    let connector = Connector {
        job: roster.welcome.job,
        rank: roster.welcome.rank,
        incarnation,
        security,
        offer,
        lanes: queues,
        devices,
        within: Duration::from_millis(settings.deadlines.connect_ms),
    };
    let within = connector.within;
    members.install(lanes.clone(), connector);
    wait_for_servers(members, within, steps)?;
    Ok(Joined { pool, lanes, threads })
}

/// What the pool reserves, and as much again for memory that is kept for long: as much as is set, or a sixteenth of the address space
/// that `ulimit -v` leaves: servers on this host, under the same limit, map the pools of all workers, once for each lane.
fn pool_bytes(set_bytes: u64) -> u64 {
    let bytes = fabric::address_space::left_bytes().map_or(set_bytes, |left| set_bytes.min(left / 16));
    if bytes < set_bytes {
        tracing::warn!(
            pool_bytes = bytes,
            "`ulimit -v` limits the address space: the pool reserves less than memory.pool_bytes"
        );
    }
    bytes
}

fn start_lane(
    settings: &Settings,
    (incarnation, lane): (Incarnation, Lane),
    roster: &Roster,
    (pool, devices): (&Pool, &Devices),
    (members, flight): (&Members, &Flight),
) -> Result<(LaneHandle, CqHandle, std::thread::JoinHandle<()>), ClientError> {
    let queue = devices.lane(SEND_DEPTH)?;
    let (handle, waker) = (queue.handle(), queue.waker());
    let shape = roster.welcome.shape;
    let config = LaneConfig {
        engine: EngineConfig {
            job: roster.welcome.job,
            incarnation,
            lane,
            rank: roster.welcome.rank,
            servers: shape.server_places.max(shape.servers),
            gather_max: GATHER_MAX,
            in_flight_max: IN_FLIGHT_MAX,
            keeps_calls: shape.replicas > 0,
        },
        result_slots: RESULT_SLOTS,
    };
    let mut driver = LaneDriver::new(queue, config, pool.region().clone())
        .map_err(|error| ClientError::Internal(format!("cannot set up lane {lane}: {error}")))?;
    driver.set_epoch(roster.epoch);
    driver.set_pool(pool.clone(), Some(waker));
    driver.set_flight(flight);
    let spin = Duration::from_micros(settings.memory.spin_us);
    let members = members.downgrade();
    let on_broken = Box::new(move |server, number, reason| members.broken(server, number, reason));
    let (lane, thread) = spawn_lane(driver, lane.0, spin, on_broken)?;
    Ok((lane, handle, thread))
}

/// Until all servers of the newest roster are connected. One that cannot be is dialled again, now as later in the job: a server
/// that is just coming may not have heard of us, or its death may be about to be told. The membership engine says when that is
/// over. Only a driver that cannot be had ends it at once: no other try would find it.
fn wait_for_servers(members: &Members, within: Duration, steps: &Receiver<Step>) -> Result<(), ClientError> {
    // Each step of a connection has this long, and there may be two tries; a thread that tells nothing at all has
    // panicked.
    let patience = 10 * within + REDIAL_MAX;
    loop {
        let missing = members.missing();
        if missing.is_empty() {
            return Ok(());
        }
        match steps.recv_timeout(patience) {
            Ok(Step::Connected(Err(error))) if error.exit_code() == ExitCode::Transport => return Err(error),
            Ok(Step::Connected(_) | Step::Gone) => {}
            Ok(Step::Dead(error)) => return Err(error.into()),
            Err(_) => {
                let ranks: Vec<String> = missing.iter().map(Rank::to_string).collect();
                let why = format!(
                    "the connections to servers {} made no progress for {patience:?}",
                    ranks.join(", ")
                );
                return Err(ClientError::Internal(why));
            }
        }
    }
}
