//! Element types: one table, from which the server's arithmetic, the Rust, C and Python interfaces and checkpoints take what they
//! know of them.

use serde::{Deserialize, Serialize};
use std::fmt;
use zerocopy::TryFromBytes;

/// How elements of a type are summed and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// In the type itself.
    Float,
    /// In f32; only what is published is rounded.
    Half,
    /// Exactly, in i64.
    Integer,
}

/// Calls a macro with the table of all element types. A row has the documentation for C programs, the variant and its number on the
/// wire, which never changes, the type's name in numpy, the bytes of an element, the [`Arithmetic`] and the Rust type.
#[macro_export]
macro_rules! element_types {
    ($with:ident) => {
        $with! {
            /// `float`.
            F32 = 1, "float32", 4: Float(f32);
            /// `double`.
            F64 = 2, "float64", 8: Float(f64);
            /// IEEE 754 binary16, 2 bytes; summed and stored in f32.
            F16 = 3, "float16", 2: Half(f16);
            /// bfloat16, 2 bytes; summed and stored in f32.
            Bf16 = 4, "bfloat16", 2: Half(bf16);
            /// `int8_t`. Integers are summed in 64 bits; a value that does not fit its type is an error.
            I8 = 5, "int8", 1: Integer(i8);
            /// `uint8_t`.
            U8 = 6, "uint8", 1: Integer(u8);
            /// `int32_t`.
            I32 = 7, "int32", 4: Integer(i32);
            /// `int64_t`.
            I64 = 8, "int64", 8: Integer(i64);
        }
    };
}

macro_rules! dtype {
    ($($(#[doc = $about:literal])* $dtype:ident = $wire:literal, $numpy:literal, $bytes:literal: $arithmetic:ident($element:ident);)*) => {
        /// Type of a tensor's elements. The number is the wire id and never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TryFromBytes)]
        #[serde(rename_all = "lowercase")]
        #[repr(u8)]
        pub enum Dtype {
            $($(#[doc = $about])* $dtype = $wire,)*
        }

        impl Dtype {
            /// Every type, in wire order.
            pub const ALL: [Self; [$($wire),*].len()] = [$(Self::$dtype),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$dtype => stringify!($element),)* }
            }

            /// Its name in numpy, or in ml_dtypes.
            #[must_use]
            pub const fn numpy_name(self) -> &'static str {
                match self { $(Self::$dtype => $numpy,)* }
            }

            /// What C programs are told of it.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$dtype => concat!($($about),*).trim_ascii(),)* }
            }

            /// Bytes of one element.
            #[must_use]
            pub const fn bytes(self) -> usize {
                match self { $(Self::$dtype => $bytes,)* }
            }

            /// How its elements are summed.
            #[must_use]
            pub const fn arithmetic(self) -> Arithmetic {
                match self { $(Self::$dtype => Arithmetic::$arithmetic,)* }
            }
        }
    };
}

element_types!(dtype);

impl Dtype {
    /// Whether sums are exact.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self.arithmetic(), Arithmetic::Integer)
    }

    /// Whether what is published is rounded.
    #[must_use]
    pub const fn is_half(self) -> bool {
        matches!(self.arithmetic(), Arithmetic::Half)
    }

    /// Whether it is a floating-point type in which its elements are summed, too.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.arithmetic(), Arithmetic::Float)
    }

    /// The type that its elements are summed in.
    #[must_use]
    pub const fn of_sums(self) -> Self {
        match self.arithmetic() {
            Arithmetic::Float => self,
            Arithmetic::Half => Self::F32,
            Arithmetic::Integer => Self::I64,
        }
    }

    /// The type with this wire id.
    #[must_use]
    pub fn from_wire(id: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[id]).ok()
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_ids_round_trip_and_strangers_are_refused() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_wire(dtype as u8), Some(dtype));
        }
        assert_eq!(Dtype::from_wire(0), None);
        assert_eq!(Dtype::from_wire(u8::MAX), None);
    }

    #[test]
    fn a_row_says_the_same_in_each_of_its_words() {
        for (dtype, wire) in Dtype::ALL.into_iter().zip(1..) {
            let bits = (8 * dtype.bytes()).to_string();
            assert_eq!(dtype as u8, wire, "{dtype}: the numbers have no gaps");
            assert!(dtype.name().ends_with(&bits) && dtype.numpy_name().ends_with(&bits), "{dtype}");
            assert_eq!(format!("{dtype:?}").to_lowercase(), dtype.name());
            assert!(dtype.of_sums().bytes() >= dtype.bytes() && dtype.of_sums().of_sums() == dtype.of_sums());
        }
    }
}
