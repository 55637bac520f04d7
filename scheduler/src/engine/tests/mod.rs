//! The engine's decisions, as lists of commands.

mod barriers;
mod bounds;
mod checkpoints;
mod declaring;
mod ending;
mod leftovers;
mod losing;
mod maps;
mod pacing;
mod parting;
mod posts;
mod properties;
mod quorum;
mod recovery;
mod registering;
mod settings;
mod world;

use super::*;
use proto_common::config::WorkerLoss;
use proto_common::ids::{Key, Rank};
use proto_common::limits::{
    METRIC_NAME_BYTES_MAX, METRICS_MAX, NAME_BYTES_MAX, PORT_COUNTERS_MAX, PROTOCOL_VERSION, RANKS_LISTED_MAX,
};
use proto_common::message::{
    Coming, LinkReport, MemberReport, PortReport, Register, Wait, WaitCause, Welcome,
};
use proto_common::mode::Mode;
use proto_common::optimizer::{Optimizer, OwnKind};
use proto_common::shard_map::MapUpdate;
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Offer, Policies};

const ASSEMBLE_MS: u64 = 1_000;
const DRAIN_MS: u64 = 300;
const SILENCE_MS: u64 = 100;

fn server(rank: u32) -> MemberId {
    MemberId { role: Role::Server, rank: Rank(rank) }
}

fn worker(rank: u32) -> MemberId {
    MemberId { role: Role::Worker, rank: Rank(rank) }
}

/// The connection that the rig gives a member.
fn connection(id: MemberId) -> ConnectionId {
    ConnectionId(u64::from(id.rank.0) + if id.role == Role::Server { 0 } else { 100 })
}

fn register(role: Role, incarnation: u64) -> Register {
    Register {
        protocol: PROTOCOL_VERSION,
        build: "test".into(),
        job: JobId(7),
        role,
        incarnation: Incarnation(incarnation),
        wanted_rank: None,
        data_address: Some("127.0.0.1:1".into()),
        http_address: None,
        host: None,
        pid: 1,
        offer: Offer { host: "h".into(), uid: 0, policies: Policies::default(), missing: Vec::new() },
        rules: Vec::new(),
        resume: None,
    }
}

/// The engine with a clock that the test moves.
struct Rig {
    engine: Engine,
    now_ms: u64,
}

impl Rig {
    fn new(servers: u32, workers: u32) -> Self {
        let shape = ClusterShape {
            workers,
            servers,
            chunk_bytes: 4096,
            lanes: 1,
            deterministic: true,
            mode: Mode::Sync,
            backup_workers: 0,
            heartbeat_ms: 10,
            silence_ms: SILENCE_MS,
            replicas: 0,
            server_places: servers,
            worker_loss: WorkerLoss::Stop,
            workers_min: 1,
            scheduler_ms: 0,
        };
        let config = EngineConfig {
            job: JobId(7),
            shape,
            term: 1,
            scheduler: Incarnation(99),
            assemble_ms: ASSEMBLE_MS,
            drain_ms: DRAIN_MS,
            checkpoints: CheckpointConfig { has_place: true, ..CheckpointConfig::default() },
            rejoin_ms: 500,
            rebalance: true,
            resume: false,
            force: false,
            pid: 4,
        };
        Self { engine: Engine::new(config, 0), now_ms: 0 }
    }

    /// A cluster whose members are all there.
    fn running(servers: u32, workers: u32) -> Self {
        let mut rig = Self::new(servers, workers);
        rig.all_register();
        rig
    }

    /// The same, with servers whose program has registered these rules.
    fn running_with(servers: u32, workers: u32, rules: &[OwnKind]) -> Self {
        let mut rig = Self::new(servers, workers);
        rig.register_with(rules);
        rig
    }

    /// All members of the cluster register, each at its own place.
    fn all_register(&mut self) {
        self.register_with(&[]);
    }

    fn register_with(&mut self, rules: &[OwnKind]) {
        let places: Vec<MemberId> = self.engine.places().collect();
        for id in places {
            let mut message = register(id.role, connection(id).0 + 1);
            message.wanted_rank = Some(id.rank);
            message.rules = if id.role == Role::Server { rules.to_vec() } else { Vec::new() };
            self.say(id, ToScheduler::Register(message));
        }
        assert_eq!(self.engine.phase, Phase::Running);
    }

