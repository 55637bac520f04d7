//! The engine of one lane: what to do with each batch, notice, completed landing and tick.

use super::answers::{Found, answer_block, push_result};
use super::chunk::{Chunk, ChunkSpec, Number, Stage, Waiter};
use super::command::{Command, Commands, ResultBlock, Source};
use super::contribute::Taken;
use super::credits::{Ledger, Misuse};
use super::deadlines::Deadlines;
use super::lines::Calls;
use super::norms::Group;
use super::peer::{Peer, ResultSlots};
use super::quarantine::{FenceId, Quarantine};
use super::relief::Stuck;
use super::role::Role;
use super::roster::Roster;
use super::sabotage::BrokenRule;
use super::saving::Savings;
use super::streams::Copying;
use proto_common::batch::{BatchHeader, BatchKind, Block, Landing, OpKind, SlotGrant, Status};
use proto_common::config::WorkerLoss;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Rank, Version};
use proto_common::limits::OPERATIONS_PER_WORKER_MAX;
use std::collections::{HashMap, VecDeque};

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
    /// Spill blocks there are.
    pub spill_blocks: u32,
    /// What the failure of a worker means for rounds. Where they wait for the worker, the version before the one in force is kept, for pulls that
    /// ask for exactly that one.
    pub worker_loss: WorkerLoss,
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

proto_common::counts! {
    /// Counts for metrics. Plain numbers; the runtime publishes them.
    #[derive(serde::Serialize)]
    pub struct LaneStats {
        /// Batches taken.
        batches,
        /// Contributions reduced.
        contributions,
        /// Payload bytes of contributions.
        contribution_bytes,
        /// Rounds published, one a chunk.
        rounds,
        /// The highest round that a chunk has published.
        newest: max,
        /// Operations answered.
        answers,
        /// Duplicates recognised and not applied.
        duplicates,
        /// Contributions that came when their round was over, and were dropped.
        late,
        /// Contributions that came before their turn and were copied.
        spills,
        /// Contributions read out of workers' memory.
        fetches,
        /// Contributions taken where they lie in workers' memory.
        in_place,
        /// Views of weights given.
        views,
        /// Rounds that went on without workers that had not copied older weights.
        relieved,
        /// Contributions that workers wrote into key buffers.
        placed,
        /// Operations sent back to be tried again.
        retries,
        /// Operations refused.
        refusals,
        /// Contributions among them that are not what the tensor's codec makes.
        malformed,
        /// Operations whose deadline passed.
        deadlines,
        /// Rounds whose values did not fit their type, one a chunk.
        bad_rounds,
        /// Batches whose payload was not what its checksum says.
        corrupt_batches,
        /// Calls taken for handlers.
        calls,
        /// Whole states of chunks that were sent to copies, one a chunk.
        #[serde(skip)]
        states,
    }
}

