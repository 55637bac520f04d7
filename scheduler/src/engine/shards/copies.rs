//! Decides which replicas are made, and for what: backups of chunks without one, moves away from servers that were asked to leave, and
//! balance. It must not know connections or time.

use super::moves::{Move, Piece, level};
use super::{Load, Loads, RANGES_MAX, Seed, Servers, Shards, Why};
use proto_common::ids::{ChunkId, Epoch, Key, Rank};
use proto_common::shard_map::{KeyRange, MapChange};
use std::collections::BTreeMap;

/// Bytes of copies that are being made at once: more would hold up training, and be in vain when one of the two dies.
const SEED_BYTES_MAX: u64 = 1 << 30;

/// A change of the map that is being thought of.
struct Draft<'a> {
    shards: &'a Shards,
    servers: &'a Servers,
    loads: Loads,
    edited: BTreeMap<Key, Vec<KeyRange>>,
    seeds: Vec<(ChunkId, Seed)>,
    /// Bytes that may be copied beside what is under way.
    room: u64,
}

impl Shards {
    /// All chunks that `from` serves and that were being copied to `to`, by decisions up to this epoch, are kept up there.
    pub(in super::super) fn seeded(
        &mut self,
        (from, to): (Rank, Rank),
        said: Epoch,
        epoch: &mut Epoch,
    ) -> Vec<(Epoch, MapChange)> {
        let mut edited: BTreeMap<Key, Vec<KeyRange>> = BTreeMap::new();
        let done: Vec<(ChunkId, Seed)> = self.seeds.iter().map(|(first, seed)| (*first, *seed)).collect();
        for (first, seed) in done {
            if seed.to != to || seed.epoch > said {
                continue;
            }
            let ranges = edited.entry(first.key).or_insert_with(|| self.map.ranges_of(first.key).to_vec());
            let Some(range) = ranges.iter_mut().find(|range| range.first == first && range.server == from)
            else {
                continue;
            };
            range.seeding = None;
            match seed.why {
                Why::Copy => range.backup = Some(to),
                Why::Move => {
                    hand_over(range, to, self.shape.replicas);
                    self.counts.moves_made += 1;
                    self.counts.moved_bytes += seed.bytes;
                }
            }
            self.counts.copies_made += 1;
        }
        edited.retain(|key, ranges| self.map.ranges_of(*key) != &ranges[..]);
        self.change(edited, Vec::new(), epoch)
    }

    /// What is to be done next, and whether all is as it should be. `balance`: bytes are to be levelled, too.
    pub(in super::super) fn plan(
        &mut self,
        servers: &Servers,
        ready: impl Fn(Key) -> bool,
        balance: bool,
        epoch: &mut Epoch,
    ) -> (Vec<(Epoch, MapChange)>, bool) {
        let under_way: u64 = self.seeds.values().map(|seed| seed.bytes).sum();
        let mut draft = Draft {
            servers,
            loads: self.loads.clone(),
            edited: BTreeMap::new(),
            seeds: Vec::new(),
            room: SEED_BYTES_MAX.saturating_sub(under_way),
            shards: self,
        };
        let held: Vec<(KeyRange, u64)> = draft.held(&ready);
        draft.empty(&held);
        let (complete, flips) = (draft.back_up(&held), draft.edited.len());
        if complete && flips == 0 && balance && self.seeds.is_empty() {
            draft.balance(&held);
        }
        let (edited, seeds) = (draft.edited, draft.seeds);
        let is_quiet = complete && edited.is_empty() && self.seeds.is_empty();
        let flipped =
            edited.iter().flat_map(|(key, ranges)| flips_of(self.map.ranges_of(*key), ranges)).sum::<u64>();
        self.counts.moves_made += flipped;
        (self.change(edited, seeds, epoch), is_quiet)
    }
}

/// How many ranges have another server than before.
fn flips_of(before: &[KeyRange], after: &[KeyRange]) -> Option<u64> {
    let server_of = |chunk| before.iter().rfind(|range| range.first.chunk <= chunk).map(|range| range.server);
    let flipped = after.iter().filter(|range| server_of(range.first.chunk) != Some(range.server)).count();
    (flipped > 0).then_some(flipped as u64)
}

