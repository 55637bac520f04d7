//! The policies for transports, and how contributions travel over them. Which transport two peers use follows from both sides'
//! policies and capabilities by the rules of the crate `drivers`, which has the table of transports.

pub use drivers::{Choice, Driver, UnknownDriver};

use drivers::Side;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// How a tensor's contributions travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In batches, through the slots of the server's inbox.
    #[default]
    Slot,
    /// Written directly into a key buffer that the server reserves for this worker and chunk.
    Static,
    /// Announced by a reference. The server reads it from the worker's memory, or over shared memory reduces it there.
    RendezvousRead,
    /// Announced. The server grants a buffer for one write, and the worker writes it.
    RendezvousWrite,
}

impl Placement {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Slot, Self::Static, Self::RendezvousRead, Self::RendezvousWrite];
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Slot => "slot",
            Self::Static => "static",
            Self::RendezvousRead => "rendezvous-read",
            Self::RendezvousWrite => "rendezvous-write",
        })
    }
}

/// The setting `transport.placement`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPolicy {
    /// Chosen for each tensor separately.
    #[default]
    Auto,
    /// `slot` for all tensors.
    Slot,
    /// `static` for all tensors, as far as servers have room.
    Static,
    /// `rendezvous-read` for all tensors.
    RendezvousRead,
    /// `rendezvous-write` for all tensors.
    RendezvousWrite,
}

impl PlacementPolicy {
    /// The placement of all tensors, if one was set.
    #[must_use]
    pub fn fixed(self) -> Option<Placement> {
        Some(match self {
            Self::Auto => return None,
            Self::Slot => Placement::Slot,
            Self::Static => Placement::Static,
            Self::RendezvousRead => Placement::RendezvousRead,
            Self::RendezvousWrite => Placement::RendezvousWrite,
        })
    }
}

/// The policy for one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Use only this transport. Peers that cannot use it are refused.
    Require,
    /// Use it if both sides can.
    Prefer,
    /// Never use it.
    Off,
}

macro_rules! policies {
    ($($(#[doc = $about:literal])+ $name:ident => $driver:ident: $medium:ident,)+) => {
        /// The policies for all transports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields, default)]
        pub struct Policies {
            $($(#[doc = $about])+ pub $name: Policy,)+
            /// Protect payloads with a CRC32C checksum on every transport except shared memory. Servers verify the checksum
            /// before they reduce, and corrupted payloads are sent again. Costs one pass over the bytes at each end. Headers
            /// always have a checksum. With it, all tensors use placement `slot`. A setting of workers.
            pub payload_checksum: bool,
            /// If servers are on other hosts, the workers of a host add their contributions in shared memory, and one of them sends the
            /// sum and shares what returns. `docs/concepts.md` lists the tensors for which they do so. A setting of workers.
            pub merge: bool,
            /// How contributions are transferred: `auto` selects a placement per tensor; `slot`, `static`, `rendezvous-read`
            /// or `rendezvous-write` applies to all tensors. A setting of workers.
            #[cfg_attr(test, schemars(with = "String"))]
            pub placement: PlacementPolicy,
        }

        impl Default for Policies {
            fn default() -> Self {
                Self { $($name: Policy::Prefer,)+ payload_checksum: false, merge: true, placement: PlacementPolicy::Auto }
            }
        }

        impl Policies {
            /// Requires one transport and turns the others off.
            #[must_use]
            pub fn only(driver: Driver) -> Self {
                let policy = |each| if each == driver { Policy::Require } else { Policy::Off };
                Self { $($name: policy(Driver::$driver),)+ ..Self::default() }
            }

            /// The policy for one transport.
            #[must_use]
            pub fn of(&self, driver: Driver) -> Policy {
                match driver {
                    $(Driver::$driver => self.$name,)+
                }
            }
        }
    };
}

drivers::for_each_driver!(policies);

impl Policies {
    /// The transport besides which none is used.
    #[must_use]
    pub fn required(&self) -> Option<Driver> {
        Driver::ALL.into_iter().find(|driver| self.of(*driver) == Policy::Require)
    }

    /// Whether payloads over this transport have a checksum. Nothing is on the way between processes that share memory.
    #[must_use]
    pub fn sums_over(&self, driver: Driver) -> bool {
        self.payload_checksum && !driver.shares_memory()
    }
}

/// The capabilities of one side, with reasons for what it cannot do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Identity of the host for shared memory (boot id and network namespace).
    pub host: String,
    /// Effective user id: shared memory is used between processes of one user.
    pub uid: u32,
    /// The policies.
    pub policies: Policies,
    /// Transports that are unavailable here, with the reason.
    pub missing: Vec<(Driver, String)>,
}

/// No transport satisfies both sides' policies.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error(
    "no transport satisfies both sides: {reasons}; set transport.<name> = \"prefer\" on both sides, or fix the cause"
)]
pub struct NoTransport {
    /// Why each transport was ruled out.
    pub reasons: String,
}

/// One side's offer, with what reasons call that side.
struct Offering<'a>(&'static str, &'a Offer);

impl Side for Offering<'_> {
    fn name(&self) -> &str {
        self.0
    }

    fn place(&self) -> (&str, u32) {
        (&self.1.host, self.1.uid)
    }

    fn required(&self) -> Option<Driver> {
        self.1.policies.required()
    }

    fn obstacle(&self, driver: Driver) -> Option<String> {
        if self.1.policies.of(driver) == Policy::Off {
            return Some(format!("turned off in {}'s settings", self.0));
        }
        let missing = self.1.missing.iter().find(|(missing, _)| *missing == driver);
        missing.map(|(_, reason)| reason.clone())
    }
}

