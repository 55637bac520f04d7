//! The house rules, as functions from the repository's files to findings. `tests/tests/tidy.rs` runs one
//! test per rule. Plain text scanning over [`source::Source`], no compiler: fast, and simple enough to trust.
//!
//! Must not change any file.

pub mod architecture;
pub mod book;
pub mod circles;
pub mod documents;
pub mod errors;
pub mod inventory;
pub mod metrics;
pub mod modules;
pub mod repo;
pub mod shape;
pub mod source;
pub mod suites;
pub mod watch;

pub use repo::Repo;
pub use source::Source;

use std::fmt;

/// A rule that is broken somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File, from the repository's root.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.what, self.fix)
    }
}

/// All findings as text for a failed test.
#[must_use]
pub fn listed(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("\n  {finding}")).collect()
}
