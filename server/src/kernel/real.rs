//! The types of tensors' elements, and the types that they are summed in.

use crate::own::Applied;
use fabric::Number;
use proto_common::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use proto_common::optimizer::Real;
use proto_common::optimizer::elements::Block;
use std::fmt::Debug;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An element as it lies in a tensor: what it is in the type that sums are computed in.
pub trait Element: Copy + Debug + Send + FromBytes + IntoBytes + Immutable + KnownLayout + 'static {
    /// The type of sums.
    type Sum: Element<Sum = Self::Sum> + Real;
    /// What it is in memory that peers write.
    type Bits: Number;
    /// An element of these bits.
    fn from_bits(bits: Self::Bits) -> Self;
    /// The element as that, exactly.
    fn widen(self) -> Self::Sum;
    /// The element nearest to a sum; ties go to the even one.
    fn round(sum: Self::Sum) -> Self;
    /// A program's own rule over a block, of elements that are sums. Such rules compute in f32: declarations of other types with
    /// one are refused.
    #[inline]
    fn own(_rule: Applied<'_>, _block: Block<'_, Self>) {}
}

macro_rules! exact {
    ($($real:ty { $($own:tt)* })*) => {
        $(impl Element for $real {
            type Sum = Self;
            type Bits = Self;
            #[inline(always)]
            fn from_bits(bits: Self) -> Self {
                bits
            }
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn round(sum: Self) -> Self {
                sum
            }
            $($own)*
        })*
    };
}

exact! {
    f32 {
        #[inline]
        fn own(Applied { rule, step, .. }: Applied<'_>, block: Block<'_, Self>) {
            rule.update(&step, block);
        }
    }
    f64 {}
}

/// The bits of an IEEE 754 binary16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Bf16(pub u16);

macro_rules! halves {
    ($($half:ident: $widen:ident, $round:ident;)*) => {$(
        impl Element for $half {
            type Sum = f32;
            type Bits = u16;

            #[inline(always)]
            fn from_bits(bits: u16) -> Self {
                Self(bits)
            }

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.0)
            }

            #[inline(always)]
            fn round(sum: f32) -> Self {
                Self($round(sum))
            }
        }
    )*};
}

halves! {
    F16: f16_to_f32, f32_to_f16;
    Bf16: bf16_to_f32, f32_to_bf16;
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Every half, what lies between two of them, and what is nearest to that.
    fn interesting() -> impl Iterator<Item = f32> {
        let of = |value: f32| {
            [-1i32, 0, 1].map(move |off| f32::from_bits(value.to_bits().wrapping_add_signed(off)))
        };
        let middle = |a: f32, b: f32| a + (b - a) / 2.0;
        (0..=u16::MAX).flat_map(move |bits| {
            let next = bits.wrapping_add(1);
            let (a, b) = (f16::from_bits(bits).to_f32(), f16::from_bits(next).to_f32());
            let (c, d) = (bf16::from_bits(bits).to_f32(), bf16::from_bits(next).to_f32());
            [of(a), of(middle(a, b)), of(c), of(middle(c, d))].concat()
        })
    }

    #[test]
    fn every_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (F16(bits).widen(), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
            let (ours, theirs) = (Bf16(bits).widen(), bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_and_ties_go_to_the_even_one() {
        let random = (0..1_000_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761)));
        for value in interesting().chain(random) {
            let (ours, theirs) = (F16::round(value), f16::from_f32(value));
            let both_nan = f16::from_bits(ours.0).is_nan() && theirs.is_nan();
            assert!(ours.0 == theirs.to_bits() || both_nan, "{value:e} {:#x}", value.to_bits());
            let (ours, theirs) = (Bf16::round(value), bf16::from_f32(value));
            let both_nan = bf16::from_bits(ours.0).is_nan() && theirs.is_nan();
            assert!(ours.0 == theirs.to_bits() || both_nan, "{value:e} {:#x}", value.to_bits());
        }
    }
}
