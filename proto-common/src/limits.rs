//! Every bound of the protocol in one place, each with the relation that ties it to the others.
//! Settings may lower some of these; nothing may raise them.

/// Wire version of everything that processes of a job say to each other. Peers of another version are refused, by name
/// (`message/version.rs`); `docs/upgrading.md` is the rule.
pub const PROTOCOL_VERSION: u32 = 10;

/// Bytes of a control frame before the sender is known (registration, hello).
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

/// Chunk size unless set otherwise: what is moved and reduced at once.
pub const CHUNK_BYTES_DEFAULT: u64 = 256 << 10;
/// Smallest chunk: one page.
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Largest chunk: a slot must hold one, and slots are registered memory.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;

/// Slots of one lane's inbox; a grant index has 24 bits, and the upper half is kept for notices.
pub const INBOX_SLOTS_MAX: usize = 1 << 16;
/// Fewer would make workers take turns with every batch.
pub const INBOX_SLOTS_MIN: u32 = 2;
/// Slots that a lane of a server has for the stream of one other server.
pub const REPLICA_SLOTS_MAX: usize = 256;
/// Fewer would make records wait for one another.
pub const REPLICA_SLOTS_MIN: u32 = 2;
/// Lanes of a cluster.
pub const LANES_MAX: u16 = 64;

/// Workers of a cluster; contributor sets are sized by it.
pub const WORKERS_MAX: u32 = 4096;
/// Servers of a cluster.
pub const SERVERS_MAX: u32 = 1024;
/// Tensors of a cluster.
pub const TENSORS_MAX: usize = 1 << 20;
/// Chunks of one tensor: chunk numbers have 32 bits, the last of which stand for servers in the identity of calls.
pub const CHUNKS_PER_TENSOR_MAX: u64 = (u32::MAX - SERVERS_MAX) as u64;
/// Chunks of a tensor whose rule needs norms over all of it: they are on one lane, and none of a round's operations on them
/// is answered before all have come, so a worker has so many under way there.
pub const NORM_CHUNKS_MAX: u64 = 1 << 15;
/// Characters of a tensor's, host's or barrier's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Numbers that one worker's trainer reports by name.
pub const METRICS_MAX: usize = 16;
/// Bytes of such a name.
pub const METRIC_NAME_BYTES_MAX: usize = 48;
/// Counters of a port that a member tells of.
pub const PORT_COUNTERS_MAX: usize = 8;
/// Ranks listed in an error that says who is waited for; more are counted only.
pub const RANKS_LISTED_MAX: usize = 16;

/// Bytes of a slot of a worker's inbox: a full table and the ranks that a few results name.
pub const RESULT_SLOT_BYTES: u64 = 16 << 10;
/// Result batches of a server's lane that can be under way at once.
pub const RESULTS_PER_LANE: u32 = 256;
/// Batches of a worker's lane that can be under way at once.
pub const PREFIXES_PER_LANE: u32 = 128;
/// Operations of one worker on one lane that a server keeps unanswered; a worker with more is expelled.
pub const OPERATIONS_PER_WORKER_MAX: usize = 1 << 17;

/// How many of a worker's operations on a chunk may follow its first unanswered one: requests have 16 bits for it. A worker has
/// fewer under way; only endings of views are not counted among those.
pub const OPEN_SPAN_MAX: u64 = u16::MAX as u64;

/// Milliseconds that the end of a job waits for the manifest of a checkpoint that is whole.
pub const MANIFEST_MS_MAX: u64 = 60_000;

/// Slot size that a chunk size needs: the chunk, its header and a full table.
#[must_use]
pub const fn slot_bytes_for(chunk_bytes: u64) -> u64 {
    (chunk_bytes + TABLE_BYTES_MAX as u64).next_multiple_of(4096)
}

const _: () = assert!(METRIC_NAME_BYTES_MAX <= NAME_BYTES_MAX);
const _: () = assert!(NORM_CHUNKS_MAX <= OPERATIONS_PER_WORKER_MAX as u64 / 4);
const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && BLOCK_BYTES.is_multiple_of(8));
const _: () = assert!((TABLE_BYTES_MAX + RANKS_LISTED_MAX * 4) < RESULT_SLOT_BYTES as usize);
