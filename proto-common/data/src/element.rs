//! Element types: their wire ids and sizes. Arithmetic on them is in the server's kernels.

use serde::{Deserialize, Serialize};
use std::fmt;
use zerocopy::TryFromBytes;

/// Type of a tensor's elements. The number is the wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TryFromBytes)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary64.
    F64 = 2,
    /// IEEE 754 binary16.
    F16 = 3,
    /// bfloat16.
    Bf16 = 4,
    /// Signed 8 bits.
    I8 = 5,
    /// Unsigned 8 bits.
    U8 = 6,
    /// Signed 32 bits.
    I32 = 7,
    /// Signed 64 bits.
    I64 = 8,
}

impl Dtype {
    /// Every type, in wire order.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I8, Self::U8, Self::I32, Self::I64];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    /// Whether sums are exact.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8 | Self::I32 | Self::I64)
    }

    /// The type with this wire id.
    #[must_use]
    pub fn from_wire(id: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[id]).ok()
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
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
        assert_eq!(Dtype::from_wire(9), None);
    }
}
