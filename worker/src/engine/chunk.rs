//! The parts of each chunk on a lane: which wait, how many are in flight, and when a part that a server could not take is tried again.
//! Owns their order. It must not know a link, or what an operation is for.
//!
//! ```text
//!                queue: it may go              sent                  ended
//!  waiting ──────────────────────▶ queued ───────────▶ in flight ───────────▶
//!     ▲                              │                      │
//!     ├── dequeue, or another server ┘                      │
//!     └──────── take_back: it is to be sent again ──────────┘
//! ```
//!
//! Only the first part that waits is queued, and it is not queued while the chunk is
//!
//! - *held*: its server could not take a part, and the part is sent again after a pause. If a later part were sent, the server would only
//!   send it back;
//! - *asked*: a part is announced, and its server has not answered with a buffer to write it into (see `placement`);
//! - *leaving*: the chunk has moved, and parts are in flight to its old server, which may still read or write their memory.

use super::part::{At, Submit};
use super::shown_by::ShownBy;
use proto_common::batch::OpKind;
use proto_common::call::CALLS_IN_FLIGHT_MAX;
use proto_common::ids::{ChunkId, Operation, Rank};
use proto_common::limits::OPEN_SPAN_MAX;
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};

/// Operations of one chunk that may be in flight at once. Servers keep contributions this many rounds ahead.
const SENT_PER_CHUNK_MAX: u32 = 4;
/// Wait before a part that a server could not take is sent again; doubled each time until one is taken, so
/// that what the server waits for gets through.
const RETRY_MS: u64 = 2;
/// Doublings of it.
const RETRY_DOUBLINGS_MAX: u32 = 4;

/// One chunk. See the module.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Unsent parts in order.
    waiting: VecDeque<u32>,
    /// The front one is in its server's queue.
    queued: bool,
    sent: u32,
    /// The server that has the parts that were sent.
    sent_to: Rank,
    /// The chunk's server since it has moved. None while it is where the declaration placed it.
    route: Option<Rank>,
    held: bool,
    asked: bool,
    /// A grant for the announced part must not be used: the chunk has moved, or may have, since the announcement.
    grant_is_stale: bool,
    /// How often in a row a server could not take a part.
    tries: u32,
    /// Operations that have not ended, in order.
    open: VecDeque<u64>,
    /// Servers whose weights of it may still be read as views.
    pub(super) shown_by: ShownBy,
}

impl Chunk {
    /// The server to which a part is sent now; `first` is the server that its operation was submitted for.
    pub(super) fn server(&self, first: Rank) -> Rank {
        self.route.unwrap_or(first)
    }

    /// An operation has a part on it.
    pub(super) fn submit(&mut self, part: u32, operation: Operation) {
        self.waiting.push_back(part);
        self.open.push_back(operation.0);
    }

    /// The part that could be queued now.
    pub(super) fn next(&self) -> Option<u32> {
        self.waiting.front().copied().filter(|_| !self.queued && !self.held && !self.asked)
    }

    /// Queues the next part, which is this operation's and for this server, if it may go.
    pub(super) fn queue(&mut self, submit: &Submit, server: Rank) -> bool {
        let has_window =
            |most| self.open.front().is_none_or(|oldest| submit.operation.0 < oldest.saturating_add(most));
        let may_go = match submit.kind {
            // A round may wait for the end of a view, and everything in flight for that round.
            OpKind::Release => has_window(OPEN_SPAN_MAX),
            OpKind::Call => has_window(CALLS_IN_FLIGHT_MAX),
            _ => self.sent < SENT_PER_CHUNK_MAX && has_window(OPEN_SPAN_MAX),
        };
        self.queued = may_go && !self.is_leaving(server);
        self.queued
    }

    /// Is it its turn to be sent? Not if an earlier one came back since it was queued.
    pub(super) fn is_next(&self, part: u32) -> bool {
        !self.held && !self.asked && self.waiting.front() == Some(&part)
    }

