//! The words that flags and variables share: transports and placements. It knows no command line.

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
