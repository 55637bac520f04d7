//! One source of settings as a flat list of dotted names, checked against the names that exist. Types are
//! checked later, after merging.

use super::SettingsError;
use config::{ConfigError, File, FileFormat, Map, Source, Value, ValueKind};
use proto_common::config::Settings;
use std::path::Path;

/// One source: dotted name to value with its origin.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    values: Map<String, Value>,
}

impl Layer {
    /// A settings file.
    pub(super) fn from_toml(path: &Path, text: &str) -> Result<Self, SettingsError> {
        let parsed = File::from_str(text, FileFormat::Toml).collect();
        let parsed = parsed.map_err(|error| SettingsError::not_toml(path, text, &error))?;
        let mut layer = Self::default();
        let origin = path.display().to_string();
        for (key, value) in parsed {
            layer.flatten(&origin, key, value)?;
        }
        Ok(layer)
    }

    /// Adds one setting; a later one of the same name replaces it.
    pub(super) fn set(&mut self, origin: &str, key: &str, value: String) -> Result<(), SettingsError> {
        self.put(origin, key.to_owned(), ValueKind::String(value))
    }

    /// Where a setting came from, if it is of this source.
    pub(super) fn origin(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.origin()
    }

    /// What a setting was given here, if that is text, and where.
    pub(super) fn said(&self, key: &str) -> Option<(Option<&str>, &str)> {
        let value = self.values.get(key)?;
        let text = match &value.kind {
            ValueKind::String(text) => Some(text.as_str()),
            _ => None,
        };
        Some((text, value.origin()?))
    }

    /// Every setting that is said here, and where.
    pub(super) fn origins(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value.origin().unwrap_or_default()))
    }

    fn flatten(&mut self, origin: &str, key: String, value: Value) -> Result<(), SettingsError> {
        match value.kind {
            ValueKind::Table(table) => table
                .into_iter()
                .try_for_each(|(name, value)| self.flatten(origin, format!("{key}.{name}"), value)),
            kind => self.put(origin, key, kind),
        }
    }

    fn put(&mut self, origin: &str, key: String, kind: ValueKind) -> Result<(), SettingsError> {
        let known = known_names();
        if !known.contains(&key) {
            let nearest = nearest(&key, &known);
            return Err(SettingsError::Unknown { origin: origin.to_owned(), key, nearest });
        }
        self.values.insert(key, Value::new(Some(&origin.to_owned()), kind));
        Ok(())
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.values.clone())
    }
}

/// The dotted names of all settings.
pub(super) fn known_names() -> Vec<String> {
    walk(&Settings::default()).into_iter().map(|(name, _)| name).collect()
}

pub(super) fn walk(settings: &Settings) -> Vec<(String, serde_json::Value)> {
    fn step(prefix: &str, value: serde_json::Value, found: &mut Vec<(String, serde_json::Value)>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                    step(&path, value, found);
                }
            }
            leaf => found.push((prefix.to_owned(), leaf)),
        }
    }
    let mut found = Vec::new();
    // Plain data with string keys: serialising it cannot fail, and an empty list would be seen at once.
    step("", serde_json::to_value(settings).unwrap_or_default(), &mut found);
    found
}

/// The name that takes the fewest edits to reach.
fn nearest(key: &str, known: &[String]) -> String {
    let near = |name: &&String| {
        let last = name.rsplit('.').next().unwrap_or(name);
        edits(key, name).min(edits(key, last).saturating_add(1))
    };
    known.iter().min_by_key(near).cloned().unwrap_or_default()
}

/// Levenshtein distance; only the first 128 bytes count, names are shorter.
fn edits(a: &str, b: &str) -> usize {
    let (a, b) = (&a.as_bytes()[..a.len().min(128)], &b.as_bytes()[..b.len().min(128)]);
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// `KEY=VALUE` of a `--set` flag in two.
pub fn split_pair(pair: &str) -> Result<(&str, &str), SettingsError> {
    let fix = "write KEY=VALUE, such as cluster.lanes=2";
    pair.split_once('=').ok_or_else(|| SettingsError::source("--set", pair, fix))
}

/// `HOST:PORT` in two; IPv6 addresses stand in brackets.
pub fn split_address<'a>(flag: &str, address: &'a str) -> Result<(&'a str, u16), SettingsError> {
    let parsed = address.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then_some(())?;
        Some((host, port.parse().ok()?))
    });
    let fix = "write HOST:PORT, such as 127.0.0.1:9092 or [::1]:9092";
    parsed.ok_or_else(|| SettingsError::source(flag, address, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_type() {
        let names = known_names();
        for name in ["job", "scheduler.port", "transport.shm", "node.rank", "log.json"] {
            assert!(names.iter().any(|n| n == name), "{name} is missing in {names:?}");
        }
    }

    #[test]
    fn the_nearest_name() {
        let names = known_names();
        assert_eq!(nearest("scheduler.prot", &names), "scheduler.port");
        assert_eq!(nearest("workers", &names), "cluster.workers");
        assert_eq!(nearest("", &names), "job");
        assert_eq!((edits("", "abc"), edits("kitten", "sitting"), edits("Port", "port")), (3, 3, 0));
    }
}