    /// Parts that wait, in order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        self.waiting.iter().copied()
    }

    /// Takes the queued part back out of the queue.
    pub(super) fn dequeue(&mut self) {
        self.queued = false;
    }

    /// The first part was sent: as a whole, or (`asked`) as an announcement.
    pub(super) fn sent(&mut self, server: Rank, asked: bool) {
        self.waiting.pop_front();
        (self.queued, self.asked, self.sent_to) = (false, asked, server);
        self.sent += 1;
    }

    /// A part that was sent waits again, in its old place: after the parts for which `is_before` holds.
    pub(super) fn take_back(&mut self, part: u32, is_before: impl Fn(u32) -> bool) {
        let at = self.waiting.partition_point(|other| is_before(*other));
        self.waiting.insert(at, part);
        self.sent = self.sent.saturating_sub(1);
    }

    /// A part that was sent has ended, and so has its operation here.
    pub(super) fn ended(&mut self, operation: Option<Operation>) {
        self.sent = self.sent.saturating_sub(1);
        self.tries = 0;
        if let Some(operation) = operation {
            self.close(operation);
        }
    }

    /// A part that waits is dropped, and its operation with it.
    pub(super) fn forget(&mut self, part: u32, operation: Operation) {
        self.waiting.retain(|other| *other != part);
        self.close(operation);
    }

    fn close(&mut self, operation: Operation) {
        if let Ok(at) = self.open.binary_search(&operation.0) {
            self.open.remove(at);
        }
    }

    /// The oldest operation that has not ended.
    pub(super) fn first_open(&self) -> Option<Operation> {
        self.open.front().copied().map(Operation)
    }

    /// The server has answered the announcement, with a grant or without.
    pub(super) fn announced(&mut self, is_grant: bool) {
        self.asked = false;
        self.grant_is_stale &= is_grant;
    }

    /// May this server's grant for the announced part be used? Not if the chunk has moved since the announcement, even if it has
    /// returned to this server: the server ended the grant when it gave the chunk up.
    pub(super) fn accepts_grant(&mut self, server: Rank) -> bool {
        !std::mem::take(&mut self.grant_is_stale) && self.server(server) == server
    }

    /// A grant for the part that is announced now must not be used.
    pub(super) fn refuse_grant(&mut self) {
        self.grant_is_stale |= self.asked;
    }

    /// The chunk has moved to this server. Returns the parts that wait; none if the chunk is at this server already.
    pub(super) fn remap(&mut self, server: Rank) -> Option<impl Iterator<Item = u32> + '_> {
        if self.route.replace(server) == Some(server) {
            return None;
        }
        self.shown_by.moved();
        self.refuse_grant();
        self.reset_queueing();
        Some(self.waiting.iter().copied())
    }

    /// The channel to this server has ended. Parts that were sent there are to be taken back.
    pub(super) fn channel_ended(&mut self, server: Rank) {
        self.asked &= self.is_leaving(server);
        self.grant_is_stale &= self.asked;
        self.reset_queueing();
    }

    /// The server's process has exited. Only calls to it wait here, and they end with it. (`lane/kept.rs` has those that do not.)
    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
        self.queued = false;
    }

    /// Another server, or another channel, may be able to take the next part at once.
    fn reset_queueing(&mut self) {
        (self.queued, self.held, self.tries) = (false, false, 0);
    }

    /// Are parts in flight to another server than this one?
    fn is_leaving(&self, server: Rank) -> bool {
        self.sent > 0 && self.sent_to != server
    }
}

/// All chunks of a lane that have had operations. A part finds its chunk once, when it is submitted, and has its place from then on.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    places: FxHashMap<ChunkId, At>,
    all: Vec<Chunk>,
    /// Chunks that are held, and until when.
    retries: BTreeSet<(u64, At)>,
}

impl Index<At> for Chunks {
    type Output = Chunk;

    fn index(&self, at: At) -> &Chunk {
        &self.all[at.0 as usize]
    }
}

impl IndexMut<At> for Chunks {
    fn index_mut(&mut self, at: At) -> &mut Chunk {
        &mut self.all[at.0 as usize]
    }
}

impl Chunks {
    /// The place of a chunk, which is new if it has had no operation yet.
    pub(super) fn place(&mut self, id: ChunkId) -> At {
        *self.places.entry(id).or_insert_with(|| {
            self.all.push(Chunk::default());
            At(self.all.len() as u32 - 1)
        })
    }

    /// A chunk that has had an operation.
    pub(super) fn find(&mut self, id: ChunkId) -> Option<&mut Chunk> {
        self.places.get(&id).map(|at| &mut self.all[at.0 as usize])
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.all.iter_mut()
    }

