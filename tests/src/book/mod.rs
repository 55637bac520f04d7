//! The book in `docs/`: its pages with their fenced blocks ([`blocks`]), what a page's commands print held against what it
//! shows ([`shown`]), pages run as they stand ([`page`]), and command lines held against the programs' own help ([`usage`]).
//!
//! Must not know what any page is about.

pub mod blocks;
pub mod page;
pub mod shown;
pub mod usage;

/// Where the pages are.
pub const PLACE: &str = "docs/";
/// The list of chapters.
pub const SUMMARY: &str = "docs/SUMMARY.md";
