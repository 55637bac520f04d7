//! One simulated server: the real engine of one lane, whose commands become time and messages. The model's half of
//! `server/src/runtime/turn.rs`, with lengths in the place of bytes.

use super::message::{self, Batch, EPOCH, Message, Payload, Sent};
use super::shape::Shape;
use super::turn::{ModelError, Turn};
use gradwire_server::engine::{
    BatchContext, ChunkSpec, Command, Commands, EngineConfig, LaneEngine, LaneStats, ResultBlock,
};
use proto_common::batch::{BatchKind, BlockData, SlotGrant};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, Lane, Rank};
use proto_common::limits::RESULTS_PER_LANE;
use proto_common::shard_map::ShardMap;
use std::collections::VecDeque;

/// Milliseconds between ticks of the engine, as in the runtime.
const TICK_MS: u64 = 50;

/// See the module.
pub(super) struct Server {
    rank: Rank,
    life: Incarnation,
    /// Number of worker 0 among the processes.
    first_worker: u32,
    engine: LaneEngine,
    /// By chunk index.
    chunk_bytes: Vec<u64>,
    commands: Commands,
    /// Landings whose bytes have left, told to the engine in the next turn.
    left: VecDeque<(Rank, u32, u8)>,
    next_tick_ms: u64,
    pub(super) sent: Sent,
}

/// The life of a server.
pub(super) fn life(rank: u32) -> Incarnation {
    Incarnation(1_000_000 + u64::from(rank))
}

impl Server {
    pub(super) fn new(shape: &Shape, map: &ShardMap, rank: u32) -> Self {
        let mut engine = LaneEngine::new(EngineConfig {
            job: message::JOB,
            incarnation: life(rank),
            lane: Lane(0),
            workers: shape.workers,
            deterministic: shape.is_deterministic,
            inbox_slots: shape.settings().memory.inbox_slots,
            spill_blocks: shape.spill_blocks(),
            // The model has only weights that are written.
            carried_bytes_max: 0,
            worker_loss: WorkerLoss::Stop,
        });
        let mut specs = Vec::new();
        for tensor in shape.tensors() {
            for (span, _) in map.placed_chunks(tensor.key).filter(|(_, holder)| *holder == Rank(rank)) {
                specs.push(ChunkSpec::of(&tensor, &span));
            }
        }
        engine.assign(EPOCH, &specs);
        Self {
            rank: Rank(rank),
            life: life(rank),
            first_worker: shape.servers,
            engine,
            chunk_bytes: specs.iter().map(|spec| spec.bytes).collect(),
            commands: Commands::default(),
            left: VecDeque::new(),
            next_tick_ms: 0,
            sent: Sent::default(),
        }
    }

    /// A worker is connected; its first credits.
    pub(super) fn connect(&mut self, rank: Rank, life: Incarnation, inbox: &[SlotGrant]) -> Vec<SlotGrant> {
        self.engine.peer_up(rank, life, inbox, false, &mut self.commands)
    }

    pub(super) fn stats(&self) -> LaneStats {
        self.engine.stats()
    }

    /// Has it something to do although nothing came?
    pub(super) fn has_work(&self) -> bool {
        !self.left.is_empty()
    }

    /// One turn, as `DataLane::step`.
    pub(super) fn step(
        &mut self,
        inbox: &mut VecDeque<Message>,
        turn: &mut Turn<'_>,
    ) -> Result<(), ModelError> {
        while let Some((peer, chunk, buffer)) = self.left.pop_front() {
            self.engine.landed(peer, chunk, buffer, &mut self.commands);
            self.execute(turn)?;
        }
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
        self.engine.flush(RESULTS_PER_LANE as usize, &mut self.commands);
        self.execute(turn)
    }

    fn take(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let peer = Rank(message.from - self.first_worker);
        match &message.payload {
            Payload::Notice(notice) => self.engine.notice(peer, *notice, &mut self.commands),
            Payload::Batch(batch) => {
                if !self.engine.notified(peer, batch.slot, &mut self.commands) {
                    return;
                }
                turn.blocks(batch.blocks.len());
                let Batch { slot, header, blocks, grants, .. } = &**batch;
                let context = BatchContext { peer, slot: *slot, header, blocks, grants };
                self.engine.batch(&context, turn.now_ms(), &mut self.commands);
            }
            Payload::Landing => {}
        }
    }

