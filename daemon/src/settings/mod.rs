//! Settings from all their sources, weakest first: defaults, a file, `DMLC_*` aliases, `GRADWIRE_*`, flags.
//! Merged by the `config` crate, typed and validated once. Nothing here keeps state, and the environment is
//! an argument.

#[cfg(any(test, feature = "cli"))]
mod args;
mod env;
mod error;
mod interface;
mod layer;
pub mod peers;
mod words;

#[cfg(any(test, feature = "cli"))]
pub use args::CommonArgs;
pub use env::{CONFIG_VARIABLE, PREFIX};
pub use error::SettingsError;
pub use layer::{split_address, split_pair};
pub use words::PLACEMENTS;
#[cfg(any(test, feature = "cli"))]
pub use words::driver_words;

use crate::logging::ALWAYS;
use crate::small_file;
use layer::Layer;
use proto_common::config::{SecurityMode, Settings, meaning};
use proto_common::ids::Role;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Settings with what the log should say about where they came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings, validated for the role.
    pub settings: Settings,
    /// Files that were read, weakest first.
    pub files: Vec<PathBuf>,
    /// What was ignored, and what is meant by it.
    pub warnings: Vec<String>,
    /// Of each setting that is said somewhere, the file, variable or flag that counts.
    pub origins: BTreeMap<String, String>,
}

impl Loaded {
    /// Every setting by its dotted name, as it is in force.
    #[must_use]
    pub fn values(&self) -> Vec<(String, String)> {
        layer::walk(&self.settings).into_iter().map(|(key, value)| (key, text_of(value))).collect()
    }

    /// Logs files and warnings, and, whatever the filter, that nobody is authenticated. Called once, after [`crate::logging::init`].
    pub fn log(&self) {
        for file in &self.files {
            tracing::info!(file = %file.display(), "settings file read");
        }
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        let security = &self.settings.security;
        if security.mode == SecurityMode::Off {
            let ignored = match security.certificates().as_slice() {
                [] => String::new(),
                [one] => format!("; {one} is set, and ignored"),
                several => format!("; {} are set, and ignored", several.join(", ")),
            };
            // Whoever turned the log down is to know it, too.
            tracing::warn!(target: ALWAYS, "security.mode = \"off\": peers beyond loopback are not authenticated{ignored}");
        }
    }
}

/// One setting given by a flag (or by a host program, for the client library).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Where it came from, for error messages: `--job`.
    pub origin: String,
    /// Dotted name of the setting.
    pub key: String,
    /// Its value as text.
    pub value: String,
}

impl Override {
    /// A setting from a flag or a caller.
    pub fn new(origin: impl Into<String>, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { origin: origin.into(), key: key.into(), value: value.into() }
    }
}

/// One line of the settings reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Dotted name, as in files and `--set`.
    pub key: String,
    /// The environment variable.
    pub variable: String,
    /// Its default; empty where there is none.
    pub default: String,
    /// Its default as a settings file has it.
    pub default_toml: Option<String>,
    /// What it means: its field's documentation.
    pub meaning: String,
}

/// A value as people write it; nothing for none.
fn text_of(value: serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Every setting with its variable, default and meaning.
#[must_use]
pub fn reference() -> Vec<Reference> {
    let line = |(key, default): (String, serde_json::Value)| {
        let variable = variable_of(&key);
        // JSON's words, numbers and truths are TOML's, too.
        let default_toml = (!default.is_null()).then(|| default.to_string());
        let meaning = meaning(&key).unwrap_or_default().to_owned();
        Reference { key, variable, default: text_of(default), default_toml, meaning }
    };
    layer::walk(&Settings::default()).into_iter().map(line).collect()
}

/// The environment variable of a setting.
#[must_use]
pub fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// The settings file of a job, which is looked for where a process starts.
const JOB_FILE: &str = "gradwire.toml";
/// Where the settings of the units of systemd are.
const SERVICE_DIRECTORY: &str = "/etc/gradwire";

/// The file that a role's unit names. Nobody reads it unasked: a job that somebody starts beside the service is not to have its
/// checkpoints, copies and address.
#[must_use]
pub fn service_file(role: Role) -> PathBuf {
    Path::new(SERVICE_DIRECTORY).join(format!("{role}.toml"))
}

/// Loads the settings of a process. `file`, or else what `GRADWIRE_CONFIG` names, replaces `./gradwire.toml`, and must exist.
pub fn load_settings(
    role: Role,
    env: &[(String, String)],
    file: Option<&Path>,
    overrides: &[Override],
) -> Result<Loaded, SettingsError> {
    load_from(Path::new("."), role, env, file, overrides)
}

/// As [`load_settings`], with the job's file looked for elsewhere.
pub fn load_from(
    directory: &Path,
    role: Role,
    env: &[(String, String)],
    file: Option<&Path>,
    overrides: &[Override],
) -> Result<Loaded, SettingsError> {
    let named = file.map(Path::to_path_buf).or_else(|| env::config_file(env));
    let read = read_file(directory, named.as_deref())?;
    let (files, mut layers): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    let (aliases, warnings) = env::aliases(role, env)?;
    let mut flags = Layer::default();
    for flag in overrides {
        flags.set(&flag.origin, &flag.key, flag.value.clone())?;
    }
    layers.extend([aliases, env::ours(env)?, flags]);
    let settings = merge(&layers)?;
    let valid = match role {
        Role::Scheduler => settings.validate_scheduler(),
        Role::Server | Role::Worker => settings.validate_member(),
    };
    // None where it has its default.
    let origin_of = |key: &str| layers.iter().rev().find_map(|layer| layer.origin(key));
    valid.map_err(|cause| {
        let origin = origin_of(cause.key);
        SettingsError::invalid(cause, origin)
    })?;
    let origins = layers.iter().flat_map(Layer::origins);
    let origins = origins.map(|(key, origin)| (key.to_owned(), origin.to_owned())).collect();
    Ok(Loaded { settings, files, warnings, origins })
}

/// Weakest first.
fn merge(layers: &[Layer]) -> Result<Settings, SettingsError> {
    let sources = config::Config::builder();
    let sources = layers.iter().fold(sources, |sources, layer| sources.add_source(layer.clone()));
    let merged = sources.build().and_then(config::Config::try_deserialize);
    let said = |key: &str| layers.iter().rev().find_map(|layer| layer.said(key));
    merged.map_err(|error| SettingsError::wrong(&error, said))
}

/// The file that is named, or the job's where it is there.
fn read_file(directory: &Path, named: Option<&Path>) -> Result<Option<(PathBuf, Layer)>, SettingsError> {
    let path = named.map_or_else(|| directory.join(JOB_FILE), Path::to_path_buf);
    match small_file::read_text(&path) {
        Ok(text) => {
            let layer = Layer::from_toml(&path, &text)?;
            Ok(Some((path, layer)))
        }
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingsError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests;
