//! One simulated worker: the real engine of one lane under a trainer that asks for all tensors, waits for all, and begins
//! again. The model's half of `worker/src/runtime/lane.rs`, with lengths in the place of bytes.

use super::message::{self, Batch, Message, Payload, Sent};
use super::shape::{Shape, Work};
use super::turn::{ModelError, Turn};
use gradwire_worker::engine::{
    Command, Commands, EngineConfig, LaneEngine, PartBlock, PartSpec, ResultContext, Submit,
};
use proto_common::batch::{BatchKind, Count, Notice, OpKind, Reading, SlotGrant};
use proto_common::element::Dtype;
use proto_common::ids::{Incarnation, Lane, Operation, Rank};
use proto_common::limits::{IN_FLIGHT_MAX, PREFIXES_PER_LANE, RESULT_SLOTS, slot_bytes_for};
use proto_common::plan::Placement;
use proto_common::shard_map::ShardMap;
use std::collections::VecDeque;

/// Milliseconds between ticks of the engine, as in the runtime.
const TICK_MS: u64 = 50;
/// Spans of a write, as the tcp driver takes them: a batch's table and a payload for each of its blocks.
pub(super) const GATHER_MAX: usize = 256;
/// Beyond what any simulated round takes: deadlines are not what is measured here.
const TIMEOUT_MS: u32 = 1_000_000_000;

/// See the module.
pub(super) struct Worker {
    rank: Rank,
    life: Incarnation,
    engine: LaneEngine,
    work: Work,
    /// Of each tensor.
    parts: Vec<Vec<PartSpec>>,
    /// Operations of this round that have not ended.
    open: usize,
    round: u64,
    rounds: u64,
    commands: Commands,
    next_tick_ms: u64,
    /// When each round ended.
    pub(super) ended_ns: Vec<u64>,
    /// What was sent before the second round, which is the first one that counts.
    pub(super) warm: Sent,
    pub(super) sent: Sent,
}

/// The life of a worker.
pub(super) fn life(rank: u32) -> Incarnation {
    Incarnation(2_000_000 + u64::from(rank))
}

impl Worker {
    pub(super) fn new(shape: &Shape, map: &ShardMap, rank: u32) -> Self {
        let engine = LaneEngine::new(EngineConfig {
            job: message::JOB,
            incarnation: life(rank),
            lane: Lane(0),
            rank: Rank(rank),
            servers: shape.servers,
            gather_max: GATHER_MAX,
            in_flight_max: IN_FLIGHT_MAX,
            keeps_calls: false,
        });
        let parts_of =
            |key| {
                let chunks = map.placed_chunks(key);
                let part = |(offset, (span, server)): (u64, (proto_common::tensor::ChunkSpan, Rank))| {
                    PartSpec { id: span.id, server, offset, bytes: span.bytes, coded: None }
                };
                (0..).step_by(shape.chunk_bytes as usize).zip(chunks).map(part).collect()
            };
        Self {
            rank: Rank(rank),
            life: life(rank),
            engine,
            work: shape.work,
            parts: shape.tensors().iter().map(|tensor| parts_of(tensor.key)).collect(),
            open: 0,
            round: 0,
            rounds: shape.rounds,
            commands: Commands::default(),
            next_tick_ms: 0,
            ended_ns: Vec::new(),
            warm: Sent::default(),
            sent: Sent::default(),
        }
    }

    /// Slots of its inbox that a server may write.
    pub(super) fn inbox_of(&self, server: Rank) -> Vec<SlotGrant> {
        (server.0 * RESULT_SLOTS..(server.0 + 1) * RESULT_SLOTS)
            .map(|slot| SlotGrant { slot, generation: 1 })
            .collect()
    }

    /// A server is connected.
    pub(super) fn connect(
        &mut self,
        server: Rank,
        life: Incarnation,
        chunk_bytes: u64,
        credits: &[SlotGrant],
    ) {
        let inbox = self.inbox_of(server);
        self.engine.server_up(server, life, slot_bytes_for(chunk_bytes), credits, &inbox);
    }

    pub(super) fn is_done(&self) -> bool {
        self.ended_ns.len() as u64 >= self.rounds
    }

    /// Has it something to do although nothing came? Its program begins by itself.
    pub(super) fn has_work(&self) -> bool {
        self.open == 0 && self.round < self.rounds
    }

