//! The rows of one table on one lane: found by id, made when they are admitted, and those that were pushed to least recently
//! given up beyond a limit. What becomes of them is a function of the pushes alone and of the room that comes with them: copies
//! have the same. It must not know of requests.

use super::index::{Index, Seen};
use super::places::{Sink, Values};
use super::steps::Steps;
use crate::kernel::{self, Weights};
use fabric::simd::prefetch_row;
use fabric::{Floats, HUGE_PAGE_BYTES};
use proto_common::optimizer::{Optimizer, Rule};
use proto_common::table::{TableSpec, mix};

/// Bytes of one stretch of memory. They are taken as they are touched.
const SEGMENT_BYTES: usize = 32 << 20;
/// Counts of pushes to rows that are not admitted yet.
const COUNTS: usize = 1 << 20;
/// Pushes after which those counts are halved: an id that is rare for ever is never admitted.
const COUNTS_FADE_AFTER: usize = 4 * COUNTS;
/// Rows that are asked for ahead of the one that is worked on.
const AHEAD: usize = 12;
/// Of a row that stands in a push several times: the rest of its number is where its sum is.
const SUMMED: u32 = 1 << 31;
/// No row.
const NONE: u32 = u32::MAX;

/// What is kept of a row beside its numbers.
#[derive(Clone, Copy, Debug)]
struct Meta {
    id: u64,
    /// Pushes that it had.
    pushes: u64,
    /// The request that last pushed to it, where that counts.
    stamp: u64,
    /// Neighbours by time of push, where that counts.
    older: u32,
    newer: u32,
}

proto_common::counts! {
    /// Counts for reports.
    #[derive(serde::Serialize)]
    pub struct TableStats {
        /// Rows that are kept.
        rows,
        /// Rows pulled.
        pulled,
        /// Rows pushed to.
        pushed,
        /// Pushes left out, because their row was not admitted yet.
        left_out,
        /// Rows given up.
        evicted,
    }
}

/// See the module.
#[derive(Debug)]
pub struct Rows {
    width: usize,
    optimizer: Optimizer,
    spec: TableSpec,
    parts: usize,
    /// Rows that are kept at most; 0 for no limit.
    rows_max: usize,
    index: Index,
    /// Weights, then what the rule keeps, row by row.
    segments: Vec<Floats>,
    /// Rows of each: a power of two, as its exponent.
    segment_shift: u32,
    meta: Vec<Meta>,
    /// The ends of the list by time of push.
    oldest: u32,
    newest: u32,
    /// Pushes to rows that are not admitted, by hash.
    counts: Vec<u8>,
    counted: usize,
    request: u64,
    /// Rows that there is room for.
    room: usize,
    /// Pushes left out because there was no room for their rows.
    without_room: u64,
    /// Which of whose pushes there were.
    pub(super) steps: Steps,
    /// There was room for a row, and the system gave no memory for it.
    is_wanting: bool,
    stats: TableStats,
}

/// Used again by each request of any table.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The row of each id.
    found: Vec<u32>,
    /// One row's numbers.
    row: Vec<f32>,
    seen: Seen,
    /// Rows that stand in a push several times, and the sums of what it has for them.
    again: Vec<u32>,
    sums: Vec<f32>,
}

impl Rows {
    /// No rows yet; `parts` of the table are elsewhere and here.
    #[must_use]
    pub fn new(spec: TableSpec, parts: usize) -> Self {
        let rows_max = spec.rows_max.div_ceil(parts.max(1) as u64);
        Self {
            width: spec.width as usize,
            optimizer: spec.optimizer,
            rows_max: usize::try_from(rows_max).unwrap_or(usize::MAX).min(NONE as usize - 1),
            index: Index::new(),
            segments: Vec::new(),
            segment_shift: (SEGMENT_BYTES / row_bytes(&spec)).max(1).ilog2(),
            meta: Vec::new(),
            oldest: NONE,
            newest: NONE,
            counts: if spec.admit_after > 1 { vec![0; COUNTS] } else { Vec::new() },
            counted: 0,
            request: 0,
            room: usize::MAX,
            without_room: 0,
            steps: Steps::default(),
            is_wanting: false,
            stats: TableStats::default(),
            parts,
            spec,
        }
    }

