//! What is to move so that bytes balance over servers: few moves, each of whole chunks, and servers within a chunk of each
//! other where pieces allow. A pure function: it decides nothing about when, and knows no epochs.

use proto_common::ids::{ChunkId, Rank};
use std::collections::BTreeMap;

/// Moves of one plan; each looks at all pieces. What is left is planned when these are done.
const MOVES_MAX: usize = 256;

/// Something that lies at one server and could lie at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) first: ChunkId,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    /// Where it is.
    pub(super) at: Rank,
    /// It cannot go there.
    pub(super) not: Option<Rank>,
    /// It is there already, in another part: moving there costs nothing.
    pub(super) prefers: Option<Rank>,
    /// It cannot be cut.
    pub(super) is_whole: bool,
}

/// The first so many chunks of a piece go to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) first: ChunkId,
    pub(super) chunks: u32,
    pub(super) from: Rank,
    pub(super) to: Rank,
}

/// Moves that level `loads`, the bytes of each server that takes part; those of pieces are in it. Pieces at others stay.
pub(super) fn level(mut pieces: Vec<Piece>, mut loads: BTreeMap<Rank, u64>, chunk_bytes: u64) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    // The largest first: few moves.
    pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.bytes), piece.first));
    let mean = loads.values().sum::<u64>() / (loads.len() as u64).max(1);
    let mut stuck: Vec<(Rank, Rank)> = Vec::new();
    // Each step levels one of two servers to within a chunk, or moves one piece of those that there are.
    let steps_max = 4 * pieces.len() + 16 * loads.len() * loads.len();
    for _ in 0..steps_max {
        if moves.len() >= MOVES_MAX {
            break;
        }
        let Some((most, least)) = widest(&loads, chunk_bytes, &stuck) else { break };
        let (from, to) = (loads[&most], loads[&least]);
        let gap = from - to;
        let want = (from.saturating_sub(mean)).min(mean.saturating_sub(to)).max((gap / 2).min(chunk_bytes));
        let Some((at, chunks)) = choose(&pieces, (most, least), (want, gap), chunk_bytes) else {
            stuck.push((most, least));
            continue;
        };
        let piece = &mut pieces[at];
        let moved = if chunks == piece.chunks { piece.bytes } else { u64::from(chunks) * chunk_bytes };
        moves.push(Move { first: piece.first, chunks, from: most, to: least });
        piece.first.chunk.0 += chunks;
        piece.chunks -= chunks;
        piece.bytes -= moved;
        if piece.chunks == 0 {
            pieces.remove(at);
        }
        loads.insert(most, from - moved);
        loads.insert(least, to + moved);
        stuck.clear();
    }
    moves
}

/// The two servers that are farthest apart, by more than a chunk.
fn widest(loads: &BTreeMap<Rank, u64>, chunk_bytes: u64, stuck: &[(Rank, Rank)]) -> Option<(Rank, Rank)> {
    let mut pairs: Vec<(u64, Rank, Rank)> = Vec::new();
    for (most, from) in loads {
        for (least, to) in loads {
            let gap = from.saturating_sub(*to);
            if gap > chunk_bytes && !stuck.contains(&(*most, *least)) {
                pairs.push((gap, *most, *least));
            }
        }
    }
    let widest = pairs
        .into_iter()
        .max_by_key(|(gap, most, least)| (*gap, std::cmp::Reverse(*most), std::cmp::Reverse(*least)))?;
    Some((widest.1, widest.2))
}

