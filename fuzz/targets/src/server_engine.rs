//! The server's engine under workers that keep the protocol, and worse ones: an input is a program of
//! connections, batches, notices, landings, flushes and ticks. Never a panic; credits, spill blocks and weight
//! buffers are used by one at a time and come back.

use crate::{JOB, OWN_LIFE, PAYLOAD_BYTES, PAYLOAD_OFFSET, Program, header, request};
use gradwire_server::engine::{
    Addend, BatchContext, ChunkSpec, Command, Commands, EngineConfig, FenceId, LaneEngine, Place, Onto, Source, Verdict,
};
use proto_common::batch::{BatchHeader, BatchKind, Block, BlockData, Count, Landing, Notice, OpKind, SlotGrant, Status};
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Lane, Operation, Rank};
use proto_common::limits::CARRIED_BYTES_MAX;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;

/// Slots of each worker's inbox.
const RESULT_SLOTS: u32 = 2;

crate::programs!(Rig);

/// Tensors there are.
const TENSORS: usize = 5;

fn specs() -> [ChunkSpec; TENSORS] {
    let spec = |key, bytes, dtype| ChunkSpec {
        id: ChunkId::new(key, 0),
        bytes,
        dynamic: false,
        dtype,
        codec: Codec::Plain,
        optimizer: Optimizer::sum(),
        mode: Mode::Sync,
        backup_workers: 0,
    };
    let dynamic = ChunkSpec { dynamic: true, ..spec(3, 32, Dtype::F32) };
    let in_mode = |mode, spec| ChunkSpec { mode, ..spec };
    [
        spec(1, 16, Dtype::F32),
        spec(2, 24, Dtype::I64),
        dynamic,
        in_mode(Mode::Async, spec(4, 16, Dtype::F32)),
        in_mode(Mode::Bounded(1), spec(5, 24, Dtype::I64)),
    ]
}

/// A worker, as far as its side of the protocol goes.
#[derive(Default)]
struct Worker {
    life: Option<Incarnation>,
    /// Credits it was told of and has not used.
    credits: Vec<SlotGrant>,
    /// Credits used before it was told of them.
    guessed: Vec<SlotGrant>,
    /// Slots of its inbox: the grant in force, and whether results lie there.
    inbox: Vec<(SlotGrant, bool)>,
    operations: [u64; TENSORS],
    rounds: [u64; TENSORS],
    /// Chunks whose contributions it may write into a buffer: it was told so, and has not done it since.
    granted: [bool; TENSORS],
    last: Option<(SlotGrant, BatchHeader, Vec<Block>)>,
}

impl Worker {
    /// It sends again what may not have been taken.
    fn step_back(&mut self, at: usize, operations: u64, rounds: u64) {
        self.operations[at] = self.operations[at].saturating_sub(operations);
        self.rounds[at] = self.rounds[at].saturating_sub(rounds);
    }

    /// An operation was sent back: it and what followed it go out again.
    fn sent_back(&mut self, block: &Block) {
        let Some(at) = specs().iter().position(|spec| spec.id == block.id) else { return };
        let operations = (self.operations[at] + 1).saturating_sub(block.operation.0);
        let rounds = (self.rounds[at] + u64::from(block.op.contributes())).saturating_sub(block.count.round());
        self.step_back(at, operations, rounds);
    }
}

/// A chunk, as the executor of commands sees it.
#[derive(Clone, Copy, Default)]
struct Bytes {
    buffer: u8,
    /// The version in each buffer.
    contents: [u64; 2],
    contributions: u32,
    version: u64,
}

struct Rig {
    engine: LaneEngine,
    config: EngineConfig,
    workers: Vec<Worker>,
    chunks: [Bytes; TENSORS],
    landings: Vec<(Rank, u32, u8)>,
    /// Spill blocks that hold something, key buffers apart.
    spills: Vec<bool>,
    /// Reads under way: worker, chunk, spill block.
    reads: Vec<(Rank, u32, u32)>,
    /// Of channels that have ended, while they are pending.
    fences: Vec<FenceId>,
    /// Contributions folded out of key buffers.
    placed: u64,
    lives: u64,
    now_ms: u64,
    is_flushing: bool,
}

