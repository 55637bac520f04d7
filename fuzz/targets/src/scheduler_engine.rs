//! The scheduler's engine under members that keep the protocol, and worse ones: an input is a program of registrations, words
//! of recovery, answers, losses and ticks; some words are any bytes that decode. The engine never panics, sends nothing to a
//! closed connection, only raises epochs, and asks for a tick within a heartbeat. After any input, a scheduler that is told to
//! stop ends within its drain.

use crate::{JOB, Program};
use gradwire_scheduler::engine::{
    CheckpointConfig, Command, ConnectionId, Engine, EngineConfig, Input, LOCAL,
};
use proto_common::config::WorkerLoss;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Key, MemberId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{
    CheckpointNews, CheckpointOrder, ClusterShape, Cover, FromScheduler, Member, MemberReport, NodeGroup,
    PartWritten, PostError, PostMessage, PostTo, Register, Resume, RoundsPart, ToScheduler, decode,
};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate};
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Offer, Policies};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const HEARTBEAT_MS: u64 = 50;
const SILENCE_MS: u64 = 1_000;
const DRAIN_MS: u64 = 300;
const SERVERS: u32 = 2;
const WORKERS: u32 = 2;
const PLACES: u32 = 3;

crate::programs!(Rig);

struct Rig {
    engine: Engine,
    now_ms: u64,
    next: u64,
    /// Connections that are open, and who spoke on them first.
    open: BTreeMap<ConnectionId, (Role, u64)>,
    /// What honest members have to say.
    owed: VecDeque<(ConnectionId, ToScheduler)>,
    manifests: Vec<u64>,
    tickets: BTreeSet<u64>,
    /// What members were told of the cluster: the next scheduler's to hear.
    roster: (Epoch, Vec<Member>),
    map: BTreeMap<Key, (TensorSpec, Vec<KeyRange>)>,
    ended: bool,
}

fn config(program: &mut Program<'_>) -> EngineConfig {
    let shape = ClusterShape {
        workers: WORKERS,
        servers: SERVERS,
        chunk_bytes: 4096,
        lanes: 2,
        deterministic: true,
        mode: Mode::Sync,
        backup_workers: 0,
        heartbeat_ms: HEARTBEAT_MS,
        silence_ms: SILENCE_MS,
        replicas: program.below(2),
        server_places: PLACES,
        worker_loss: program.pick(&[WorkerLoss::Continue, WorkerLoss::Wait, WorkerLoss::Stop]),
        workers_min: 1,
        scheduler_ms: 1_000,
    };
    EngineConfig {
        job: JOB,
        shape,
        term: 1,
        scheduler: Incarnation(99),
        assemble_ms: 2_000,
        drain_ms: DRAIN_MS,
        rejoin_ms: 500,
        rebalance: true,
        force: false,
        resume: false,
        pid: 4,
        checkpoints: CheckpointConfig { has_place: true, ..CheckpointConfig::default() },
    }
}

impl Rig {
    fn new(program: &mut Program<'_>) -> Self {
        let mut rig = Self {
            engine: Engine::new(config(program), 0),
            now_ms: 0,
            next: 0,
            open: BTreeMap::new(),
            owed: VecDeque::new(),
            manifests: Vec::new(),
            tickets: BTreeSet::new(),
            roster: (Epoch::default(), Vec::new()),
            map: BTreeMap::new(),
            ended: false,
        };
        // A cluster that is complete, but for one program in four.
        if program.below(4) != 3 {
            (0..SERVERS).for_each(|_| rig.register(Role::Server, None, None));
            (0..WORKERS).for_each(|_| rig.register(Role::Worker, None, None));
        }
        rig
    }

    fn step(&mut self, program: &mut Program<'_>) {
        match program.byte() % 16 {
            0..=2 => self.owed_word(program),
            3 => self.honest(program),
            4 | 5 => self.wild(program),
            6 => self.any_bytes(program),
            7 => self.pass(program),
            8 => {
                let role = program.pick(&[Role::Server, Role::Worker, Role::Scheduler]);
                let wanted = program.one_in(2).then(|| Rank(program.below(5)));
                self.register(role, wanted, None);
            }
            9 => self.close(program),
            10 => self.resume(program),
            11 => self.declare(program),
            12 => {
                let beating: Vec<ConnectionId> = self.open.keys().copied().collect();
                beating.into_iter().for_each(|from| self.heartbeat(from));
            }
            13 => self.checkpoint(program),
            14 => self.next_scheduler(program),
            _ => self.post(program),
        }
        let due = self.engine.next_tick_ms(self.now_ms);
        // A fifth of the silence.
        assert!(self.ended || due <= self.now_ms + SILENCE_MS / 5, "a tick within a rare heartbeat");
        let _ = self.engine.status(self.now_ms);
        let _ = self.engine.take_notes();
    }

