//! The engine of one lane: what to do with each batch, notice, completed landing and tick.

use super::answers::{answer_block, check_shape, late, push_result};
use super::chunk::{Chunk, ChunkSpec, Held, Turn, Waiter};
use super::command::{Command, Commands, ResultBlock, Source};
use super::credits::{Ledger, Misuse};
use super::peer::{Peer, ResultSlots};
use proto_common::batch::{BatchHeader, BatchKind, Block, BlockData, OpKind, SlotGrant, Status};
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Rank, Version};
use proto_common::limits::OPERATIONS_PER_WORKER_MAX;
use std::collections::{HashMap, VecDeque};

/// Rounds ahead of the one being collected that a worker's contributions are kept for.
const ROUNDS_AHEAD_MAX: u64 = 4;
/// Credits a worker gets when it connects, where there are enough.
const FIRST_CREDITS: usize = 4;

/// What the engine is told once.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// The job.
    pub job: JobId,
    /// This server's life.
    pub incarnation: Incarnation,
    /// The lane.
    pub lane: Lane,
    /// How many workers contribute to a round.
    pub workers: u32,
    /// Fold contributions in rank order.
    pub deterministic: bool,
    /// Slots of the inbox.
    pub inbox_slots: u32,
    /// Bytes of a slot of the workers' inboxes.
    pub result_slot_bytes: u64,
    /// Spill blocks there are.
    pub spill_blocks: u32,
}

/// A batch with where it lies and what its header says.
#[derive(Clone, Copy, Debug)]
pub struct BatchContext<'a> {
    /// The worker whose channel it came over.
    pub peer: Rank,
    /// The slot it lies in.
    pub slot: SlotGrant,
    /// Its header.
    pub header: &'a BatchHeader,
    /// Its blocks.
    pub blocks: &'a [Block],
    /// Slots of the worker's inbox that it grants again.
    pub grants: &'a [SlotGrant],
}

/// Counts for metrics. Plain numbers; the runtime publishes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Batches taken.
    pub batches: u64,
    /// Contributions reduced.
    pub contributions: u64,
    /// Payload bytes of contributions.
    pub contribution_bytes: u64,
    /// Rounds published, one a chunk.
    pub rounds: u64,
    /// Operations answered.
    pub answers: u64,
    /// Duplicates recognised and not applied.
    pub duplicates: u64,
    /// Contributions that came before their turn and were copied.
    pub spills: u64,
    /// Operations sent back to be tried again.
    pub retries: u64,
    /// Operations refused.
    pub refusals: u64,
    /// Operations whose deadline passed.
    pub deadlines: u64,
    /// Batches whose payload was not what its checksum says.
    pub corrupt_batches: u64,
}

/// The oldest unanswered operation, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which chunk.
    pub chunk: ChunkId,
    /// Whose operation.
    pub rank: Rank,
    /// Round being collected.
    pub round: u64,
    /// Milliseconds it waits.
    pub waited_ms: u64,
    /// Ranks that have not contributed, or that still read what is to be overwritten (the first few).
    pub missing: Vec<Rank>,
}

/// See the module.
#[derive(Debug)]
pub struct LaneEngine {
    pub(super) config: EngineConfig,
    epoch: Epoch,
    chunks: Vec<Chunk>,
    index: HashMap<ChunkId, u32>,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) ledger: Ledger,
    pub(super) wanting: VecDeque<Rank>,
    pub(super) dirty: Vec<Rank>,
    spills: Vec<u32>,
    pub(super) stats: LaneStats,
}

