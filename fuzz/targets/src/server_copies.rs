//! Two servers' engines with copies of each other's chunks: an input is a program of contributions, decisions of the scheduler
//! (copies begun, given up, handed over, a server's death), broken streams, checkpoints, and the order in which everything
//! arrives. Between those that keep the protocol no channel ends, each round ends once faults stop, and what was answered is in
//! the end's version. In hostile programs the other server writes what it likes: never a panic.

use crate::{JOB, OWN_LIFE, PAYLOAD_BYTES, Program, header, request};
use gradwire_server::engine::{
    BatchContext, ChunkSpec, ChunkState, Command, Commands, EngineConfig, LaneEngine, Payload, RecordContext,
    Role, Verdict,
};
use proto_common::batch::{BatchKind, Block, BlockData, Count, Judgement, Landing, Notice, OpKind, SlotGrant, Status};
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Lane, Operation, Rank};
use proto_common::mode::Mode;
use proto_common::optimizer::{Lamb, Optimizer};
use std::collections::VecDeque;

const WORKERS: usize = 2;
const TENSORS: usize = 4;
/// The last tensor has two chunks, whose norms count.
const CHUNKS: usize = TENSORS + 1;
const SLOTS: u32 = 3;

crate::programs!(Rig);

fn spec(chunk: usize) -> ChunkSpec {
    let id = ChunkId::new(chunk.min(TENSORS - 1) as u64, chunk.saturating_sub(TENSORS - 1) as u32);
    let lamb = || Optimizer::mean(Lamb::default(), 0.1);
    let (dtype, mode, optimizer) = match chunk {
        0 => (Dtype::F32, Mode::Sync, Optimizer::sum()),
        1 => (Dtype::I64, Mode::Sync, Optimizer::sum()),
        2 => (Dtype::F32, Mode::Async, Optimizer::sum()),
        _ => (Dtype::F32, Mode::Sync, lamb()),
    };
    ChunkSpec {
        id,
        bytes: 96,
        dynamic: false,
        dtype,
        codec: Codec::Plain,
        optimizer,
        mode,
        backup_workers: 0,
    }
}

fn tensor_of(chunk: usize) -> usize {
    chunk.min(TENSORS - 1)
}

/// What the scheduler has decided about a tensor.
#[derive(Clone, Copy)]
struct Place {
    server: usize,
    backup: bool,
    /// A copy is being made, since this decision; it is to serve then.
    seeding: Option<(Epoch, bool)>,
}

/// An operation of a worker on a chunk.
#[derive(Clone, Copy, Default)]
struct Doing {
    operation: u64,
    round: u64,
    open: Option<OpKind>,
    /// The member that received it.
    sent: Option<usize>,
    answered: u64,
}

/// A worker's channel to a server.
#[derive(Default)]
struct Link {
    credits: Vec<SlotGrant>,
}

/// On its way from one server to the other.
#[allow(clippy::large_enum_variant, reason = "records are most of them, and few are under way")]
enum Word {
    Record { slot: SlotGrant, block: Block, contributors: Vec<u64>, image: Option<ChunkState> },
    Notice(Notice),
}

struct Server {
    engine: LaneEngine,
    life: Incarnation,
    roles: VecDeque<(Epoch, Vec<(ChunkSpec, Role)>)>,
    links: [Link; WORKERS],
    /// The image that was captured for the other one, and the one that came from there.
    captured: Option<ChunkState>,
    image: Option<ChunkState>,
    /// To the other one: records of our stream, and words about records of its stream.
    records: VecDeque<Word>,
    words: VecDeque<Word>,
    saving: bool,
}

struct Rig {
    servers: [Server; 2],
    /// Of which server there is a stream to the other one.
    streams: [bool; 2],
    places: [Place; TENSORS],
    doing: [[Doing; CHUNKS]; WORKERS],
    epoch: Epoch,
    seeded: VecDeque<(usize, Epoch)>,
    lives: u64,
    now_ms: u64,
    hostile: bool,
}