    /// This server could not take a part of the chunk. False if the chunk has moved to another server, which can be asked at once.
    pub(super) fn hold(&mut self, at: At, server: Rank, now_ms: u64) -> bool {
        let chunk = &mut self[at];
        if chunk.server(server) != server {
            return false;
        }
        if !std::mem::replace(&mut chunk.held, true) {
            let wait_ms = RETRY_MS << chunk.tries.min(RETRY_DOUBLINGS_MAX);
            chunk.tries = chunk.tries.saturating_add(1);
            self.retries.insert((now_ms + wait_ms, at));
        }
        true
    }

    /// Releases a chunk whose pause is over.
    pub(super) fn release(&mut self, now_ms: u64) -> Option<At> {
        self.retries.first().filter(|(due, _)| *due <= now_ms)?;
        let (_, at) = self.retries.pop_first()?;
        self[at].held = false;
        Some(at)
    }

    /// When the next one is to be released.
    pub(super) fn next_retry_ms(&self) -> Option<u64> {
        self.retries.first().map(|(due, _)| *due)
    }

    /// These chunks are no longer held.
    pub(super) fn forget_retries(&mut self, of: &BTreeSet<At>) {
        self.retries.retain(|(_, at)| !of.contains(at));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::submit;
    use super::*;
    use proto_common::ids::{ChunkIndex, Key};

    const HERE: Rank = Rank(0);
    const THERE: Rank = Rank(1);
    const ID: ChunkId = ChunkId { key: Key(1), chunk: ChunkIndex(0) };

    /// A chunk with parts 0 to 5, of the operations 1 to 6.
    fn chunk() -> Chunk {
        let mut chunk = Chunk::default();
        (0..6).for_each(|part| chunk.submit(part, Operation(u64::from(part) + 1)));
        chunk
    }

    /// Sends the next part, if it may go.
    fn send(chunk: &mut Chunk, server: Rank) -> Option<u32> {
        let part = chunk.next()?;
        chunk.queue(&submit(OpKind::Push, u64::from(part) + 1), server).then(|| chunk.sent(server, false))?;
        Some(part)
    }

    #[test]
    fn parts_go_in_order_and_so_many_at_once() {
        let mut chunk = chunk();
        let sent: Vec<u32> = std::iter::from_fn(|| send(&mut chunk, HERE)).collect();
        assert_eq!(sent, [0, 1, 2, 3]);
        chunk.ended(Some(Operation(2)));
        assert_eq!((send(&mut chunk, HERE), chunk.first_open()), (Some(4), Some(Operation(1))));
        for part in [3, 0] {
            chunk.take_back(part, |other| other < part);
        }
        assert_eq!((send(&mut chunk, HERE), chunk.is_next(3), chunk.is_next(5)), (Some(0), true, false));
    }

    #[test]
    fn what_is_announced_or_under_way_elsewhere_keeps_the_rest() {
        let mut chunk = chunk();
        chunk.sent(HERE, true);
        assert_eq!(chunk.next(), None);
        assert_eq!(chunk.remap(THERE).map(Iterator::count), Some(5));
        assert_eq!(chunk.remap(THERE).map(Iterator::count), None);
        chunk.announced(true);
        assert!(!chunk.accepts_grant(HERE), "it was announced before the move");
        assert_eq!(send(&mut chunk, THERE), None, "it is leaving");
        chunk.take_back(0, |_| false);
        assert_eq!(send(&mut chunk, THERE), Some(0));
    }

    #[test]
    fn a_held_chunk_is_released_later_each_time() {
        let mut chunks = Chunks::default();
        let at = chunks.place(ID);
        let mut now_ms = 0;
        let waits: Vec<u64> = (0..6)
            .map(|_| {
                let before_ms = now_ms;
                assert!(chunks.hold(at, HERE, now_ms) && chunks.hold(at, HERE, now_ms + 1));
                now_ms = chunks.next_retry_ms().expect("it is held once");
                assert_eq!((chunks.release(now_ms - 1), chunks.release(now_ms)), (None, Some(at)));
                now_ms - before_ms
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 32]);
        chunks.hold(at, HERE, now_ms);
        assert!(chunks[at].remap(THERE).is_some());
        chunks.forget_retries(&BTreeSet::from([at]));
        assert_eq!((chunks.next_retry_ms(), chunks.hold(at, HERE, now_ms)), (None, false));
        assert_eq!((chunks.place(ID), chunks.find(ChunkId::new(2, 0)).is_none()), (at, true));
    }
}
