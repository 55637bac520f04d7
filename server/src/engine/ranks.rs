//! What is done with sets of ranks when not all workers are there. It must not know why they are not.

use super::chunk::RankSet;
use proto_common::ids::Rank;

impl RankSet {
    /// All ranks of so many workers.
    pub(super) fn all(workers: u32) -> Self {
        let mut all = Self::new(workers);
        (0..workers).map(Rank).for_each(|rank| all.insert(rank));
        all
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        if self.contains(rank)
            && let Some(word) = self.words.get_mut(rank.0 as usize / 64)
        {
            *word &= !(1 << (rank.0 % 64));
            self.count -= 1;
        }
    }

    /// Those that are in it and not in another set, in order.
    pub(super) fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Rank> + 'a {
        let words = self.words.iter().zip(&other.words).enumerate();
        words.flat_map(|(at, (word, other))| bits(word & !other).map(move |bit| Rank(at as u32 * 64 + bit)))
    }

    /// All of it, in order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(at, word)| bits(*word).map(move |bit| Rank(at as u32 * 64 + bit)))
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
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
}
