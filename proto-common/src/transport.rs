//! Which driver two peers use: a pure choice from both sides' policies and offers, with the reason.

use crate::plan::PlacementPolicy;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// A fabric driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// Shared memory between processes of one host.
    Shm,
    /// RDMA verbs.
    Verbs,
    /// TCP.
    Tcp,
}

impl Driver {
    /// In the order of preference where policies leave a choice.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Verbs, Self::Tcp];
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
        })
    }
}

/// The contract for one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// This driver or none: a peer that cannot is refused.
    Require,
    /// Use it where both sides can.
    Prefer,
    /// Never use it.
    Off,
}

/// The contract for all drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Policies {
    /// Shared memory.
    pub shm: Policy,
    /// RDMA verbs.
    pub verbs: Policy,
    /// TCP.
    pub tcp: Policy,
    /// Workers put a checksum (CRC32C) over the payload of what they send by another driver than shared memory;
    /// servers check it before any of it is reduced, and what changed on the way is sent again. Costs a pass over
    /// the bytes at each end; header and table have their checksum in any case. Such payloads travel in slots only,
    /// whatever their tensors' placement: no checksum covers what is read or written one-sided. Workers' setting only.
    pub payload_checksum: bool,
    /// How contributions travel: `auto` chooses for each tensor, the others are for all. Workers' setting only.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub placement: PlacementPolicy,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            shm: Policy::Prefer,
            verbs: Policy::Prefer,
            tcp: Policy::Prefer,
            payload_checksum: false,
            placement: PlacementPolicy::Auto,
        }
    }
}

impl Policies {
    /// Only this driver.
    #[must_use]
    pub fn only(driver: Driver) -> Self {
        let policy = |d| if d == driver { Policy::Require } else { Policy::Off };
        let [shm, verbs, tcp] = [Driver::Shm, Driver::Verbs, Driver::Tcp].map(policy);
        Self { shm, verbs, tcp, ..Self::default() }
    }

    /// The policy for one driver.
    #[must_use]
    pub fn of(&self, driver: Driver) -> Policy {
        match driver {
            Driver::Shm => self.shm,
            Driver::Verbs => self.verbs,
            Driver::Tcp => self.tcp,
        }
    }
}

/// What one side can do, and why not where it cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Identity of the host as far as shared memory reaches (boot id and network namespace).
    pub host: String,
    /// Effective user id: shared memory is for one user's processes.
    pub uid: u32,
    /// The contract.
    pub policies: Policies,
    /// Drivers that cannot be opened here, with the reason.
    pub missing: Vec<(Driver, String)>,
}

/// The driver chosen and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The driver.
    pub driver: Driver,
    /// Why this one; and why not the ones before it.
    pub why: String,
}

/// No driver satisfies both contracts.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error(
    "no transport satisfies both sides: {reasons}; set transport.<driver> = \"prefer\" on both sides, or mend the cause"
)]
pub struct NoTransport {
    /// Why each driver was ruled out.
    pub reasons: String,
}

/// Chooses the driver between a worker (`a`) and a server (`b`).
pub fn choose(a: &Offer, b: &Offer) -> Result<Choice, NoTransport> {
    let mut ruled_out: Vec<String> = Vec::new();
    for driver in Driver::ALL {
        match obstacle(driver, a, b) {
            None => {
                let why = match ruled_out.is_empty() {
                    true => format!("{driver}: first choice, both sides can"),
                    false => format!("{driver}: {}", ruled_out.join("; ")),
                };
                return Ok(Choice { driver, why });
            }
            Some(reason) => ruled_out.push(format!("no {driver} ({reason})")),
        }
    }
    Err(NoTransport { reasons: ruled_out.join("; ") })
}

/// Why a worker (`a`) and a server (`b`) cannot use a driver; none where they can.
#[must_use]
pub fn obstacle(driver: Driver, a: &Offer, b: &Offer) -> Option<String> {
    // A requirement explains more than an "off" that goes with it.
    for (side, offer) in [("worker", a), ("server", b)] {
        let required = Driver::ALL.iter().find(|d| offer.policies.of(**d) == Policy::Require);
        if let Some(other) = required.filter(|d| **d != driver) {
            return Some(format!("{other} is required by the {side}"));
        }
    }
    for (side, offer) in [("worker", a), ("server", b)] {
        if offer.policies.of(driver) == Policy::Off {
            return Some(format!("off by the {side}'s setting"));
        }
        if let Some((_, reason)) = offer.missing.iter().find(|(d, _)| *d == driver) {
            return Some(reason.clone());
        }
    }
    if driver == Driver::Shm && a.host != b.host {
        return Some("different hosts".into());
    }
    if driver == Driver::Shm && a.uid != b.uid {
        return Some("different users".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(host: &str) -> Offer {
        let missing = vec![(Driver::Verbs, "built without verbs".to_owned())];
        Offer { host: host.into(), uid: 0, policies: Policies::default(), missing }
    }

    #[test]
    fn one_host_shares_memory_two_hosts_use_tcp_and_say_why() {
        assert_eq!(choose(&offer("a"), &offer("a")).unwrap().driver, Driver::Shm);
        let choice = choose(&offer("a"), &offer("b")).unwrap();
        assert_eq!(choice.driver, Driver::Tcp);
        assert!(
            choice.why.contains("different hosts") && choice.why.contains("built without verbs"),
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
        assert!(refused.reasons.contains("built without verbs"), "{refused}");
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