/// A piece, and how many of its chunks, that closes the gap between two servers: about `want` bytes, and less than the gap.
fn choose(
    pieces: &[Piece],
    (most, least): (Rank, Rank),
    (want, gap): (u64, u64),
    chunk_bytes: u64,
) -> Option<(usize, u32)> {
    let may_go = |piece: &&(usize, &Piece)| piece.1.at == most && piece.1.not != Some(least);
    let of = |is_free: bool| {
        let all: Vec<(usize, &Piece)> = pieces.iter().enumerate().collect();
        let movable = all.into_iter().filter(|piece| may_go(&piece));
        let movable: Vec<(usize, &Piece)> =
            movable.filter(|(_, piece)| (piece.prefers == Some(least)) == is_free).collect();
        // The largest that is not too large; else a part of one; else a whole one that makes it better still.
        let whole = movable.iter().find(|(_, piece)| piece.bytes <= want);
        let count = (want / chunk_bytes).max(1);
        let part = movable.iter().find(|(_, piece)| !piece.is_whole && piece.bytes > count * chunk_bytes);
        let whole_or = |at: &(usize, &Piece)| (at.0, at.1.chunks);
        let part = part.filter(|_| count * chunk_bytes < gap).map(|at| (at.0, count as u32));
        let better = movable.iter().rev().find(|(_, piece)| piece.bytes < gap).map(whole_or);
        let whole = whole.map(whole_or);
        // A small piece is no help where a part of a large one does it at once.
        match (whole, part) {
            (Some(whole), Some(part)) if pieces[whole.0].bytes * 2 < want => Some(part),
            (Some(whole), _) => Some(whole),
            (None, part) => part.or(better),
        }
    };
    of(true).or_else(|| of(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 4096;

    fn piece(key: u64, chunks: u32, at: u32) -> Piece {
        let first = ChunkId::new(key, 0);
        let bytes = u64::from(chunks) * CHUNK;
        Piece { first, chunks, bytes, at: Rank(at), not: None, prefers: None, is_whole: false }
    }

    fn loads(pieces: &[Piece], servers: u32) -> BTreeMap<Rank, u64> {
        let mut loads: BTreeMap<Rank, u64> = (0..servers).map(|rank| (Rank(rank), 0)).collect();
        for piece in pieces {
            *loads.entry(piece.at).or_default() += piece.bytes;
        }
        loads
    }

    fn planned(pieces: &[Piece], servers: u32) -> (Vec<Move>, BTreeMap<Rank, u64>) {
        let moves = level(pieces.to_vec(), loads(pieces, servers), CHUNK);
        let mut after = loads(pieces, servers);
        for one in &moves {
            let bytes = u64::from(one.chunks) * CHUNK;
            *after.get_mut(&one.from).unwrap() -= bytes;
            *after.get_mut(&one.to).unwrap() += bytes;
        }
        (moves, after)
    }

    #[test]
    fn a_server_that_came_takes_its_share_in_one_move_from_each() {
        let pieces = [piece(1, 30, 0), piece(2, 30, 1)];
        let (moves, after) = planned(&pieces, 3);
        let first = |key| ChunkId::new(key, 0);
        let expected = [(1, 0), (2, 1)].map(|(key, from)| Move {
            first: first(key),
            chunks: 10,
            from: Rank(from),
            to: Rank(2),
        });
        assert_eq!(moves, expected);
        assert!(after.values().all(|bytes| *bytes == 20 * CHUNK), "{after:?}");
    }

    #[test]
    fn what_is_level_within_a_chunk_stays() {
        assert!(planned(&[piece(1, 4, 0), piece(2, 3, 1)], 2).0.is_empty());
        assert!(planned(&[], 3).0.is_empty());
        assert_eq!(planned(&[piece(1, 5, 0), piece(2, 3, 1)], 2).0.len(), 1);
    }

    #[test]
    fn copies_are_taken_first_and_whole_tensors_stay_whole() {
        let mut copied = piece(2, 10, 0);
        copied.prefers = Some(Rank(1));
        let (moves, _) = planned(&[piece(1, 10, 0), copied], 2);
        assert_eq!(moves.iter().map(|one| one.first.key.0).collect::<Vec<_>>(), [2]);
        let mut whole = piece(1, 10, 0);
        whole.is_whole = true;
        assert!(planned(&[whole], 2).0.is_empty(), "it would only change places");
        let other = Piece { first: ChunkId::new(2, 0), ..whole };
        assert_eq!(planned(&[whole, other], 2).0.len(), 1);
        let barred = Piece { not: Some(Rank(1)), ..piece(1, 10, 0) };
        assert!(planned(&[barred], 2).0.is_empty());
    }

    proptest! {
        #[test]
        fn whatever_lies_where_it_ends_within_a_chunk(
            at in prop::collection::vec((1u32..50, 0u32..5), 1..40),
            servers in 5u32..8,
        ) {
            let pieces: Vec<Piece> =
                at.iter().enumerate().map(|(key, (chunks, at))| piece(key as u64, *chunks, *at)).collect();
            let (moves, after) = planned(&pieces, servers);
            let (most, least) = (after.values().max().unwrap(), after.values().min().unwrap());
            prop_assert!(most - least <= CHUNK, "{:?} after {:?}", after, moves);
            prop_assert!(moves.len() <= pieces.len() + 4 * servers as usize, "{} moves", moves.len());
            let again: u64 = moves.iter().map(|one| u64::from(one.chunks)).sum();
            let all: u64 = at.iter().map(|(chunks, _)| u64::from(*chunks)).sum();
            prop_assert!(again <= all, "{} of {} chunks move", again, all);
        }
    }
}