impl Rig {
    fn new(program: &mut Program<'_>) -> Self {
        let place = Place { server: 0, backup: false, seeding: None };
        let mut rig = Self {
            servers: [1, 2].map(|life| server(Incarnation(life))),
            streams: [false; 2],
            places: [place; TENSORS],
            doing: Default::default(),
            epoch: Epoch { term: 1, counter: 1 },
            seeded: VecDeque::new(),
            lives: 2,
            now_ms: 0,
            hostile: program.one_in(4),
        };
        for (at, place) in rig.places.iter_mut().enumerate() {
            (place.server, place.backup) = (at & 1, program.byte() & 1 == 0);
        }
        (0..2).for_each(|at| rig.connect_workers(at));
        rig.decide();
        (0..2).for_each(|at| rig.take_roles(at));
        (0..2).for_each(|at| rig.connect(at));
        rig
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let at = program.below(2) as usize;
        match program.byte() % 16 {
            0..=4 => {
                let (rank, chunk) =
                    (program.below(WORKERS as u32) as usize, program.below(CHUNKS as u32) as usize);
                let op = program.pick(&[OpKind::PushPull, OpKind::Push, OpKind::Pull, OpKind::Init]);
                self.ask(rank, chunk, op);
            }
            5..=7 => _ = self.deliver(at, true),
            8 | 9 => _ = self.deliver(at, false),
            10 => self.take_roles(at),
            11 => self.decision(program),
            12 => self.hear_seeded(),
            13 => match program.below(4) {
                0 => self.kill(at),
                1 => self.disconnect(at),
                _ => self.connect(at),
            },
            14 => self.save(at, program),
            _ if self.hostile => self.wild(at, program),
            _ => self.tick(),
        }
        self.flush();
    }

    fn connect_workers(&mut self, at: usize) {
        for rank in 0..WORKERS {
            let inbox: Vec<_> = (0..4).map(|slot| SlotGrant { slot, generation: 1 }).collect();
            let mut out = Commands::default();
            let life = Incarnation(100 + rank as u64);
            let credits = self.servers[at].engine.peer_up(Rank(rank as u32), life, &inbox, false, &mut out);
            self.servers[at].links[rank] = Link { credits };
            self.execute(at, out);
        }
    }

    /// A second passes: operations have weeks.
    fn tick(&mut self) {
        self.now_ms += 1_000;
        for at in 0..2 {
            let mut out = Commands::default();
            self.servers[at].engine.tick(self.now_ms, &mut out);
            self.execute(at, out);
        }
    }

    /// The stream of a server to the other one.
    fn connect(&mut self, at: usize) {
        self.disconnect(at);
        let other = 1 - at;
        let life = self.servers[at].life;
        let grants = self.servers[other].engine.copy_up(rank(at), life, SLOTS);
        let (life, mut out) = (self.servers[other].life, Commands::default());
        self.servers[at].engine.stream_up(rank(other), life, &grants, 64, &mut out);
        self.streams[at] = true;
        self.execute(at, out);
    }

    fn disconnect(&mut self, at: usize) {
        if !std::mem::take(&mut self.streams[at]) {
            return;
        }
        let other = 1 - at;
        self.servers[at].records.clear();
        self.servers[other].words.clear();
        self.servers[at].captured = None;
        self.servers[other].image = None;
        self.servers[other].engine.copy_down(rank(at));
        let mut out = Commands::default();
        self.servers[at].engine.stream_down(rank(other), &mut out);
        self.execute(at, out);
    }

    /// All hear of the places that are in force, in the order of decisions.
    fn decide(&mut self) {
        self.epoch.counter += 1;
        for at in 0..2 {
            let mut roles = Vec::new();
            for chunk in 0..CHUNKS {
                let Place { server, backup, seeding } = self.places[tensor_of(chunk)];
                let other = rank(1 - at);
                let role = match server == at {
                    true => {
                        Role::Primary { backup: backup.then_some(other), seeding: seeding.map(|_| other) }
                    }
                    false if backup || seeding.is_some() => Role::Copy { of: other },
                    false => continue,
                };
                roles.push((spec(chunk), role));
            }
            self.servers[at].roles.push_back((self.epoch, roles));
        }
    }

    fn take_roles(&mut self, at: usize) {
        while let Some((epoch, roles)) = self.servers[at].roles.pop_front() {
            let mut out = Commands::default();
            self.servers[at].engine.roles(epoch, &roles, &mut out);
            self.execute(at, out);
        }
    }

    fn decision(&mut self, program: &mut Program<'_>) {
        let place = &mut self.places[program.below(TENSORS as u32) as usize];
        let next = Epoch { counter: self.epoch.counter + 1, ..self.epoch };
        match program.below(4) {
            0 if !place.backup && place.seeding.is_none() => place.seeding = Some((next, program.one_in(2))),
            1 if place.seeding.is_some() => place.seeding = None,
            2 if place.backup => place.backup = false,
            3 if place.backup => place.server = 1 - place.server,
            _ => return,
        }
        self.decide();
    }

