//! What the repository's tests stand on: the suite runner ([`suites`]), the house rules ([`tidy`]), the book's pages
//! ([`book`]) and the rigs that tests of several roles share (`rigs`).
//!
//! Must not hold tests of one crate: those live in that crate. What needs a role goes under `rigs`, because
//! the runner is built without the roles (`--no-default-features`).
#![forbid(unsafe_code)]

pub mod book;
pub mod repository;
#[cfg(feature = "rigs")]
pub mod rigs;
pub mod suites;
pub mod tidy;
