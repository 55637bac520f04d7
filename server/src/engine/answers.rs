//! Checking what an operation asks for, and putting together what it is told.

use super::chunk::{ChunkSpec, Stage, Waiter};
use super::command::{Command, Commands, ResultBlock};
use super::lane::LaneEngine;
use super::peer::Peer;
use super::ranks::RankSet;
use proto_common::batch::{BatchRoom, Block, BlockData, OpKind, Status};
use proto_common::ids::Rank;
use proto_common::limits::{GRANTS_PER_BATCH_MAX, RANKS_LISTED_MAX, RESULT_SLOT_BYTES};
use std::ops::Range;

/// `in_place`: worker and server read each other's memory where it lies.
pub(super) fn check_shape(spec: &ChunkSpec, block: &Block, in_place: bool) -> Result<(), Status> {
    let payload = match block.op {
        OpKind::Pull | OpKind::Release => 0,
        OpKind::Init if block.bytes == 0 => 0,
        OpKind::Init => spec.bytes,
        OpKind::Push | OpKind::PushPull => spec.payload_bytes(spec.bytes),
        OpKind::Call | OpKind::CopyCheck | OpKind::CopyUpdate | OpKind::CopyState | OpKind::CopyRules => {
            return Err(Status::Refused);
        }
    };
    let payload = if spec.dynamic { dynamic_payload(spec, block)? } else { payload };
    let landing = block.landing.map(|landing| landing.bytes);
    let wanted = (block.op.lands() && !block.view).then_some(spec.bytes);
    if block.dtype != spec.dtype || block.bytes != payload || landing != wanted {
        return Err(Status::WrongShape);
    }
    if block.view && (!block.op.lands() || !in_place || spec.dynamic) {
        return Err(Status::Refused);
    }
    // Elsewhere a version is no round that all have together.
    if block.exact && (block.op != OpKind::Pull || block.view || !spec.mode.has_rounds()) {
        return Err(Status::Refused);
    }
    // What has no payload has it nowhere.
    if payload == 0 && !matches!(block.data, BlockData::Inline { .. }) {
        return Err(Status::Refused);
    }
    let codec = if block.op.contributes() { spec.codec.wire_id() } else { 0 };
    // Encoded bytes are checked before anything is decided, and so where they lie already.
    let elsewhere = codec != 0 && !matches!(block.data, BlockData::Inline { .. });
    if block.codec != codec || elsewhere || block.operation.0 == 0 {
        return Err(Status::Refused);
    }
    match block.status {
        Status::None => Ok(()),
        Status::Malformed => Err(Status::Malformed),
        _ => Err(Status::Refused),
    }
}

/// Bytes of an operation on a dynamic chunk: a contribution has as many as it says. It has no initial value, and
/// nobody contributes and lands at once, because the two may differ in length.
fn dynamic_payload(spec: &ChunkSpec, block: &Block) -> Result<u64, Status> {
    match block.op {
        OpKind::Push
            if block.bytes > spec.bytes || !block.bytes.is_multiple_of(spec.dtype.bytes() as u64) =>
        {
            Err(Status::WrongShape)
        }
        OpKind::Push => Ok(block.bytes),
        OpKind::Pull | OpKind::Release => Ok(0),
        _ => Err(Status::Refused),
    }
}

/// What an operation is told that has waited too long.
pub(super) type Late = (Status, Vec<Rank>);

/// What was found out last about chunks by themselves, and about tensors whose chunks finish together: many operations
/// may wait for the same, and such a tensor has many chunks to look at.
#[derive(Debug, Default)]
pub(super) struct Found {
    chunk: Option<(Range<u32>, Late)>,
    pub(super) tensor: Option<(Range<u32>, Late)>,
}

pub(super) fn answer_block(spec: &ChunkSpec, waiter: &Waiter, status: Status, version: u64) -> Block {
    let bare = Block::bare(spec.id, waiter.op, spec.dtype, waiter.operation);
    Block { status, round: version, token: waiter.token, ..bare }
}