    /// What was declared.
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Parts of the table, of which this is one.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        TableStats { rows: self.index.taken() as u64, ..self.stats }
    }

    /// Bytes that its rows take, what is kept beside their numbers included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.meta.len())
    }

    /// As [`Rows::bytes`] with so many rows. Memory beyond the first huge page's worth is taken in huge pages.
    pub(super) fn bytes_of(&self, rows: usize) -> u64 {
        let (numbers, page) = ((rows * row_bytes(&self.spec)) as u64, HUGE_PAGE_BYTES as u64);
        let numbers = if numbers <= page { numbers } else { numbers.next_multiple_of(page) };
        let beside = (rows * size_of::<Meta>() + self.counts.len()) as u64;
        numbers + beside + self.index.bytes_with(rows)
    }

    /// How many rows there can be within so many bytes, where so many more are wanted at most. Never fewer than there are.
    #[must_use]
    pub fn rows_within(&self, most_bytes: u64, more: usize) -> usize {
        let rows = self.meta.len();
        let limit = if self.rows_max > 0 { self.rows_max } else { NONE as usize - 1 };
        let (mut least, mut most) = (rows, rows.saturating_add(more).min(limit).max(rows));
        while least < most {
            let middle = least + (most - least).div_ceil(2);
            match self.bytes_of(middle) <= most_bytes {
                true => least = middle,
                false => most = middle - 1,
            }
        }
        least
    }

    /// As many of so many rows as the system gives memory for, which is taken now.
    pub fn with_memory(&mut self, rows: usize) -> usize {
        while self.places_in_memory() < rows && self.add_segment() {}
        rows.min(self.places_in_memory())
    }

    /// There is room for so many rows: beyond them those go that were pushed to least recently, where the table has a limit of
    /// its own, or no more are made.
    pub fn set_room(&mut self, rows: usize) {
        self.room = rows;
    }

    /// Pushes left out so far because there was no room for their rows.
    #[must_use]
    pub fn without_room(&self) -> u64 {
        self.without_room
    }

    /// Was there room for a row, and the system gave no memory for it? Then this is not what its server has.
    #[must_use]
    pub fn is_wanting(&self) -> bool {
        self.is_wanting
    }

    /// Pushes to rows that are not admitted yet, as counted; nothing where all are.
    pub(super) fn counts(&self) -> (u64, &[u8]) {
        (self.counted as u64, &self.counts)
    }

    /// Goes on from such counts, which are as many. False where they are not.
    pub(super) fn set_counts(&mut self, counted: u64, counts: &[u8]) -> bool {
        let is_right = counts.len() == self.counts.len() && counted < COUNTS_FADE_AFTER as u64;
        if is_right {
            self.counts.copy_from_slice(counts);
            self.counted = counted as usize;
        }
        is_right
    }

    /// Numbers of a row, with what the rule keeps.
    #[must_use]
    pub fn row_numbers(&self) -> usize {
        self.width * (1 + self.optimizer.state_arrays())
    }

    fn row(&self, row: u32) -> &[f32] {
        let (at, elements) = (row as usize, self.row_numbers());
        let within = at & ((1 << self.segment_shift) - 1);
        &self.segments[at >> self.segment_shift][within * elements..][..elements]
    }

    fn row_mut(&mut self, row: u32) -> &mut [f32] {
        let (at, elements) = (row as usize, self.row_numbers());
        let within = at & ((1 << self.segment_shift) - 1);
        &mut self.segments[at >> self.segment_shift][within * elements..][..elements]
    }

    /// Counts a push to a row that is not there; true when it is admitted with it.
    fn admits(&mut self, id: u64) -> bool {
        if self.counts.is_empty() {
            return true;
        }
        self.counted += 1;
        if self.counted >= COUNTS_FADE_AFTER {
            self.counted = 0;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        let count = &mut self.counts[(mix(id) >> 20) as usize % COUNTS];
        *count = count.saturating_add(1);
        u32::from(*count) >= self.spec.admit_after
    }

    /// The row of an id that is pushed to; `None` where it is not admitted, or there is no room.
    #[inline]
    fn touch(&mut self, id: u64) -> Option<u32> {
        match self.index.get(id) {
            Some(row) => {
                self.renew(row);
                Some(row)
            }
            None => self.make(id),
        }
    }

    fn make(&mut self, id: u64) -> Option<u32> {
        if !self.admits(id) {
            return None;
        }
        let row = self.vacate()?;
        self.occupy(id, row);
        Some(row)
    }

    /// The row is this id's, and begins.
    fn occupy(&mut self, id: u64, row: u32) {
        let meta = Meta { id, pushes: 0, stamp: 0, older: NONE, newer: NONE };
        if row as usize == self.meta.len() {
            self.meta.push(meta);
        } else {
            self.meta[row as usize] = meta;
        }
        let (initial, width) = (self.spec.initial, self.width);
        let numbers = self.row_mut(row);
        numbers[width..].fill(0.0);
        initial.fill(id, &mut numbers[..width]);
        self.index.insert(id, row);
        self.link(row);
    }

    /// Memory for one more row: new, or that of the one that was pushed to least recently, unless the request itself has all.
    fn vacate(&mut self) -> Option<u32> {
        let rows = self.meta.len();
        let has_limit = self.rows_max > 0;
        let (is_within, has_room) = (!has_limit || rows < self.rows_max, rows < self.room);
        if is_within && has_room {
            let has_memory = rows < self.places_in_memory() || self.add_segment();
            self.is_wanting |= !has_memory;
            return u32::try_from(rows).ok().filter(|row| has_memory && *row < NONE - 1);
        }
        let row = self.oldest;
        let oldest = self.meta.get(row as usize).filter(|_| has_limit).copied();
        let Some(meta) = oldest.filter(|meta| meta.stamp != self.request) else {
            self.without_room += u64::from(is_within);
            return None;
        };
        self.unlink(row);
        self.index.remove(meta.id);
        self.stats.evicted += 1;
        Some(row)
    }

    fn places_in_memory(&self) -> usize {
        self.segments.len() << self.segment_shift
    }

    fn add_segment(&mut self) -> bool {
        let small_bytes = if self.segments.is_empty() { HUGE_PAGE_BYTES } else { 0 };
        let segment = Floats::zeroed(self.row_numbers() << self.segment_shift, small_bytes);
        segment.map(|segment| self.segments.push(segment)).is_ok()
    }

    /// The system gives no more memory.
    #[cfg(test)]
    pub(super) fn starve(&mut self) {
        self.segments.clear();
        self.segment_shift = 50;
    }

    fn renew(&mut self, row: u32) {
        if self.rows_max > 0 && self.newest != row {
            self.unlink(row);
            self.link(row);
        }
    }

    fn link(&mut self, row: u32) {
        if self.rows_max == 0 {
            return;
        }
        let before = std::mem::replace(&mut self.newest, row);
        (self.meta[row as usize].older, self.meta[row as usize].newer) = (before, NONE);
        match self.meta.get_mut(before as usize) {
            Some(before) => before.newer = row,
            None => self.oldest = row,
        }
    }

    fn unlink(&mut self, row: u32) {
        let Meta { older, newer, .. } = self.meta[row as usize];
        match self.meta.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.meta.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }

    /// Hands out the rows of these ids. Rows that are not there bring what they would begin with, and are not made: copies
    /// do not see pulls.
    pub fn pull(&mut self, ids: &[u64], out: &mut impl Sink, scratch: &mut Scratch) {
        self.stats.pulled += ids.len() as u64;
        let Scratch { found, row: initial, .. } = scratch;
        initial.resize(self.width, 0.0);
        found.clear();
        for (at, id) in ids.iter().enumerate() {
            self.look_ahead(ids, at);
            found.push(self.index.get(*id).unwrap_or(NONE));
        }
        for (at, id) in ids.iter().enumerate() {
            self.ask_ahead(found, at);
            self.hand_out((at, *id), Some(found[at]).filter(|row| *row != NONE), out, initial);
        }
    }

    #[inline]
    fn hand_out(&self, (at, id): (usize, u64), row: Option<u32>, out: &mut impl Sink, initial: &mut [f32]) {
        match row {
            Some(row) => out.put(at, &self.row(row)[..self.width]),
            None => {
                self.spec.initial.fill(id, initial);
                out.put(at, initial);
            }
        }
    }

    /// The id that is looked for a little later has its place on the way by then.
    #[inline]
    fn look_ahead(&self, ids: &[u64], at: usize) {
        if let Some(id) = ids.get(at + AHEAD) {
            self.index.ask_ahead(*id);
        }
    }

    /// The row that is worked on a little later is on its way by then.
    #[inline]
    fn ask_ahead(&self, found: &[u32], at: usize) {
        if let Some(row) = found.get(at + AHEAD).filter(|row| **row != NONE) {
            prefetch_row(self.row(*row));
        }
    }

    /// Applies the rule to the rows of these ids, each once: values of an id that stands there several times are summed
    /// first.
    pub fn push(&mut self, ids: &[u64], values: &impl Values, scratch: &mut Scratch) {
        self.request += 1;
        let Scratch { found, row: one, seen, again, sums } = scratch;
        one.resize(self.width, 0.0);
        found.clear();
        again.clear();
        sums.clear();
        seen.clear(ids.len());
        for (at, id) in ids.iter().enumerate() {
            self.look_ahead(ids, at);
            let Some(row) = self.touch(*id) else {
                self.stats.left_out += 1;
                found.push(NONE);
                continue;
            };
            if self.rows_max > 0 {
                self.meta[row as usize].stamp = self.request;
            }
            let Some(number) = seen.insert(row, at as u32) else {
                found.push(row);
                continue;
            };
            found.push(NONE);
            if *number & SUMMED == 0 {
                let first = std::mem::replace(number, again.len() as u32 | SUMMED) as usize;
                found[first] = NONE;
                again.push(row);
                values.read(first, one);
                sums.extend_from_slice(one);
            }
            let sum = &mut sums[(*number & !SUMMED) as usize * self.width..][..self.width];
            values.read(at, one);
            sum.iter_mut().zip(&*one).for_each(|(sum, value)| *sum += value);
        }
        for (at, row) in found.iter().enumerate() {
            self.ask_ahead(found, at);
            if *row != NONE {
                values.read(at, one);
                self.update(*row, one);
            }
        }
        for (row, sum) in again.iter().zip(sums.chunks_exact(self.width)) {
            self.update(*row, sum);
        }
    }

    /// How many places for rows there are, to be copied one after the other.
    #[must_use]
    pub fn places(&self) -> usize {
        self.meta.len()
    }

    /// All places, the row that was pushed to least recently first where that counts.
    pub fn in_order(&self) -> impl Iterator<Item = usize> + '_ {
        let (first, is_listed) = if self.rows_max > 0 { (self.oldest, true) } else { (0, false) };
        let next = move |at: &u32| {
            if is_listed { self.meta.get(*at as usize).map(|meta| meta.newer) } else { Some(at + 1) }
        };
        std::iter::successors(Some(first), next).map(|at| at as usize).take(self.meta.len())
    }

    /// The row at a place: its id, how many pushes it had, and its numbers.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<(u64, u64, &[f32])> {
        let meta = self.meta.get(place)?;
        Some((meta.id, meta.pushes, self.row(place as u32)))
    }

    /// Puts a row there as it was, whether or not it would be admitted. False where there is no room.
    pub fn put(&mut self, id: u64, pushes: u64, numbers: &[f32]) -> bool {
        self.request += 1;
        let row = match self.index.get(id) {
            Some(row) => row,
            None => {
                let Some(row) = self.vacate() else { return false };
                self.occupy(id, row);
                row
            }
        };
        self.meta[row as usize].pushes = pushes;
        self.row_mut(row).copy_from_slice(numbers);
        true
    }

    #[inline]
    fn update(&mut self, row: u32, values: &[f32]) {
        self.stats.pushed += 1;
        if self.optimizer.rule == Rule::Sum && self.optimizer.rescale == 1.0 {
            // By far the most frequent, and nothing to work out: not even how many pushes the row has had.
            self.row_mut(row).iter_mut().zip(values).for_each(|(number, value)| *number += value);
            return;
        }
        let meta = &mut self.meta[row as usize];
        meta.pushes += 1;
        let (pushes, optimizer, width) = (meta.pushes, self.optimizer, self.width);
        let numbers = self.row_mut(row);
        let step = optimizer.step(pushes, 1);
        let (weights, state) = numbers.split_at_mut(width);
        let (first, second) = state.split_at_mut(width.min(state.len()));
        kernel::update::<f32>(&step, values, Weights::InPlace(weights), [first, second]);
    }
}

