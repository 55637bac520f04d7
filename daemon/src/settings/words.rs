//! The words that flags and variables share: transports, placements, `KEY=VALUE`, `HOST:PORT`. It knows no command line.

use super::SettingsError;
use proto_common::transport::Driver;

/// A driver on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "cli"), derive(clap::ValueEnum))]
pub enum Transport {
    /// Shared memory, between processes of one host and one user.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA.
    Verbs,
}

impl Transport {
    /// The driver.
    #[must_use]
    pub fn driver(self) -> Driver {
        match self {
            Self::Shm => Driver::Shm,
            Self::Tcp => Driver::Tcp,
            Self::Verbs => Driver::Verbs,
        }
    }

    /// The settings that require this driver and turn the others off, as (name, value).
    #[must_use]
    pub fn settings(self) -> [(&'static str, &'static str); 3] {
        [("transport.shm", Self::Shm), ("transport.verbs", Self::Verbs), ("transport.tcp", Self::Tcp)]
            .map(|(setting, driver)| (setting, if driver == self { "require" } else { "off" }))
    }
}

/// Words of --placement.
pub const PLACEMENTS: [&str; 5] = ["auto", "slot", "static", "rendezvous-read", "rendezvous-write"];

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
