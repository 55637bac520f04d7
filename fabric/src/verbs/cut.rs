//! Cutting one transfer into the requests that carry it: each within one extent of the peer's memory, of at most so many
//! places of ours and so many bytes.

use super::reach::Reach;
use super::sys::ibv_sge;
use crate::error::PostError;
use crate::work::RemoteSpan;
use std::ops::Range;

/// One request: where it goes, and which of the places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) places: Range<usize>,
}

/// The requests of one transfer; keeps its memory for the next.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    pub(super) cuts: Vec<Cut>,
    pub(super) places: Vec<ibv_sge>,
}

impl Cuts {
    /// Cuts a transfer between `from` and the peer's memory at `remote`. No bytes are one request that names nothing.
    pub(super) fn cut(
        &mut self,
        from: &[ibv_sge],
        remote: RemoteSpan,
        reach: &Reach,
        gather_max: usize,
        bytes_max: u64,
    ) -> Result<(), PostError> {
        self.cuts.clear();
        self.places.clear();
        let mut offset = remote.offset;
        let mut room = 0;
        for place in from {
            let mut place = *place;
            while place.length > 0 {
                if room == 0 || self.last_places() == gather_max {
                    let (address, key, left) = reach.at(remote.key.0, offset)?;
                    room = left.min(bytes_max);
                    let first = self.places.len();
                    self.cuts.push(Cut { address, key, places: first..first });
                }
                // The smaller one of both, and so within 32 bits.
                let bytes = room.min(u64::from(place.length)) as u32;
                self.places.push(ibv_sge { length: bytes, ..place });
                if let Some(cut) = self.cuts.last_mut() {
                    cut.places.end += 1;
                }
                place.addr += u64::from(bytes);
                place.length -= bytes;
                room -= u64::from(bytes);
                offset = offset.checked_add(u64::from(bytes)).ok_or(PostError::RemoteAccess)?;
            }
        }
        if self.cuts.is_empty() {
            self.cuts.push(Cut { address: 0, key: 0, places: 0..0 });
        }
        Ok(())
    }

    fn last_places(&self) -> usize {
        self.cuts.last().map_or(0, |cut| cut.places.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::reach::{Told, encode_told};
    use super::*;
    use crate::work::RemoteKey;
    use proptest::prelude::*;

    const NAME: u64 = 4;

    /// A region told in two extents, of which the second has another key.
    fn reach(first: u64, second: u64) -> Reach {
        let mut reach = Reach::default();
        for (offset, bytes, key) in [(0, first, 1), (first, second, 2)] {
            let told = Told { offset, bytes, address: 1000 + offset, key };
            reach.hear(&encode_told(NAME, &told)).unwrap();
        }
        reach
    }

    fn at(offset: u64) -> RemoteSpan {
        RemoteSpan { key: RemoteKey(NAME), offset }
    }

    fn place(addr: u64, length: u32) -> ibv_sge {
        ibv_sge { addr, length, lkey: 9 }
    }

    #[test]
    fn what_fits_is_one_request_and_no_bytes_are_one_too() {
        let mut cuts = Cuts::default();
        cuts.cut(&[place(1, 5), place(100, 5)], at(0), &reach(10, 10), 8, 1 << 30).unwrap();
        assert_eq!(cuts.cuts, [Cut { address: 1000, key: 1, places: 0..2 }]);
        cuts.cut(&[], at(u64::MAX), &Reach::default(), 8, 1 << 30).unwrap();
        assert_eq!(cuts.cuts, [Cut { address: 0, key: 0, places: 0..0 }]);
    }

    #[test]
    fn a_border_of_extents_cuts_and_what_lies_beyond_the_last_is_refused() {
        let mut cuts = Cuts::default();
        cuts.cut(&[place(1, 6)], at(8), &reach(10, 10), 8, 1 << 30).unwrap();
        assert_eq!(
            cuts.cuts,
            [Cut { address: 1008, key: 1, places: 0..1 }, Cut { address: 1010, key: 2, places: 1..2 }]
        );
        assert_eq!((cuts.places[1].addr, cuts.places[1].length), (3, 4));
        let refused = cuts.cut(&[place(1, 6)], at(15), &reach(10, 10), 8, 1 << 30);
        assert_eq!(refused, Err(PostError::RemoteAccess));
    }

    proptest! {
        #[test]
        fn every_byte_goes_to_its_place_within_all_bounds(
            lengths in prop::collection::vec(0u32..20, 0..12),
            (first, gather_max, bytes_max) in (1u64..200, 1usize..5, 1u64..30),
        ) {
            let mut cuts = Cuts::default();
            let mut address = 5000;
            let places: Vec<_> = lengths.iter().map(|length| {
                address += 100;
                place(address, *length)
            }).collect();
            cuts.cut(&places, at(0), &reach(first, 1000), gather_max, bytes_max).unwrap();
            let mut moved = Vec::new();
            for cut in &cuts.cuts {
                prop_assert!(cut.places.len() <= gather_max);
                let mut to = cut.address;
                for place in &cuts.places[cut.places.clone()] {
                    for byte in 0..u64::from(place.length) {
                        prop_assert_eq!(cut.key, if to - 1000 < first { 1 } else { 2 });
                        moved.push((place.addr + byte, to));
                        to += 1;
                    }
                }
                prop_assert!(to - cut.address <= bytes_max);
            }
            let from = places.iter().flat_map(|p| (0..u64::from(p.length)).map(|byte| p.addr + byte));
            let expected: Vec<_> = from.enumerate().map(|(i, addr)| (addr, 1000 + i as u64)).collect();
            prop_assert_eq!(moved, expected);
        }
    }
}
