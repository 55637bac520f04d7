//! The driver between two machines: a pure choice from the capabilities and wishes of both, with the reason.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// Shared memory between processes of one host and user.
    Shm,
    /// RDMA devices.
    Verbs,
    /// Sockets.
    Tcp,
}

impl Driver {
    /// In order of preference.
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

/// The driver between two machines, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The driver.
    pub driver: Driver,
    /// Why it was chosen, and why preferred ones were not.
    pub why: String,
}

/// The capabilities of a machine, as sent to its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Means {
    pub(super) host: String,
    pub(super) uid: u32,
    /// Only this driver, if set.
    pub(super) required: Option<Driver>,
    /// Why no RDMA device is in use.
    pub(super) no_verbs: Option<String>,
}

/// Chooses the driver. The error has the reason for each that is excluded.
pub(super) fn choose(ours: &Means, theirs: &Means) -> Result<Choice, String> {
    let mut ruled_out = Vec::new();
    for driver in Driver::ALL {
        match obstacle(driver, ours, theirs) {
            None if ruled_out.is_empty() => {
                return Ok(Choice { driver, why: "the first choice, and both can".into() });
            }
            None => return Ok(Choice { driver, why: ruled_out.join("; ") }),
            Some(why) => ruled_out.push(format!("no {driver} ({why})")),
        }
    }
    Err(ruled_out.join("; "))
}

fn obstacle(driver: Driver, ours: &Means, theirs: &Means) -> Option<String> {
    for (side, means) in [("this side", ours), ("the peer", theirs)] {
        if let Some(required) = means.required.filter(|required| *required != driver) {
            return Some(format!("{required} is required by {side}"));
        }
    }
    match driver {
        Driver::Shm if ours.host != theirs.host => Some("different hosts".into()),
        Driver::Shm if ours.uid != theirs.uid => Some("different users".into()),
        Driver::Verbs => ours.no_verbs.clone().or_else(|| {
            let why = theirs.no_verbs.as_ref()?;
            Some(format!("the peer: {why}"))
        }),
        Driver::Shm | Driver::Tcp => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(host: &str) -> Means {
        Means { host: host.into(), uid: 1, required: None, no_verbs: None }
    }

    #[test]
    fn shared_memory_then_verbs_then_tcp_and_the_reason() {
        let (here, there) = (means("a"), means("b"));
        let chosen = |ours: &Means, theirs: &Means| choose(ours, theirs).unwrap();
        assert_eq!(chosen(&here, &here).driver, Driver::Shm);
        assert_eq!(chosen(&here, &Means { uid: 2, ..here.clone() }).driver, Driver::Verbs);
        assert_eq!(chosen(&here, &there).driver, Driver::Verbs);
        let without = Means { no_verbs: Some("no device".into()), ..there };
        let choice = chosen(&here, &without);
        assert_eq!(choice.driver, Driver::Tcp);
        assert_eq!(choice.why, "no shm (different hosts); no verbs (the peer: no device)");
    }

    #[test]
    fn what_one_side_requires_is_had_or_nothing() {
        let here = means("a");
        let tcp = Means { required: Some(Driver::Tcp), ..here.clone() };
        assert_eq!(choose(&here, &tcp).unwrap().driver, Driver::Tcp);
        let shm = Means { required: Some(Driver::Shm), ..here };
        let why = choose(&shm, &tcp).unwrap_err();
        assert!(why.contains("no tcp (shm is required by this side)"), "{why}");
    }
}
