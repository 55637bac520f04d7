//! What can be wrong with settings, each with its cause and its fix.

use super::PLACEMENTS;
use config::ConfigError;
use proto_common::config::{SettingError, shown};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Settings that cannot be used. Processes end with `ExitCode::Config`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum SettingsError {
    /// A settings file cannot be read.
    #[error("cannot read settings file {}; name another with --config, or make it readable", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A settings file is not TOML.
    #[error("settings file {} is not valid TOML: {reason}", path.display())]
    Parse {
        path: PathBuf,
        /// Where and why, without what stands there: that may be a key.
        reason: String,
    },
    /// No such setting.
    #[error("unknown setting {} in {origin}; did you mean {nearest}?", shown(key))]
    Unknown { origin: String, key: String, nearest: String },
    /// A value of the wrong type, or a word that is not among the choices.
    #[error("a setting has a wrong value: {reason}")]
    Wrong { reason: String },
    /// A value out of bounds, or one that contradicts another.
    #[error("{cause} ({key} is set by {origin})", key = cause.key)]
    Invalid {
        /// Which setting, and what would be right.
        cause: SettingError,
        origin: String,
    },
    /// The same where no single source sets it: a default that contradicts another setting, or several together.
    #[error(transparent)]
    Contradicted(SettingError),
    /// A flag or a `DMLC_*` alias that cannot be understood.
    #[error("{name} = {:?} is wrong: {fix}", shown(value))]
    Source {
        name: String,
        value: String,
        /// What would be right.
        fix: String,
    },
    /// `DMLC_INTERFACE` names no usable interface.
    #[error(
        "DMLC_INTERFACE = {:?}: {reason}; name an interface with an IPv4 address, or set DMLC_NODE_HOST",
        shown(name)
    )]
    Interface { name: String, reason: String },
    /// The log filter cannot be parsed.
    #[error(
        "invalid setting log.filter = {:?}: {reason}; use a filter such as info or info,fabric=debug",
        shown(filter)
    )]
    LogFilter { filter: String, reason: String },
}

/// The `config` crate says that a word is no variant of an enum, but not which words are.
fn choices_of(text: &str) -> Option<String> {
    let is_of = |name: &str| text.contains(&format!("enum {name} "));
    match () {
        () if is_of("Policy") => Some("require, prefer or off".into()),
        () if is_of("SecurityMode") => Some("auto, tls or off".into()),
        () if is_of("PlacementPolicy") => Some(PLACEMENTS.join(", ")),
        () => None,
    }
}

/// Line and column of a byte of a text, as people count.
fn place_of(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

impl SettingsError {
    /// A flag or variable whose value is not understood.
    pub(super) fn source(name: &str, value: &str, fix: impl Into<String>) -> Self {
        Self::Source { name: name.to_owned(), value: value.to_owned(), fix: fix.into() }
    }

    /// Text that is no TOML. The parser's own message has the line in it.
    pub(super) fn not_toml(path: &Path, text: &str, error: &ConfigError) -> Self {
        let toml = match error {
            ConfigError::FileParse { cause, .. } => cause.downcast_ref::<toml::de::Error>(),
            _ => None,
        };
        let reason = match toml.map(|error| (error.span(), error.message())) {
            Some((Some(span), message)) => {
                let (line, column) = place_of(text, span.start);
                format!("line {line}, column {column}: {message}")
            }
            Some((None, message)) => message.to_owned(),
            // Numbers that are too large. What else there may be shows nothing of the text in its first line.
            None => error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        Self::Parse { path: path.to_path_buf(), reason }
    }

    /// A value that was refused; `origin`: where it came from, if from one place.
    pub(super) fn invalid(cause: SettingError, origin: Option<&str>) -> Self {
        match origin {
            Some(origin) => Self::Invalid { origin: origin.to_owned(), cause },
            None => Self::Contradicted(cause),
        }
    }

    /// Text that is no value of the setting's type. `said`: what a setting was given as text, and where.
    pub(super) fn wrong<'a>(
        error: &ConfigError,
        said: impl FnOnce(&str) -> Option<(Option<&'a str>, &'a str)>,
    ) -> Self {
        let text = error.to_string();
        let choices = choices_of(&text).map_or_else(String::new, |words| format!("; use {words}"));
        let key = match error {
            ConfigError::At { key, .. } | ConfigError::Type { key, .. } => key.as_deref(),
            _ => None,
        };
        let (value, origin) = match key.and_then(said) {
            Some((value, origin)) => (value, format!(" in {origin}")),
            None => (None, String::new()),
        };
        let reason = match (key, value.map(|value| (shown(value), value))) {
            (Some(key), Some((shown, value))) if shown != value => {
                format!("{key} = {shown}{origin}{choices}")
            }
            // Of words that are no choice it keeps the name only.
            _ if matches!(error, ConfigError::At { origin: None, .. }) => format!("{text}{origin}{choices}"),
            _ => format!("{text}{choices}"),
        };
        Self::Wrong { reason }
    }
}