impl Rig {
    fn new(program: &mut Program<'_>) -> Self {
        let shape = program.byte();
        let config = EngineConfig {
            job: JOB,
            incarnation: OWN_LIFE,
            lane: Lane(0),
            workers: 1 + u32::from(shape & 3),
            deterministic: shape & 4 == 0,
            inbox_slots: 1 + u32::from(shape >> 3 & 7),
            spill_blocks: u32::from(shape >> 6),
            carried_bytes_max: if shape & 1 << 6 == 0 { CARRIED_BYTES_MAX } else { 0 },
            worker_loss: WorkerLoss::Stop,
        };
        let mut engine = LaneEngine::new(config);
        engine.assign(Epoch { term: 1, counter: 1 }, &specs());
        let workers = (0..config.workers).map(|_| Worker::default()).collect();
        let spills = vec![false; config.spill_blocks as usize];
        let mut rig = Self {
            engine,
            config,
            workers,
            chunks: [Bytes::default(); TENSORS],
            landings: Vec::new(),
            spills,
            reads: Vec::new(),
            fences: Vec::new(),
            placed: 0,
            lives: 0,
            now_ms: 0,
            is_flushing: false,
        };
        (0..config.workers).for_each(|rank| rig.connect(Rank(rank)));
        rig
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let rank = Rank(program.below(self.config.workers));
        match program.byte() % 16 {
            0..=4 => self.honest_batch(rank, program),
            5 | 6 => self.wild_batch(rank, program),
            7 | 8 => self.return_slot(rank),
            9 => self.wild_notice(rank, program),
            10 | 11 => self.land(program),
            12 => self.again(rank),
            13 => {
                self.now_ms += program.number().min(1 << 32);
                self.fences.pop().into_iter().for_each(|fence| self.engine.fenced(fence, fabric::Fenced::answered()));
                let mut out = Commands::default();
                self.engine.tick(self.now_ms, &mut out);
                self.execute(&out, None);
                let _ = self.engine.oldest(self.now_ms);
            }
            14 if program.byte() & 1 == 0 => self.give_back(rank),
            14 => self.fetched(program),
            _ if self.workers[rank.0 as usize].life.is_some() => self.disconnect(rank),
            _ => self.connect(rank),
        }
        self.flush(program.below(4) as usize);
    }

    fn connect(&mut self, rank: Rank) {
        self.disconnect(rank);
        self.lives += 1;
        let life = Incarnation(self.lives);
        let inbox: Vec<_> = (0..RESULT_SLOTS).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        let mut out = Commands::default();
        let credits = self.engine.peer_up(rank, life, &inbox, reads_in_place(rank), &mut out);
        self.execute(&out, None);
        let worker = &mut self.workers[rank.0 as usize];
        worker.life = Some(life);
        worker.credits = credits;
        worker.guessed.clear();
        worker.inbox = inbox.into_iter().map(|grant| (grant, false)).collect();
        worker.last = None;
        self.check_credits();
    }

    /// As the runtime does: landings under way end, then the channel is gone.
    fn disconnect(&mut self, rank: Rank) {
        while let Some(at) = self.landings.iter().position(|(peer, ..)| *peer == rank) {
            self.landed(at);
        }
        let fence = self.engine.peer_down(rank);
        self.fences.push(fence);
        let Self { reads, spills, .. } = self;
        reads.retain(|(peer, _, block)| {
            spills[*block as usize] &= *peer != rank;
            *peer != rank
        });
        let worker = &mut self.workers[rank.0 as usize];
        worker.granted = [false; TENSORS];
        (worker.life, worker.last) = (None, None);
        worker.credits.clear();
        worker.guessed.clear();
        assert_eq!(self.engine.peer_incarnation(rank), Incarnation::default());
        self.execute(&Commands::default(), None);
    }