/// Bytes of a row's numbers, with what the rule keeps.
fn row_bytes(spec: &TableSpec) -> usize {
    spec.row_bytes() * (1 + spec.optimizer.state_arrays())
}

#[cfg(test)]
mod tests {
    use super::super::places::RowsHere;
    use super::*;
    use proptest::prelude::*;
    use proto_common::optimizer::Adam;
    use proto_common::table::Initial;
    use std::collections::HashMap;
    use zerocopy::IntoBytes;

    const UNIFORM: Initial = Initial::Uniform { low: -1.0, high: 1.0, seed: 5 };

    fn table(optimizer: Optimizer) -> TableSpec {
        TableSpec::new(1, 4, optimizer, UNIFORM)
    }

    fn initial(id: u64) -> Vec<f32> {
        let mut row = vec![0.0; 4];
        UNIFORM.fill(id, &mut row);
        row
    }

    fn pull(rows: &mut Rows, ids: &[u64]) -> Vec<Vec<f32>> {
        let mut out = vec![0.0; ids.len() * 4];
        rows.pull(ids, &mut RowsHere(&mut out, 4), &mut Scratch::default());
        out.chunks(4).map(<[f32]>::to_vec).collect()
    }

    fn push(rows: &mut Rows, ids: &[u64], values: &[f32]) {
        let values: Vec<f32> = values.iter().flat_map(|value| [*value; 4]).collect();
        rows.push(ids, &values.as_bytes(), &mut Scratch::default());
    }

