//! The worker's engine under servers that keep the protocol, and worse ones: an input is a program of
//! operations, channels, chunks that move, servers that are gone, results, notices, flushes and ticks.
//! Never a panic; each operation ends once, fails at most once and not after its end, and all end as soon
//! as the servers behave.

use crate::{JOB, OWN_LIFE, PAYLOAD_BYTES, Program, header};
use gradwire_worker::OpError;
use gradwire_worker::engine::{
    Command, Commands, EngineConfig, LaneEngine, PartBlock, PartSpec, ResultContext, Submit,
};
use proto_common::batch::{
    BatchHeader, BatchKind, Block, BlockData, Count, Kept, Landing, Notice, OpKind, Reading, SlotGrant,
    Status,
};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Incarnation, Lane, Operation, Rank};
use proto_common::plan::Placement;
use std::collections::BTreeMap;

/// Slots of our inbox that each server may write.
const RESULT_SLOTS: u32 = 2;
/// Slots of each server's inbox.
const CREDITS: u32 = 3;
const KEYS: u64 = 4;
const SLOT_BYTES: u64 = 16 << 10;
const CHUNK_BYTES: u64 = 4 << 10;

crate::programs!(Rig);

/// A server, as far as its side of the protocol goes.
#[derive(Default)]
struct Server {
    life: Option<Incarnation>,
    /// Credits that the worker has; `None` once nonsense was granted.
    credits: Option<Vec<SlotGrant>>,
    /// Slots of its inbox that the worker has used: to be granted again.
    used: Vec<SlotGrant>,
    /// Slots of the worker's inbox that it may write.
    results: Vec<SlotGrant>,
    /// It wrote to a slot before the worker said that it may again.
    guessed: bool,
    /// Blocks sent and not answered.
    taken: Vec<Block>,
}

struct Rig {
    engine: LaneEngine,
    config: EngineConfig,
    servers: Vec<Server>,
    /// Operations in progress, and whether they failed.
    ops: BTreeMap<u64, bool>,
    next_op: u64,
    numbers: [u64; KEYS as usize],
    lives: u64,
    now_ms: u64,
}

impl Rig {
    fn new(program: &mut Program<'_>) -> Self {
        let config = EngineConfig {
            job: JOB,
            incarnation: OWN_LIFE,
            lane: Lane(0),
            rank: Rank(0),
            servers: 1 + program.below(3),
            gather_max: 2 + program.below(8) as usize,
            in_flight_max: 1 + program.below(12) as usize,
            keeps_calls: false,
        };
        let mut rig = Self {
            engine: LaneEngine::new(config),
            config,
            servers: (0..config.servers).map(|_| Server::default()).collect(),
            ops: BTreeMap::new(),
            next_op: 0,
            numbers: [0; KEYS as usize],
            lives: 0,
            now_ms: 0,
        };
        (0..config.servers).for_each(|server| rig.connect(Rank(server)));
        rig
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let server = Rank(program.below(self.config.servers));
        match program.byte() % 16 {
            0..=3 => self.submit(program),
            4..=6 => self.answer(server, program),
            7..=9 => self.wild_results(server, program),
            10 | 11 => self.flush(program.below(4) as usize),
            12 => {
                self.now_ms += program.number().min(1 << 32);
                self.call(|engine, now_ms, out| engine.tick(now_ms, out));
            }
            13 => self.wild_notice(server, program),
            14 if self.servers[server.0 as usize].life.is_some() => self.disconnect(server),
            14 => self.connect(server),
            _ if program.one_in(16) => self.fail_all(),
            _ if program.one_in(3) => self.remap(program),
            _ if program.one_in(3) => self.gone(server),
            _ => drop((self.engine.oldest(self.now_ms), self.engine.next_retry_ms())),
        }
        assert_eq!(self.engine.in_flight(), self.ops.len());
    }

