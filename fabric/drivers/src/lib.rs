//! The table of transports, and which of them two peers use. Names, settings, words of command lines and their help follow from
//! the table. `fabric` has a second table, of how each transport is opened; a test compares both. This crate opens nothing, and
//! must not know what a transport carries.

#![forbid(unsafe_code)]

mod choice;

pub use choice::{Choice, Side, choose, obstacle};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Hands the table to a macro. The lines are in order of preference; a line's place is also the number of the transport in
/// control messages. So a release that adds a line has a new `PROTOCOL_VERSION`: an older process would misread the number.
#[macro_export]
macro_rules! for_each_driver {
    ($table:ident) => {
        $table! {
            /// Shared memory, between processes of one host and one user.
            shm => Shm: Memory,
            /// RDMA verbs.
            verbs => Verbs: Device,
            /// TCP.
            tcp => Tcp: Sockets,
        }
    };
}

macro_rules! table {
    ($($(#[doc = $about:literal])+ $name:ident => $driver:ident: $medium:ident,)+) => {
        /// A transport.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Driver {
            $($(#[doc = $about])+ $driver,)+
        }

        impl Driver {
            /// All transports in order of preference.
            pub const ALL: [Self; [$(stringify!($name)),+].len()] = [$(Self::$driver),+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$driver => stringify!($name),)+
                }
            }

            /// The setting with its policy.
            #[must_use]
            pub const fn setting(self) -> &'static str {
                match self {
                    $(Self::$driver => concat!("transport.", stringify!($name)),)+
                }
            }

            /// What it is, in a sentence.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$driver => concat!($($about),+).trim_ascii(),)+
                }
            }

            const fn medium(self) -> Medium {
                match self {
                    $(Self::$driver => Medium::$medium,)+
                }
            }
        }
    };
}

for_each_driver!(table);

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Memory,
    Device,
    Sockets,
}

impl Driver {
    /// Peers copy between memory of their own host: they are processes of one host and one user, and there is no network that could
    /// corrupt bytes or be partitioned.
    #[must_use]
    pub fn shares_memory(self) -> bool {
        self.medium() == Medium::Memory
    }

    /// A device carries the bytes. It may be missing, its network may not reach every peer that sockets reach, memory is
    /// registered with it, and it does not encrypt.
    #[must_use]
    pub fn is_device(self) -> bool {
        self.medium() == Medium::Device
    }

    /// Sockets carry the bytes; which kind of sockets is known once they are connected.
    #[must_use]
    pub fn uses_sockets(self) -> bool {
        self.medium() == Medium::Sockets
    }

    /// The settings that require this transport and turn the others off, as (name, value).
    #[must_use]
    pub fn settings(self) -> [(&'static str, &'static str); Self::ALL.len()] {
        Self::ALL.map(|driver| (driver.setting(), if driver == self { "require" } else { "off" }))
    }

    /// Their names, or their settings, as text: "shm, verbs and tcp", with this word before the last one.
    #[must_use]
    pub fn list(of: fn(Self) -> &'static str, last: &str) -> String {
        let mut text = String::new();
        for (at, driver) in Self::ALL.into_iter().enumerate() {
            match at {
                0 => {}
                _ if at + 1 == Self::ALL.len() => text.extend([" ", last, " "]),
                _ => text.push_str(", "),
            }
            text.push_str(of(driver));
        }
        text
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no transport has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown transport {name:?}: use {}", Driver::list(Driver::name, "or"))]
pub struct UnknownDriver {
    name: String,
}

impl FromStr for Driver {
    type Err = UnknownDriver;

    fn from_str(name: &str) -> Result<Self, UnknownDriver> {
        let found = Self::ALL.into_iter().find(|driver| driver.name() == name);
        found.ok_or_else(|| UnknownDriver { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_one_transport() {
        for driver in Driver::ALL {
            assert_eq!(driver.name().parse(), Ok(driver));
            // Messages in JSON carry the variant in lower case.
            assert_eq!(format!("{driver:?}").to_lowercase(), driver.name());
            assert_eq!(driver.setting(), format!("transport.{driver}"));
            assert!(driver.about().ends_with('.') && !driver.about().starts_with(' '), "{driver:?}");
        }
        let unknown = "ib".parse::<Driver>().unwrap_err().to_string();
        assert!(
            unknown.contains("\"ib\"") && unknown.contains("shm") && unknown.contains(" or "),
            "{unknown}"
        );
    }

    #[test]
    fn each_medium_is_of_one_kind() {
        for driver in Driver::ALL {
            let kinds = [driver.shares_memory(), driver.is_device(), driver.uses_sockets()];
            assert_eq!(kinds.iter().filter(|is_its| **is_its).count(), 1, "{driver}");
        }
    }

    #[test]
    fn requiring_one_turns_the_others_off() {
        let settings = Driver::Tcp.settings();
        assert!(
            settings.contains(&("transport.tcp", "require")) && settings.contains(&("transport.shm", "off"))
        );
        assert_eq!(settings.iter().filter(|(_, policy)| *policy == "require").count(), 1);
    }
}
