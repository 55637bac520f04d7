//! What every driver promises, written once: checks over a `Rig`, which each driver's list runs as tests of its own.
//! `drivers.rs` has the lists; a check of one driver only stands in that driver's files.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code: a panic is a failed test, and not every program uses all of the rig"
)]

pub mod bounds;
pub mod child;
pub mod data;
pub mod deaths;
pub mod flow;
pub mod life;
pub mod misuse;
pub mod regions;
pub mod rig;

/// The checks as tests over one rig, and the process that they start. An attribute in front is that of each check.
macro_rules! over {
    ($module:ident, $rig:ty; $($groups:tt)*) => {
        over!(#[cfg(all())] $module, $rig; $($groups)*);
    };
    (#[$attribute:meta] $module:ident, $rig:ty; $($group:ident :: { $($check:ident),* $(,)? })*) => {
        mod $module {
            $($(
                #[test]
                #[$attribute]
                fn $check() {
                    crate::conformance::$group::$check::<$rig>();
                }
            )*)*

            #[test]
            #[ignore = "the other process of a test"]
            fn child() {
                crate::conformance::child::run::<$rig>();
            }
        }
    };
}
pub(crate) use over;
