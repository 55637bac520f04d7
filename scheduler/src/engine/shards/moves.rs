//! Which chunks have to move so that all servers have about the same number of bytes: few moves, each of whole chunks. Afterwards servers
//! differ by at most one chunk, if the sizes allow it. A pure function: it does not decide when chunks move, and knows no epochs.

use proto_common::ids::{ChunkId, Rank};
use std::collections::BTreeMap;

/// Moves of one plan. What is left is planned when these are done.
const MOVES_MAX: usize = 256;
/// Pieces and servers that one plan looks at before it ends with the moves that it has: heartbeats wait meanwhile. A move is
/// found whatever there is, so what is left is planned in the end.
const LOOKS_MAX: u64 = 16 << 20;

/// Something that lies at one server and could lie at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) first: ChunkId,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
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
pub(super) fn level(pieces: Vec<Piece>, loads: BTreeMap<Rank, u64>, chunk_bytes: u64) -> Vec<Move> {
    plan(pieces, loads, chunk_bytes, LOOKS_MAX).moves
}

fn plan(pieces: Vec<Piece>, loads: BTreeMap<Rank, u64>, chunk_bytes: u64, looks_max: u64) -> Plan {
    let mut plan = Plan::new(pieces, loads, chunk_bytes);
    while plan.moves.len() < MOVES_MAX && plan.looks < looks_max && plan.step() {}
    plan
}

/// The smallest that a server can give away, whoever takes it; and where that cannot go to somebody, what can.
#[derive(Clone, Copy, Debug, Default)]
struct Smallest {
    bytes: Option<u64>,
    not: Option<Rank>,
    other_bytes: Option<u64>,
}

impl Smallest {
    fn of(pieces: &[Piece], chunk_bytes: u64) -> Self {
        let unit = |piece: &Piece| if piece.is_whole { piece.bytes } else { piece.bytes.min(chunk_bytes) };
        let Some(smallest) = pieces.iter().min_by_key(|piece| unit(piece)) else { return Self::default() };
        let others = pieces.iter().filter(|piece| piece.not.is_none() || piece.not != smallest.not);
        Self { bytes: Some(unit(smallest)), not: smallest.not, other_bytes: others.map(unit).min() }
    }

    fn for_server(&self, to: Rank) -> Option<u64> {
        if self.not == Some(to) { self.other_bytes } else { self.bytes }
    }
}

/// A plan that is being made.
struct Plan {
    /// By where they are, the largest first: few moves.
    pieces: BTreeMap<Rank, Vec<Piece>>,
    smallest: BTreeMap<Rank, Smallest>,
    loads: BTreeMap<Rank, u64>,
    mean: u64,
    chunk_bytes: u64,
    moves: Vec<Move>,
    /// Pieces and servers that were looked at.
    looks: u64,
}

impl Plan {
    fn new(mut all: Vec<Piece>, loads: BTreeMap<Rank, u64>, chunk_bytes: u64) -> Self {
        let mean = loads.values().sum::<u64>() / (loads.len() as u64).max(1);
        let looks = all.len() as u64;
        all.sort_by_key(|piece| (std::cmp::Reverse(piece.bytes), piece.first));
        let mut pieces: BTreeMap<Rank, Vec<Piece>> = BTreeMap::new();
        for piece in all.into_iter().filter(|piece| loads.contains_key(&piece.at)) {
            pieces.entry(piece.at).or_default().push(piece);
        }
        let smallest = pieces.iter().map(|(rank, held)| (*rank, Smallest::of(held, chunk_bytes))).collect();
        Self { pieces, smallest, loads, mean, chunk_bytes, moves: Vec::new(), looks }
    }

    /// One move, between the two servers that are farthest apart of those that something can move between. False where there
    /// are none.
    fn step(&mut self) -> bool {
        let Some((most, least)) = self.widest() else { return false };
        let Some(pieces) = self.pieces.get_mut(&most) else { return false };
        let (from, to) = (self.loads[&most], self.loads[&least]);
        let gap = from - to;
        let want = (from.saturating_sub(self.mean)).min(self.mean.saturating_sub(to));
        let want = want.max((gap / 2).min(self.chunk_bytes));
        // Each piece is looked at as one that moves for nothing, as one that does not, and for what is smallest then.
        self.looks += 3 * pieces.len() as u64;
        let Some((at, chunks)) = choose(pieces, least, (want, gap), self.chunk_bytes) else { return false };
        let piece = &mut pieces[at];
        let moved = if chunks == piece.chunks { piece.bytes } else { u64::from(chunks) * self.chunk_bytes };
        self.moves.push(Move { first: piece.first, chunks, from: most, to: least });
        piece.first.chunk.0 += chunks;
        piece.chunks -= chunks;
        piece.bytes -= moved;
        if piece.chunks == 0 {
            pieces.remove(at);
        }
        self.smallest.insert(most, Smallest::of(pieces, self.chunk_bytes));
        self.loads.insert(most, from - moved);
        self.loads.insert(least, to + moved);
        true
    }