    fn honest_batch(&mut self, rank: Rank, program: &mut Program<'_>) {
        let count = 1 + program.below(3);
        let worker = &mut self.workers[rank.0 as usize];
        let (Some(life), Some(slot)) = (worker.life, worker.credits.first().copied()) else { return };
        let mut blocks = Vec::new();
        for place in 0..u64::from(count) {
            let at = program.below(TENSORS as u32) as usize;
            let op =
                program.pick(&[OpKind::Push, OpKind::PushPull, OpKind::Pull, OpKind::Init, OpKind::Release]);
            if program.one_in(8) {
                worker.step_back(at, program.number(), program.number());
            }
            worker.operations[at] += 1;
            worker.rounds[at] += u64::from(op.contributes());
            let mut made = block(rank, at, op, worker.operations[at], worker.rounds[at], place * 64);
            if specs()[at].dynamic && made.bytes > 0 {
                made.bytes = 4 * u64::from(program.below(9));
            }
            if program.one_in(4) && op.lands() {
                (made.view, made.landing) = (true, None);
            }
            made.reading.from = Operation(program.number() % (made.operation.0 + 1));
            if made.bytes > 0 {
                made.data = travel(made.data, &mut worker.granted[at], program);
            }
            blocks.push(made);
        }
        let mut header = header(BatchKind::Request, rank, life);
        header.wanted = program.number() as u16;
        self.deliver(rank, slot, header, blocks, &[]);
    }

    fn wild_batch(&mut self, rank: Rank, program: &mut Program<'_>) {
        let worker = &mut self.workers[rank.0 as usize];
        let mut header = header(BatchKind::Request, rank, worker.life.unwrap_or_default());
        program.bend(&mut header);
        let credit = worker.credits.first().copied();
        let slot = if program.one_in(4) { program.slot() } else { credit.unwrap_or_else(|| program.slot()) };
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..program.below(4) {
            let at = program.below(TENSORS as u32) as usize;
            let mut made = if program.byte() & 1 == 0 {
                program.block(PAYLOAD_BYTES)
            } else {
                let op = program.pick(&[OpKind::Push, OpKind::PushPull, OpKind::Pull, OpKind::Init]);
                block(rank, at, op, worker.operations[at] + program.number() % 3, program.number(), 0)
            };
            made.token = program.number();
            blocks.push(made);
        }
        let grants = program.slots();
        self.deliver(rank, slot, header, blocks, &grants);
    }

    fn again(&mut self, rank: Rank) {
        if let Some((slot, header, blocks)) = self.workers[rank.0 as usize].last.take() {
            self.deliver(rank, slot, header, blocks, &[]);
        }
    }

    fn deliver(
        &mut self,
        rank: Rank,
        slot: SlotGrant,
        header: BatchHeader,
        blocks: Vec<Block>,
        grants: &[SlotGrant],
    ) {
        let mut out = Commands::default();
        if self.engine.notified(rank, slot, &mut out) {
            self.spend(rank, slot);
            self.mirror_returns(rank, grants);
            let context = BatchContext { peer: rank, slot, header: &header, blocks: &blocks, grants };
            self.engine.batch(&context, self.now_ms, &mut out);
            self.workers[rank.0 as usize].last = Some((slot, header, blocks));
        }
        self.execute(&out, Some(slot.slot));
    }

    /// A credit is used; one that the worker could not know of yet is remembered.
    fn spend(&mut self, rank: Rank, slot: SlotGrant) {
        let worker = &mut self.workers[rank.0 as usize];
        match worker.credits.iter().position(|credit| *credit == slot) {
            Some(at) => drop(worker.credits.remove(at)),
            None => worker.guessed.push(slot),
        }
    }

    /// Returned slots may be written again, whoever said so and in whatever batch: a wrong one ends the channel.
    fn mirror_returns(&mut self, rank: Rank, grants: &[SlotGrant]) {
        let worker = &mut self.workers[rank.0 as usize];
        for grant in grants {
            let next = |held: &SlotGrant| {
                held.slot == grant.slot && held.generation.wrapping_add(1) == grant.generation
            };
            if let Some((held, full)) = worker.inbox.iter_mut().find(|(held, full)| *full && next(held)) {
                (*held, *full) = (*grant, false);
            }
        }
    }

