//! Who is answered when: operations wait for their version or their deadline, and are told how they ended.

use super::LaneEngine;
use crate::engine::chunk::{Chunk, Stage, Waiter};
use crate::engine::command::{Command, Commands, Place, Source};
use crate::engine::placed::Placement;
use crate::engine::ranks::RankSet;
use crate::engine::spec::ChunkSpec;
use proto_common::batch::{Block, Landing, OpKind, Status};
use proto_common::ids::Rank;
use proto_common::limits::RANKS_LISTED_MAX;
use std::ops::Range;

/// What an operation is told that has waited too long.
pub(in crate::engine) type Late = (Status, Vec<Rank>);

/// What was found out last about chunks by themselves, and about tensors whose chunks finish together: many operations
/// may wait for the same, and such a tensor has many chunks to look at.
#[derive(Debug, Default)]
pub(in crate::engine) struct Found {
    chunk: Option<(Range<u32>, Late)>,
    pub(in crate::engine) tensor: Option<(Range<u32>, Late)>,
}

pub(super) fn answer_block(spec: &ChunkSpec, waiter: &Waiter, status: Status, version: u64) -> Block {
    let bare = Block::bare(spec.id, waiter.op, spec.dtype, waiter.operation);
    Block { status, round: version, token: waiter.token, ..bare }
}

impl LaneEngine {
    /// An operation is taken: it is answered when its version is there.
    pub(super) fn wait_for(
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
            self.peers.uncount_operations(peer, replaced);
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

    /// Answers whoever waits for what is there now.
    pub(super) fn answer(&mut self, index: u32, out: &mut Commands) {
        let Self { chunks, peers, stats, roster, .. } = self;
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
                chunk.views.land(waiter.rank, buffer);
                out.push(Command::Land { peer: waiter.rank, chunk: index, buffer, landing });
            }
            let version = chunk.version_for(waiter, status);
            let mut block = answer_block(&chunk.spec, waiter, status, version);
            stats.answers += 1;
            if waiter.view && !bad {
                chunk.show(waiter.rank, waiter.operation);
                stats.views += 1;
                block.view = true;
                let place = Place::Weights { chunk: index, buffer: chunk.buffer };
                peers.tell_place(waiter.rank, block, place, chunk.spec.bytes);
                return false;
            }
            if chunk.spec.dynamic && waiter.op.lands() {
                block.landing = Some(Landing { region: 0, offset: 0, bytes });
            }
            peers.tell(waiter.rank, block, Vec::new());
            false
        });
        chunk.waiters = waiters;
    }

    /// What an operation still waits for: the status that says so, and the ranks. Whatever was found out for another
    /// operation is told from `found`, which is to live no longer than a tick.
    pub(in crate::engine) fn late(&self, index: u32, waiter: &Waiter, found: &mut Found) -> Late {
        let chunk = &self.chunks[index as usize];
        if chunk.stage == Stage::Copies || (chunk.init_pending && chunk.awaits(waiter).is_none()) {
            let servers: Vec<Rank> = chunk.unconfirmed().collect();
            if !servers.is_empty() {
                return (Status::DeadlineCopies, servers);
            }
        }
        if waiter.op == OpKind::Init {
            return (Status::DeadlineWaiting, vec![self.roster.setter()]);
        }
        if let Some(late) = chunk.loose_late(waiter) {
            return late;
        }
        let (chunks, known) = match (chunk.stage, chunk.group) {
            // It is the others of its tensor that lack contributions.
            (Stage::Norms, Some(group)) => (self.groups.chunks(group), &mut found.tensor),
            _ => (index..index + 1, &mut found.chunk),
        };
        match known {
            Some((of, late)) if *of == chunks => late.clone(),
            _ => known.insert((chunks.clone(), self.awaited(chunks))).1.clone(),
        }
    }

    /// Who has not contributed to some of these chunks; or else who reads what one of them is to be written to, or that it is
    /// to be copied for a checkpoint first.
    fn awaited(&self, chunks: Range<u32>) -> Late {
        let chunks = &self.chunks[chunks.start as usize..chunks.end as usize];
        let mut present = RankSet::new(self.config.workers);
        let mut absent = RankSet::new(self.config.workers);
        for chunk in chunks.iter().filter(|chunk| !chunk.is_complete()) {
            present.copy(&chunk.contributed);
            let held = chunk.held.of_round(chunk.round()).filter(|held| held.arrived);
            held.for_each(|held| present.insert(held.rank));
            chunk.expected.without(&present).for_each(|rank| absent.insert(rank));
            if chunk.is_barred() {
                self.roster.comers().for_each(|rank| absent.insert(rank));
            }
        }
        let missing: Vec<Rank> = absent.ranks().take(RANKS_LISTED_MAX).collect();
        let uncopied =
            chunks.iter().find(|chunk| chunk.stage == Stage::Copies).filter(|_| missing.is_empty());
        if let Some(uncopied) = uncopied {
            return (Status::DeadlineCopies, uncopied.unconfirmed().collect());
        }
        match chunks.iter().find(|chunk| chunk.stage == Stage::Buffer) {
            Some(unwritten) if missing.is_empty() && unwritten.is_due() => (Status::DeadlineSaving, missing),
            Some(unwritten) if missing.is_empty() => {
                let mut reading = unwritten.reading();
                reading.truncate(RANKS_LISTED_MAX);
                (Status::DeadlineReading, reading)
            }
            _ => (Status::DeadlineWaiting, missing),
        }
    }

    /// An operation cannot be taken, now or later.
    pub(super) fn refuse(&mut self, peer: Rank, block: &Block, status: Status) {
        self.stats.refusals += 1;
        self.stats.malformed += u64::from(status == Status::Malformed);
        self.peers.send_back(peer, block, status, Vec::new());
    }

    /// An operation cannot be taken before those of `awaited`, as far as that is known.
    pub(super) fn retry(&mut self, peer: Rank, block: &Block, awaited: Vec<Rank>) {
        self.stats.retries += 1;
        self.peers.send_back(peer, block, Status::Retry, awaited);
    }

    /// Time passes: answers operations whose deadline is over, naming the ranks they waited for.
    pub fn tick(&mut self, now_ms: u64, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.tick(now_ms, &mut desk);
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
            let Self { chunks, placement, .. } = self;
            if !copy_out(index, &mut chunks[at_chunk], &waiter, placement, out) {
                at += 1;
                continue;
            }
            let (status, missing) = self.late(index, &waiter, found);
            let chunk = &mut self.chunks[at_chunk];
            chunk.waiters.remove(at);
            let block = answer_block(&chunk.spec, &waiter, status, chunk.version);
            self.stats.deadlines += 1;
            self.peers.tell(waiter.rank, block, missing);
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
    placement: &mut Placement,
    out: &mut Commands,
) -> bool {
    let Some(held) = chunk.held.in_worker_memory(waiter.rank, waiter.operation) else { return true };
    if !held.arrived {
        return false;
    }
    let Some(to) = placement.take() else { return false };
    let (from, bytes) = (held.from, held.bytes);
    held.from = Source::Spill(to);
    chunk.size(index, bytes, out);
    out.push(Command::Spill { chunk: index, from, to });
    true
}
