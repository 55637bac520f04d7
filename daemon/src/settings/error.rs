//! What can be wrong with settings, each with its cause and its fix.

use super::PLACEMENTS;
use config::ConfigError;
use proto_common::config::SettingError;
use std::path::PathBuf;
use thiserror::Error;

/// Settings that cannot be used. Processes end with `ExitCode::Config`.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// A settings file cannot be read.
    #[error("cannot read settings file {}; name another with --config, or make it readable", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A settings file is not TOML.
    #[error("settings file {} is not valid TOML: {reason}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// No such setting.
    #[error("unknown setting {key} in {origin}; did you mean {nearest}?")]
    Unknown {
        /// File, variable or flag.
        origin: String,
        /// What was written.
        key: String,
        /// The known setting that is spelt most like it.
        nearest: String,
    },
    /// A value of the wrong type, or a word that is not among the choices.
    #[error("a setting has a wrong value: {reason}")]
    Wrong {
        /// Which, where and what was expected.
        reason: String,
    },
    /// A value out of bounds, or one that contradicts another.
    #[error("{cause} ({key} is set by {origin})", key = cause.key)]
    Invalid {
        /// Which setting, and what would be right.
        cause: SettingError,
        /// File, variable or flag.
        origin: String,
    },
    /// The same where no single source sets it: a default that contradicts another setting, or several together.
    #[error(transparent)]
    Contradicted(SettingError),
    /// A flag or a `DMLC_*` alias that cannot be understood.
    #[error("{name} = {value:?} is wrong: {fix}")]
    Source {
        /// The flag or variable.
        name: String,
        /// Its value.
        value: String,
        /// What would be right.
        fix: String,
    },
    /// `DMLC_INTERFACE` names no usable interface.
    #[error(
        "DMLC_INTERFACE = {name:?}: {reason}; name an interface with an IPv4 address, or set DMLC_NODE_HOST"
    )]
    Interface {
        /// The interface.
        name: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The log filter cannot be parsed.
    #[error(
        "setting log.filter = {filter:?} is wrong: {reason}; use a filter such as info or info,fabric=debug"
    )]
    LogFilter {
        /// The filter.
        filter: String,
        /// Why.
        reason: String,
    },
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

impl SettingsError {
    /// A value that was refused; `origin`: where it came from, if from one place.
    pub(super) fn invalid(cause: SettingError, origin: Option<&str>) -> Self {
        match origin {
            Some(origin) => Self::Invalid { origin: origin.to_owned(), cause },
            None => Self::Contradicted(cause),
        }
    }

    /// Text that is no value of the setting's type.
    pub(super) fn wrong<'a>(error: &ConfigError, origin_of: impl FnOnce(&str) -> Option<&'a str>) -> Self {
        let text = error.to_string();
        // Of words that are no choice it keeps the name only.
        let origin = match error {
            ConfigError::At { origin: None, key: Some(key), .. } => origin_of(key),
            _ => None,
        };
        let origin = origin.map_or_else(String::new, |origin| format!(" in {origin}"));
        let choices = choices_of(&text).map_or_else(String::new, |words| format!("; use {words}"));
        Self::Wrong { reason: format!("{text}{origin}{choices}") }
    }
}
