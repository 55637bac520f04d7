//! What a machine tells its peers, so that both choose the same driver by the rules of the crate `drivers`.

use drivers::{Choice, Driver, Side};
use serde::{Deserialize, Serialize};

/// The capabilities of a machine, as sent to its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Means {
    pub(super) host: String,
    pub(super) uid: u32,
    /// Only this driver, if set.
    pub(super) required: Option<Driver>,
    /// The drivers that it has not, and why.
    pub(super) missing: Vec<(Driver, String)>,
}

/// A machine's means, with what reasons call it.
struct Having<'a>(&'static str, &'a Means);

impl Side for Having<'_> {
    fn name(&self) -> &str {
        self.0
    }

    fn place(&self) -> (&str, u32) {
        (&self.1.host, self.1.uid)
    }

    fn required(&self) -> Option<Driver> {
        self.1.required
    }

    fn obstacle(&self, driver: Driver) -> Option<String> {
        let missing = self.1.missing.iter().find(|(missing, _)| *missing == driver);
        missing.map(|(_, why)| format!("{}: {why}", self.0))
    }
}

/// Chooses the driver. The error has the reason for each that is excluded.
pub(super) fn choose(ours: &Means, theirs: &Means) -> Result<Choice, String> {
    drivers::choose(&Having("this side", ours), &Having("the peer", theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_its_side() {
        let ours = Means { host: "a".into(), uid: 1, required: None, missing: Vec::new() };
        assert_eq!(choose(&ours, &ours).unwrap().driver, Driver::Shm);
        let theirs =
            Means { host: "b".into(), missing: vec![(Driver::Verbs, "no device".into())], ..ours.clone() };
        let choice = choose(&ours, &theirs).unwrap();
        assert_eq!(choice.driver, Driver::Tcp);
        assert_eq!(choice.why, "tcp: no shm (different hosts); no verbs (the peer: no device)");
        let required = Means { required: Some(Driver::Shm), ..ours };
        let why = choose(&required, &theirs).unwrap_err();
        assert!(why.contains("no tcp (shm is required by this side)"), "{why}");
    }
}