/// See the module.
#[derive(Debug)]
pub struct LaneEngine {
    pub(super) config: EngineConfig,
    pub(super) epoch: Epoch,
    pub(super) chunks: Vec<Chunk>,
    pub(super) index: HashMap<ChunkId, u32>,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) ledger: Ledger,
    pub(super) wanting: VecDeque<Rank>,
    pub(super) dirty: Vec<Rank>,
    pub(super) groups: Vec<Group>,
    /// Chunks that finished with another of their tensor: to be settled. Empty between calls.
    pub(super) ripe: Vec<u32>,
    pub(super) spills: Vec<u32>,
    pub(super) taken_buffers: Vec<(Rank, u32)>,
    /// Spill blocks that are key buffers.
    pub(super) key_buffers: u32,
    pub(super) quarantine: Quarantine,
    pub(super) stuck: Vec<Stuck>,
    pub(super) deadlines: Deadlines,
    pub(super) calls: Calls,
    pub(super) savings: Savings,
    pub(super) copying: Copying,
    pub(super) roster: Roster,
    pub(super) stats: LaneStats,
    #[cfg(feature = "sabotage")]
    pub(super) broken: Option<BrokenRule>,
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
            groups: Vec::new(),
            ripe: Vec::new(),
            spills: (0..config.spill_blocks).rev().collect(),
            taken_buffers: Vec::new(),
            key_buffers: 0,
            quarantine: Quarantine::default(),
            stuck: Vec::new(),
            deadlines: Deadlines::default(),
            calls: Calls::default(),
            savings: Savings::default(),
            copying: Copying::default(),
            roster: Roster::new(config.workers, config.worker_loss),
            stats: LaneStats::default(),
            #[cfg(feature = "sabotage")]
            broken: None,
            config,
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.stats
    }

    /// Spill blocks in use, and all there are. Key buffers are counted apart.
    #[must_use]
    pub fn spills(&self) -> (usize, usize) {
        let (total, key_buffers) = (self.config.spill_blocks as usize, self.key_buffers as usize);
        (total - key_buffers - self.spills.len(), total)
    }

    /// Spill blocks that workers may write their contributions into, or have written.
    #[must_use]
    pub fn key_buffers(&self) -> u32 {
        self.key_buffers
    }

    /// The index under which storage has a chunk.
    #[must_use]
    pub fn index_of(&self, id: ChunkId) -> Option<u32> {
        self.index.get(&id).copied()
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
                self.chunks.push(Chunk::new(*spec, &self.config));
                if spec.optimizer.needs_norms() {
                    self.join_group(self.chunks.len() as u32 - 1);
                }
                self.cover(self.chunks.len() as u32 - 1);
                added.push(*spec);
            }
        }
        added
    }

    /// A worker's channel is up. Returns its first credits, which travel with the bootstrap.
    /// `in_place`: it and this server read each other's memory where it lies. Views of a life before end; those that this one
    /// had over an earlier channel it may read still.
    pub fn peer_up(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        inbox: &[SlotGrant],
        in_place: bool,
        out: &mut Commands,
    ) -> Vec<SlotGrant> {
        self.begin_life(rank, incarnation, out);
        self.calls_peer_up(rank, incarnation);
        let Some(place) = self.peers.get_mut(rank.0 as usize) else { return Vec::new() };
        let result_slots = ResultSlots::new(inbox);
        *place = Some(Peer { incarnation, result_slots, in_place, ..Peer::default() });
        let fair = (self.ledger.total() / self.config.workers.max(1) as usize).clamp(1, FIRST_CREDITS);
        let grants: Vec<_> = (0..fair).map_while(|_| self.ledger.grant(rank)).collect();
        if let Some(peer) = &mut self.peers[rank.0 as usize] {
            peer.credits = grants.len() as u32;
        }
        grants
    }

    /// A worker's channel is closed. Its contributions stay, but for those that are in its memory only, which it may write
    /// again from now on. Its views stay: it may live, and read them still. What it had been granted comes back with
    /// [`LaneEngine::fenced`].
    pub fn peer_down(&mut self, rank: Rank) -> FenceId {
        if let Some(place) = self.peers.get_mut(rank.0 as usize) {
            *place = None;
        }
        let slots = self.ledger.revoke(rank);
        self.wanting.retain(|other| *other != rank);
        self.dirty.retain(|other| *other != rank);
        for chunk in &mut self.chunks {
            chunk.waiters.retain(|waiter| waiter.rank != rank);
        }
        let spills = self.take_back(rank);
        self.calls_peer_down(rank);
        self.quarantine.begin(rank, slots, spills)
    }

    /// A batch lies in a slot.
    pub fn batch(&mut self, batch: &BatchContext<'_>, now_ms: u64, out: &mut Commands) {
        if !self.admitted(batch, out) {
            return;
        }
        self.lapse(batch.peer, batch.header.epoch, out);
        for block in batch.blocks {
            if !self.block(batch, block, now_ms, out) {
                return;
            }
        }
    }

    /// A batch lies in a slot, but its payload is not what its checksum says: nothing of it is taken.
    pub fn corrupt_batch(&mut self, batch: &BatchContext<'_>, out: &mut Commands) {
        if !self.admitted(batch, out) {
            return;
        }
        self.stats.corrupt_batches += 1;
        for block in batch.blocks {
            // What its worker has given up is here: header and table are sound.
            if block.status == Status::Corrupt {
                if !self.block(batch, block, 0, out) {
                    return;
                }
                continue;
            }
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
            Err(Some(reason)) => out.expel(batch.peer, reason),
            Err(None) => self.stats.duplicates += 1,
        }
        admitted.is_ok()
    }

    /// Is the batch the sender's to send? `Err(None)`: an old one, ignored.
    fn admit(&mut self, batch: &BatchContext<'_>) -> Result<(), Option<String>> {
        let (peer, header) = (batch.peer, batch.header);
        let keeps = self.breaks(BrokenRule::CreditReturn);
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
        // Its epoch is not judged: a worker may hear of a new scheduler later than we do, and its life is in the roster.
        match if keeps { self.ledger.check(peer, batch.slot) } else { self.ledger.redeem(peer, batch.slot) } {
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

    /// False when the worker is to be expelled for it: nothing more of the batch counts.
    fn block(&mut self, batch: &BatchContext<'_>, block: &Block, now_ms: u64, out: &mut Commands) -> bool {
        let peer = batch.peer;
        if !self.count_operation(peer, out) {
            return false;
        }
        if block.op == OpKind::Call {
            return self.call(batch, block, now_ms, out);
        }
        if self.is_farewell(peer, block, out) {
            return true;
        }
        let Some(index) = self.serves(&block.id) else {
            self.misrouted(peer, block, out);
            return true;
        };
        let is_behind = batch.header.epoch < self.chunks[index as usize].alone_since;
        if block.op.contributes() && is_behind && !self.breaks(BrokenRule::EpochCheck) {
            self.misrouted(peer, block, out);
            return true;
        }
        if self.is_torn(index, peer, block) || self.placed_before(index, peer, batch.header.epoch, block, out)
        {
            return true;
        }
        if let Some(reason) = self.misplaced(index, peer, block) {
            out.expel(peer, reason);
            return false;
        }
        let fresh = match self.chunks[index as usize].number(peer, block.operation, block.first_open) {
            Number::Early => {
                self.retry(peer, block, Vec::new());
                return true;
            }
            Number::Fresh => true,
            Number::Repeated => {
                self.stats.duplicates += 1;
                false
            }
        };
        self.chunks[index as usize].hide(peer, block.reading);
        self.finish_late(index, out);
        self.roster.renew(&mut self.chunks[index as usize]);
        match self.take(index, batch, block, fresh, out) {
            Ok(Taken::Answered) => return true,
            Ok(Taken::Waits { version }) => {
                self.chunks[index as usize].mark_taken(peer, block.operation);
                self.wait_for(index, peer, block, (version, fresh), now_ms);
                self.settle(index, out);
            }
            // Not taken: it is to come in a slot.
            Err(Status::Granted) => self.send_back(peer, block, Status::Granted, Vec::new()),
            Err(Status::Retry) => {
                let awaited = self.awaited_first(index);
                self.retry(peer, block, awaited);
            }
            Err(status) => {
                // What follows it on the key is no gap.
                self.chunks[index as usize].mark_taken(peer, block.operation);
                self.chunks[index as usize].count_refused(peer, block);
                self.refuse(peer, block, status);
                // It may be what others waited for.
                self.settle(index, out);
            }
        }
        true
    }

    /// Counts an operation that will be answered; false when the worker has too many, which costs it its channel.
    fn count_operation(&mut self, peer: Rank, out: &mut Commands) -> bool {
        let state = self.peers.get_mut(peer.0 as usize).and_then(Option::as_mut);
        let counts = state.is_some_and(|state| {
            state.unanswered += 1;
            state.unanswered <= OPERATIONS_PER_WORKER_MAX
        });
        if !counts {
            out.expel(peer, format!("it has more than {OPERATIONS_PER_WORKER_MAX} operations in flight"));
        }
        counts
    }

    fn wait_for(
        &mut self,
        index: u32,
        peer: Rank,
        block: &Block,
        (version, fresh): (u64, bool),
        now_ms: u64,
    ) {
        let chunk = &mut self.chunks[index as usize];
        if !fresh {
            // A replayed operation replaces itself, with its newest landing. What is fresh waits nowhere yet.
            let before = chunk.waiters.len();
            chunk.waiters.retain(|waiter| waiter.rank != peer || waiter.operation != block.operation);
            let replaced = before - chunk.waiters.len();
            if let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) {
                state.unanswered -= replaced.min(state.unanswered);
            }
        }
        chunk.least_awaited = chunk.least_awaited.min(chunk.first_look(version));
        let deadline_ms = now_ms.saturating_add(u64::from(block.timeout_ms));
        self.deadlines.note(index, &mut chunk.due_ms, deadline_ms);
        chunk.waiters.push(Waiter {
            rank: peer,
            op: block.op,
            operation: block.operation,
            version,
            landing: block.landing,
            view: block.view,
            exact: block.exact,
            token: block.token,
            deadline_ms,
            since_ms: now_ms,
        });
    }

    pub(super) fn answer(&mut self, index: u32, out: &mut Commands) {
        let Self { chunks, peers, dirty, stats, roster, .. } = self;
        let chunk = &mut chunks[index as usize];
        let is_open = !chunk.initialising() && !chunk.is_judged() && !chunk.init_pending;
        if chunk.reached() < chunk.least_awaited || !is_open {
            return;
        }
        let mut waiters = std::mem::take(&mut chunk.waiters);
        chunk.least_awaited = u64::MAX;
        waiters.retain(|waiter| {
            let initialised = waiter.op != OpKind::Init || chunk.initialised;
            let awaits = chunk.awaits(waiter).or((!initialised).then_some(waiter.version));
            if let Some(least) = awaits {
                chunk.least_awaited = chunk.least_awaited.min(least);
                return true;
            }
            let weights = chunk.weights_for(waiter);
            let status = weights.err().unwrap_or_else(|| roster.ending(chunk, waiter));
            let bad = status == Status::BadValue;
            let (buffer, bytes) = weights.unwrap_or_default();
            // Nothing to write where the version is empty.
            if let Some(landing) = waiter.landing.filter(|_| bytes > 0 && !bad) {
                chunk.size(index, bytes, out);
                chunk.readers[usize::from(buffer)].push(waiter.rank);
                out.push(Command::Land { peer: waiter.rank, chunk: index, buffer, landing });
            }
            let version = chunk.version_for(waiter, status);
            let mut block = answer_block(&chunk.spec, waiter, status, version);
            if waiter.view && !bad {
                chunk.show(waiter.rank, waiter.operation);
                let (region, offset) = (u64::from(index), u64::from(chunk.buffer));
                (block.view, block.landing) =
                    (true, Some(Landing { region, offset, bytes: chunk.spec.bytes }));
                stats.views += 1;
            }
            if chunk.spec.dynamic && waiter.op.lands() {
                block.landing = Some(Landing { region: 0, offset: 0, bytes });
            }
            stats.answers += 1;
            push_result(peers, dirty, waiter.rank, ResultBlock { block, missing: Vec::new(), call: None });
            false
        });
        chunk.waiters = waiters;
    }

    /// A round that is complete and waited for readers: ends it where its weights have a place now.
    pub(super) fn finish_late(&mut self, chunk: u32, out: &mut Commands) {
        let state = &self.chunks[chunk as usize];
        let serves = state.role.is_some_and(Role::serves);
        if let Some(into) = state.writable() {
            if state.stage == Stage::Buffer {
                self.finish(chunk, None, into, out);
                self.settle(chunk, out);
            }
            if !serves {
                self.say_ready(out);
            }
        }
    }

    /// Time passes: answers operations whose deadline is over, naming the ranks they waited for.
    pub fn tick(&mut self, now_ms: u64, out: &mut Commands) {
        self.tick_calls(now_ms, out);
        let mut found = Found::default();
        while let Some((index, due_ms)) = self.deadlines.pop(now_ms) {
            let chunk = &mut self.chunks[index as usize];
            if chunk.due_ms == due_ms {
                chunk.due_ms = u64::MAX;
                self.end_late(index, now_ms, &mut found, out);
            }
        }
        let Self { deadlines, chunks, .. } = self;
        deadlines.shrink(chunks.len(), |chunk, due_ms| chunks[chunk as usize].due_ms == due_ms);
    }

    /// Ends the operations on a chunk whose deadline is over, as far as they can be; the others are looked at again.
    fn end_late(&mut self, index: u32, now_ms: u64, found: &mut Found, out: &mut Commands) {
        let at_chunk = index as usize;
        let mut at = 0;
        while let Some(waiter) = self.chunks[at_chunk].waiters.get(at).copied() {
            if waiter.deadline_ms > now_ms {
                at += 1;
                continue;
            }
            // What is in the worker's memory only is to stay the operation's until it is read.
            self.fold_first(index, &waiter, out);
            let Self { chunks, spills, .. } = self;
            if !copy_out(index, &mut chunks[at_chunk], &waiter, spills, out) {
                at += 1;
                continue;
            }
            let (status, missing) = self.late(index, &waiter, found);
            let chunk = &mut self.chunks[at_chunk];
            chunk.waiters.remove(at);
            let block = answer_block(&chunk.spec, &waiter, status, chunk.version);
            self.stats.deadlines += 1;
            self.tell(waiter.rank, block, missing);
        }
        let Self { deadlines, chunks, .. } = self;
        let chunk = &mut chunks[at_chunk];
        if let Some(next_ms) = chunk.waiters.iter().map(|waiter| waiter.deadline_ms).min() {
            deadlines.note(index, &mut chunk.due_ms, next_ms.max(now_ms + 1));
        }
    }
}

/// An operation's contribution that lies in its worker's memory is copied from there, so that the operation can end
/// before its turn. False where it cannot: it is being read, or there is no room.
fn copy_out(
    index: u32,
    chunk: &mut Chunk,
    waiter: &Waiter,
    spills: &mut Vec<u32>,
    out: &mut Commands,
) -> bool {
    let Some(held) = chunk.held.in_worker_memory(waiter.rank, waiter.operation) else { return true };
    if !held.arrived {
        return false;
    }
    let Some(to) = spills.pop() else { return false };
    let (from, bytes) = (held.from, held.bytes);
    held.from = Source::Spill(to);
    chunk.size(index, bytes, out);
    out.push(Command::Spill { chunk: index, from, to });
    true
}