    /// Members vote, and hear of decisions, at once.
    fn handle(&mut self, input: Input) -> Vec<Command> {
        let commands = self.engine.handle(self.now_ms, input);
        let mut notes = self.engine.take_notes();
        let mut others = Vec::new();
        for command in commands {
            let Command::Send { to, message } = &command else {
                others.push(command);
                continue;
            };
            let epoch = match &**message {
                FromScheduler::Proposed { epoch, .. } => *epoch,
                FromScheduler::Candidate { term } => Epoch { term: *term, counter: 0 },
                FromScheduler::Decided { .. } => continue,
                _ => {
                    others.push(command);
                    continue;
                }
            };
            for from in to {
                let message = ToScheduler::Heard { epoch };
                others.extend(self.handle(Input::Message { from: *from, message }));
                notes.extend(self.engine.take_notes());
            }
        }
        self.engine.notes = notes;
        others
    }

    fn say_on(&mut self, from: u64, message: ToScheduler) -> Vec<Command> {
        self.handle(Input::Message { from: ConnectionId(from), message })
    }

    fn say(&mut self, id: MemberId, message: ToScheduler) -> Vec<Command> {
        self.say_on(connection(id).0, message)
    }

    fn lose(&mut self, id: MemberId) -> Vec<Command> {
        self.handle(Input::Closed { connection: connection(id), fault: None })
    }

    fn tick_at(&mut self, now_ms: u64) -> Vec<Command> {
        self.now_ms = now_ms;
        self.handle(Input::Tick)
    }

    /// Time passes, and the scheduler is awake.
    fn wait_until(&mut self, end_ms: u64) -> Vec<Command> {
        let mut commands = Vec::new();
        while self.now_ms < end_ms {
            let next_ms = self.engine.next_tick_ms(self.now_ms).clamp(self.now_ms + 1, end_ms);
            commands.extend(self.tick_at(next_ms));
        }
        commands
    }
}

fn to(members: &[MemberId], message: FromScheduler) -> Command {
    Command::Send { to: members.iter().map(|id| connection(*id)).collect(), message: Box::new(message) }
}

fn close(id: MemberId) -> Command {
    Command::Close { connection: connection(id) }
}

/// What somebody hears who goes.
fn goodbye_ack(id: MemberId) -> Command {
    to(&[id], FromScheduler::GoodbyeAck)
}

/// Without the rosters, which say who went.
fn quiet(mut commands: Vec<Command>) -> Vec<Command> {
    let is_roster = |command: &Command| matches!(command, Command::Send { message, .. } if matches!(**message, FromScheduler::Roster { .. }));
    commands.retain(|command| !is_roster(command));
    commands
}

/// The only message of a list of commands, but for the word to whoever goes.
fn only(commands: &[Command]) -> &FromScheduler {
    let mut messages = commands.iter().filter_map(|command| match command {
        Command::Send { message, .. } if **message == FromScheduler::GoodbyeAck => None,
        Command::Send { message, .. } => Some(message.as_ref()),
        Command::Close { .. } | Command::WriteManifest(_) | Command::ClearAway(_) | Command::End(_) => None,
    });
    let first = messages.next().unwrap_or_else(|| panic!("no message in {commands:?}"));
    assert!(messages.next().is_none(), "several messages in {commands:?}");
    first
}

#[test]
fn strangers_must_register_first() {
    let mut rig = Rig::new(1, 1);
    let commands = rig.say_on(5, ToScheduler::LinksReady);
    let FromScheduler::Refused(reason) = only(&commands) else { panic!("{commands:?}") };
    assert!(reason.to_string().contains("register first"), "{reason}");
    assert_eq!(commands[1], Command::Close { connection: ConnectionId(5) });
    assert!(rig.handle(Input::Closed { connection: ConnectionId(5), fault: None }).is_empty());
}