    /// When it is to have a turn although nothing came.
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.engine.next_retry_ms()
    }

    /// One turn, as `LaneDriver::step`, and of the trainer above it.
    pub(super) fn step(
        &mut self,
        inbox: &mut VecDeque<Message>,
        turn: &mut Turn<'_>,
    ) -> Result<(), ModelError> {
        while turn.may_take()
            && let Some(message) = inbox.pop_front()
        {
            turn.take(message.bytes);
            self.take(&message, turn);
            self.execute(turn)?;
        }
        if turn.now_ms() >= self.next_tick_ms {
            self.next_tick_ms = turn.now_ms() + TICK_MS;
            self.engine.tick(turn.now_ms(), &mut self.commands);
            self.execute(turn)?;
        }
        if self.has_work() {
            self.begin_round(turn)?;
        }
        self.engine.flush(PREFIXES_PER_LANE as usize, turn.now_ms(), &mut self.commands);
        self.execute(turn)
    }

    fn begin_round(&mut self, turn: &mut Turn<'_>) -> Result<(), ModelError> {
        if self.round == 1 {
            self.warm = self.sent;
        }
        self.round += 1;
        self.open = self.parts.len();
        let (kind, payload) = match self.work {
            Work::Push => (OpKind::Push, true),
            Work::Pull => (OpKind::Pull, false),
            Work::PushPull => (OpKind::PushPull, true),
        };
        for (number, parts) in self.parts.iter().enumerate() {
            let submit = Submit {
                op: self.round << 32 | number as u64,
                kind,
                dtype: Dtype::F32,
                payload,
                placement: Placement::Slot,
                operation: Operation(self.round),
                view: false,
                reading: Reading::default(),
                exact: false,
                count: Count::Round(if payload { self.round } else { 0 }),
                priority: 0,
                timeout_ms: TIMEOUT_MS,
                busy_ms: 0,
                by_chunk: false,
            };
            self.engine.submit(&submit, parts, turn.now_ms(), &mut self.commands);
        }
        self.execute(turn)
    }

    fn take(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let server = Rank(message.from);
        match &message.payload {
            Payload::Landing => {}
            Payload::Notice(notice) => self.engine.notice(server, *notice, &mut self.commands),
            Payload::Batch(batch) => {
                if !self.engine.notified(server, batch.slot, &mut self.commands) {
                    return;
                }
                turn.blocks(batch.blocks.len());
                let Batch { slot, header, blocks, grants, payload } = &**batch;
                let context = ResultContext { server, slot: *slot, header, blocks, grants, payload };
                self.engine.results(&context, turn.now_ms(), &mut self.commands);
            }
        }
    }

    fn execute(&mut self, turn: &mut Turn<'_>) -> Result<(), ModelError> {
        let mut commands = std::mem::take(&mut self.commands);
        let mut outcome = Ok(());
        for command in commands.list.drain(..) {
            match command {
                Command::Send { server, slot, parts, grants, wanted, sequence } => {
                    let (parts, grants) = (&commands.parts[parts], &commands.grants[grants]);
                    self.batch(turn, (server, slot), parts, grants, (wanted, sequence));
                }
                Command::Notice { server, notice } => self.notice(turn, server, notice),
                Command::Done { .. } => self.ended(turn),
                Command::Failed { error, .. } => {
                    outcome = Err(ModelError::Failed { worker: self.rank, reason: error.to_string() });
                }
                Command::Close { server, reason } => {
                    outcome = Err(ModelError::Closed { worker: self.rank, server, reason });
                }
                Command::Place { .. }
                | Command::Landed { .. }
                | Command::Carried { .. }
                | Command::Version { .. }
                | Command::Late { .. }
                | Command::Waits { .. }
                | Command::Replied { .. }
                | Command::Room { .. }
                | Command::Shown { .. } => {
                    outcome = Err(ModelError::NotModelled { what: "a payload outside of slots, and calls" });
                }
            }
            if outcome.is_err() {
                break;
            }
        }
        commands.clear();
        self.commands = commands;
        outcome
    }

    fn ended(&mut self, turn: &Turn<'_>) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.ended_ns.push(turn.now_ns());
        }
    }

    fn batch(
        &mut self,
        turn: &mut Turn<'_>,
        (server, slot): (Rank, SlotGrant),
        parts: &[PartBlock],
        grants: &[SlotGrant],
        told: (u16, u64),
    ) {
        let lives = (self.life, self.engine.server_incarnation(server));
        let mut batch = Batch {
            slot,
            header: message::header(BatchKind::Request, self.rank, lives, told),
            blocks: parts.iter().map(|part| part.block).collect(),
            grants: grants.to_vec(),
            payload: Vec::new(),
        };
        batch.lay_out();
        turn.blocks(parts.len());
        turn.send(server.0, batch.bytes(), Payload::Batch(Box::new(batch)));
        self.count(turn);
    }

    fn notice(&mut self, turn: &mut Turn<'_>, server: Rank, notice: Notice) {
        turn.send(server.0, 0, Payload::Notice(notice));
        self.count(turn);
    }

    fn count(&mut self, turn: &Turn<'_>) {
        if let Some((_, message)) = turn.sent.last() {
            self.sent.count(message);
        }
    }
}
