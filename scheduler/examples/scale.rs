//! How long the scheduler's decisions take in a large job: `cargo run --release -p gradwire-scheduler --example scale -- MEMBERS TENSORS`.
//! It drives the engine with the real codec and without sockets, through a start, declarations, a restart of the scheduler,
//! the failure of a worker, and a look at the status. As in the scheduler, messages are decoded elsewhere, heartbeats have a
//! queue of their own, and an answer that several get is encoded once. A member in ten is a server. It measures, and must not
//! check anything.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use gradwire_scheduler::engine::{Command, ConnectionId, Engine, EngineConfig, Input};
use proto_common::config::{Settings, WorkerLoss};
use proto_common::ids::{Epoch, Incarnation, MemberId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{
    self, FromScheduler, MemberReport, Register, Resume, ToScheduler, decode, encode,
};
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::{MapChange, MapUpdate, ShardMap, SharedUpdate};
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Offer, Policies};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

const ELEMENTS: u64 = 4096;
const TIMEOUT_MS: u64 = 600_000;
/// Tensors of one declaration: more may not fit a message.
const DECLARED_AT_ONCE: usize = 50_000;

/// What a phase has cost.
#[derive(Default)]
struct Cost {
    steps: u64,
    /// Of each kind: how many, the longest, and all together.
    kinds: BTreeMap<String, (u64, Duration, Duration)>,
    received_bytes: u64,
    sent_bytes: u64,
    /// The longest that a heartbeat has waited for its answer.
    answered: Duration,
}

struct Seat {
    id: MemberId,
    connection: ConnectionId,
    /// Registered with the scheduler that there is: it sends heartbeats.
    is_member: bool,
}

/// What members of a role know: they all have heard the same.
struct Known {
    map: ShardMap,
    epoch: Epoch,
    roster: Vec<message::Member>,
}

struct Rig {
    config: EngineConfig,
    engine: Engine,
    seats: Vec<Seat>,
    by_connection: BTreeMap<ConnectionId, usize>,
    next_connection: u64,
    known: BTreeMap<Role, Known>,
    /// Messages on their way, and heartbeats with the time when they were sent.
    queue: VecDeque<(ConnectionId, Rc<[u8]>)>,
    beats: VecDeque<(ConnectionId, Rc<[u8]>, Duration)>,
    /// The last answer to a declaration, and its bytes.
    answer: Option<(SharedUpdate, usize)>,
    /// The time that deciding has taken: nothing else passes.
    now: Duration,
    tick_ms: u64,
    beat: Duration,
    cost: Cost,
    refused: BTreeMap<String, u64>,
}

fn register(seat: &Seat, resume: Option<Resume>) -> ToScheduler {
    let Seat { id, .. } = seat;
    let offer = Offer { host: "scale".into(), uid: 1, policies: Policies::default(), missing: Vec::new() };
    ToScheduler::Register(Register {
        protocol: PROTOCOL_VERSION,
        build: "scale".into(),
        job: Settings::default().job,
        role: id.role,
        incarnation: incarnation(*id),
        wanted_rank: Some(id.rank),
        data_address: (id.role == Role::Server).then(|| format!("10.0.0.{}:4000", id.rank)),
        http_address: None,
        host: None,
        pid: 1,
        offer,
        rules: Vec::new(),
        resume,
    })
}

fn incarnation(id: MemberId) -> Incarnation {
    let of_role = if id.role == Role::Server { 1 << 32 } else { 2 << 32 };
    Incarnation(of_role + u64::from(id.rank.0))
}

/// The scheduler's own messages and maps fit.
fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    // Invariant: engine and codec refuse nothing that they have made.
    result.unwrap_or_else(|error| panic!("a bug of the scheduler: {error}"))
}

fn bytes_of<T: message::Message>(message: &T) -> Rc<[u8]> {
    must(encode(message)).into()
}

