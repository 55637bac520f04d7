//! Numbers that a trainer reports by name, such as its loss: few, short and finite, the newest value of each. Heartbeats take
//! them to the scheduler, scrapes to whoever asks.

use crate::error::ClientError;
use fabric::lock;
use proto_common::limits::{METRIC_NAME_BYTES_MAX, METRICS_MAX};
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Debug, Default)]
pub(super) struct Reported(Mutex<BTreeMap<String, f64>>);

impl Reported {
    pub(super) fn set(&self, name: &str, value: f64) -> Result<(), ClientError> {
        let refused = |reason: String| {
            // What is too long is not repeated.
            let name = name.chars().take(METRIC_NAME_BYTES_MAX).collect();
            Err(ClientError::Metric { name, reason })
        };
        if name.is_empty() || name.len() > METRIC_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let most = METRIC_NAME_BYTES_MAX;
            return refused(format!(
                "a name must have 1 to {most} bytes and no control characters; choose another name"
            ));
        }
        if !value.is_finite() {
            return refused(format!("invalid value {value}; report only finite numbers"));
        }
        let mut known = lock(&self.0);
        if let Some(kept) = known.get_mut(name) {
            *kept = value;
            return Ok(());
        }
        if known.len() >= METRICS_MAX {
            return refused(format!("{METRICS_MAX} names are already in use, the maximum; report fewer"));
        }
        known.insert(name.to_owned(), value);
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<(String, f64)> {
        lock(&self.0).iter().map(|(name, value)| (name.clone(), *value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_short_finite_numbers_are_kept() {
        let reported = Reported::default();
        let long = "x".repeat(METRIC_NAME_BYTES_MAX);
        reported.set(&long, 1.0).unwrap();
        reported.set(&long, 2.0).unwrap();
        assert_eq!(reported.all(), [(long.clone(), 2.0)]);
        for (name, value) in [("", 1.0), ("a\nb", 1.0), ("loss", f64::NAN), ("loss", f64::INFINITY)] {
            reported.set(name, value).unwrap_err();
        }
        let error = reported.set(&(long + "x"), 1.0).unwrap_err();
        assert!(error.to_string().contains("1 to 48 bytes"), "{error}");
        for number in 1..METRICS_MAX {
            reported.set(&number.to_string(), 1.0).unwrap();
        }
        let error = reported.set("one more", 1.0).unwrap_err();
        assert!(error.to_string().contains("16 names are already in use"), "{error}");
        assert_eq!(reported.all().len(), METRICS_MAX);
    }
}