    /// The scheduler hears that copies are kept up.
    fn hear_seeded(&mut self) {
        let Some((at, epoch)) = self.seeded.pop_front() else { return };
        let mut any = false;
        for place in self.places.iter_mut().filter(|place| place.server == at) {
            if let Some((_, moves)) = place.seeding.filter(|(since, _)| *since <= epoch) {
                (place.backup, place.seeding, any) = (true, None, true);
                place.server = if moves { 1 - at } else { at };
            }
        }
        if any {
            self.decide();
        }
    }

    /// A server dies where all that it serves has a backup; another one has its place.
    fn kill(&mut self, at: usize) {
        if self.places.iter().any(|place| place.server == at && !place.backup) {
            return;
        }
        (0..2).for_each(|at| self.disconnect(at));
        self.lives += 1;
        self.servers[at] = server(Incarnation(self.lives));
        self.seeded.clear();
        for place in &mut self.places {
            *place = Place { server: 1 - at, backup: false, seeding: None };
        }
        self.decide();
        for doing in self.doing.iter_mut().flatten().filter(|doing| doing.sent == Some(at)) {
            doing.sent = None;
        }
        self.connect_workers(at);
    }

    fn ask(&mut self, rank: usize, chunk: usize, op: OpKind) {
        let doing = &mut self.doing[rank][chunk];
        if doing.open.is_none() {
            // An initial value comes first, from one, and for all of a tensor.
            let may_init = doing.operation == 0 && rank == 0 && chunk < TENSORS - 1;
            let op = if op == OpKind::Init && !may_init { OpKind::PushPull } else { op };
            doing.operation += 1;
            doing.round += u64::from(op.contributes());
            (doing.open, doing.sent) = (Some(op), None);
        }
        self.send(rank, chunk);
    }

    /// An operation goes to whoever serves the chunk by the newest decision.
    fn send(&mut self, at_worker: usize, chunk: usize) {
        let at = self.places[tensor_of(chunk)].server;
        let doing = &mut self.doing[at_worker][chunk];
        let (Some(op), None) = (doing.open, doing.sent) else { return };
        let Some(slot) = self.servers[at].links[at_worker].credits.pop() else { return };
        doing.sent = Some(at);
        let spec = spec(chunk);
        let payload = op.contributes() || op == OpKind::Init;
        let made = Block {
            id: spec.id,
            op,
            dtype: spec.dtype,
            first_open: Operation(doing.operation),
            count: Count::Round(if op == OpKind::Init { 0 } else { doing.round }),
            bytes: if payload { spec.bytes } else { 0 },
            data: BlockData::Inline { offset: 0 },
            landing: op.lands().then_some(Landing { region: 1, offset: 0, bytes: spec.bytes }),
            timeout_ms: u32::MAX,
            token: chunk as u64,
            ..request(doing.operation)
        };
        let mut header = header(BatchKind::Request, rank(at_worker), Incarnation(100 + at_worker as u64));
        (header.epoch, header.receiver_incarnation) = (self.epoch, OWN_LIFE);
        let peer = rank(at_worker);
        let mut out = Commands::default();
        if self.servers[at].engine.notified(peer, slot, &mut out) {
            let context = BatchContext { peer, slot, header: &header, blocks: &[made], grants: &[] };
            self.servers[at].engine.batch(&context, self.now_ms, &mut out);
        }
        self.execute(at, out);
    }

    /// The next record, or the next word about one, arrives at the other server.
    fn deliver(&mut self, at: usize, is_record: bool) -> bool {
        let other = 1 - at;
        let queue = if is_record { &mut self.servers[at].records } else { &mut self.servers[at].words };
        let Some(word) = queue.pop_front() else { return false };
        let mut out = Commands::default();
        match word {
            Word::Notice(notice) => self.servers[other].engine.stream_notice(rank(at), notice, &mut out),
            Word::Record { slot, block, contributors, image } => {
                if image.is_some() {
                    self.servers[other].image = image;
                }
                self.record(other, slot, &[block], &contributors, &mut out);
            }
        }
        self.execute(other, out);
        true
    }

    fn record(
        &mut self,
        at: usize,
        slot: SlotGrant,
        blocks: &[Block],
        contributors: &[u64],
        out: &mut Commands,
    ) {
        let from = rank(1 - at);
        let mut header = header(BatchKind::Record, from, self.servers[1 - at].life);
        (header.epoch, header.receiver_incarnation) = (self.epoch, OWN_LIFE);
        let engine = &mut self.servers[at].engine;
        if engine.record_notified(from, slot, out) {
            engine.record(&RecordContext { from, slot, header: &header, blocks, contributors }, out);
        }
    }