#[test]
fn a_heartbeat_is_answered_and_its_report_is_bounded() {
    let mut rig = Rig::running(1, 1);
    let link = LinkReport {
        server: Rank(0),
        driver: proto_common::transport::Driver::Tcp,
        why: "ü".repeat(NAME_BYTES_MAX),
        sent_bytes: 1,
        received_bytes: 2,
    };
    let on = vec![Rank(0); 1_000];
    let wait = Wait { what: "x".repeat(1 << 20), of: None, waited_ms: 5, cause: WaitCause::Answers, on };
    let waits = vec![wait; 100];
    let metric = |number: u32| (format!("{number}{}", "x".repeat(1 << 10)), f64::from(number));
    let mut metrics: Vec<(String, f64)> = (0..50).map(metric).collect();
    (metrics[0].1, metrics[1].1) = (f64::NAN, f64::INFINITY);
    let links = vec![link; 50];
    let trouble = vec![("t".repeat(1 << 10), 1); 50];
    let port = Some(PortReport { device: "d".repeat(1 << 10), port: 1, trouble });
    let report =
        MemberReport { round: 3, in_flight: 1, waits, links, metrics, port, ..MemberReport::default() };
    let commands = rig.say(worker(0), ToScheduler::Heartbeat(report));
    assert_eq!(commands, [to(&[worker(0)], FromScheduler::HeartbeatAck)]);
    let status = rig.engine.status(rig.now_ms + 4);
    let shown = &status.members[1];
    assert_eq!((shown.round, shown.silent_ms, shown.links.len()), (3, 4, 1));
    let kept = shown.oldest.as_ref().map(|o| (o.what.len(), o.on.len()));
    assert_eq!(shown.others.len(), RANKS_LISTED_MAX - 1);
    assert_eq!(kept, Some((NAME_BYTES_MAX, RANKS_LISTED_MAX)));
    assert!(shown.links[0].why.len() <= NAME_BYTES_MAX);
    assert_eq!((shown.metrics.len(), shown.metrics[0].value), (METRICS_MAX, 2.0), "JSON has no infinities");
    assert_eq!(shown.metrics[0].name.len(), METRIC_NAME_BYTES_MAX);
    let port =
        shown.port.as_ref().map(|port| (port.device.len(), port.trouble.len(), port.trouble[0].0.len()));
    assert_eq!(port, Some((NAME_BYTES_MAX, PORT_COUNTERS_MAX, METRIC_NAME_BYTES_MAX)));
}

#[test]
fn the_next_tick_is_the_nearest_deadline() {
    let mut rig = Rig::new(1, 1);
    assert_eq!(rig.engine.next_tick_ms(0), 10, "a heartbeat period");
    assert_eq!(rig.engine.next_tick_ms(ASSEMBLE_MS - 3), ASSEMBLE_MS);
    rig = Rig::running(1, 1);
    let group = NodeGroup::ALL;
    rig.say(
        worker(0),
        ToScheduler::Barrier { request: 1, name: "b".into(), group, passed: 0, timeout_ms: 4 },
    );
    assert_eq!(rig.engine.next_tick_ms(1), 4);
}

#[test]
fn ticks_are_rare_while_only_heartbeats_come_and_silence_is_found_as_soon() {
    let mut rig = Rig::running(1, 1);
    let beat = |rig: &mut Rig, now_ms, who: &[MemberId]| {
        rig.tick_at(now_ms);
        who.iter().for_each(|id| _ = rig.say(*id, ToScheduler::Heartbeat(MemberReport::default())));
        rig.engine.next_tick_ms(now_ms) - now_ms
    };
    let both = [server(0), worker(0)];
    assert_eq!(beat(&mut rig, 39, &both), 10);
    assert_eq!(beat(&mut rig, 40, &both), 20, "a fifth of the silence");
    beat(&mut rig, SILENCE_MS, &both);
    for turn in 6..=9 {
        assert_eq!(beat(&mut rig, 20 * turn, &both[..1]), 20);
    }
    // The worker was heard at 100 ms.
    assert_eq!(beat(&mut rig, 190, &both[..1]), 11);
    assert_eq!(rig.engine.next_tick_ms(197), 207, "not more often than heartbeats");
    rig.tick_at(200);
    assert_eq!(rig.engine.phase, Phase::Running);
    rig.tick_at(201);
    assert!(matches!(rig.engine.phase, Phase::Ending { .. }), "{:?}", rig.engine.phase);
}

use proto_common::message::NodeGroup;