    fn notice(&mut self, rank: Rank, notice: Notice) {
        let mut out = Commands::default();
        match notice {
            Notice::Returned(grant) => self.mirror_returns(rank, &[grant]),
            Notice::GivenBack(grant) => {
                self.workers[rank.0 as usize].credits.retain(|credit| *credit != grant);
            }
            _ => {}
        }
        self.engine.notice(rank, notice, &mut out);
        self.execute(&out, None);
    }

    fn wild_notice(&mut self, rank: Rank, program: &mut Program<'_>) {
        let slot = program.slot();
        let notices = [
            Notice::Batch(slot),
            Notice::Returned(slot),
            Notice::GivenBack(slot),
            Notice::Want(1 + program.byte() % 255),
            Notice::Probe,
            Notice::ProbeReply,
        ];
        self.notice(rank, program.pick(&notices));
    }

    fn return_slot(&mut self, rank: Rank) {
        let mut full = self.workers[rank.0 as usize].inbox.iter().filter(|(_, full)| *full);
        if let Some((held, _)) = full.next().copied() {
            let generation = held.generation.wrapping_add(1);
            self.notice(rank, Notice::Returned(SlotGrant { generation, ..held }));
        }
    }

    fn give_back(&mut self, rank: Rank) {
        if let Some(credit) = self.workers[rank.0 as usize].credits.last().copied() {
            self.notice(rank, Notice::GivenBack(credit));
        }
    }

    fn land(&mut self, program: &mut Program<'_>) {
        if !self.landings.is_empty() {
            let at = program.below(self.landings.len() as u32) as usize;
            self.landed(at);
        }
    }

    fn fetched(&mut self, program: &mut Program<'_>) {
        if !self.reads.is_empty() {
            let at = program.below(self.reads.len() as u32) as usize;
            let (peer, chunk, block) = self.reads.swap_remove(at);
            let mut out = Commands::default();
            self.engine.fetched(peer, chunk, block, &mut out);
            self.execute(&out, None);
        }
    }

    fn landed(&mut self, at: usize) {
        let (peer, chunk, buffer) = self.landings.swap_remove(at);
        let mut out = Commands::default();
        self.engine.landed(peer, chunk, buffer, &mut out);
        self.execute(&out, None);
    }

    fn flush(&mut self, batches: usize) {
        let mut out = Commands::default();
        self.is_flushing = true;
        self.engine.flush(batches, &mut out);
        let sent = out.list.iter().filter(|command| matches!(command, Command::Results { .. })).count();
        assert!(sent <= batches);
        self.execute(&out, None);
        self.is_flushing = false;
        self.check_credits();
    }

