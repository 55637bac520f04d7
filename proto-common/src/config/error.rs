//! A setting that cannot be used, and how its value is shown. It must not know a setting.

use thiserror::Error;

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid setting {key} = {}: {fix}", shown(value))]
pub struct SettingError {
    /// Dotted name of the setting.
    pub key: &'static str,
    /// The value that was given.
    pub value: String,
    /// Which values are valid.
    pub fix: String,
}

pub(super) fn wrong<T>(
    key: &'static str,
    value: impl std::fmt::Display,
    fix: impl Into<String>,
) -> Result<T, SettingError> {
    Err(SettingError { key, value: value.to_string(), fix: fix.into() })
}

pub(super) fn within<T: PartialOrd + std::fmt::Display + Copy>(
    key: &'static str,
    value: T,
    min: T,
    max: T,
) -> Result<(), SettingError> {
    if value < min || value > max {
        return wrong(key, value, format!("use a value from {min} to {max}"));
    }
    Ok(())
}

/// Marks of PEM text: the start of a header line, and the label of a private key.
const PEM_MARKS: [&str; 2] = ["-----BEGIN", "PRIVATE KEY"];

/// Returns whether the value of a setting is PEM text rather than a file name, whatever precedes the PEM header (a byte order
/// mark, bag attributes, quotes). Messages show file names, but must never show a private key.
#[must_use]
pub fn is_pem(setting: &str) -> bool {
    setting.contains(['\n', '\r']) || PEM_MARKS.iter().any(|mark| setting.contains(mark))
}

/// Longest value of a setting that messages show, in bytes. A private key without its PEM header, on one line, is longer.
const SHOWN_BYTES_MAX: usize = 128;

/// The value of a setting as messages show it. Text that may be a private key and very long text are replaced.
#[must_use]
pub fn shown(value: &str) -> &str {
    if is_pem(value) || value.len() > SHOWN_BYTES_MAX { "(text, not shown)" } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_known_from_names_whatever_stands_around_it() {
        let key = "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n";
        for text in [
            key.to_owned(),
            format!("\u{feff}{key}"),
            format!("\"{key}\""),
            format!("Bag Attributes\n    friendlyName: worker\n{key}"),
            key.replace('\n', "\\n"),
            key.replace('\n', " "),
            "MIGHAgEAMBMGByqGSM49\nAgEGCCqGSM49AwEH".into(),
            "MIGHAgEAMBMGByqGSM49\rAgEGCCqGSM49AwEH".into(),
            "BEGIN EC PRIVATE KEY".into(),
        ] {
            assert!(is_pem(&text), "{text:?}");
        }
        for name in ["", "key.pem", "/etc/gradwire/tls/key.pem", "./my keys/BEGIN.pem"] {
            assert!(!is_pem(name), "{name}");
        }
    }

    #[test]
    fn messages_show_values_up_to_a_length_and_no_keys() {
        let most = "x".repeat(SHOWN_BYTES_MAX);
        for value in ["", "10.0.0.1", &most] {
            assert_eq!(shown(value), value);
        }
        for value in [&format!("{most}x"), "-----BEGIN PRIVATE KEY-----", "MIGH\nAgEG"] {
            assert_eq!(shown(value), "(text, not shown)");
        }
        let wrong = SettingError { key: "job", value: "a PRIVATE KEY".into(), fix: "x".into() };
        assert_eq!(wrong.to_string(), "invalid setting job = (text, not shown): x");
    }
}