    fn save(&mut self, at: usize, program: &mut Program<'_>) {
        let mut out = Commands::default();
        let server = &mut self.servers[at];
        match program.below(4) {
            0 => {
                let round = server.engine.newest_version() + u64::from(program.below(3));
                server.saving |= server.engine.begin_save(round, program.one_in(2), &mut out);
            }
            1 => server.engine.drop_save(program.number(), &mut out),
            2 => server.engine.pass_save(program.number()),
            _ => {
                while let Some((chunk, ..)) = server.engine.next_to_save() {
                    server.engine.saved(chunk, &mut out);
                }
            }
        }
        while server.engine.savings().next_news().is_some() {}
        self.execute(at, out);
    }

    fn wild(&mut self, at: usize, program: &mut Program<'_>) {
        let mut out = Commands::default();
        let slot = SlotGrant { slot: program.below(SLOTS + 1), generation: program.number() as u8 };
        if program.byte() & 1 == 0 {
            let words = [Judgement::Confirmed, Judgement::Ahead, Judgement::Wanting, Judgement::Later];
            let judged = Notice::Judged(slot, program.pick(&words));
            let notice = program.pick(&[judged, Notice::Returned(slot), Notice::Ready, Notice::Batch(slot)]);
            self.servers[at].engine.stream_notice(rank(1 - at), notice, &mut out);
        } else {
            let kinds =
                [OpKind::CopyCheck, OpKind::CopyUpdate, OpKind::CopyState, OpKind::CopyRules, OpKind::Push];
            let mut block = program.block(PAYLOAD_BYTES);
            block.op = program.pick(&kinds);
            let spec = spec(program.below(CHUNKS as u32) as usize);
            if !program.one_in(4) {
                (block.id, block.dtype) = (spec.id, spec.dtype);
                block.landing = Some(Landing { region: spec.bytes, offset: 0, bytes: spec.bytes });
                block.bytes = if program.one_in(4) { block.bytes } else { spec.bytes };
            }
            let words = [program.number(), program.number()];
            let count = program.below(3) as usize;
            self.record(at, slot, &[block], &words[..count], &mut out);
        }
        self.execute(at, out);
    }

    fn flush(&mut self) {
        for at in 0..2 {
            let mut out = Commands::default();
            self.servers[at].engine.flush(usize::MAX, &mut out);
            self.execute(at, out);
        }
    }

    fn execute(&mut self, at: usize, out: Commands) {
        let mut batches = VecDeque::from([out]);
        while let Some(out) = batches.pop_front() {
            for command in &out.list {
                let mut more = Commands::default();
                self.execute_one(at, command, &out, &mut more);
                batches.push_back(more);
            }
            batches.retain(|out| !out.list.is_empty());
        }
    }

    fn execute_one(&mut self, at: usize, command: &Command, out: &Commands, more: &mut Commands) {
        let server = &mut self.servers[at];
        match command {
            Command::Finish { chunk, .. } => server.engine.finished(*chunk, Verdict::Fits, more),
            Command::Land { peer, chunk, buffer, .. } => server.engine.landed(*peer, *chunk, *buffer, more),
            Command::Capture { to, chunk, state, .. } => {
                server.captured = Some((**state).clone());
                server.engine.captured(*to, *chunk, 100, more);
            }
            Command::Record { slot, block, payload, contributors, .. } => {
                let contributors = out.contributors[contributors.clone()].to_vec();
                let image = server.captured.clone().filter(|_| *payload == Payload::Image);
                server.records.push_back(Word::Record { slot: *slot, block: *block, contributors, image });
            }
            Command::TellPrimary { notice, .. } => server.words.push_back(Word::Notice(*notice)),
            Command::Load { from, chunk, into, slot, .. } => {
                let state = server.image.take();
                server.engine.loaded(
                    (*from, *slot),
                    *chunk,
                    state.as_ref().map(|state| (state, *into)),
                    more,
                );
            }
            Command::Seeded { epoch, .. } => self.seeded.push_back((at, *epoch)),
            Command::EndStream { peer, ours, reason } => {
                assert!(self.hostile, "server {at} ends its channel to {peer:?} ({ours}): {reason}");
                self.disconnect(if *ours { at } else { 1 - at });
            }
            Command::Results { peer, slot, results, grants, .. } => {
                let link = &mut server.links[peer.0 as usize];
                link.credits.extend(&out.grants[grants.clone()]);
                let again = SlotGrant { generation: slot.generation.wrapping_add(1), ..*slot };
                server.engine.notice(*peer, Notice::Returned(again), more);
                for result in &out.results[results.clone()] {
                    self.answered(at, peer.0 as usize, &result.block);
                }
            }
            Command::Expel { peer, reason } => panic!("server {at} expels worker {}: {reason}", peer.0),
            _ => {}
        }
    }