    fn execute(&mut self, out: &Commands, slot: Option<u32>) {
        let (mut expelled, mut judged) = (Vec::new(), Vec::new());
        for command in &out.list {
            match command {
                Command::Reduce { chunk, addend } => self.reduce(*chunk, *addend, slot),
                Command::Finish { chunk, last, old, into, contributors, .. } => {
                    last.iter().for_each(|last| self.reduce(*chunk, *last, slot));
                    self.finish_round(*chunk, (*old, *into), *contributors);
                    if specs()[*chunk as usize].dtype.is_integer() {
                        judged.push((*chunk, *into));
                    }
                }
                Command::Init { chunk, from, into } => {
                    self.read(*from, slot);
                    self.written(*chunk, *into);
                }
                Command::Spill { from, to, .. } => {
                    self.read(*from, slot);
                    assert!(!std::mem::replace(&mut self.spills[*to as usize], true), "spilled over another");
                }
                Command::Fetch { peer, chunk, to, .. } => {
                    assert!(!std::mem::replace(&mut self.spills[*to as usize], true), "read over another");
                    self.reads.push((*peer, *chunk, *to));
                }
                Command::Land { peer, chunk, buffer, .. } => {
                    // What was to be carried, and found no slot, is written with the flush.
                    let is_new = *buffer == self.chunks[*chunk as usize].buffer;
                    assert!(is_new || self.is_flushing, "old weights are not handed out");
                    self.landings.push((*peer, *chunk, *buffer));
                }
                Command::Results { peer, slot, results, grants, .. } => {
                    self.told(*peer, *slot, &out.grants[grants.clone()]);
                    for result in &out.results[results.clone()] {
                        if let Some(Place::Carried { chunk, buffer }) = result.place {
                            let there = self.chunks[chunk as usize].contents[usize::from(buffer)];
                            assert!(there >= result.block.count.round(), "overwritten before it was carried");
                        }
                        self.answered(*peer, &result.block);
                    }
                }
                Command::Size { chunk, bytes } => {
                    let spec = specs()[*chunk as usize];
                    assert!(spec.dynamic && *bytes <= spec.bytes && bytes.is_multiple_of(4));
                }
                Command::Notice { peer, .. } => assert!(self.workers[peer.0 as usize].life.is_some()),
                Command::Expel { peer, .. } => expelled.push(*peer),
                _ => {
                    unreachable!("nobody calls here, no chunk needs norms, and none has copies: {command:?}")
                }
            }
        }
        judged.into_iter().for_each(|(chunk, into)| self.judge(chunk, into));
        for (chunk, spec) in self.chunks.iter().zip(specs()) {
            assert_eq!(self.engine.version(spec.id).map(|version| version.0), Some(chunk.version));
        }
        // Key buffers of those who left count as spilt, until their contributions are folded.
        assert!(self.spills.iter().filter(|used| **used).count() <= self.engine.spills().0);
        assert!(2 * self.engine.key_buffers() <= self.config.spill_blocks, "the budget of key buffers");
        assert!(self.placed <= self.engine.stats().placed, "folded what nobody placed");
        expelled.into_iter().for_each(|peer| self.disconnect(peer));
    }

    fn reduce(&mut self, chunk: u32, Addend { from, onto }: Addend, slot: Option<u32>) {
        if let Onto::First(first) = onto {
            self.reduce(chunk, Addend { from: first, onto: Onto::Nothing }, None);
        }
        self.read(from, slot);
        let state = &mut self.chunks[chunk as usize];
        assert_eq!(onto == Onto::Nothing, state.contributions == 0);
        state.contributions += 1;
        assert!(state.contributions <= self.config.workers);
    }

    fn finish_round(&mut self, chunk: u32, (old, into): (u8, u8), contributors: u32) {
        assert_eq!(old, self.chunks[chunk as usize].buffer);
        self.written(chunk, into);
        let state = &mut self.chunks[chunk as usize];
        let needed = if specs()[chunk as usize].mode.has_rounds() { self.config.workers } else { 1 };
        assert_eq!((state.contributions, contributors), (needed, needed));
        state.contributions = 0;
        if specs()[chunk as usize].dtype.is_integer() {
            state.buffer = old;
        } else {
            state.version += 1;
            state.contents[usize::from(into)] = state.version;
        }
    }

    /// Storage says whether a round of integers fits: every third one does not.
    fn judge(&mut self, chunk: u32, into: u8) {
        let state = &mut self.chunks[chunk as usize];
        state.version += 1;
        let verdict = if state.version.is_multiple_of(3) { Verdict::BadValue } else { Verdict::Fits };
        if verdict == Verdict::Fits {
            state.contents[usize::from(into)] = state.version;
            state.buffer = into;
        }
        let mut out = Commands::default();
        self.engine.finished(chunk, verdict, &mut out);
        self.execute(&out, None);
    }

    fn answered(&mut self, peer: Rank, block: &Block) {
        let worker = &mut self.workers[peer.0 as usize];
        if block.status == Status::Retry || block.status == Status::Granted {
            worker.sent_back(block);
        }
        if block.status == Status::Granted
            && let Some(at) = specs().iter().position(|spec| spec.id == block.id)
        {
            worker.granted[at] |= block.landing.is_some();
        }
    }

