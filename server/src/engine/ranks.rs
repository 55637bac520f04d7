//! Sets of worker ranks. One that is empty or whole has no memory of its own: a lane has two for each chunk, of up to a
//! thousand workers, and most chunks are idle.

use proto_common::ids::Rank;

/// A set of ranks below a limit.
#[derive(Clone, Debug)]
pub(super) struct RankSet {
    /// A bit for each rank; none at all where the set is empty or whole.
    words: Vec<u64>,
    count: u32,
    limit: u32,
}

impl RankSet {
    /// None of so many workers.
    pub(super) fn new(workers: u32) -> Self {
        Self { words: Vec::new(), count: 0, limit: workers }
    }

    /// All ranks of so many workers.
    pub(super) fn all(workers: u32) -> Self {
        Self { words: Vec::new(), count: workers, limit: workers }
    }

    /// Of how many workers.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self.words.get(at) {
            Some(word) => *word,
            None if self.count == 0 || !self.words.is_empty() => 0,
            None => whole_word(self.limit, at),
        }
    }

    /// Its bits, 64 ranks a word.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.limit.div_ceil(64) as usize).map(|at| self.word(at))
    }

    /// The word of a rank, to be changed.
    fn word_of(&mut self, rank: Rank) -> &mut u64 {
        if self.words.is_empty() {
            let is_whole = self.count > 0;
            let words = (0..self.limit.div_ceil(64) as usize)
                .map(|at| if is_whole { whole_word(self.limit, at) } else { 0 });
            self.words.extend(words);
        }
        &mut self.words[rank.0 as usize / 64]
    }

    /// Becomes another set of as many.
    pub(super) fn copy(&mut self, other: &Self) {
        self.words.clear();
        self.words.extend_from_slice(&other.words);
        self.count = other.count;
    }

    /// Keeps the ranks that are in another set of as many, too.
    pub(super) fn retain(&mut self, other: &Self) {
        if self.count == 0 {
            return;
        }
        _ = self.word_of(Rank(0));
        self.count = 0;
        for (at, word) in self.words.iter_mut().enumerate() {
            *word &= other.word(at);
            self.count += word.count_ones();
        }
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.word(rank.0 as usize / 64) >> (rank.0 % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, rank: Rank) {
        if rank.0 < self.limit && !self.contains(rank) {
            *self.word_of(rank) |= 1 << (rank.0 % 64);
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        if self.contains(rank) {
            *self.word_of(rank) &= !(1 << (rank.0 % 64));
            self.count -= 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.count = 0;
    }

    /// Becomes the set that has travelled; false, unchanged, where it has ranks that there are not, or none.
    pub(super) fn set_words(&mut self, words: &[u64]) -> bool {
        let is_known = |(at, word): (usize, &u64)| word & !whole_word(self.limit, at) == 0;
        let count: u32 = words.iter().map(|word| word.count_ones()).sum();
        let is_set = words.len() == self.limit.div_ceil(64) as usize
            && words.iter().enumerate().all(is_known)
            && count > 0;
        if is_set {
            self.words.clear();
            self.words.extend_from_slice(words);
            self.count = count;
        }
        is_set
    }

    pub(super) fn first(&self) -> Option<Rank> {
        self.ranks().next()
    }

    /// Those that are in it and not in another set of as many, in order.
    pub(super) fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Rank> + 'a {
        let words = self.words().enumerate();
        words.flat_map(|(at, word)| ranks_of(at, word & !other.word(at)))
    }

    /// The first two of [`RankSet::without`].
    #[inline]
    pub(super) fn first_two_without(&self, other: &Self) -> (Option<Rank>, Option<Rank>) {
        let mut first = None;
        for at in 0..self.limit.div_ceil(64) as usize {
            let mut word = self.word(at) & !other.word(at);
            while word != 0 {
                let rank = Rank(at as u32 * 64 + word.trailing_zeros());
                if first.is_some() {
                    return (first, Some(rank));
                }
                first = Some(rank);
                word &= word - 1;
            }
        }
        (first, None)
    }

    /// All of it, in order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.words().enumerate().flat_map(|(at, word)| ranks_of(at, word))
    }
}

/// A word of the set of all ranks below a limit.
fn whole_word(limit: u32, at: usize) -> u64 {
    match (limit as usize).saturating_sub(at * 64) {
        0 => 0,
        left if left < 64 => (1 << left) - 1,
        _ => u64::MAX,
    }
}

fn ranks_of(at: usize, mut word: u64) -> impl Iterator<Item = Rank> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(Rank(at as u32 * 64 + bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(of: &[u32]) -> RankSet {
        let mut set = RankSet::new(130);
        of.iter().for_each(|rank| set.insert(Rank(*rank)));
        set
    }

    #[test]
    fn ranks_come_in_order_whatever_word_they_are_in() {
        let all = RankSet::all(130);
        assert_eq!((all.len(), all.contains(Rank(129)), all.contains(Rank(130))), (130, true, false));
        let some = set(&[129, 0, 64, 63]);
        let ranks = |found: &mut dyn Iterator<Item = Rank>| found.map(|rank| rank.0).collect::<Vec<_>>();
        assert_eq!(ranks(&mut some.ranks()), [0, 63, 64, 129]);
        assert_eq!(ranks(&mut some.without(&set(&[0, 64]))), [63, 129]);
        assert_eq!(ranks(&mut all.without(&all)), [0; 0]);
        let mut fewer = some.clone();
        fewer.remove(Rank(64));
        fewer.remove(Rank(64));
        fewer.remove(Rank(900));
        assert_eq!((fewer.len(), fewer.contains(Rank(64))), (3, false));
    }

    #[test]
    fn sets_without_memory_of_their_own_are_like_those_with() {
        for workers in [1, 63, 64, 65, 130] {
            let mut full = RankSet::new(workers);
            (0..workers).for_each(|rank| full.insert(Rank(rank)));
            let mut none = RankSet::all(workers);
            (0..workers + 1).for_each(|rank| none.remove(Rank(rank)));
            let (all, empty) = (RankSet::all(workers), RankSet::new(workers));
            for (with, without) in [(&full, &all), (&none, &empty)] {
                assert_eq!(with.words().collect::<Vec<_>>(), without.words().collect::<Vec<_>>());
                assert_eq!((with.len(), with.first()), (without.len(), without.first()));
                assert_eq!((with.contains(Rank(workers)), without.contains(Rank(workers))), (false, false));
                let mut kept = with.clone();
                kept.retain(without);
                assert_eq!(kept.len(), without.len());
            }
            assert!(all.without(&empty).eq(full.without(&none)) && empty.without(&all).next().is_none());
            let mut travelled = RankSet::new(workers);
            assert!(travelled.set_words(&all.words().collect::<Vec<_>>()) && travelled.len() == workers);
            assert!(!travelled.set_words(&empty.words().collect::<Vec<_>>()), "nobody");
            assert!(!travelled.set_words(&[u64::MAX; 3]), "more than there are");
        }
    }
}
