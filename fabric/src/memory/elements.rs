//! Numbers in registered memory, read one by one where they lie: arithmetic on a contribution needs no copy of
//! it. It must not hand out references, because a peer may write the memory at any time.

use super::region::{Mapping, OutOfBounds};
use std::marker::PhantomData;
use std::ops::Range;

/// A type of numbers any bits of which are one: what a peer writes is always a value.
pub trait Number: Copy + sealed::Sealed + 'static {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl sealed::Sealed for $number {}
        impl Number for $number {})*
    };
}

numbers!(f32 f64 u8 i8 u16 i32 i64);

/// A checked stretch of a region as numbers of any alignment, in this machine's byte order. What a peer writes
/// meanwhile is seen or not, element by element.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a, N> {
    start: *const N,
    len: usize,
    mapping: PhantomData<&'a Mapping>,
}

impl<'a, N: Number> Numbers<'a, N> {
    /// Of a stretch of the mapping, given by its offset and bytes, those that begin so far into it.
    #[inline]
    pub(super) fn within(
        mapping: &'a Mapping,
        (start, stretch_bytes): (u64, u64),
        offset: u64,
        count: usize,
    ) -> Result<Self, OutOfBounds> {
        let bytes = (count as u64).saturating_mul(size_of::<N>() as u64);
        OutOfBounds::unless_within(offset, bytes, stretch_bytes)?;
        let start = mapping.at(start + offset, bytes)?.cast_const().cast();
        Ok(Self { start, len: count, mapping: PhantomData })
    }

    /// How many they are.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those of a range.
    ///
    /// # Panics
    /// The range goes beyond the last one, or ends before it begins.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "numbers {range:?} of {}", self.len);
        // SAFETY: the range lies within the numbers, so its start is in the mapping or just behind its last byte. Needed because a peer's
        // memory must not be a Rust slice, which would do the same.
        let start = unsafe { self.start.add(range.start) };
        Self { start, len: range.len(), mapping: PhantomData }
    }

    /// The number at `index`.
    ///
    /// # Panics
    /// Where there is no such element. A loop whose bound is known to be at most the length is compiled without
    /// this check.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, index: usize) -> N {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: all elements lie in the mapping (checked when this was made), which the borrow keeps.
        // Any bits are a number (`Number`). As for `Region::read`, nobody has references into a region that peers write.
        // Needed because a peer's memory must not be a Rust reference.
        unsafe { self.start.add(index).read_unaligned() }
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::PeerWritable;

    #[test]
    fn numbers_are_read_where_they_lie_at_any_alignment() -> Result<(), Box<dyn std::error::Error>> {
        let region = PeerWritable::allocate(64, "elements")?;
        for offset in [0, 1, 7, 52] {
            region.write(offset, &[1.5f32, -0.0, f32::MAX].map(f32::to_ne_bytes).concat())?;
            let found = region.numbers::<f32>(offset, 3)?;
            let found: Vec<u32> = (0..found.len()).map(|i| found.at(i).to_bits()).collect();
            assert_eq!(found, [1.5f32, -0.0, f32::MAX].map(f32::to_bits), "at {offset}");
            let part = region.numbers::<f32>(offset, 3)?.part(1..3);
            assert_eq!((part.len(), part.at(0).to_bits(), part.at(1)), (2, (-0.0f32).to_bits(), f32::MAX));
            assert!(part.part(2..2).is_empty());
            let halves = region.numbers::<u16>(offset, 6)?;
            assert_eq!((halves.at(0), halves.at(1)), (0, 0x3fc0), "the same bytes, two by two");
        }
        Ok(())
    }

    #[test]
    fn a_stretch_that_is_not_inside_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let region = PeerWritable::allocate(64, "elements")?;
        assert!(region.numbers::<f32>(0, 16).is_ok_and(|all| all.len() == 16));
        assert!(region.numbers::<f32>(64, 0).is_ok_and(|none| none.is_empty()));
        for (offset, count) in [(0, 17), (61, 1), (65, 0), (0, usize::MAX), (u64::MAX, 1)] {
            assert!(region.numbers::<f32>(offset, count).is_err(), "{count} from {offset}");
        }
        Ok(())
    }

    #[test]
    #[should_panic(expected = "element 2 of 2")]
    fn beyond_the_end_is_a_panic() {
        if let Ok(region) = PeerWritable::allocate(64, "elements")
            && let Ok(two) = region.numbers::<f32>(0, 2)
        {
            let _ = two.at(2);
        }
    }
}
