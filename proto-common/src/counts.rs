//! Structs of counts, and their sums over lanes. It must not know what is counted.

/// Defines a struct of counts, and the sum of two of them. Of a count that is marked `max`, the sum has the larger one.
#[macro_export]
macro_rules! counts {
    (@sum max $one:expr, $other:expr) => {
        u64::max($one, $other)
    };
    (@sum $one:expr, $other:expr) => {
        $one + $other
    };
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$of:meta])* $count:ident $(: $max:ident)?,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$of])* pub $count: u64,)*
        }

        impl $name {
            /// Both together.
            #[must_use]
            pub fn plus(self, other: &Self) -> Self {
                Self { $($count: $crate::counts!(@sum $($max)? self.$count, other.$count),)* }
            }
        }
    };
}