    fn plus(row: &[f32], value: f32) -> Vec<f32> {
        row.iter().map(|number| number + value).collect()
    }

    #[test]
    fn rows_begin_with_their_initial_numbers_and_duplicates_are_summed_once() {
        let mut rows = Rows::new(table(Optimizer::assign()), 1);
        assert_eq!(pull(&mut rows, &[7, 0, 7]), [initial(7), initial(0), initial(7)]);
        push(&mut rows, &[7, 9, 7, 7], &[1.0, 2.0, 10.0, 100.0]);
        assert_eq!(pull(&mut rows, &[7, 9]), [vec![111.0; 4], vec![2.0; 4]]);
        assert_eq!(rows.stats(), TableStats { rows: 2, pulled: 5, pushed: 2, left_out: 0, evicted: 0 });
    }

    #[test]
    fn what_is_pushed_is_scaled_as_the_rule_says() {
        for rule in [Optimizer::sum(), Optimizer::assign()] {
            let mut rows = Rows::new(table(Optimizer { rescale: 0.25, ..rule }), 1);
            push(&mut rows, &[7], &[8.0]);
            let before = if rule.rule == Rule::Sum { initial(7) } else { vec![0.0; 4] };
            assert_eq!(pull(&mut rows, &[7]), [plus(&before, 2.0)], "{rule:?}");
        }
    }

