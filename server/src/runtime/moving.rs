//! Bodies and replies on their way, piece by piece: a channel moves no more of them at once than what a lane can spare the
//! time for, so that rounds go on beside a long one. What is moved, and what follows, the engine decides.

use super::lane::{DataLane, LaneError};
use super::link::Post;
use fabric::{CompletionQueue, RemoteKey, RemoteSpan};
use proto_common::batch::Landing;
use proto_common::ids::Rank;
use std::collections::VecDeque;

/// Moved at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Under way at once on a channel, each way: a piece begins where less is.
const WINDOW_BYTES: u64 = 4 << 20;

/// A stretch of a worker's memory, or of ours, that is not moved yet.
#[derive(Clone, Copy, Debug)]
struct Move {
    call: u64,
    /// Bytes before it in the body or the reply.
    at: u64,
    /// Where it is to be read, or written.
    remote: RemoteSpan,
    left: u64,
}

impl Move {
    /// The next piece of it.
    fn cut(&mut self) -> Self {
        let piece = Self { left: self.left.min(PIECE_BYTES), ..*self };
        self.at += piece.left;
        // What a worker says of its memory is checked where that is reached.
        self.remote.offset = self.remote.offset.saturating_add(piece.left);
        self.left -= piece.left;
        piece
    }
}

/// What a channel moves of calls. It ends with the channel.
#[derive(Debug, Default)]
pub(super) struct Moves {
    reads: VecDeque<Move>,
    reading_bytes: u64,
    writes: VecDeque<Move>,
    /// Bytes of the pieces that are being written, in order.
    writing: VecDeque<u64>,
    writing_bytes: u64,
}

impl Moves {
    /// The next piece of what waits, where one may begin; `wanted` says of which calls. And: was it the last?
    fn next(
        waiting: &mut VecDeque<Move>,
        under_way: &mut u64,
        wanted: impl Fn(u64) -> bool,
    ) -> Option<(Move, bool)> {
        while *under_way < WINDOW_BYTES {
            let first = waiting.front_mut()?;
            if first.left == 0 || !wanted(first.call) {
                waiting.pop_front();
                continue;
            }
            let piece = first.cut();
            let is_last = first.left == 0;
            if is_last {
                waiting.pop_front();
            }
            *under_way += piece.left;
            return Some((piece, is_last));
        }
        None
    }
}

impl<Q: CompletionQueue> DataLane<Q> {
    fn moves(&mut self, peer: Rank) -> Option<&mut Moves> {
        Some(&mut self.links.get_mut(peer.0 as usize)?.as_mut()?.moves)
    }

    /// A piece of a body is to be read out of a worker's memory, behind those before it.
    pub(super) fn queue_read(&mut self, peer: Rank, (call, at): (u64, u64), remote: RemoteSpan, bytes: u64) {
        if let Some(moves) = self.moves(peer) {
            moves.reads.push_back(Move { call, at, remote, left: bytes });
        }
    }

    /// Starts as many reads as may be.
    pub(super) fn read_on(&mut self, peer: Rank) -> Result<(), LaneError> {
        loop {
            let Self { links, calls, .. } = self;
            let Some(Some(link)) = links.get_mut(peer.0 as usize) else { return Ok(()) };
            let Moves { reads, reading_bytes, .. } = &mut link.moves;
            let next = Moves::next(reads, reading_bytes, |call| calls.is_reading(call));
            let Some((piece, _)) = next else { return Ok(()) };
            let Move { call, at, remote: from, left: bytes } = piece;
            let Some(span) = self.calls.body_span(call, at, bytes) else { continue };
            if let Err(error) = self.queue.prepare(&span?) {
                tracing::error!(worker = peer.0, call, %error, "no memory for the body of a call");
                self.moves(peer).into_iter().for_each(|moves| moves.reading_bytes -= bytes);
                self.engine.call_failed(call, &mut self.commands);
                self.calls.drop_call(call);
                continue;
            }
            self.calls.reading(call);
            self.post(peer, Post::CallRead { call, at, bytes, from })?;
        }
    }