    fn register(&mut self, role: Role, wanted_rank: Option<Rank>, resume: Option<(u64, Resume)>) {
        self.next += 1;
        let from = ConnectionId(self.next);
        let (life, resume) = match resume {
            Some((life, resume)) => (life, Some(resume)),
            None => (self.next, None),
        };
        self.open.insert(from, (role, life));
        let register = Register {
            protocol: PROTOCOL_VERSION,
            build: "fuzz".into(),
            job: JOB,
            role,
            incarnation: Incarnation(life),
            wanted_rank,
            data_address: Some("h:1".into()),
            http_address: None,
            host: None,
            pid: 1,
            offer: Offer { host: "h".into(), uid: 0, policies: Policies::default(), missing: Vec::new() },
            rules: Vec::new(),
            resume: resume.as_ref().map(Resume::head),
        };
        self.say(from, ToScheduler::Register(register));
        if let Some(part) = resume {
            self.say(from, ToScheduler::Resuming { part, last: true });
        }
    }

    fn say(&mut self, from: ConnectionId, message: ToScheduler) {
        if from == LOCAL || self.open.contains_key(&from) {
            self.handle(Input::Message { from, message });
        }
    }

    fn handle(&mut self, input: Input) {
        if self.ended {
            return;
        }
        let before = self.engine.epoch();
        let commands = self.engine.handle(self.now_ms, input);
        assert!(self.engine.epoch() >= before, "epochs only grow");
        for command in commands {
            assert!(!self.ended, "nothing follows the end");
            match command {
                Command::Send { to, message } => to.iter().for_each(|to| self.told(*to, &message)),
                Command::Close { connection } => _ = self.open.remove(&connection),
                Command::WriteManifest(completed) => self.manifests.push(completed.round),
                Command::ClearAway(_) => {}
                Command::End(_) => self.ended = true,
            }
        }
    }

    /// What an honest member answers, and what it knows from now on.
    fn told(&mut self, to: ConnectionId, message: &FromScheduler) {
        assert!(to == LOCAL || self.open.contains_key(&to), "said to one that is gone: {message:?}");
        let mut owed = Vec::new();
        let mut owe = |message| owed.push((to, message));
        match message {
            FromScheduler::Assign(update) => {
                owe(ToScheduler::Assigned { epoch: update.epoch, error: None });
                for spec in &update.tensors {
                    let ranges = update.ranges.iter().filter(|range| range.first.key == spec.key);
                    self.map.insert(spec.key, (spec.clone(), ranges.copied().collect()));
                }
            }
            FromScheduler::ChangeRule { epoch, .. } => {
                owe(ToScheduler::Assigned { epoch: *epoch, error: None });
            }
            FromScheduler::Remap { epoch, change: MapChange::Ranges(ranges) } => {
                for range in ranges {
                    if let Some(to) = range.seeding {
                        owe(ToScheduler::Seeded { epoch: *epoch, to });
                    }
                    if let Some((_, known)) = self.map.get_mut(&range.first.key) {
                        *known =
                            ranges.iter().filter(|one| one.first.key == range.first.key).copied().collect();
                    }
                }
            }
            FromScheduler::AskRounds { rank, incarnation } => {
                let rounds = RoundsPart::whole(vec![(Key(1), 3)]);
                owe(ToScheduler::Rounds { rank: *rank, incarnation: *incarnation, rounds });
            }
            FromScheduler::Checkpoint(CheckpointOrder::Save { round, .. }) => {
                for lane in 0..2 {
                    owe(ToScheduler::Checkpoint(CheckpointNews::Part(self.part(*round, lane))));
                }
            }
            FromScheduler::Posted { ticket, .. } => {
                self.tickets.insert(*ticket);
                owe(ToScheduler::PostReply { ticket: *ticket, result: Err(PostError::NoReply) });
            }
            FromScheduler::Roster { epoch, members, .. } => self.roster = (*epoch, members.clone()),
            _ => {}
        }
        self.owed.extend(owed);
        self.owed.truncate(256);
    }