    fn execute(&mut self, turn: &mut Turn<'_>) -> Result<(), ModelError> {
        let mut commands = std::mem::take(&mut self.commands);
        let mut outcome = Ok(());
        for command in commands.list.drain(..) {
            outcome = match command {
                Command::Results { peer, slot, results, grants, sequence } => {
                    let (results, grants) = (&commands.results[results], &commands.grants[grants]);
                    self.results(turn, (peer, slot, sequence), results, grants);
                    Ok(())
                }
                other => self.execute_one(other, turn),
            };
            if outcome.is_err() {
                break;
            }
        }
        commands.clear();
        self.commands = commands;
        outcome
    }

    fn execute_one(&mut self, command: Command, turn: &mut Turn<'_>) -> Result<(), ModelError> {
        match command {
            Command::Reduce { chunk, .. } | Command::Finish { chunk, .. } | Command::Init { chunk, .. } => {
                turn.reduce(self.chunk_bytes[chunk as usize]);
            }
            Command::Spill { chunk, .. } => turn.spill(self.chunk_bytes[chunk as usize]),
            Command::Land { peer, chunk, buffer, .. } => {
                let bytes = self.chunk_bytes[chunk as usize];
                self.post(turn, peer, bytes, Payload::Landing);
                self.left.push_back((peer, chunk, buffer));
            }
            Command::Notice { peer, notice } => self.post(turn, peer, 0, Payload::Notice(notice)),
            Command::Expel { peer, reason } => {
                return Err(ModelError::Expelled { server: self.rank, worker: peer, reason });
            }
            Command::Fetch { .. }
            | Command::Size { .. }
            | Command::Prepare { .. }
            | Command::Norms { .. } => {
                return Err(ModelError::NotModelled { what: "payloads outside of slots, and norms" });
            }
            Command::CallTake(..)
            | Command::CallDeliver { .. }
            | Command::CallCancel { .. }
            | Command::CallLand { .. }
            | Command::CallDrop { .. } => return Err(ModelError::NotModelled { what: "calls" }),
            Command::Capture { .. }
            | Command::Record { .. }
            | Command::TellPrimary { .. }
            | Command::TakeSum { .. }
            | Command::TakePart { .. }
            | Command::Load { .. }
            | Command::TakeRules { .. }
            | Command::EndStream { .. }
            | Command::Free { .. }
            | Command::Seeded { .. } => return Err(ModelError::NotModelled { what: "copies" }),
            // Nobody asks for it; results are taken by the caller, which has the arenas.
            Command::Relieve { .. } | Command::Results { .. } => {}
        }
        Ok(())
    }

    fn results(
        &mut self,
        turn: &mut Turn<'_>,
        (peer, slot, sequence): (Rank, SlotGrant, u64),
        results: &[ResultBlock],
        grants: &[SlotGrant],
    ) {
        let lives = (self.life, self.engine.peer_incarnation(peer));
        let mut batch = Batch {
            slot,
            header: message::header(BatchKind::Result, self.rank, lives, (0, sequence)),
            blocks: results.iter().map(|result| result.block).collect(),
            grants: grants.to_vec(),
            payload: Vec::new(),
        };
        for (block, result) in batch.blocks.iter_mut().zip(results) {
            (block.bytes, block.data) =
                (4 * result.missing.len() as u64, BlockData::Inline { offset: batch.payload.len() as u64 });
            batch.payload.extend(result.missing.iter().flat_map(|rank| rank.0.to_le_bytes()));
        }
        turn.blocks(results.len());
        let bytes = batch.bytes();
        self.post(turn, peer, bytes, Payload::Batch(Box::new(batch)));
    }

    fn post(&mut self, turn: &mut Turn<'_>, peer: Rank, bytes: u64, payload: Payload) {
        turn.send(self.first_worker + peer.0, bytes, payload);
        if let Some((_, message)) = turn.sent.last() {
            self.sent.count(message);
        }
    }
}
