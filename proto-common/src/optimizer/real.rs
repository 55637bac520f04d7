//! The types that sums and rules are computed in.

use std::ops::{Add, Div, Mul, Sub};

/// f32 and f64.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + 'static
{
    /// A constant of a rule, rounded where it has to be.
    fn of(constant: f64) -> Self;
    /// The same number.
    fn exact(self) -> f64;
    /// The square root, correctly rounded.
    fn root(self) -> Self;
    /// Without its sign.
    fn magnitude(self) -> Self;
    /// With the sign of another.
    fn signed_as(self, sign: Self) -> Self;
}

macro_rules! real {
    ($($real:ty)*) => {
        $(impl Real for $real {
            #[inline(always)]
            fn of(constant: f64) -> Self {
                constant as $real
            }
            #[inline(always)]
            fn exact(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn signed_as(self, sign: Self) -> Self {
                self.copysign(sign)
            }
        })*
    };
}

real!(f32 f64);
