//! The Rust types that tensors' elements have.

use half::{bf16, f16};
use proto_common::element::Dtype;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type of elements: f32, f64, [`half::f16`] and [`half::bf16`], which servers sum in f32 and keep in f32, and
/// integers, which they sum in i64.
pub trait Element: Copy + FromBytes + IntoBytes + Immutable + sealed::Sealed + 'static {
    /// Its name in declarations.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($(#[$_about:meta])* $dtype:ident = $_wire:literal, $_numpy:literal, $_bytes:literal: $_arithmetic:ident($element:ident);)*) => {
        $(impl sealed::Sealed for $element {}
        impl Element for $element {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}

proto_common::element_types!(elements);