    /// The two servers that are farthest apart, by more than a chunk, where the first has something small enough for the other.
    fn widest(&mut self) -> Option<(Rank, Rank)> {
        let mut ascending: Vec<(u64, Rank)> = self.loads.iter().map(|(rank, load)| (*load, *rank)).collect();
        ascending.sort_unstable();
        self.looks += ascending.len() as u64;
        let mut best: Option<(u64, Rank, Rank)> = None;
        for (most, smallest) in &self.smallest {
            let from = self.loads[most];
            // What can go to the emptiest can go to no other where it is too large; only who is barred has another say.
            let others = ascending.iter().filter(|(_, rank)| rank != most).take(2);
            for (to, least) in others {
                let gap = from.saturating_sub(*to);
                let fits = smallest.for_server(*least).is_some_and(|bytes| bytes < gap);
                if gap > self.chunk_bytes && fits && best.is_none_or(|(widest, ..)| gap > widest) {
                    best = Some((gap, *most, *least));
                }
            }
        }
        best.map(|(_, most, least)| (most, least))
    }
}

/// A piece, and how many of its chunks, that closes the gap to another server: about `want` bytes, and less than the gap.
fn choose(pieces: &[Piece], least: Rank, (want, gap): (u64, u64), chunk_bytes: u64) -> Option<(usize, u32)> {
    let of = |is_free: bool| {
        let may_go =
            move |piece: &Piece| piece.not != Some(least) && (piece.prefers == Some(least)) == is_free;
        let movable = || pieces.iter().enumerate().filter(move |(_, piece)| may_go(piece));
        // The largest that is not too large; else a part of one; else a whole one that makes it better still.
        let whole = movable().find(|(_, piece)| piece.bytes <= want);
        let count = (want / chunk_bytes).max(1);
        let part = movable().find(|(_, piece)| !piece.is_whole && piece.bytes > count * chunk_bytes);
        let whole_or = |at: (usize, &Piece)| (at.0, at.1.chunks);
        let part = part.filter(|_| count * chunk_bytes < gap).map(|at| (at.0, count as u32));
        let better = || movable().rfind(|(_, piece)| piece.bytes < gap).map(whole_or);
        let whole = whole.map(whole_or);
        // A small piece is no help where a part of a large one does it at once.
        match (whole, part) {
            (Some(whole), Some(part)) if pieces[whole.0].bytes * 2 < want => Some(part),
            (Some(whole), _) => Some(whole),
            (None, part) => part.or_else(better),
        }
    };
    of(true).or_else(|| of(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto_common::limits::SERVERS_MAX;

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

    #[test]
    fn a_cluster_that_cannot_be_levelled_is_found_out_in_a_look_at_each_piece() {
        // Each server has whole tensors that are larger than what any two of them are apart.
        let at = |key: u64, rank| Piece { is_whole: true, ..piece(key, 2000 + rank, rank) };
        let pieces: Vec<Piece> = (0..SERVERS_MAX)
            .flat_map(|rank| [at(2 * u64::from(rank), rank / 2), at(2 * u64::from(rank) + 1, rank)])
            .collect();
        let few: Vec<Piece> = pieces.iter().filter(|piece| piece.first.key.0 & 1 == 1).copied().collect();
        let stuck = plan(few.clone(), loads(&few, SERVERS_MAX), CHUNK, LOOKS_MAX);
        assert!(stuck.moves.is_empty());
        assert!(stuck.looks <= few.len() as u64 + u64::from(SERVERS_MAX), "{} looks", stuck.looks);
        let part = plan(pieces.clone(), loads(&pieces, SERVERS_MAX), CHUNK, LOOKS_MAX);
        assert_eq!(part.moves.len(), MOVES_MAX, "what is left comes with the next plan");
        assert!(part.looks <= MOVES_MAX as u64 * 4 * u64::from(SERVERS_MAX), "{} looks", part.looks);
    }

    #[test]
    fn however_many_pieces_a_server_has_a_plan_ends() {
        let small = |key| Piece { is_whole: true, ..piece(key, 1, 0) };
        let pieces: Vec<Piece> = (0..1 << 14).map(small).collect();
        let (looks_max, one_step) = (1 << 20, 3 * pieces.len() as u64 + u64::from(SERVERS_MAX));
        let of_many = plan(pieces.clone(), loads(&pieces, SERVERS_MAX), CHUNK, looks_max);
        assert!(of_many.looks <= looks_max + one_step, "{} looks", of_many.looks);
        assert!(of_many.moves.len() > 10 && of_many.moves.len() < MOVES_MAX, "{} moves", of_many.moves.len());
    }

    proptest! {
        #[test]
        fn a_plan_ends_where_nothing_helps_any_more(
            at in prop::collection::vec((1u32..50, 0u32..5, 0u32..8, any::<bool>()), 1..40),
            servers in 5u32..8,
        ) {
            let all = at.iter().enumerate().map(|(key, (chunks, at, not, is_whole))| {
                let not = (*not < servers && not != at).then_some(Rank(*not));
                Piece { not, is_whole: *is_whole, ..piece(key as u64, *chunks, *at) }
            });
            let pieces: Vec<Piece> = all.collect();
            let mut plan = plan(pieces.clone(), loads(&pieces, servers), CHUNK, LOOKS_MAX);
            prop_assert!(!plan.step(), "it said that it had ended");
            for (from, held) in &plan.pieces {
                for piece in held {
                    let unit = if piece.is_whole { piece.bytes } else { piece.bytes.min(CHUNK) };
                    let others = plan.loads.iter().filter(|(to, _)| *to != from && piece.not != Some(**to));
                    for (to, load) in others {
                        let gap = plan.loads[from].saturating_sub(*load);
                        prop_assert!(gap <= CHUNK.max(unit), "{:?} could go to {}", piece, to.0);
                    }
                }
            }
        }

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
