//! Answers to operations, which wait for their version or their deadline. [`Waiters`](crate::engine::waiters::Waiters) and
//! [`Rounds`](crate::engine::rounds::Rounds) decide which operations are answered.

use super::LaneEngine;
use super::waiting::Found;
use crate::engine::chunk::Chunk;
use crate::engine::command::{Command, Commands, Place};
use crate::engine::spec::ChunkSpec;
use crate::engine::waiters::Waiter;
use proto_common::batch::{Block, Count, Landing, OpKind, Status};
use proto_common::ids::Rank;

pub(super) fn answer_block(spec: &ChunkSpec, waiter: &Waiter, status: Status, version: u64) -> Block {
    let bare = Block::bare(spec.id, waiter.op, spec.dtype, waiter.operation);
    Block { status, count: Count::Round(version), token: waiter.token, ..bare }
}

impl LaneEngine {
    /// An operation is taken: it is answered when its version is there.
    pub(super) fn wait_for(&mut self, index: u32, waiter: Waiter, fresh: bool) {
        let Chunk { rounds, waiters, .. } = &mut self.chunks[index as usize];
        self.deadlines.note(index, waiters, waiter.deadline_ms);
        let replaced = waiters.push(waiter, rounds.first_look(waiter.version), fresh);
        if replaced > 0 {
            self.peers.uncount_operations(waiter.rank, replaced);
        }
    }

    /// Answers the operations that wait for a version that is published now.
    pub(super) fn answer(&mut self, index: u32, out: &mut Commands) {
        let Self { chunks, peers, stats, roster, config, .. } = self;
        let chunk = &mut chunks[index as usize];
        let is_carried = !chunk.spec.dynamic && chunk.spec.bytes <= config.carried_bytes_max;
        if chunk.is_silent() {
            return;
        }
        let Chunk { spec, rounds, weights, waiters, .. } = chunk;
        waiters.answer(rounds.reached(), |waiter| {
            let initialised = waiter.op != OpKind::Init || rounds.is_initialised();
            let awaits = rounds.awaits(waiter).or((!initialised).then_some(waiter.version));
            if awaits.is_some() {
                return awaits;
            }
            let found = weights.of(waiter.exact.then_some(waiter.version), rounds.live_bytes());
            let (status, (buffer, bytes)) = match found {
                Some(found) => (rounds.ending(waiter, spec.id.key, roster), found),
                None => (Status::VersionGone, (0, 0)),
            };
            let bad = status == Status::BadValue;
            let version = rounds.version_for(waiter, status);
            let mut block = answer_block(spec, waiter, status, version);
            stats.answers += 1;
            // A version without elements has nothing to write.
            if let Some(landing) = waiter.landing.filter(|_| bytes > 0 && !bad) {
                rounds.size(index, bytes, out);
                weights.views.land(waiter.rank, buffer);
                if is_carried && matches!(status, Status::Done | Status::Late) {
                    block.landing = Some(Landing { bytes, ..landing });
                    peers.carry(waiter.rank, block, (index, buffer));
                    return None;
                }
                out.push(Command::Land { peer: waiter.rank, chunk: index, buffer, landing });
            }
            if waiter.view && !bad {
                weights.views.show(waiter.rank, waiter.operation, buffer);
                stats.views += 1;
                block.view = true;
                let place = Place::Weights { chunk: index, buffer };
                peers.answer_with_place(waiter.rank, block, place, spec.bytes);
                return None;
            }
            if spec.dynamic && waiter.op.lands() {
                block.landing = Some(Landing { region: 0, offset: 0, bytes });
            }
            peers.answer(waiter.rank, block, Vec::new());
            None
        });
    }

    /// An operation is refused: sending it again would not help.
    pub(super) fn refuse(&mut self, peer: Rank, block: &Block, status: Status) {
        self.stats.refusals += 1;
        self.stats.malformed += u64::from(status == Status::Malformed);
        self.peers.send_back(peer, block, status, Vec::new());
    }

    /// An operation cannot be taken yet. `awaited` are the ranks whose operations must come first, if they are known.
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
            if self.chunks[index as usize].waiters.is_due(due_ms) {
                self.end_late(index, now_ms, &mut found, out);
            }
        }
        let Self { deadlines, chunks, .. } = self;
        deadlines.shrink(chunks.len(), |chunk| &chunks[chunk as usize].waiters);
    }

    /// Ends the operations on a chunk whose deadline has passed, if they can be ended; the others are checked again later.
    fn end_late(&mut self, index: u32, now_ms: u64, found: &mut Found, out: &mut Commands) {
        let mut at = 0;
        while let Some(waiter) = self.chunks[index as usize].waiters.next_late(&mut at, now_ms) {
            let Waiter { rank, operation, .. } = waiter;
            // After the answer, the worker may use the operation's memory for something else. So a payload there is read first.
            self.fold_first(index, |first| (first.rank, first.operation) == (rank, operation), out);
            let Self { chunks, placement, .. } = self;
            let rounds = &mut chunks[index as usize].rounds;
            let Ok(moved) = rounds.move_out((rank, operation), || placement.take()) else {
                at += 1;
                continue;
            };
            if let Some((held, to)) = moved {
                rounds.size(index, held.bytes, out);
                out.push(Command::Spill { chunk: index, from: held.from, to });
            }
            let (status, missing) = self.waits_for(index, &waiter, found);
            let chunk = &mut self.chunks[index as usize];
            chunk.waiters.remove(at);
            let block = answer_block(&chunk.spec, &waiter, status, chunk.rounds.version());
            self.stats.deadlines += 1;
            self.peers.answer(rank, block, missing);
        }
        self.deadlines.note_next(index, &mut self.chunks[index as usize].waiters, now_ms);
    }
}
