//! What one check found, as a line for people and as JSON. It decides nothing.

use proto_common::error::ExitCode;
use serde::Serialize;
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// As it should be.
    Good,
    /// A job runs, and not as well as it could.
    Warn,
    /// A job would fail, with this code.
    Fail(ExitCode),
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warn => "warn",
            Self::Fail(_) => "FAIL",
        }
    }
}

impl Serialize for Level {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.word().to_ascii_lowercase())
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) level: Level,
    /// What was looked at.
    pub(super) what: &'static str,
    pub(super) seen: String,
    /// What to do; empty where there is nothing to do, or where what was seen says it.
    pub(super) fix: String,
}

impl Check {
    pub(super) fn good(what: &'static str, seen: impl Into<String>) -> Self {
        Self::new(Level::Good, what, seen, "")
    }

    pub(super) fn warn(what: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Warn, what, seen, fix)
    }

    pub(super) fn fail(
        what: &'static str,
        code: ExitCode,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::new(Level::Fail(code), what, seen, fix)
    }

    pub(super) fn new(
        level: Level,
        what: &'static str,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level, what, seen: seen.into(), fix: fix.into() }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {:<13}  — {}", self.level.word(), self.what, self.seen)?;
        if !self.fix.is_empty() {
            write!(f, "; {}", self.fix)?;
        }
        Ok(())
    }
}

/// The code of the first failure.
pub(super) fn code_of<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Option<ExitCode> {
    checks.into_iter().find_map(|check| match check.level {
        Level::Fail(code) => Some(code),
        Level::Good | Level::Warn => None,
    })
}

/// Bytes for people.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.iter().find(|(shift, _)| count >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", count as f64 / f64::from(1u32 << shift)),
        None => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_level_what_seen_and_fix() {
        let good = Check::good("memlock", "no limit");
        assert_eq!(good.to_string(), "ok    memlock        — no limit");
        let bad = Check::fail("bind", ExitCode::Io, "no such address", "choose another");
        assert_eq!(bad.to_string(), "FAIL  bind           — no such address; choose another");
        let warn = Check::warn("x", "y", "z");
        assert_eq!(code_of([&good, &warn]), None);
        assert_eq!(code_of([&good, &warn, &bad]), Some(ExitCode::Io));
        let json = serde_json::to_value(&bad).unwrap();
        assert_eq!((&json["level"], &json["what"]), (&"fail".into(), &"bind".into()));
    }

    #[test]
    fn bytes_have_the_unit_that_fits() {
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(64 << 10), "64.0 KiB");
        assert_eq!(bytes(8 << 30), "8.0 GiB");
    }
}