    fn part(&self, round: u64, lane: u16) -> PartWritten {
        let cover = |range: &KeyRange| Cover { first: range.first, chunks: range.chunks, version: round };
        let covers = self.map.values().flat_map(|(_, ranges)| ranges).map(cover).collect();
        PartWritten { round, lane, file: format!("{lane}"), covers, ..PartWritten::default() }
    }

    fn owed_word(&mut self, program: &mut Program<'_>) {
        let at = if program.one_in(8) { program.below(self.owed.len().max(1) as u32) as usize } else { 0 };
        if let Some((from, message)) = self.owed.remove(at) {
            self.say(from, message);
        }
    }

    fn one(&self, program: &mut Program<'_>) -> ConnectionId {
        let open: Vec<ConnectionId> = self.open.keys().copied().collect();
        if open.is_empty() { LOCAL } else { program.pick(&open) }
    }

    fn heartbeat(&mut self, from: ConnectionId) {
        self.say(from, ToScheduler::Heartbeat(MemberReport::default()));
    }

    fn honest(&mut self, program: &mut Program<'_>) {
        let from = self.one(program);
        let group = program.pick(&[NodeGroup::WORKERS, NodeGroup::SERVERS, NodeGroup::ALL]);
        let (request, timeout_ms) = (program.number(), program.number());
        let message = match program.below(7) {
            0 => ToScheduler::Goodbye,
            1 => ToScheduler::Drain,
            2 => ToScheduler::Failing { reason: "x".into() },
            3 => ToScheduler::LinksReady,
            4 => ToScheduler::SaveCheckpoint { request, round: program.number(), timeout_ms },
            5 => ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms },
            _ => {
                let passed = program.number();
                ToScheduler::Barrier { request, name: "b".into(), group, passed, timeout_ms }
            }
        };
        self.say(from, message);
    }

    fn wild(&mut self, program: &mut Program<'_>) {
        let from = self.one(program);
        let epoch = self.epoch(program);
        let rank = Rank(program.below(4));
        let message = match program.below(6) {
            0 => ToScheduler::Assigned { epoch, error: program.one_in(2).then(|| "no".into()) },
            1 => ToScheduler::Seeded { epoch, to: rank },
            2 => {
                let rounds =
                    (0..program.below(3)).map(|_| (Key(program.number()), program.number())).collect();
                let rounds = RoundsPart { part: program.below(3), last: program.one_in(2), rounds };
                ToScheduler::Rounds { rank, incarnation: Incarnation(program.number()), rounds }
            }
            3 => ToScheduler::Identify,
            4 => ToScheduler::PostReply { ticket: program.number(), result: Err(PostError::NoReply) },
            _ => ToScheduler::Resuming { part: self.knowledge(program), last: program.one_in(2) },
        };
        self.say(from, message);
    }

    fn epoch(&self, program: &mut Program<'_>) -> Epoch {
        match program.below(3) {
            0 => self.engine.epoch(),
            1 => Epoch { term: program.number() as u32, counter: program.number() as u32 },
            _ => Epoch { counter: program.below(8), ..self.engine.epoch() },
        }
    }

    /// A word that is whatever decodes.
    fn any_bytes(&mut self, program: &mut Program<'_>) {
        let from = self.one(program);
        let bytes: Vec<u8> = (0..program.byte()).map(|_| program.byte()).collect();
        if let Ok(message) = decode::<ToScheduler>(&bytes) {
            self.say(from, message);
        }
    }

    fn pass(&mut self, program: &mut Program<'_>) {
        self.now_ms += match program.below(4) {
            0 => 10,
            1 => HEARTBEAT_MS,
            2 => 500,
            _ => program.number().min(1 << 32),
        };
        self.handle(Input::Tick);
    }

    fn close(&mut self, program: &mut Program<'_>) {
        let connection = self.one(program);
        if self.open.remove(&connection).is_some() {
            let fault = program.one_in(4).then(|| "it spoke nonsense".to_owned());
            self.handle(Input::Closed { connection, fault });
        }
    }

    /// What a member knows: what it was told, bent a little.
    fn knowledge(&self, program: &mut Program<'_>) -> Resume {
        let (epoch, members) = self.roster.clone();
        let (mut tensors, mut ranges) = (Vec::new(), Vec::new());
        for (spec, held) in self.map.values() {
            tensors.push(spec.clone());
            ranges.extend(held);
        }
        let map = MapUpdate { epoch, tensors, ranges };
        let mut known = Resume {
            rank: Rank(program.below(4)),
            term: epoch.term,
            epoch,
            members,
            map,
            ..Resume::default()
        };
        match program.below(10) {
            0 => known.term = program.number() as u32,
            1 => known.epoch = self.epoch(program),
            2 => known.left.push(Rank(program.number() as u32)),
            3 => known.barriers.push(("b".into(), NodeGroup::WORKERS, program.number())),
            4 => _ = known.members.pop(),
            5 => {
                let first = ChunkId::new(program.number(), program.number() as u32);
                let range = KeyRange::alone(first, program.number() as u32, Rank(program.below(4)));
                let backup = program.one_in(2).then(|| Rank(program.below(4)));
                known.map.ranges.push(KeyRange { backup, ..range });
            }
            6 => {
                known.map.tensors.push(TensorSpec::f32(program.number(), program.number(), Optimizer::sum()));
            }
            _ => {}
        }
        known
    }

    /// A member registers again, on a new connection, with a scheduler that may know it.
    fn resume(&mut self, program: &mut Program<'_>) {
        let members = self.roster.1.clone();
        let knowledge = self.knowledge(program);
        if members.is_empty() || program.one_in(8) {
            return self.register(Role::Worker, None, Some((program.number(), knowledge)));
        }
        let at = program.below(members.len() as u32) as usize;
        let Member { id, incarnation, .. } = members[at];
        self.register(id.role, Some(id.rank), Some((incarnation.0, Resume { rank: id.rank, ..knowledge })));
    }

    /// This scheduler dies; the next one hears of the cluster from members.
    fn next_scheduler(&mut self, program: &mut Program<'_>) {
        if self.ended || !program.one_in(4) {
            return;
        }
        let resume = program.one_in(2);
        self.engine = Engine::new(EngineConfig { resume, ..config(program) }, self.now_ms);
        self.open.clear();
        self.owed.clear();
        self.manifests.clear();
        let members = self.roster.1.clone();
        for Member { id, incarnation, .. } in members {
            let knowledge = Resume { rank: id.rank, ..self.knowledge(program) };
            if !program.one_in(8) {
                self.register(id.role, Some(id.rank), Some((incarnation.0, knowledge)));
            }
        }
    }

    fn declare(&mut self, program: &mut Program<'_>) {
        let workers: Vec<ConnectionId> =
            self.open.iter().filter(|(_, (role, _))| *role == Role::Worker).map(|(from, _)| *from).collect();
        let Some(from) = workers.first().copied() else { return };
        let elements = if program.one_in(8) { program.number() } else { u64::from(program.below(64)) * 512 };
        let optimizer = Optimizer::sum();
        let tensors = vec![TensorSpec::f32(u64::from(program.below(4)), elements, optimizer)];
        let timeout_ms = program.number();
        self.say(from, ToScheduler::Declare { request: self.next, tensors, timeout_ms });
    }

    fn checkpoint(&mut self, program: &mut Program<'_>) {
        let from = self.one(program);
        let round = program.number();
        let news = match program.below(5) {
            0 => CheckpointNews::Begun { round },
            1 => CheckpointNews::Passed { round },
            2 => CheckpointNews::Part(self.part(round, program.below(3) as u16)),
            3 => CheckpointNews::Failed { round, reason: "full".into() },
            _ => {
                let result = if program.one_in(3) { Err("full".into()) } else { Ok("round-1".into()) };
                if let Some(round) = self.manifests.pop() {
                    self.handle(Input::ManifestWritten { round, result });
                }
                return;
            }
        };
        self.say(from, ToScheduler::Checkpoint(news));
    }

    fn post(&mut self, program: &mut Program<'_>) {
        let from = self.one(program);
        if program.one_in(4) {
            let ticket = self.tickets.pop_last().unwrap_or(program.number());
            return self.handle(Input::NotPosted { ticket, to: from });
        }
        let role = program.pick(&[Role::Server, Role::Worker, Role::Scheduler]);
        let to = match program.below(2) {
            0 => PostTo::Group(NodeGroup { scheduler: program.one_in(2), servers: true, workers: program.one_in(2) }),
            _ => PostTo::One(MemberId { role, rank: Rank(program.below(3)) }),
        };
        let message = PostMessage { app: 1, head: 2, body: vec![0; program.below(9) as usize] };
        let (request, timeout_ms) = (program.number(), program.number());
        self.say(from, ToScheduler::Post { request, to, message, timeout_ms });
    }

    fn finish(mut self) {
        self.handle(Input::Stop { reason: "the program is over".into() });
        self.now_ms += DRAIN_MS;
        self.handle(Input::Tick);
        assert!(self.ended, "it drains within its bound");
    }
}