impl LaneEngine {
    /// An engine without chunks or peers.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            epoch: Epoch::default(),
            chunks: Vec::new(),
            index: HashMap::new(),
            peers: (0..config.workers).map(|_| None).collect(),
            ledger: Ledger::new(config.inbox_slots),
            wanting: VecDeque::new(),
            dirty: Vec::new(),
            spills: (0..config.spill_blocks).rev().collect(),
            stats: LaneStats::default(),
            config,
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.stats
    }

    /// Credits not granted to anyone, and all there are.
    #[must_use]
    pub fn credits(&self) -> (usize, usize) {
        (self.ledger.free(), self.ledger.total())
    }

    /// Spill blocks in use, and all there are.
    #[must_use]
    pub fn spills(&self) -> (usize, usize) {
        let total = self.config.spill_blocks as usize;
        (total - self.spills.len(), total)
    }

    /// Published version of a chunk.
    #[must_use]
    pub fn version(&self, id: ChunkId) -> Option<Version> {
        self.index.get(&id).map(|chunk| Version(self.chunks[*chunk as usize].version))
    }

    /// The life of a connected worker; zero of one that is not.
    #[must_use]
    pub fn peer_incarnation(&self, rank: Rank) -> Incarnation {
        let peer = self.peers.get(rank.0 as usize).and_then(Option::as_ref);
        peer.map_or(Incarnation::default(), |peer| peer.incarnation)
    }

    /// Adds chunks; their indices continue from those there are, in the given order. A chunk that is there
    /// already keeps its index and state, and is not counted.
    pub fn assign(&mut self, epoch: Epoch, specs: &[ChunkSpec]) -> Vec<ChunkSpec> {
        self.epoch = self.epoch.max(epoch);
        let mut added = Vec::new();
        for spec in specs {
            if !self.index.contains_key(&spec.id) {
                self.index.insert(spec.id, self.chunks.len() as u32);
                self.chunks.push(Chunk::new(*spec, self.config.workers));
                added.push(*spec);
            }
        }
        added
    }

    /// A worker's channel is up. Returns its first credits, which travel with the bootstrap.
    pub fn peer_up(&mut self, rank: Rank, incarnation: Incarnation, inbox: &[SlotGrant]) -> Vec<SlotGrant> {
        let Some(place) = self.peers.get_mut(rank.0 as usize) else { return Vec::new() };
        *place = Some(Peer { incarnation, result_slots: ResultSlots::new(inbox), ..Peer::default() });
        let fair = (self.ledger.total() / self.config.workers.max(1) as usize).clamp(1, FIRST_CREDITS);
        let grants: Vec<_> = (0..fair).map_while(|_| self.ledger.grant(rank)).collect();
        if let Some(peer) = &mut self.peers[rank.0 as usize] {
            peer.credits = grants.len() as u32;
        }
        grants
    }

    /// A worker's channel is closed, and fenced: nothing of it lands any more. Its contributions stay.
    pub fn peer_down(&mut self, rank: Rank) {
        let Some(place) = self.peers.get_mut(rank.0 as usize) else { return };
        *place = None;
        self.ledger.revoke(rank);
        self.wanting.retain(|other| *other != rank);
        self.dirty.retain(|other| *other != rank);
        for chunk in &mut self.chunks {
            chunk.waiters.retain(|waiter| waiter.rank != rank);
        }
    }

    /// A batch lies in a slot.
    pub fn batch(&mut self, batch: &BatchContext<'_>, now_ms: u64, out: &mut Commands) {
        if !self.admitted(batch, out) {
            return;
        }
        for block in batch.blocks {
            self.block(batch, block, now_ms, out);
        }
    }

    /// A batch lies in a slot, but its payload is not what its checksum says: nothing of it is taken.
    pub fn corrupt_batch(&mut self, batch: &BatchContext<'_>, out: &mut Commands) {
        if !self.admitted(batch, out) {
            return;
        }
        self.stats.corrupt_batches += 1;
        for block in batch.blocks {
            if !self.count_operation(batch.peer, out) {
                return;
            }
            self.send_back(batch.peer, block, Status::Corrupt, Vec::new());
        }
    }

    fn admitted(&mut self, batch: &BatchContext<'_>, out: &mut Commands) -> bool {
        let admitted = self.admit(batch);
        match &admitted {
            Ok(()) => self.stats.batches += 1,
            Err(Some(reason)) => out.push(Command::Expel { peer: batch.peer, reason: reason.clone() }),
            Err(None) => self.stats.duplicates += 1,
        }
        admitted.is_ok()
    }

    /// Is the batch the sender's to send? `Err(None)`: an old one, ignored.
    fn admit(&mut self, batch: &BatchContext<'_>) -> Result<(), Option<String>> {
        let (peer, header) = (batch.peer, batch.header);
        let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) else { return Err(None) };
        let wrong = |what: &str| Err(Some(format!("its batch carries the wrong {what}")));
        if header.kind != BatchKind::Request {
            return wrong("kind");
        }
        if header.job != self.config.job || header.sender != peer {
            return wrong("job or rank");
        }
        if header.sender_incarnation != state.incarnation
            || header.receiver_incarnation != self.config.incarnation
        {
            return wrong("incarnation");
        }
        if header.lane != self.config.lane {
            return wrong("lane");
        }
        if header.epoch.term < self.epoch.term {
            return wrong("term: its scheduler is deposed");
        }
        match self.ledger.redeem(peer, batch.slot) {
            Ok(()) => {}
            Err(Misuse::Stale) => return Err(None),
            Err(Misuse::NotGranted) => return wrong("slot: it was never granted"),
        }
        state.credits = state.credits.saturating_sub(1);
        for grant in batch.grants {
            if state.result_slots.give(*grant) == Err(Misuse::NotGranted) {
                return wrong("grants: slots of its inbox that were not used");
            }
        }
        self.want(peer, u32::from(header.wanted));
        self.mark_dirty(peer);
        Ok(())
    }

    fn block(&mut self, batch: &BatchContext<'_>, block: &Block, now_ms: u64, out: &mut Commands) {
        let peer = batch.peer;
        if !self.count_operation(peer, out) {
            return;
        }
        let Some(index) = self.index.get(&block.id).copied() else {
            return self.refuse(peer, block, Status::UnknownChunk);
        };
        let last = self.chunks[index as usize].operations[peer.0 as usize];
        if block.operation.0 > last + 1 {
            return self.retry(peer, block, Vec::new());
        }
        let fresh = block.operation.0 == last + 1;
        if !fresh {
            self.stats.duplicates += 1;
        }
        let taken = self.take(index, batch, block, fresh, out);
        if taken == Err(Status::Retry) {
            let awaited = self.chunks[index as usize].awaited(self.config.workers, self.config.deterministic);
            return self.retry(peer, block, awaited);
        }
        // Also where it is refused: what follows it on the key is no gap.
        self.chunks[index as usize].operations[peer.0 as usize] = last.max(block.operation.0);
        match taken {
            Ok(version) => {
                self.wait_for(index, peer, block, version, now_ms);
                self.settle(index, out);
            }
            Err(status) => self.refuse(peer, block, status),
        }
    }

    /// Does what an operation asks for at once; the version that will answer it, or why not.
    fn take(
        &mut self,
        index: u32,
        batch: &BatchContext<'_>,
        block: &Block,
        fresh: bool,
        out: &mut Commands,
    ) -> Result<u64, Status> {
        let peer = batch.peer;
        check_shape(&self.chunks[index as usize].spec, block)?;
        // No placement of this version sends references.
        let BlockData::Inline { offset } = block.data else { return Err(Status::Refused) };
        let from = Source::Slot { slot: batch.slot.slot, offset: batch.header.payload_offset + offset };
        match block.op {
            OpKind::Init => self.init(index, peer, block, from, out).map(|()| 0),
            OpKind::Pull => Ok(block.round),
            OpKind::Push | OpKind::PushPull if fresh && !self.contribute(index, peer, block, from, out) => {
                Err(Status::Retry)
            }
            OpKind::Push | OpKind::PushPull => Ok(block.round),
        }
    }

    /// Counts an operation that will be answered; false when the worker has too many, which costs it its channel.
    fn count_operation(&mut self, peer: Rank, out: &mut Commands) -> bool {
        let state = self.peers.get_mut(peer.0 as usize).and_then(Option::as_mut);
        let counts = state.is_some_and(|state| {
            state.unanswered += 1;
            state.unanswered <= OPERATIONS_PER_WORKER_MAX
        });
        if !counts {
            let reason = format!("it has more than {OPERATIONS_PER_WORKER_MAX} operations in flight");
            out.push(Command::Expel { peer, reason });
        }
        counts
    }

    /// Sets the initial value, once, from worker rank 0.
    fn init(
        &mut self,
        index: u32,
        peer: Rank,
        block: &Block,
        from: Source,
        out: &mut Commands,
    ) -> Result<(), Status> {
        let chunk = &mut self.chunks[index as usize];
        let setter = peer == Rank(0);
        if setter != (block.bytes > 0) {
            return Err(Status::Refused);
        }
        if !setter || chunk.initialised {
            return Ok(());
        }
        if chunk.version > 0 {
            return Err(Status::Refused);
        }
        chunk.initialised = true;
        // Out of place: the zeros may be on their way to a worker.
        let into = 1 - chunk.buffer;
        chunk.buffer = into;
        out.push(Command::Init { chunk: index, from, into });
        Ok(())
    }

    /// Takes a contribution: reduces it, keeps it for its turn, or (false) cannot take it now.
    fn contribute(
        &mut self,
        index: u32,
        peer: Rank,
        block: &Block,
        from: Source,
        out: &mut Commands,
    ) -> bool {
        let chunk = &mut self.chunks[index as usize];
        let round = chunk.round();
        let turn = match block.round.cmp(&round) {
            std::cmp::Ordering::Less => Turn::Repeated,
            std::cmp::Ordering::Equal => chunk.turn(peer, self.config.deterministic),
            std::cmp::Ordering::Greater if block.round > round + ROUNDS_AHEAD_MAX => return false,
            std::cmp::Ordering::Greater if chunk.holds(peer, block.round) => Turn::Repeated,
            std::cmp::Ordering::Greater => Turn::Later,
        };
        match turn {
            Turn::Repeated => self.stats.duplicates += 1,
            Turn::Now => self.reduce(index, peer, from, out),
            Turn::Later => {
                let Some(spill) = self.spills.pop() else { return false };
                chunk.held.push(Held { rank: peer, round: block.round, spill });
                self.stats.spills += 1;
                out.push(Command::Spill { chunk: index, from, to: spill });
            }
        }
        true
    }

    /// Reduces one contribution; the last of a round is fused with the update.
    fn reduce(&mut self, index: u32, rank: Rank, from: Source, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let first = chunk.contributed.len() == 0;
        chunk.contributed.insert(rank);
        self.stats.contributions += 1;
        self.stats.contribution_bytes += chunk.spec.bytes;
        let last = chunk.contributed.len() == self.config.workers;
        match chunk.writable() {
            Some(into) if last => self.finish(index, Some(from), first, into, out),
            _ => {
                chunk.complete = last;
                out.push(Command::Reduce { chunk: index, from, first });
            }
        }
        if let Source::Spill(spill) = from {
            self.spills.push(spill);
        }
    }

    /// The round is complete and its weights have a place.
    fn finish(&mut self, index: u32, last: Option<Source>, only: bool, into: u8, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let (old, contributors) = (chunk.buffer, chunk.contributed.len());
        out.push(Command::Finish { chunk: index, last, only, old, into, contributors });
        chunk.version += 1;
        chunk.buffer = into;
        chunk.complete = false;
        chunk.contributed.clear();
        self.stats.rounds += 1;
    }

    /// Reduces held contributions whose turn has come, and answers whoever can be answered.
    fn settle(&mut self, index: u32, out: &mut Commands) {
        loop {
            self.answer(index, out);
            let Some(held) = self.chunks[index as usize].take_held(self.config.deterministic) else { break };
            self.reduce(index, held.rank, Source::Spill(held.spill), out);
        }
    }

    fn wait_for(&mut self, index: u32, peer: Rank, block: &Block, version: u64, now_ms: u64) {
        let chunk = &mut self.chunks[index as usize];
        // A replayed operation replaces itself, with its newest landing.
        let before = chunk.waiters.len();
        chunk.waiters.retain(|waiter| waiter.rank != peer || waiter.operation != block.operation);
        let replaced = before - chunk.waiters.len();
        if let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) {
            state.unanswered -= replaced.min(state.unanswered);
        }
        chunk.waiters.push(Waiter {
            rank: peer,
            op: block.op,
            operation: block.operation,
            version,
            landing: block.landing,
            token: block.token,
            deadline_ms: now_ms.saturating_add(u64::from(block.timeout_ms)),
            since_ms: now_ms,
        });
    }

    fn answer(&mut self, index: u32, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let mut at = 0;
        while at < chunk.waiters.len() {
            let waiter = chunk.waiters[at];
            let initialised = waiter.op != OpKind::Init || chunk.initialised;
            if chunk.version < waiter.version || !initialised {
                at += 1;
                continue;
            }
            chunk.waiters.remove(at);
            if let Some(landing) = waiter.landing {
                chunk.readers[usize::from(chunk.buffer)].push(waiter.rank);
                out.push(Command::Land { peer: waiter.rank, chunk: index, buffer: chunk.buffer, landing });
            }
            let block = answer_block(&chunk.spec, &waiter, Status::Done, chunk.version);
            self.stats.answers += 1;
            push_result(
                &mut self.peers,
                &mut self.dirty,
                waiter.rank,
                ResultBlock { block, missing: Vec::new() },
            );
        }
    }

    fn refuse(&mut self, peer: Rank, block: &Block, status: Status) {
        self.stats.refusals += 1;
        self.send_back(peer, block, status, Vec::new());
    }

    /// An operation cannot be taken before those of `awaited`, as far as that is known.
    fn retry(&mut self, peer: Rank, block: &Block, awaited: Vec<Rank>) {
        self.stats.retries += 1;
        self.send_back(peer, block, Status::Retry, awaited);
    }

    fn send_back(&mut self, peer: Rank, block: &Block, status: Status, missing: Vec<Rank>) {
        let data = BlockData::Inline { offset: 0 };
        let block = Block { status, bytes: 0, data, landing: None, timeout_ms: 0, ..*block };
        push_result(&mut self.peers, &mut self.dirty, peer, ResultBlock { block, missing });
    }

    /// A landing at this worker is done (or its channel is gone): the buffer has one reader less.
    pub fn landed(&mut self, peer: Rank, chunk: u32, buffer: u8, out: &mut Commands) {
        let Some(state) = self.chunks.get_mut(chunk as usize) else { return };
        let readers = &mut state.readers[usize::from(buffer & 1)];
        if let Some(at) = readers.iter().position(|reader| *reader == peer) {
            readers.swap_remove(at);
        }
        if state.complete
            && let Some(into) = state.writable()
        {
            self.finish(chunk, None, false, into, out);
            self.settle(chunk, out);
        }
    }

    /// Time passes: answers operations whose deadline is over, naming the ranks they waited for.
    pub fn tick(&mut self, now_ms: u64) {
        for chunk in &mut self.chunks {
            let mut at = 0;
            while at < chunk.waiters.len() {
                let waiter = chunk.waiters[at];
                if waiter.deadline_ms > now_ms {
                    at += 1;
                    continue;
                }
                chunk.waiters.remove(at);
                let (status, missing) = late(chunk, &waiter, self.config.workers);
                let block = answer_block(&chunk.spec, &waiter, status, chunk.version);
                self.stats.deadlines += 1;
                push_result(&mut self.peers, &mut self.dirty, waiter.rank, ResultBlock { block, missing });
            }
        }
    }

    /// The operation that waits longest, for people.
    #[must_use]
    pub fn oldest(&self, now_ms: u64) -> Option<Waiting> {
        let all =
            self.chunks.iter().flat_map(|chunk| chunk.waiters.iter().map(move |waiter| (chunk, waiter)));
        let (chunk, waiter) = all.min_by_key(|(_, waiter)| waiter.since_ms)?;
        Some(Waiting {
            chunk: chunk.spec.id,
            rank: waiter.rank,
            round: chunk.round(),
            waited_ms: now_ms.saturating_sub(waiter.since_ms),
            missing: late(chunk, waiter, self.config.workers).1,
        })
    }
}
