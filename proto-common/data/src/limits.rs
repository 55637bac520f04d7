//! Every bound of the protocol in one place, each with the relation that ties it to the others.
//! Settings may lower some of these; nothing may raise them.

/// Wire version of all messages between processes of a job. Peers with another version are refused with both builds
/// (`message/version.rs`); `docs/upgrading.md` has the rule.
pub const PROTOCOL_VERSION: u32 = 17;

/// Bytes of a control frame until the sender is known (registration, hello).
pub const FIRST_FRAME_BYTES_MAX: usize = 64 << 10;
/// Bytes of any control frame.
pub const CONTROL_FRAME_BYTES_MAX: usize = 16 << 20;

/// Bytes of a batch header on the wire.
pub const HEADER_BYTES: usize = 96;
/// Bytes of one block table entry on the wire.
pub const BLOCK_BYTES: usize = 112;
/// Blocks in one batch.
pub const BLOCKS_PER_BATCH_MAX: usize = 128;
/// Slot grants carried by one batch.
pub const GRANTS_PER_BATCH_MAX: usize = 64;
/// Bytes of header, block table and grants, rounded up to [`PAYLOAD_ALIGN_BYTES`]: the copied prefix.
pub const TABLE_BYTES_MAX: usize =
    (HEADER_BYTES + BLOCKS_PER_BATCH_MAX * BLOCK_BYTES + GRANTS_PER_BATCH_MAX * 4).next_multiple_of(64);
/// Alignment of a batch's payload within its slot.
pub const PAYLOAD_ALIGN_BYTES: usize = 64;

/// Default chunk size: the unit that is sent and reduced at once.
pub const CHUNK_BYTES_DEFAULT: u64 = 256 << 10;
/// Smallest chunk: one page.
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Largest chunk. A slot must hold one, and slots are registered memory.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;

/// Slots of one lane's inbox. A grant index has 24 bits, and the upper half is reserved for notices.
pub const INBOX_SLOTS_MAX: usize = 1 << 16;
/// With fewer slots, workers would take turns with every batch.
pub const INBOX_SLOTS_MIN: u32 = 2;
/// Slots of a lane of a server for the stream of one other server.
pub const REPLICA_SLOTS_MAX: usize = 256;
/// So many a server grants: records of one stream are handled one after the other, so more would only wait.
pub const REPLICA_SLOTS: u32 = 8;
/// Slots of a worker for results, for each lane and server. A server that finds none free keeps results until one is.
pub const RESULT_SLOTS: u32 = 4;
/// Lanes of a cluster.
pub const LANES_MAX: u16 = 64;

/// Workers of a cluster. Sets of contributors have this size.
pub const WORKERS_MAX: u32 = 4096;
/// Servers of a cluster.
pub const SERVERS_MAX: u32 = 1024;
/// Tensors of a cluster.
pub const TENSORS_MAX: usize = 1 << 20;
/// Chunks of one tensor. Chunk numbers have 32 bits; the last ones identify servers in calls.
pub const CHUNKS_PER_TENSOR_MAX: u64 = (u32::MAX - SERVERS_MAX) as u64;
/// Chunks of a tensor whose rule needs norms over the whole tensor. All are on one lane, and no operation of a round
/// is answered before all have arrived, so a worker has this many in flight there.
pub const NORM_CHUNKS_MAX: u64 = 1 << 15;
/// A tensor with fewer bytes is sent by each worker of a host: the messages about it would take as many.
pub const MERGED_BYTES_MIN: u64 = 1024;
/// Characters of a tensor's, host's or barrier's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Values that one worker's trainer reports by name.
pub const METRICS_MAX: usize = 16;
/// Bytes of such a name.
pub const METRIC_NAME_BYTES_MAX: usize = 48;
/// Counters of a port that a member reports.
pub const PORT_COUNTERS_MAX: usize = 8;
/// Ranks listed in an error about a wait; further ones are only counted.
pub const RANKS_LISTED_MAX: usize = 16;

/// Bytes of a slot of a worker's inbox: a full table, and the ranks that a few results name.
pub const RESULT_SLOT_BYTES: u64 = 16 << 10;
/// Weights of at most this many bytes travel in the result batch of their operation. For larger ones, a write of their own costs less than
/// the two copies more.
pub const CARRIED_BYTES_MAX: u64 = 256;
/// Result batches of a server's lane that can be in flight at once.
pub const RESULTS_PER_LANE: u32 = 256;
/// Batches of a worker's lane that can be in flight at once.
pub const PREFIXES_PER_LANE: u32 = 128;
/// Unanswered operations of one worker on one lane that a server holds. A worker with more is disconnected.
pub const OPERATIONS_PER_WORKER_MAX: usize = 1 << 17;
/// Operations of a worker that are in flight on one lane of one server at most; further ones wait at the worker.
pub const IN_FLIGHT_MAX: usize = OPERATIONS_PER_WORKER_MAX / 2;

/// How many of a worker's operations on a chunk may follow its first unanswered one; requests have 16 bits for it. A
/// worker has fewer in flight; only ends of views are not counted.
pub const OPEN_SPAN_MAX: u64 = u16::MAX as u64;

/// Milliseconds that the end of a job waits for the manifest of a complete checkpoint.
pub const MANIFEST_MS_MAX: u64 = 60_000;

/// Slot size for a chunk size: the chunk, its header and a full table.
#[must_use]
pub const fn slot_bytes_for(chunk_bytes: u64) -> u64 {
    (chunk_bytes + TABLE_BYTES_MAX as u64).next_multiple_of(4096)
}

const _: () = assert!(METRIC_NAME_BYTES_MAX <= NAME_BYTES_MAX);
const _: () = assert!(NORM_CHUNKS_MAX <= IN_FLIGHT_MAX as u64 / 2);
const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && BLOCK_BYTES.is_multiple_of(8));
const _: () = assert!((TABLE_BYTES_MAX + RANKS_LISTED_MAX * 4) < RESULT_SLOT_BYTES as usize);
