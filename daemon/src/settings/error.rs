//! What can be wrong with settings, each with its cause and its fix.

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
    #[error(transparent)]
    Invalid(#[from] SettingError),
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
const CHOICES: [(&str, &str); 2] =
    [("enum Policy", "require, prefer or off"), ("enum SecurityMode", "loopback or off")];

impl SettingsError {
    pub(super) fn wrong(error: &config::ConfigError) -> Self {
        let text = error.to_string();
        let choices = CHOICES.iter().find(|(name, _)| text.contains(name)).map(|(_, words)| *words);
        let reason = match choices {
            Some(words) => format!("{text}; use {words}"),
            None => text,
        };
        Self::Wrong { reason }
    }
}
