//! Closed forms: what a node sends in a round and what it registers, as functions of W and S. Each is printed beside what
//! was counted, and a test holds them together.

use super::loggp::LogGp;
use super::shape::{Hosts, Shape, Work};
use super::worker::GATHER_MAX;
use proto_common::batch::BatchRoom;
use proto_common::footprint;
use proto_common::limits::slot_bytes_for;
use proto_common::shard_map::ShardMap;

/// Messages of one round, without notices: those ask for credits, and depend on who came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Messages {
    /// Batches of one worker: for each server, its chunks over the chunks that a slot holds, rounded up.
    pub(crate) worker_batches: u64,
    /// Landings at one worker: a chunk each.
    pub(crate) worker_landings: u64,
}

/// Chunks that each server holds, and their bytes.
fn held(shape: &Shape, map: &ShardMap) -> Vec<(u64, u64)> {
    let mut held = vec![(0, 0); shape.servers as usize];
    for tensor in shape.tensors() {
        for (span, server) in map.placed_chunks(tensor.key) {
            let (chunks, bytes) = &mut held[server.0 as usize];
            (*chunks, *bytes) = (*chunks + 1, *bytes + span.bytes);
        }
    }
    held
}

/// Of a shape whose tensors are one chunk each, or whole chunks.
pub(crate) fn messages(shape: &Shape, map: &ShardMap) -> Messages {
    let (per_batch, held) = (chunks_per_batch(shape), held(shape, map));
    Messages {
        worker_batches: held.iter().map(|(chunks, _)| chunks.div_ceil(per_batch)).sum(),
        worker_landings: if shape.work == Work::Push {
            0
        } else {
            held.iter().map(|(chunks, _)| chunks).sum()
        },
    }
}

/// What a round takes at least where each process has its host: the busiest of the fullest server's link in one
/// direction, W b G; its data thread, W b (taken + reduced + sent); and a worker's, B (sent + taken). b are the bytes that
/// it holds, B those of the model; each only as far as the work moves them. Overheads and waiting come on top.
pub(crate) fn round_ns(shape: &Shape, map: &ShardMap, model: &LogGp) -> f64 {
    let prices = model.prices;
    let pushed = if shape.work == Work::Pull { 0.0 } else { 1.0 };
    let pulled = if shape.work == Work::Push { 0.0 } else { 1.0 };
    let held: Vec<f64> = held(shape, map).iter().map(|(_, bytes)| *bytes as f64).collect();
    let (fullest, all) = (held.iter().copied().fold(0.0, f64::max), held.iter().sum::<f64>());
    let at_server = fullest * f64::from(shape.workers);
    let server = at_server * (pushed * (prices.taken_byte + prices.reduced_byte) + pulled * prices.sent_byte);
    let worker = all * (pushed * prices.sent_byte + pulled * prices.taken_byte);
    let link = if shape.hosts == Hosts::Own { at_server * model.link_ns_per_byte } else { 0.0 };
    server.max(worker).max(link)
}

/// Chunks of the shape's size that one slot holds.
fn chunks_per_batch(shape: &Shape) -> u64 {
    let payload = if shape.work == Work::Pull { 0 } else { shape.tensor_bytes.min(shape.chunk_bytes) };
    let mut room = BatchRoom::new(slot_bytes_for(shape.chunk_bytes));
    let mut chunks = 0;
    while chunks < GATHER_MAX as u64 - 1 && room.take(payload) {
        chunks += 1;
    }
    chunks.max(1)
}

/// Bytes that a node has registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registered {
    /// A server's: lanes x (inbox slots x slot bytes + result batches x their bytes). No W in it.
    pub(crate) server: u64,
    /// What its spill area adds at most, as far as it is used. No W in it either.
    pub(crate) server_spill: u64,
    /// A worker's: lanes x (S x result slots x their bytes + prefixes x table bytes).
    pub(crate) worker: u64,
    /// A server's with a ring for each pair, k bytes each way, k a slot: 2 n k of the paper's m n 2 k.
    pub(crate) server_per_pair: u64,
}

/// Of a shape with default settings.
pub(crate) fn registered(shape: &Shape) -> Registered {
    let settings = shape.settings();
    Registered {
        server: footprint::server_bytes(&settings, settings.memory.inbox_slots),
        server_spill: footprint::spill_bytes(&settings),
        worker: footprint::worker_bytes(&settings),
        server_per_pair: 2 * u64::from(shape.workers) * slot_bytes_for(shape.chunk_bytes),
    }
}