    #[test]
    fn each_row_has_the_state_of_its_own_pushes() {
        let adam = Optimizer::mean(Adam::default(), 0.1);
        let mut rows = Rows::new(table(adam), 1);
        push(&mut rows, &[1], &[1.0]);
        push(&mut rows, &[1, 2], &[1.0, 1.0]);
        // The first step of Adam is the rate, whatever the gradient: also for the row that came later.
        let near = |row: &[f32], want: &[f32]| row.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5);
        let found = pull(&mut rows, &[1, 2]);
        assert!(near(&found[1], &plus(&initial(2), -0.1)), "{found:?}");
        assert!(near(&found[0], &plus(&initial(1), -0.2)), "{found:?}");
    }

    #[test]
    fn rows_get_memory_after_so_many_pushes() {
        let mut rows = Rows::new(TableSpec { admit_after: 3, ..table(Optimizer::sum()) }, 1);
        push(&mut rows, &[5, 5], &[1.0; 2]);
        assert_eq!(pull(&mut rows, &[5]), [initial(5)], "no push");
        assert_eq!((rows.stats().rows, rows.stats().left_out), (0, 2));
        push(&mut rows, &[5], &[1.0]);
        assert_eq!(pull(&mut rows, &[5]), [plus(&initial(5), 1.0)]);
        assert_eq!(rows.stats().rows, 1);
    }

    #[test]
    fn counts_of_pushes_fade() {
        let mut rows = Rows::new(TableSpec { admit_after: 3, ..table(Optimizer::sum()) }, 1);
        push(&mut rows, &[5, 5], &[1.0; 2]);
        assert_eq!(rows.stats().rows, 0);
        rows.counted = COUNTS_FADE_AFTER - 1;
        push(&mut rows, &[5], &[1.0]);
        assert_eq!(rows.stats().rows, 0, "2 became 1, and 1 is one too few");
        push(&mut rows, &[5], &[1.0]);
        assert_eq!(rows.stats().rows, 1);
    }

    #[test]
    fn the_row_that_was_pushed_to_least_recently_goes() {
        let mut rows = Rows::new(TableSpec { rows_max: 4, ..table(Optimizer::sum()) }, 2);
        push(&mut rows, &[2, 1], &[2.0, 1.0]);
        pull(&mut rows, &[2]);
        push(&mut rows, &[3], &[3.0]);
        assert_eq!((rows.stats().rows, rows.stats().evicted), (2, 1));
        assert_eq!(pull(&mut rows, &[1, 3]), [plus(&initial(1), 1.0), plus(&initial(3), 3.0)]);
        assert_eq!(pull(&mut rows, &[2]), [initial(2)], "it begins anew");
        // More than are kept in one push: those that are in it stay, the others are left out.
        push(&mut rows, &[10, 11, 12], &[1.0, 1.0, 1.0]);
        assert_eq!((rows.stats().rows, rows.stats().left_out), (2, 1));
        assert_eq!(pull(&mut rows, &[10, 11]), [plus(&initial(10), 1.0), plus(&initial(11), 1.0)]);
    }

    proptest! {
        #[test]
        fn as_a_map_would(steps in prop::collection::vec((any::<bool>(), prop::collection::vec(0u64..40, 1..12)), 1..60),
                          rows_max in prop_oneof![Just(0u64), 20u64..40]) {
            let mut rows = Rows::new(TableSpec { rows_max, ..table(Optimizer::sum()) }, 1);
            let mut model: HashMap<u64, (f32, usize)> = HashMap::new();
            let mut clock = 0;
            for (pushes, ids) in steps {
                for id in ids.iter().filter(|_| pushes) {
                    clock += 1;
                    if !model.contains_key(id) && rows_max > 0 && model.len() as u64 == rows_max {
                        let oldest = *model.iter().min_by_key(|(_, (_, at))| *at).unwrap().0;
                        model.remove(&oldest);
                    }
                    let row = model.entry(*id).or_insert((0.0, 0));
                    row.0 += 1.0;
                    row.1 = clock;
                }
                if pushes {
                    push(&mut rows, &ids, &vec![1.0; ids.len()]);
                } else {
                    let found = pull(&mut rows, &ids);
                    for (id, row) in ids.iter().zip(found) {
                        let want = plus(&initial(*id), model.get(id).map_or(0.0, |(value, _)| *value));
                        let near = row.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4);
                        prop_assert!(near, "{id}: {row:?} {want:?}");
                    }
                }
                prop_assert_eq!(rows.stats().rows, model.len() as u64);
            }
        }
    }
}