    /// A source is the slot of the batch at hand, a spill block, which is free then, or a key buffer.
    fn read(&mut self, from: Source, slot: Option<u32>) {
        match from {
            Source::Slot { slot: at, offset } => {
                assert_eq!(Some(at), slot);
                assert!((PAYLOAD_OFFSET..=PAYLOAD_OFFSET + PAYLOAD_BYTES).contains(&offset));
            }
            Source::Spill(block) => {
                assert!(self.reads.iter().all(|(.., reading)| *reading != block), "used before it was there");
                let spilt = std::mem::replace(&mut self.spills[block as usize], false);
                self.placed += u64::from(!spilt);
            }
            Source::Record { .. } => unreachable!("there are no copies here"),
            Source::Worker { peer, .. } => {
                assert!(
                    reads_in_place(peer) && self.workers[peer.0 as usize].life.is_some(),
                    "memory that is gone"
                );
            }
        }
    }

    /// Weights are written where nobody reads.
    fn written(&mut self, chunk: u32, into: u8) {
        assert!(self.landings.iter().all(|(_, c, buffer)| (*c, *buffer) != (chunk, into)), "a pinned buffer");
        let state = &mut self.chunks[chunk as usize];
        state.buffer = into;
    }

    fn told(&mut self, peer: Rank, slot: SlotGrant, grants: &[SlotGrant]) {
        let worker = &mut self.workers[peer.0 as usize];
        assert!(worker.life.is_some());
        let place = worker.inbox.iter_mut().find(|(held, full)| *held == slot && !full);
        place.expect("results go only into a slot that was granted").1 = true;
        for grant in grants {
            match worker.guessed.iter().position(|guess| guess == grant) {
                Some(at) => drop(worker.guessed.remove(at)),
                None => worker.credits.push(*grant),
            }
        }
    }

    /// No slot has two holders, and none is made or lost.
    fn check_credits(&self) {
        let (free, total) = self.engine.credits();
        let mut held: Vec<u32> = self.workers.iter().flat_map(|w| w.credits.iter().map(|c| c.slot)).collect();
        let count = held.len();
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), count, "one slot, two holders");
        assert!(free + count <= total);
    }

    fn finish(&mut self) {
        (0..self.config.workers).for_each(|rank| self.disconnect(Rank(rank)));
        let (free, total) = self.engine.credits();
        assert_eq!(free + self.engine.quarantined().0, total, "no credit is lost");
        self.fences.drain(..).for_each(|fence| self.engine.fenced(fence, fabric::Fenced::answered()));
        let (free, total) = self.engine.credits();
        assert_eq!(free, total, "credits come back");
        assert_eq!(self.engine.key_buffers(), 0, "grants end with their channels");
        assert!(self.reads.is_empty());
        assert!(self.landings.is_empty() && self.engine.oldest(self.now_ms).is_none());
    }
}

/// Where an honest worker says that a payload is.
fn travel(inline: BlockData, granted: &mut bool, program: &mut Program<'_>) -> BlockData {
    match program.below(6) {
        0 if std::mem::take(granted) => BlockData::Placed,
        0 | 1 => BlockData::Announced { keep: program.byte() & 1 == 1 },
        2 => BlockData::ByReference { region: 1, offset: program.number() },
        _ => inline,
    }
}

/// Some workers are on the server's host.
fn reads_in_place(rank: Rank) -> bool {
    rank.0 & 1 == 1
}

/// An operation as an honest worker would ask for it.
fn block(rank: Rank, at: usize, op: OpKind, operation: u64, round: u64, offset: u64) -> Block {
    let spec = specs()[at];
    let payload = op.contributes() || (op == OpKind::Init && rank.0 == 0);
    Block {
        id: spec.id,
        op,
        dtype: spec.dtype,
        count: Count::Round(if op == OpKind::Init { 0 } else { round }),
        bytes: if payload { spec.bytes } else { 0 },
        data: BlockData::Inline { offset },
        landing: op.lands().then_some(Landing { region: 1, offset: 0, bytes: spec.bytes }),
        ..request(operation)
    }
}
