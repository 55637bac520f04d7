//! Where the rows of a table are: by id in the table, and by row within one request. It must not know what rows hold.

use fabric::simd::prefetch;
use proto_common::table::mix;

const PLACE_BYTES: u64 = size_of::<(u64, u32)>() as u64;

/// Who is where, by open addressing: at most half of the places are taken.
#[derive(Debug)]
pub(super) struct Index {
    /// Id, and row plus one: 0 is an empty place.
    places: Vec<(u64, u32)>,
    taken: usize,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { places: vec![(0, 0); 1 << 10], taken: 0 }
    }

    /// Ids that are there.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Bytes that it has, or will have, with so many ids: it does not shrink.
    pub(super) fn bytes_with(&self, ids: usize) -> u64 {
        let places = (2 * ids).next_power_of_two().max(self.places.len());
        places as u64 * PLACE_BYTES
    }

    fn is_full(&self) -> bool {
        2 * (self.taken + 1) > self.places.len()
    }

    #[inline]
    fn start(&self, id: u64) -> usize {
        mix(id) as usize & (self.places.len() - 1)
    }

    /// The place of an id, or the empty one where it would be.
    #[inline]
    fn place(&self, id: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut at = self.start(id);
        while self.places[at].1 != 0 && self.places[at].0 != id {
            at = (at + 1) & mask;
        }
        at
    }

    /// The id is looked for a little later.
    #[inline]
    pub(super) fn ask_ahead(&self, id: u64) {
        prefetch(&self.places[self.start(id)]);
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<u32> {
        self.places[self.place(id)].1.checked_sub(1)
    }

    pub(super) fn insert(&mut self, id: u64, row: u32) {
        if self.is_full() {
            let twice = vec![(0, 0); 2 * self.places.len()];
            let before = std::mem::replace(&mut self.places, twice);
            for (id, row) in before.into_iter().filter(|(_, row)| *row != 0) {
                let at = self.place(id);
                self.places[at] = (id, row);
            }
        }
        let at = self.place(id);
        self.places[at] = (id, row + 1);
        self.taken += 1;
    }

    /// What follows moves up, so that no search ends too early.
    pub(super) fn remove(&mut self, id: u64) {
        let mask = self.places.len() - 1;
        let mut hole = self.place(id);
        if self.places[hole].1 == 0 {
            return;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (other, row) = self.places[at];
            if row == 0 {
                break;
            }
            // May it move to the hole? Not before the place where its search begins.
            let start = self.start(other);
            if (at.wrapping_sub(start) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = (other, row);
                hole = at;
            }
        }
        self.places[hole] = (0, 0);
        self.taken -= 1;
    }
}

/// Which rows a request has had so far, each with a number of the caller's. Small enough for the nearest cache where
/// requests are as clients make them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Row plus one, and the number.
    places: Vec<(u32, u32)>,
}

impl Seen {
    /// For a request of so many rows.
    pub(super) fn clear(&mut self, rows: usize) {
        self.places.clear();
        self.places.resize((2 * rows).next_power_of_two(), (0, 0));
    }

    /// The number that the row had before, to be changed; `None` where it is new, and then has this one.
    #[inline]
    pub(super) fn insert(&mut self, row: u32, number: u32) -> Option<&mut u32> {
        let mask = self.places.len() - 1;
        let mut at = row.wrapping_mul(0x9e37_79b1) as usize & mask;
        loop {
            match self.places[at].0 {
                0 => {
                    self.places[at] = (row + 1, number);
                    return None;
                }
                other if other == row + 1 => return Some(&mut self.places[at].1),
                _ => at = (at + 1) & mask,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_says_what_it_grows_by() {
        let mut index = Index::new();
        for id in 0..5000u64 {
            let said = index.bytes_with(id as usize + 1);
            index.insert(id, id as u32);
            assert_eq!(index.places.len() as u64 * PLACE_BYTES, said, "id {id}");
        }
        assert_eq!((index.get(4999), index.get(5000), index.taken()), (Some(4999), None, 5000));
    }

    #[test]
    fn rows_are_seen_once_per_request() {
        let mut seen = Seen::default();
        for _ in 0..2 {
            seen.clear(100);
            for row in 0..100 {
                assert_eq!(seen.insert(row * 64, row), None);
            }
            *seen.insert(640, 0).unwrap() = 77;
            assert_eq!(seen.insert(640, 0), Some(&mut 77));
        }
    }
}
