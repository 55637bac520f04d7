//! The transport between two peers: a pure choice from what both are allowed and able to use, with the reason. Lanes choose by
//! settings and offers, machines by their configuration; both choose here.

use crate::Driver;
use serde::{Deserialize, Serialize};

/// The selected transport and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The transport.
    pub driver: Driver,
    /// Why this transport was selected, and why preferred ones were not.
    pub why: String,
}

/// One of two peers.
pub trait Side {
    /// What reasons call it, such as "the worker".
    fn name(&self) -> &str;

    /// Its host, as the kernel tells hosts and network namespaces apart, and the user of its process.
    fn place(&self) -> (&str, u32);

    /// The only transport that it accepts, if there is one.
    fn required(&self) -> Option<Driver>;

    /// Why it cannot use a transport, whatever its peer can.
    fn obstacle(&self, driver: Driver) -> Option<String>;
}

/// Selects the transport. The error is the reason why each was ruled out.
pub fn choose(ours: &impl Side, theirs: &impl Side) -> Result<Choice, String> {
    let mut ruled_out: Vec<String> = Vec::new();
    for driver in Driver::ALL {
        match obstacle(driver, ours, theirs) {
            None => {
                let why = match ruled_out.is_empty() {
                    true => format!("{driver}: first choice, available on both sides"),
                    false => format!("{driver}: {}", ruled_out.join("; ")),
                };
                return Ok(Choice { driver, why });
            }
            Some(reason) => ruled_out.push(format!("no {driver} ({reason})")),
        }
    }
    Err(ruled_out.join("; "))
}

/// Why two peers cannot use a transport; `None` if they can.
#[must_use]
pub fn obstacle(driver: Driver, ours: &impl Side, theirs: &impl Side) -> Option<String> {
    let sides: [&dyn Side; 2] = [ours, theirs];
    // A requirement explains more than an "off" that goes with it.
    for side in sides {
        if let Some(other) = side.required().filter(|required| *required != driver) {
            return Some(format!("{other} is required by {}", side.name()));
        }
    }
    if let Some(reason) = sides.iter().find_map(|side| side.obstacle(driver)) {
        return Some(reason);
    }
    let [(host, user), (their_host, their_user)] = sides.map(Side::place);
    match driver.shares_memory() {
        true if host != their_host => Some("different hosts".into()),
        true if user != their_user => Some("different users".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Peer(&'static str, u32, Option<Driver>);

    impl Side for Peer {
        fn name(&self) -> &'static str {
            "this one"
        }

        fn place(&self) -> (&str, u32) {
            (self.0, self.1)
        }

        fn required(&self) -> Option<Driver> {
            self.2
        }

        fn obstacle(&self, driver: Driver) -> Option<String> {
            driver.is_device().then(|| "no device".into())
        }
    }

    #[test]
    fn the_first_that_both_can_use_with_the_reason_against_each_before_it() {
        let here = Peer("a", 1, None);
        let first = choose(&here, &here).unwrap();
        assert!(first.driver.shares_memory() && first.why.contains("first choice"), "{first:?}");
        for (other, reason) in
            [(Peer("b", 1, None), "different hosts"), (Peer("a", 2, None), "different users")]
        {
            let choice = choose(&here, &other).unwrap();
            assert_eq!(choice.driver, Driver::Tcp);
            assert_eq!(choice.why, format!("tcp: no shm ({reason}); no verbs (no device)"));
        }
    }

    #[test]
    fn what_one_side_requires_is_used_or_nothing() {
        let required = |driver| Peer("a", 1, Some(driver));
        let here = Peer("a", 1, None);
        assert_eq!(choose(&here, &required(Driver::Tcp)).unwrap().driver, Driver::Tcp);
        let refused = choose(&required(Driver::Shm), &required(Driver::Tcp)).unwrap_err();
        assert!(refused.contains("no tcp (shm is required by this one)"), "{refused}");
        let none = choose(&here, &required(Driver::Verbs)).unwrap_err();
        assert!(none.contains("no verbs (no device)"), "{none}");
    }
}