    fn answered(&mut self, at: usize, rank: usize, block: &Block) {
        let doing = &mut self.doing[rank][block.token as usize];
        if doing.operation != block.operation.0 || doing.sent != Some(at) {
            return;
        }
        match block.status {
            Status::Retry | Status::Reroute | Status::Granted => doing.sent = None,
            Status::Done | Status::Late => {
                if doing.open.is_some_and(OpKind::contributes) {
                    doing.answered = doing.round;
                }
                (doing.open, doing.sent) = (None, None);
            }
            // Others were quicker with their contributions.
            Status::Refused if doing.open == Some(OpKind::Init) => (doing.open, doing.sent) = (None, None),
            other => assert!(self.hostile, "an honest operation is answered {other:?}: {block:?}"),
        }
    }

    /// Faults stop: everything arrives, all contribute to the same rounds, and everybody is answered.
    fn finish(mut self) {
        if self.hostile {
            return;
        }
        (0..2)
            .filter(|at| !self.streams[*at])
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|at| self.connect(at));
        for _ in 0..400 {
            (0..2).for_each(|at| self.take_roles(at));
            self.flush();
            (0..2).for_each(|at| {
                let mut out = Commands::default();
                while let Some((chunk, ..)) = self.servers[at].engine.next_to_save() {
                    self.servers[at].engine.saved(chunk, &mut out);
                }
                self.execute(at, out);
                while self.deliver(at, true) | self.deliver(at, false) {}
            });
            if self.is_even() {
                return self.check();
            }
            for chunk in 0..CHUNKS {
                let most = self.rounds_of(tensor_of(chunk));
                for rank in 0..WORKERS {
                    let doing = self.doing[rank][chunk];
                    if doing.open.is_some() || doing.round < most {
                        self.ask(rank, chunk, OpKind::Push);
                    }
                }
            }
        }
        panic!(
            "not all rounds end: {:?}",
            self.doing.map(|doing| doing.map(|one| (one.operation, one.round, one.open, one.sent)))
        );
    }

    /// The newest round that anybody has contributed to, of any chunk of a tensor: norms are of all of them.
    fn rounds_of(&self, tensor: usize) -> u64 {
        let chunks = (0..CHUNKS).filter(|chunk| tensor_of(*chunk) == tensor);
        let rounds = chunks.flat_map(|chunk| self.doing.iter().map(move |doing| doing[chunk].round));
        rounds.max().unwrap_or(0)
    }

    fn is_even(&self) -> bool {
        let is_quiet = self.doing.iter().flatten().all(|doing| doing.open.is_none());
        let is_there =
            |chunk: usize, doing: &[Doing; CHUNKS]| doing[chunk].round == self.rounds_of(tensor_of(chunk));
        is_quiet && (0..CHUNKS).all(|chunk| self.doing.iter().all(|doing| is_there(chunk, doing)))
    }

    /// Nothing that was answered is lost.
    fn check(&self) {
        for chunk in 0..CHUNKS {
            let version = self.servers[self.places[tensor_of(chunk)].server].engine.version(spec(chunk).id);
            let version = version.map_or(0, |version| version.0);
            let answered: Vec<u64> = self.doing.iter().map(|doing| doing[chunk].answered).collect();
            let needed = match spec(chunk).mode {
                Mode::Sync => answered.iter().copied().max().unwrap_or(0),
                _ => answered.iter().sum(),
            };
            assert_eq!(
                version, needed,
                "chunk {chunk} counts each contribution that was answered, once: {answered:?}"
            );
        }
    }
}

fn rank(at: usize) -> Rank {
    Rank(at as u32)
}

fn server(life: Incarnation) -> Server {
    let config = EngineConfig {
        job: JOB,
        incarnation: OWN_LIFE,
        lane: Lane(0),
        workers: WORKERS as u32,
        deterministic: true,
        inbox_slots: 8,
        spill_blocks: 4,
        carried_bytes_max: 0,
        worker_loss: WorkerLoss::Stop,
    };
    Server {
        engine: LaneEngine::new(config),
        life,
        roles: VecDeque::new(),
        links: Default::default(),
        captured: None,
        image: None,
        records: VecDeque::new(),
        words: VecDeque::new(),
        saving: false,
    }
}