fn both<'a>(worker: &'a Offer, server: &'a Offer) -> (Offering<'a>, Offering<'a>) {
    (Offering("the worker", worker), Offering("the server", server))
}

/// Selects the transport between a worker (`a`) and a server (`b`).
pub fn choose(a: &Offer, b: &Offer) -> Result<Choice, NoTransport> {
    let (worker, server) = both(a, b);
    drivers::choose(&worker, &server).map_err(|reasons| NoTransport { reasons })
}

/// Why a worker (`a`) and a server (`b`) cannot use a transport; `None` if they can.
#[must_use]
pub fn obstacle(driver: Driver, a: &Offer, b: &Offer) -> Option<String> {
    let (worker, server) = both(a, b);
    drivers::obstacle(driver, &worker, &server)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(host: &str) -> Offer {
        let missing = vec![(Driver::Verbs, "no RDMA device here".to_owned())];
        Offer { host: host.into(), uid: 0, policies: Policies::default(), missing }
    }

    #[test]
    fn one_host_shares_memory_two_hosts_use_tcp_and_say_why() {
        assert_eq!(choose(&offer("a"), &offer("a")).unwrap().driver, Driver::Shm);
        let choice = choose(&offer("a"), &offer("b")).unwrap();
        assert_eq!(choice.driver, Driver::Tcp);
        assert!(
            choice.why.contains("different hosts") && choice.why.contains("no RDMA device here"),
            "{}",
            choice.why
        );
    }

    #[test]
    fn require_is_met_or_refused_never_silently_replaced() {
        let mut a = offer("a");
        a.policies.verbs = Policy::Require;
        let refused = choose(&a, &offer("a")).unwrap_err();
        assert!(refused.reasons.contains("verbs is required"), "{refused}");
        assert!(refused.reasons.contains("no RDMA device here"), "{refused}");
        let mut tcp = offer("a");
        tcp.policies = Policies::only(Driver::Tcp);
        assert_eq!(choose(&tcp, &offer("a")).unwrap().driver, Driver::Tcp);
        assert_eq!(choose(&offer("a"), &tcp).unwrap().driver, Driver::Tcp);
    }

    #[test]
    fn another_user_on_the_same_host_gets_no_shared_memory() {
        let mut b = offer("a");
        b.uid = 1000;
        assert_eq!(choose(&offer("a"), &b).unwrap().driver, Driver::Tcp);
    }
}