    /// Part of a body is there.
    pub(super) fn call_read(&mut self, peer: Rank, call: u64, bytes: u64) -> Result<(), LaneError> {
        if let Some(moves) = self.moves(peer) {
            moves.reading_bytes = moves.reading_bytes.saturating_sub(bytes);
        }
        if self.calls.read(call, bytes) {
            self.engine.call_arrived(call, &mut self.commands);
        }
        self.read_on(peer)
    }

    /// A reply goes to where its call granted room, behind those before it.
    pub(super) fn land_call(&mut self, peer: Rank, call: u64, landing: Landing) -> Result<(), LaneError> {
        let remote = RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset };
        if let Some(moves) = self.moves(peer) {
            moves.writes.push_back(Move { call, at: 0, remote, left: landing.bytes });
        }
        self.write_on(peer)
    }

    /// Starts as many writes as may be. When the last of a reply is posted its result may follow: channels keep order.
    fn write_on(&mut self, peer: Rank) -> Result<(), LaneError> {
        loop {
            let Self { links, calls, .. } = self;
            let Some(Some(link)) = links.get_mut(peer.0 as usize) else { return Ok(()) };
            let Moves { writes, writing_bytes, .. } = &mut link.moves;
            let next = Moves::next(writes, writing_bytes, |call| calls.is_sending(call));
            let Some((Move { call, at, remote, left: bytes }, is_last)) = next else { return Ok(()) };
            let Some(span) = self.calls.reply_span(call) else { continue };
            if let Err(error) = self.queue.prepare(&span.slice(at, bytes)?) {
                tracing::error!(worker = peer.0, call, %error, "cannot send a reply");
                self.moves(peer).into_iter().for_each(|moves| moves.writing_bytes -= bytes);
                self.engine.call_landed(call, false, &mut self.commands);
                self.calls.drop_call(call);
                continue;
            }
            self.calls.landing(call);
            self.moves(peer).into_iter().for_each(|moves| moves.writing.push_back(bytes));
            let landing = Landing { region: remote.key.0, offset: remote.offset, bytes };
            self.post(peer, Post::CallLand { call, at, landing })?;
            if is_last {
                self.engine.call_landed(call, true, &mut self.commands);
            }
        }
    }

    /// Part of a reply is written.
    pub(super) fn call_written(&mut self, peer: Rank) -> Result<(), LaneError> {
        if let Some(moves) = self.moves(peer) {
            let bytes = moves.writing.pop_front().unwrap_or(0);
            moves.writing_bytes = moves.writing_bytes.saturating_sub(bytes);
        }
        self.write_on(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(call: u64, bytes: u64) -> Move {
        Move { call, at: 0, remote: RemoteSpan { key: RemoteKey(1), offset: 64 }, left: bytes }
    }

    #[test]
    fn long_ones_move_piece_by_piece_and_no_more_than_the_window_at_once() {
        let mut waiting =
            VecDeque::from([whole(1, 0), whole(2, 10), whole(3, 9 * PIECE_BYTES + 5), whole(4, 7)]);
        let (mut under_way, mut moved) = (0, Vec::new());
        while let Some((piece, is_last)) = Moves::next(&mut waiting, &mut under_way, |call| call != 2) {
            moved.push((piece.call, piece.at, piece.remote.offset, piece.left, is_last));
        }
        let of = |at: u64| (3, at * PIECE_BYTES, 64 + at * PIECE_BYTES, PIECE_BYTES, false);
        assert_eq!(moved, [of(0), of(1), of(2), of(3)]);
        assert_eq!(under_way, WINDOW_BYTES);
        under_way -= PIECE_BYTES;
        assert!(Moves::next(&mut waiting, &mut under_way, |_| true).is_some());
        assert!(Moves::next(&mut waiting, &mut under_way, |_| true).is_none());
        // The rest of it, its last piece, and the next one.
        under_way = 0;
        let mut rest = Vec::new();
        while let Some((piece, is_last)) = Moves::next(&mut waiting, &mut under_way, |_| true) {
            rest.push((piece.call, piece.left, is_last));
            under_way = 0;
        }
        let long = [(3, PIECE_BYTES, false); 4];
        assert_eq!(rest[..4], long);
        assert_eq!(rest[4..], [(3, 5, true), (4, 7, true)]);
    }
}
