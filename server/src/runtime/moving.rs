//! Bodies and replies on their way, piece by piece: a channel moves no more of them at once than what a lane can spare the
//! time for, so that rounds continue beside a long one. It must not move them.

use fabric::RemoteSpan;
use std::collections::VecDeque;

/// Moved at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Under way at once on a channel, each way: a piece begins where less is.
const WINDOW_BYTES: u64 = 4 << 20;
/// If at least so much waits to be written, what is written first is in no cache any more when the worker reads it.
const FLOOD_BYTES: u64 = 16 << 20;
/// Smaller pieces are written through the cache in any case.
const LARGE_BYTES: u64 = 128 << 10;

/// A stretch of a worker's memory, or of ours, that is not moved yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) call: u64,
    /// Bytes before it in the body or the reply.
    pub(super) at: u64,
    /// Where it is to be read, or written.
    pub(super) remote: RemoteSpan,
    pub(super) left: u64,
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
    pub(super) reads: VecDeque<Move>,
    pub(super) reading_bytes: u64,
    pub(super) writes: VecDeque<Move>,
    /// Bytes of the pieces that are being written, in order.
    pub(super) writing: VecDeque<u64>,
    pub(super) writing_bytes: u64,
}

impl Moves {
    /// Is a large piece of so many bytes to be written while more waits behind it than caches hold?
    pub(super) fn is_flood(&self, bytes: u64) -> bool {
        let mut sums = self.writes.iter().scan(0, |sum: &mut u64, one| {
            *sum = sum.saturating_add(one.left);
            Some(*sum)
        });
        bytes >= LARGE_BYTES && sums.any(|sum| sum >= FLOOD_BYTES)
    }

    /// The next piece of what waits, where one may begin; `wanted` says of which calls. And: was it the last?
    pub(super) fn next(
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

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::RemoteKey;

    fn whole(call: u64, bytes: u64) -> Move {
        Move { call, at: 0, remote: RemoteSpan { key: RemoteKey(1), offset: 64 }, left: bytes }
    }

    #[test]
    fn a_flood_is_what_caches_do_not_hold() {
        let is_flood = |sizes: &[u64], bytes| {
            let writes = sizes.iter().map(|bytes| whole(1, *bytes)).collect();
            Moves { writes, ..Moves::default() }.is_flood(bytes)
        };
        assert!(
            !is_flood(&[], LARGE_BYTES) && !is_flood(&[FLOOD_BYTES / 2, FLOOD_BYTES / 2 - 1], LARGE_BYTES)
        );
        assert!(is_flood(&[FLOOD_BYTES / 2, 1, FLOOD_BYTES / 2], LARGE_BYTES));
        assert!(is_flood(&[u64::MAX, 1], LARGE_BYTES) && !is_flood(&[u64::MAX, 1], LARGE_BYTES - 1));
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