impl LaneEngine {
    /// What an operation still waits for: the status that says so, and the ranks. Whatever was found out for another
    /// operation is told from `found`, which is to live no longer than a tick.
    pub(super) fn late(&self, index: u32, waiter: &Waiter, found: &mut Found) -> Late {
        let chunk = &self.chunks[index as usize];
        if chunk.stage == Stage::Copies || (chunk.init_pending && chunk.awaits(waiter).is_none()) {
            let servers: Vec<Rank> = chunk.unconfirmed().collect();
            if !servers.is_empty() {
                return (Status::DeadlineCopies, servers);
            }
        }
        if waiter.op == OpKind::Init {
            return (Status::DeadlineWaiting, vec![Rank(0)]);
        }
        if let Some(late) = chunk.loose_late(waiter) {
            return late;
        }
        let (chunks, known) = match (chunk.stage, chunk.group) {
            // It is the others of its tensor that lack contributions.
            (Stage::Norms, Some(group)) => (self.groups[group as usize].chunks.clone(), &mut found.tensor),
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

    pub(super) fn refuse(&mut self, peer: Rank, block: &Block, status: Status) {
        self.stats.refusals += 1;
        self.stats.malformed += u64::from(status == Status::Malformed);
        self.send_back(peer, block, status, Vec::new());
    }

    /// An operation cannot be taken before those of `awaited`, as far as that is known.
    pub(super) fn retry(&mut self, peer: Rank, block: &Block, awaited: Vec<Rank>) {
        self.stats.retries += 1;
        self.send_back(peer, block, Status::Retry, awaited);
    }

    pub(super) fn send_back(&mut self, peer: Rank, block: &Block, status: Status, missing: Vec<Rank>) {
        let data = BlockData::Inline { offset: 0 };
        let block = Block { status, bytes: 0, data, landing: None, view: false, timeout_ms: 0, ..*block };
        self.tell(peer, block, missing);
    }

    pub(super) fn tell(&mut self, peer: Rank, block: Block, missing: Vec<Rank>) {
        push_result(&mut self.peers, &mut self.dirty, peer, ResultBlock { block, missing, call: None });
    }
}

pub(super) fn push_result(
    peers: &mut [Option<Peer>],
    dirty: &mut Vec<Rank>,
    rank: Rank,
    result: ResultBlock,
) {
    if let Some(Some(peer)) = peers.get_mut(rank.0 as usize) {
        peer.results.push_back(result);
        if !peer.dirty {
            peer.dirty = true;
            dirty.push(rank);
        }
    }
}

/// Packs results and grants into as many of the worker's slots as there are, at most `left` of them. Grants
/// alone are sent only to a worker that is about to run out; otherwise they wait for a result to ride on.
/// False when more could be sent.
pub(super) fn send_results(rank: Rank, peer: &mut Peer, left: &mut usize, out: &mut Commands) -> bool {
    loop {
        let in_hand = peer.credits.saturating_sub(peer.grants.len() as u32);
        let urgent = !peer.grants.is_empty() && in_hand <= u32::from(peer.needy);
        if peer.results.is_empty() && !urgent {
            return true;
        }
        if *left == 0 {
            return false;
        }
        // Without a slot it goes on when the worker returns one.
        let Some(slot) = peer.result_slots.take() else { return true };
        *left -= 1;
        let (first_result, first_grant) = (out.results.len(), out.grants.len());
        let mut room = BatchRoom::new(RESULT_SLOT_BYTES);
        while let Some(result) = peer.results.front() {
            if !room.take(result.inline_bytes()) {
                break;
            }
            out.results.extend(peer.results.pop_front());
            peer.unanswered = peer.unanswered.saturating_sub(1);
        }
        let take = peer.grants.len().min(GRANTS_PER_BATCH_MAX);
        out.grants.extend(peer.grants.drain(..take));
        peer.sequence += 1;
        out.push(Command::Results {
            peer: rank,
            slot,
            results: first_result..out.results.len(),
            grants: first_grant..out.grants.len(),
            sequence: peer.sequence,
        });
    }
}