impl Rig {
    fn new(members: u32) -> Self {
        let mut settings = Settings::default();
        settings.cluster.servers = (members / 10).max(2);
        settings.cluster.workers = members - settings.cluster.servers;
        settings.cluster.replicas = 1;
        settings.cluster.worker_loss = WorkerLoss::Continue;
        let config = EngineConfig::new(&settings, Incarnation(1));
        let servers = (0..settings.cluster.servers).map(|rank| (Role::Server, rank));
        let workers = (0..settings.cluster.workers).map(|rank| (Role::Worker, rank));
        let seat = |(role, rank)| {
            let id = MemberId { role, rank: Rank(rank) };
            Seat { id, connection: ConnectionId(0), is_member: false }
        };
        let shape = &config.shape;
        let known = || Known {
            map: ShardMap::new(shape.chunk_bytes, shape.lanes),
            epoch: Epoch::default(),
            roster: Vec::new(),
        };
        let known = [(Role::Server, known()), (Role::Worker, known())].into();
        let engine = Engine::new(config.clone(), 0);
        let (seats, beat) = (servers.chain(workers).map(seat).collect(), Duration::ZERO);
        Self {
            config,
            engine,
            seats,
            by_connection: BTreeMap::new(),
            next_connection: 1,
            known,
            queue: VecDeque::new(),
            beats: VecDeque::new(),
            answer: None,
            now: Duration::ZERO,
            tick_ms: 0,
            beat,
            cost: Cost::default(),
            refused: BTreeMap::new(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.now.as_millis() as u64
    }

    /// Each member opens a connection and registers, with what it knows if it `resumes`.
    fn all_come(&mut self, resumes: bool) {
        self.by_connection.clear();
        let told: BTreeMap<Role, Resume> = match resumes {
            true => [Role::Server, Role::Worker].map(|role| (role, self.known(role).apart().0)).into(),
            false => BTreeMap::new(),
        };
        for at in 0..self.seats.len() {
            let connection = ConnectionId(self.next_connection);
            self.next_connection += 1;
            self.by_connection.insert(connection, at);
            let seat = &mut self.seats[at];
            (seat.connection, seat.is_member) = (connection, false);
            let head = told.get(&seat.id.role).map(|told| Resume { rank: seat.id.rank, ..told.head() });
            let message = bytes_of(&register(seat, head));
            self.queue.push_back((connection, message));
        }
        for at in 0..self.seats.len() {
            let seat = &self.seats[at];
            if let Some(told) = told.get(&seat.id.role) {
                self.tell(seat.connection, told.clone());
            }
        }
    }

    /// What a member knows is on its way, in parts.
    fn tell(&mut self, connection: ConnectionId, known: Resume) {
        let parts = known.parts();
        let count = parts.len();
        for (at, part) in parts.into_iter().enumerate() {
            let message = ToScheduler::Resuming { part, last: at + 1 == count };
            self.queue.push_back((connection, bytes_of(&message)));
        }
    }

    fn known(&self, role: Role) -> Resume {
        let Known { map, epoch, roster } = &self.known[&role];
        let (epoch, map) = ((*epoch).max(map.epoch()), map.whole());
        let shape = Some(self.config.shape);
        Resume { term: epoch.term, shape, epoch, members: roster.clone(), map, ..Resume::default() }
    }

    /// All that is on its way is decided, with heartbeats and ticks in between.
    fn run(&mut self) {
        loop {
            if self.now >= self.beat {
                let since = std::mem::replace(
                    &mut self.beat,
                    self.now + Duration::from_millis(self.config.shape.heartbeat_ms),
                );
                let beat = bytes_of(&ToScheduler::Heartbeat(MemberReport::default()));
                let members = self.seats.iter().filter(|seat| seat.is_member);
                self.beats.extend(members.map(|seat| (seat.connection, beat.clone(), since)));
            }
            if self.now_ms() >= self.tick_ms {
                (self.tick_ms, self.answer) = (u64::MAX, None);
                self.step("a tick", Input::Tick);
            }
            while let Some((from, bytes, since)) = self.beats.pop_front() {
                self.step("a heartbeat", Input::Message { from, message: message_in(&bytes) });
                self.cost.answered = self.cost.answered.max(self.now.saturating_sub(since));
            }
            let Some((from, bytes)) = self.queue.pop_front() else { return };
            if self.by_connection.contains_key(&from) {
                self.cost.received_bytes += bytes.len() as u64;
                let message = message_in(&bytes);
                let what: String = format!("{message:.0?}").chars().take(9).collect();
                self.step(&what, Input::Message { from, message });
            }
        }
    }

    /// The bytes of a message as its connection sends it.
    fn encode(&mut self, message: &FromScheduler) -> usize {
        let FromScheduler::Declared { result: Ok(update), .. } = message else {
            return bytes_of(message).len();
        };
        if let Some((_, bytes)) = self.answer.as_ref().filter(|(of, _)| of.is_same(update)) {
            return *bytes;
        }
        let bytes = bytes_of(message).len();
        self.answer = Some((update.clone(), bytes));
        bytes
    }

    fn step(&mut self, what: &str, input: Input) {
        let now_ms = self.now_ms();
        let began = Instant::now();
        let commands = self.engine.handle(now_ms, input);
        for command in &commands {
            if let Command::Send { to, message } = command {
                self.cost.sent_bytes += (self.encode(message) * to.len()) as u64;
            }
        }
        self.tick_ms = self.tick_ms.min(self.engine.next_tick_ms(now_ms));
        let took = began.elapsed();
        self.now += took;
        self.cost.steps += 1;
        let (count, longest, total) = self.cost.kinds.entry(what.to_owned()).or_default();
        (*count, *longest, *total) = (*count + 1, took.max(*longest), *total + took);
        for command in commands {
            match command {
                Command::Send { to, message } => self.heard(&to, *message),
                Command::Close { connection } => drop(self.by_connection.remove(&connection)),
                Command::End(outcome) => *self.refused.entry(format!("ended: {outcome}")).or_default() += 1,
                Command::WriteManifest(_) | Command::ClearAway(_) => {}
            }
        }
    }

    /// Members answer what the scheduler says.
    fn heard(&mut self, to: &[ConnectionId], message: FromScheduler) {
        let seats: Vec<usize> = to.iter().filter_map(|to| self.by_connection.get(to).copied()).collect();
        let Some(first) = seats.first().copied() else { return };
        let role = self.seats[first].id.role;
        match message {
            FromScheduler::Welcome(_) => self.seats[first].is_member = true,
            FromScheduler::Roster { epoch, members, .. } => {
                for known in self.known.values_mut() {
                    (known.epoch, known.roster) = (epoch, members.clone());
                }
            }
            FromScheduler::Assign(update) => {
                let answer = bytes_of(&ToScheduler::Assigned { epoch: update.epoch, error: None });
                for seat in seats {
                    self.queue.push_back((self.seats[seat].connection, answer.clone()));
                }
                self.apply(role, &update);
            }
            FromScheduler::Declared { result, .. } => match result {
                Ok(update) => self.apply(role, &update),
                Err(error) => *self.refused.entry(error.to_string()).or_default() += 1,
            },
            FromScheduler::SendMap => {
                let map = self.known(role).apart().1.unwrap_or_default();
                self.tell(self.seats[first].connection, map);
            }
            FromScheduler::Remap { epoch, change } => self.moved(&seats, epoch, &change),
            FromScheduler::Refused(reason) => *self.refused.entry(reason.to_string()).or_default() += 1,
            _ => {}
        }
    }

    fn apply(&mut self, role: Role, update: &MapUpdate) {
        if let Some(known) = self.known.get_mut(&role).filter(|known| known.map.epoch() < update.epoch) {
            must(known.map.apply(update));
        }
    }

    /// Copies that are to be made are made at once.
    fn moved(&mut self, seats: &[usize], epoch: Epoch, change: &MapChange) {
        let roles: BTreeSet<Role> = seats.iter().map(|seat| self.seats[*seat].id.role).collect();
        for role in &roles {
            let known = self.known.get_mut(role).map(|known| known.map.change(epoch, change));
            known.map(must);
        }
        let MapChange::Ranges(ranges) = change else { return };
        let seeding = ranges.iter().filter_map(|range| Some((range.server, range.seeding?)));
        let pairs: BTreeSet<(Rank, Rank)> = seeding.filter(|_| roles.contains(&Role::Server)).collect();
        for (from, to) in pairs {
            let seat = self.seats.iter().find(|seat| seat.id == MemberId { role: Role::Server, rank: from });
            let Some(seat) = seat else { continue };
            self.queue.push_back((seat.connection, bytes_of(&ToScheduler::Seeded { epoch, to })));
        }
    }

    fn report(&mut self, phase: &str) {
        let status = self.engine.status(self.now_ms());
        let failed = status.recovery.lost;
        let Cost { steps, kinds, received_bytes, sent_bytes, answered } = std::mem::take(&mut self.cost);
        let longest = kinds.values().map(|kind| kind.1).max().unwrap_or_default();
        let total: Duration = kinds.values().map(|kind| kind.2).sum();
        println!(
            "| {phase} | {steps} | {:.1} | {:.0} | {:.1} | {:.1} | {:.0} | {failed} | {:?} | {} |",
            longest.as_secs_f64() * 1e3,
            total.as_secs_f64() * 1e3,
            received_bytes as f64 / 1e6,
            sent_bytes as f64 / 1e6,
            answered.as_secs_f64() * 1e3,
            status.phase,
            memory_mib(),
        );
        for (kind, (count, longest, total)) in kinds.iter().filter(|(_, kind)| kind.2.as_millis() > 20) {
            let (longest, total) = (longest.as_millis(), total.as_millis());
            println!("  {count} times {kind}: {total} ms, the longest {longest} ms");
        }
        for (reason, times) in std::mem::take(&mut self.refused) {
            println!("  {times} times: {reason}");
        }
    }
}

fn message_in(bytes: &[u8]) -> ToScheduler {
    must(decode(bytes))
}

/// The most that this process has had.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse::<u32>().ok());
    let (members, tensors) = (numbers.next().unwrap_or(20).max(4), numbers.next().unwrap_or(10_000));
    println!("{members} members, {tensors} tensors");
    println!(
        "| phase | steps | longest step, ms | all steps, ms | received, MB | sent, MB | heartbeat's answer, ms | failed | phase | memory, MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut rig = Rig::new(members);
    rig.all_come(false);
    rig.run();
    rig.report("start");
    let name = |key: u32| format!("model.layers.{key}.self_attn.weight");
    let spec = |key: u32| TensorSpec {
        name: name(key),
        ..TensorSpec::f32(u64::from(key), ELEMENTS, Optimizer::sum())
    };
    let tensors: Vec<TensorSpec> = (0..tensors).map(spec).collect();
    // Some workers have made another request before.
    for (number, tensors) in (1..).zip(tensors.chunks(DECLARED_AT_ONCE)) {
        let bytes = [0, 100].map(|before| {
            let (request, tensors) = (before + number, tensors.to_vec());
            bytes_of(&ToScheduler::Declare { request, tensors, timeout_ms: TIMEOUT_MS })
        });
        for seat in rig.seats.iter().filter(|seat| seat.id.role == Role::Worker) {
            let bytes = &bytes[seat.id.rank.0 as usize % 2];
            rig.queue.push_back((seat.connection, bytes.clone()));
        }
    }
    drop(tensors);
    rig.run();
    rig.report("declare");
    rig.engine = Engine::new(EngineConfig { resume: true, ..rig.config.clone() }, rig.now_ms());
    rig.tick_ms = rig.now_ms();
    rig.all_come(true);
    rig.run();
    rig.report("restart");
    let last = rig.seats.pop().map(|seat| seat.connection).unwrap_or_default();
    rig.by_connection.remove(&last);
    rig.step("a failure", Input::Closed { connection: last, fault: None });
    rig.run();
    rig.report("a worker's failure");
    let began = Instant::now();
    let status = rig.engine.status(rig.now_ms());
    let (looked, members) = (began.elapsed(), status.members.len());
    println!("a look at the status of {members} members: {:.1} ms", looked.as_secs_f64() * 1e3);
}