    fn connect(&mut self, server: Rank) {
        self.disconnect(server);
        self.lives += 1;
        let life = Incarnation(self.lives);
        let credits: Vec<_> = (0..CREDITS).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        let first = server.0 * RESULT_SLOTS;
        let results: Vec<_> =
            (first..first + RESULT_SLOTS).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        self.engine.server_up(server, life, SLOT_BYTES, &credits, &results);
        assert_eq!(self.engine.server_incarnation(server), life);
        self.servers[server.0 as usize] =
            Server { life: Some(life), credits: Some(credits), results, ..Server::default() };
    }

    fn disconnect(&mut self, server: Rank) {
        self.engine.server_down(server);
        self.servers[server.0 as usize] = Server::default();
    }

    /// Chunks have other servers from now on.
    fn remap(&mut self, program: &mut Program<'_>) {
        let moved = |program: &mut Program<'_>| {
            let chunk = ChunkId::new(u64::from(program.below(KEYS as u32)), program.below(4));
            (chunk, Rank(program.below(self.config.servers)))
        };
        let moves: Vec<_> = (0..program.below(5)).map(|_| moved(program)).collect();
        self.engine.remap(&moves);
    }

    /// A server's life is over, as the scheduler says.
    fn gone(&mut self, server: Rank) {
        self.disconnect(server);
        self.call(|engine, _, out| engine.server_gone(server, out));
    }

    fn fail_all(&mut self) {
        self.call(|engine, _, out| engine.fail_all(&OpError::Closed("fuzz".into()), out));
        assert!(self.ops.is_empty());
        self.servers.iter_mut().for_each(|server| *server = Server::default());
    }

    fn submit(&mut self, program: &mut Program<'_>) {
        if self.ops.len() >= 64 {
            return;
        }
        let key = program.below(KEYS as u32);
        self.numbers[key as usize] += 1;
        let number = self.numbers[key as usize];
        let kind = program.pick(&[OpKind::Push, OpKind::PushPull, OpKind::Pull, OpKind::Init]);
        let part = |chunk: u32| PartSpec {
            id: ChunkId::new(u64::from(key), chunk),
            server: Rank((key + chunk) % self.config.servers),
            offset: u64::from(chunk) * CHUNK_BYTES,
            bytes: CHUNK_BYTES,
            coded: None,
        };
        let parts: Vec<_> = (0..program.below(4)).map(part).collect();
        self.next_op += 1;
        let op = self.next_op;
        self.ops.insert(op, false);
        let submit = Submit {
            op,
            kind,
            dtype: Dtype::F32,
            payload: kind.contributes(),
            placement: program.pick(&[
                Placement::Slot,
                Placement::Static,
                Placement::RendezvousRead,
                Placement::RendezvousWrite,
            ]),
            operation: Operation(number),
            view: kind.lands() && program.one_in(4),
            reading: Reading { from: Operation(program.number() % (number + 1)), kept: Kept::None },
            exact: kind == OpKind::Pull && number.is_multiple_of(3),
            count: Count::of(kind, number),
            priority: program.below(5) as i32 - 2,
            timeout_ms: program.number() as u32,
            busy_ms: 0,
            by_chunk: program.one_in(4),
        };
        self.call(|engine, now_ms, out| engine.submit(&submit, &parts, now_ms, out));
    }

    fn flush(&mut self, batches: usize) {
        let mut out = Commands::default();
        self.engine.flush(batches, self.now_ms, &mut out);
        let sent = out.list.iter().filter(|command| matches!(command, Command::Send { .. })).count();
        assert!(sent <= batches);
        self.execute(&out);
    }

    /// One honest batch: a result of any status for one block, where there is one, and the credits used.
    fn answer(&mut self, server: Rank, program: &mut Program<'_>) {
        let state = &mut self.servers[server.0 as usize];
        if state.life.is_none() || state.results.is_empty() {
            return;
        }
        let mut blocks = Vec::new();
        if !state.taken.is_empty() {
            let at = program.below(state.taken.len() as u32) as usize;
            let statuses = [
                Status::Done,
                Status::Late,
                Status::Retry,
                Status::DeadlineBehind,
                Status::Refused,
                Status::Reroute,
            ];
            let taken = state.taken.swap_remove(at);
            blocks.push(match taken.data {
                BlockData::Announced { .. } | BlockData::ByReference { .. } if program.byte() & 1 == 1 => {
                    grant(&taken, program)
                }
                _ => reply(&taken, program.pick(&statuses)),
            });
        }
        self.tell(server, &blocks);
    }

    fn tell(&mut self, server: Rank, blocks: &[Block]) {
        let state = &mut self.servers[server.0 as usize];
        let (Some(life), Some(slot)) = (state.life, state.results.pop()) else { return };
        let again = |used: SlotGrant| SlotGrant { generation: used.generation.wrapping_add(1), ..used };
        let grants: Vec<_> = state.used.drain(..).map(again).collect();
        if let Some(credits) = &mut state.credits {
            credits.extend(&grants);
        }
        self.deliver(server, slot, &header(BatchKind::Result, server, life), blocks, &grants, &[]);
    }

    fn wild_results(&mut self, server: Rank, program: &mut Program<'_>) {
        let state = &mut self.servers[server.0 as usize];
        let mut header = header(BatchKind::Result, server, state.life.unwrap_or_default());
        program.bend(&mut header);
        let free = state.results.last().copied();
        let slot = if program.one_in(4) { program.slot() } else { free.unwrap_or_else(|| program.slot()) };
        let mut blocks = Vec::new();
        for _ in 0..program.below(4) {
            let mut block = program.block(PAYLOAD_BYTES);
            if let Some(sent) = state.taken.first().filter(|_| program.byte() & 1 == 1) {
                (block.token, block.id) = (sent.token, sent.id);
            }
            blocks.push(block);
        }
        let grants = program.slots();
        let payload: Vec<u8> = (0..program.below(16)).map(|_| program.byte()).collect();
        if !grants.is_empty() {
            state.credits = None;
        }
        self.deliver(server, slot, &header, &blocks, &grants, &payload);
    }

    fn deliver(
        &mut self,
        server: Rank,
        slot: SlotGrant,
        header: &BatchHeader,
        blocks: &[Block],
        grants: &[SlotGrant],
        payload: &[u8],
    ) {
        let mut out = Commands::default();
        if self.engine.notified(server, slot, &mut out) {
            let state = &mut self.servers[server.0 as usize];
            state.guessed |= !state.results.contains(&slot);
            state.results.retain(|free| *free != slot);
            let context = ResultContext { server, slot, header, blocks, grants, payload };
            self.engine.results(&context, self.now_ms, &mut out);
        }
        self.execute(&out);
    }

    fn wild_notice(&mut self, server: Rank, program: &mut Program<'_>) {
        let slot = program.slot();
        let notices = [
            Notice::Batch(slot),
            Notice::Returned(slot),
            Notice::GivenBack(slot),
            Notice::Want(1),
            Notice::Probe,
            Notice::ProbeReply,
        ];
        let notice = program.pick(&notices);
        if self.servers[server.0 as usize].life.is_some() {
            self.call(|engine, _, out| engine.notice(server, notice, out));
        }
    }

    fn call(&mut self, step: impl FnOnce(&mut LaneEngine, u64, &mut Commands)) {
        let mut out = Commands::default();
        step(&mut self.engine, self.now_ms, &mut out);
        self.execute(&out);
    }

    fn execute(&mut self, out: &Commands) {
        let mut closed = Vec::new();
        for command in &out.list {
            match command {
                Command::Send { server, slot, parts, grants, .. } => {
                    let blocks = &out.parts[parts.clone()];
                    assert!(!blocks.is_empty() && blocks.len() < self.config.gather_max);
                    // What a server has shown is given up by a block of its own once the chunk is elsewhere.
                    let gives_up = |block: &Block| block.op == OpKind::Release && block.token == u64::MAX;
                    let is_live = |part: &PartBlock| self.ops.contains_key(&part.op) || gives_up(&part.block);
                    assert!(blocks.iter().all(is_live), "nothing of ended ones");
                    let state = self.spend(*server, *slot);
                    state.taken.extend(blocks.iter().map(|part| part.block));
                    let returned = out.grants[grants.clone()].iter();
                    returned.for_each(|grant| self.returned(*server, *grant));
                }
                Command::Shown { op, .. } => assert!(self.ops.contains_key(op), "shown after its end"),
                Command::Place { server, part, remote } => {
                    let part = &out.parts[*part];
                    assert!(
                        self.servers[server.0 as usize].life.is_some() && self.ops.contains_key(&part.op)
                    );
                    assert_eq!(part.block.data, BlockData::Placed);
                    assert!(part.block.bytes <= remote.bytes, "written past the grant");
                }
                Command::Notice { server, notice } => match notice {
                    Notice::Returned(grant) => self.returned(*server, *grant),
                    Notice::GivenBack(grant) => drop(self.spend(*server, *grant)),
                    _ => assert!(self.servers[server.0 as usize].life.is_some()),
                },
                Command::Failed { op, .. } => {
                    let failed = self.ops.get_mut(op).expect("fails before it ends");
                    assert!(!std::mem::replace(failed, true), "fails once");
                }
                Command::Done { op, .. } => assert!(self.ops.remove(op).is_some(), "ends once"),
                Command::Replied { .. } | Command::Room { .. } => unreachable!("nobody calls here"),
                Command::Version { op, .. }
                | Command::Late { op, .. }
                | Command::Waits { op, .. }
                | Command::Carried { op, .. }
                | Command::Landed { op, .. } => {
                    assert!(self.ops.contains_key(op), "told before its end");
                }
                Command::Close { server, .. } => closed.push(*server),
            }
        }
        closed.into_iter().for_each(|server| self.disconnect(server));
    }

    /// A credit is used, or given back: one that the worker was granted and had not used.
    fn spend(&mut self, server: Rank, slot: SlotGrant) -> &mut Server {
        let state = &mut self.servers[server.0 as usize];
        assert!(state.life.is_some());
        if let Some(credits) = &mut state.credits {
            let at = credits.iter().position(|credit| *credit == slot);
            credits.swap_remove(at.expect("a credit is used once"));
        }
        state.used.push(slot);
        state
    }

    fn returned(&mut self, server: Rank, grant: SlotGrant) {
        let state = &mut self.servers[server.0 as usize];
        assert!(state.life.is_some());
        let again = state.results.iter().position(|free| free.slot == grant.slot);
        assert!(again.is_none() || state.guessed, "returned twice");
        state.results.retain(|free| free.slot != grant.slot);
        state.results.push(grant);
    }

    /// New channels to servers that keep the protocol: everything ends.
    fn finish(&mut self) {
        (0..self.config.servers).for_each(|server| self.connect(Rank(server)));
        for _ in 0..1_000 {
            if self.ops.is_empty() {
                assert_eq!(self.engine.in_flight(), 0);
                return;
            }
            self.now_ms += 3;
            self.flush(usize::MAX);
            for server in 0..self.config.servers {
                let taken = std::mem::take(&mut self.servers[server as usize].taken);
                let done: Vec<_> = taken.iter().map(|block| reply(block, Status::Done)).collect();
                self.tell(Rank(server), &done);
            }
        }
        panic!("not ended: {:?}", self.engine.oldest(self.now_ms));
    }
}

/// A buffer, where one was asked for; or none.
fn grant(block: &Block, program: &mut Program<'_>) -> Block {
    let announced = matches!(block.data, BlockData::Announced { .. });
    let landing = Landing { region: 1, offset: program.number(), bytes: block.bytes };
    let landing = (announced && !program.one_in(3)).then_some(landing);
    Block { landing, ..reply(block, Status::Granted) }
}

fn reply(block: &Block, status: Status) -> Block {
    let view = block.view && matches!(status, Status::Done | Status::Late);
    let landing = view.then_some(Landing { region: 1, offset: 0, bytes: CHUNK_BYTES });
    Block { status, bytes: 0, data: BlockData::Inline { offset: 0 }, landing, view, timeout_ms: 0, ..*block }
}