/// Are so many chunks from `first` on in the range?
fn holds(range: &KeyRange, first: ChunkId, chunks: u32) -> bool {
    range.first.chunk <= first.chunk && first.chunk.0 - range.first.chunk.0 + chunks <= range.chunks
}

/// Another server serves a range from now on; the one before keeps the copy, where there are copies.
fn hand_over(range: &mut KeyRange, to: Rank, replicas: u32) {
    range.backup = (replicas > 0).then_some(range.server);
    range.server = to;
}

impl Draft<'_> {
    /// Ranges that nothing is being done to, with their bytes.
    fn held(&self, ready: impl Fn(Key) -> bool) -> Vec<(KeyRange, u64)> {
        let tensors = self.shards.map.tensors().filter(|(spec, _)| ready(spec.key));
        let ranges = tensors.flat_map(|(_, ranges)| ranges);
        let idle = ranges.filter(|range| range.seeding.is_none());
        idle.map(|range| (*range, self.shards.bytes_of(range))).collect()
    }

    fn stay(&self) -> impl Iterator<Item = Rank> + use<'_> {
        self.servers.there.difference(&self.servers.draining).copied()
    }

    /// Those of them that copies can be made at: of those that `may` allows, the ones that have refused least often.
    fn takers(&self, may: impl Fn(Rank) -> bool) -> Vec<Rank> {
        let refusals = |rank: &Rank| self.shards.refusals(*rank);
        let least = self.stay().filter(|rank| may(*rank)).filter_map(|rank| refusals(&rank)).min();
        self.stay().filter(|rank| may(*rank) && least.is_some() && refusals(rank) == least).collect()
    }

    /// What servers serve that wish to go, goes to its backup, or is copied to where it is to go.
    fn empty(&mut self, held: &[(KeyRange, u64)]) {
        for (range, bytes) in held.iter().filter(|(range, _)| self.servers.draining.contains(&range.server)) {
            if let Some(backup) = range.backup.filter(|backup| self.servers.stays(*backup)) {
                self.edit(range.first, range.chunks, |range, replicas| hand_over(range, backup, replicas));
                continue;
            }
            let to = self.takers(|_| true).into_iter().min_by_key(|rank| self.loads.of(*rank).total());
            if let Some(to) = to {
                self.seed(range, *bytes, to, Why::Move);
            }
        }
    }

    /// Copies of what has none, or one at a server that wishes to go. False where some are still to be made.
    fn back_up(&mut self, held: &[(KeyRange, u64)]) -> bool {
        if self.shards.shape.replicas == 0 {
            return true;
        }
        let mut complete = true;
        for (range, bytes) in held {
            let leaves = range.backup.is_some_and(|backup| self.servers.draining.contains(&backup));
            // What is handed over, or on its way out already, comes here with the next look.
            let is_edited = self.edited.get(&range.first.key).is_some_and(|ranges| !ranges.contains(range));
            if (range.backup.is_some() && !leaves) || is_edited {
                continue;
            }
            // Another one first, where somebody has refused; who serves it is no choice.
            let others = self.takers(|rank| Some(rank) != range.backup && rank != range.server);
            match self.loads.pick(range.server, others.into_iter()) {
                Some(to) => {
                    complete = false;
                    self.seed(range, *bytes, to, Why::Copy);
                }
                // Nobody is left to have it; who goes is not kept.
                None if leaves && self.servers.stays(range.server) => {
                    self.edit(range.first, range.chunks, |range, _| range.backup = None);
                }
                None => {}
            }
        }
        complete
    }

    /// Bytes served level first, then copies.
    fn balance(&mut self, held: &[(KeyRange, u64)]) {
        let served = |range: &KeyRange| (range.server, None, range.backup);
        let moves = self.levelled(held, served, |load| load.served);
        for one in &moves {
            self.carry_out(one, Why::Move);
        }
        if moves.is_empty() && self.shards.shape.replicas > 0 {
            let copied = |range: &KeyRange| (range.backup.unwrap_or(range.server), Some(range.server), None);
            let moves = self.levelled(held, copied, |load| load.copies);
            moves.iter().for_each(|one| self.carry_out(one, Why::Copy));
        }
    }

    fn levelled(
        &self,
        held: &[(KeyRange, u64)],
        lies: impl Fn(&KeyRange) -> (Rank, Option<Rank>, Option<Rank>),
        load: impl Fn(Load) -> u64,
    ) -> Vec<Move> {
        let can_take = |rank: &Rank| self.shards.refusals(*rank) == Some(0);
        let loads: BTreeMap<Rank, u64> =
            self.stay().filter(can_take).map(|rank| (rank, load(self.loads.of(rank)))).collect();
        let piece = |(range, bytes): &(KeyRange, u64)| {
            let (at, not, prefers) = lies(range);
            let spec = self.shards.map.tensor(range.first.key);
            let many = self.shards.map.ranges_of(range.first.key).len() >= RANGES_MAX / 2;
            let is_whole = many || spec.is_some_and(|spec| spec.optimizer.needs_norms());
            Piece { first: range.first, chunks: range.chunks, bytes: *bytes, at, not, prefers, is_whole }
        };
        level(held.iter().map(piece).collect(), loads, self.shards.shape.chunk_bytes)
    }

    /// A move to where the copy is costs nothing; others are copied first, as far as there is room.
    fn carry_out(&mut self, one: &Move, why: Why) {
        let ranges = self.shards.map.ranges_of(one.first.key);
        let Some(whole) = ranges.iter().find(|range| holds(range, one.first, one.chunks)) else { return };
        let part = KeyRange { first: one.first, chunks: one.chunks, ..*whole };
        if why == Why::Move && part.backup == Some(one.to) {
            self.edit(one.first, one.chunks, |range, replicas| hand_over(range, one.to, replicas));
        } else {
            self.seed(&part, self.shards.bytes_of(&part), one.to, why);
        }
    }

    /// Has a copy of a range made, or of as much of its start as there is room for.
    fn seed(&mut self, range: &KeyRange, bytes: u64, to: Rank, why: Why) {
        if self.room == 0 {
            return;
        }
        let chunk_bytes = self.shards.shape.chunk_bytes;
        let whole = self.shards.map.tensor(range.first.key).is_some_and(|spec| spec.optimizer.needs_norms());
        let (chunks, bytes) = match bytes > self.room && !whole {
            true => {
                let chunks = (self.room / chunk_bytes).clamp(1, u64::from(range.chunks));
                (chunks as u32, bytes.min(chunks * chunk_bytes))
            }
            false => (range.chunks, bytes),
        };
        self.room = self.room.saturating_sub(bytes);
        self.loads.add_copy(range.server, to, bytes);
        self.edit(range.first, chunks, |range, _| range.seeding = Some(to));
        self.seeds.push((range.first, Seed { to, why, bytes, epoch: Epoch::default() }));
    }

    /// Changes so many chunks of a range from `first` on, and cuts it where they end.
    fn edit(&mut self, first: ChunkId, chunks: u32, change: impl FnOnce(&mut KeyRange, u32)) {
        let map = &self.shards.map;
        let ranges = self.edited.entry(first.key).or_insert_with(|| map.ranges_of(first.key).to_vec());
        let Some(at) = ranges.iter().position(|range| holds(range, first, chunks)) else { return };
        let whole = ranges[at];
        let before = first.chunk.0 - whole.first.chunk.0;
        let after = whole.chunks - before - chunks;
        let mut middle = KeyRange { first, chunks, ..whole };
        change(&mut middle, self.shards.shape.replicas);
        let mut last = whole;
        last.first.chunk.0 += before + chunks;
        let cut = [KeyRange { chunks: before, ..whole }, middle, KeyRange { chunks: after, ..last }];
        ranges.splice(at..=at, cut.into_iter().filter(|range| range.chunks > 0));
    }
}
