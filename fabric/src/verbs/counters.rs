//! What a port counts of its packets, as the kernel shows it: for the whole port, whoever uses it. A difference says what
//! happened meanwhile, not to which channel. Known to every build; it reads files and asks the device nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Where the kernel shows devices.
const DEVICES: &str = "/sys/class/infiniband";
/// More counters are not read: vendors have some thirty.
const COUNTERS_MAX: usize = 64;
/// In names of counters, whoever made the device: what should not happen.
const TROUBLE: [&str; 9] =
    ["err", "retry", "retrans", "out_of", "duplicate", "discard", "downed", "timeout", "rnr"];
/// Such a name counts what happens whenever a channel is closed.
const USUAL: &str = "flush";
/// A setting that lies among the counters.
const SETTING: &str = "lifespan";

/// What a port has counted, by the kernel's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters(BTreeMap<String, u64>);

impl PortCounters {
    /// As they stand now; none where the device or its kernel counts nothing.
    #[must_use]
    pub fn read(device: &str, port: u8) -> Self {
        Self::read_in(&Path::new(DEVICES).join(device).join(format!("ports/{port}/hw_counters")))
    }

    fn read_in(directory: &Path) -> Self {
        let Ok(files) = std::fs::read_dir(directory) else { return Self::default() };
        let counter = |file: std::fs::DirEntry| {
            let name = file.file_name().into_string().ok().filter(|name| name != SETTING)?;
            let value = std::fs::read_to_string(file.path()).ok()?;
            Some((name, value.trim().parse().ok()?))
        };
        Self(files.flatten().filter_map(counter).take(COUNTERS_MAX).collect())
    }

    /// What was counted since. A counter that went back was set to 0, and has counted what it shows.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let since = |(name, now): (&String, &u64)| {
            let before = earlier.0.get(name).copied().unwrap_or(0);
            (name.clone(), now.checked_sub(before).unwrap_or(*now))
        };
        Self(self.0.iter().map(since).collect())
    }

    /// Of these, what should not have happened.
    #[must_use]
    pub fn trouble(&self) -> Self {
        let is_trouble = |name: &str| TROUBLE.iter().any(|word| name.contains(word)) && !name.contains(USUAL);
        let trouble = self.0.iter().filter(|(name, count)| **count > 0 && is_trouble(name));
        Self(trouble.map(|(name, count)| (name.clone(), *count)).collect())
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and counts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }
}

impl FromIterator<(String, u64)> for PortCounters {
    fn from_iter<T: IntoIterator<Item = (String, u64)>>(counters: T) -> Self {
        Self(counters.into_iter().collect())
    }
}

impl fmt::Display for PortCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, count)) in self.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counters: &[(&str, u64)]) -> PortCounters {
        counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn files_of_numbers_are_counters_and_nothing_else_is() {
        let directory = std::env::temp_dir().join(format!("gradwire-counters-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("a-directory")).unwrap();
        for (name, text) in
            [("sent_pkts", "12\n"), ("rcvd_seq_err", "3"), (SETTING, "10"), ("text", "x"), ("negative", "-1")]
        {
            std::fs::write(directory.join(name), text).unwrap();
        }
        let read = PortCounters::read_in(&directory);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(read, of(&[("rcvd_seq_err", 3), ("sent_pkts", 12)]));
        assert!(PortCounters::read_in(&directory).is_empty());
        assert!(PortCounters::read("no-such-device", 1).is_empty());
    }

    #[test]
    fn what_should_not_happen_is_told_from_what_does() {
        let before =
            of(&[("sent_pkts", 5), ("rcvd_seq_err", 1), ("req_cqe_flush_error", 0), ("out_of_buffer", 9)]);
        let now = of(&[
            ("sent_pkts", 9),
            ("rcvd_seq_err", 1),
            ("req_cqe_flush_error", 7),
            ("out_of_buffer", 2),
            ("local_ack_timeout_err", 4),
        ]);
        let since = now.since(&before);
        assert_eq!(since.iter().find(|(name, _)| *name == "sent_pkts"), Some(("sent_pkts", 4)));
        // The second began anew, and the last was not there before.
        assert_eq!(since.trouble(), of(&[("local_ack_timeout_err", 4), ("out_of_buffer", 2)]));
        assert_eq!(since.trouble().to_string(), "local_ack_timeout_err 4, out_of_buffer 2");
        assert!(before.since(&before).trouble().is_empty());
    }
}
