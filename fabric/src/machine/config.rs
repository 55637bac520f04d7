//! The configuration of a machine: the paper's three arguments, and others with defaults.

use crate::devices::DevicesConfig;
use crate::error::FabricError;
use crate::verbs::VerbsConfig;
use drivers::Driver;
use std::net::SocketAddr;
use std::time::Duration;

/// The largest wait: a clock can represent its end.
pub(super) const WITHIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Completion queues of a machine, at most.
const NUM_CQS_MAX: u16 = 64;
/// Queue pairs with each peer, at most.
const NUM_QPS_PER_PEER_MAX: u16 = 1024;

/// Bytes of a secret, at most.
const SECRET_BYTES_MAX: usize = 256;

/// A shared secret of machines that may connect to each other.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    /// Secrets do not appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Secret {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in constant time, so that the time does not reveal how many bytes match.
    pub(super) fn is(&self, other: &str) -> bool {
        let pairs = self.0.bytes().zip(other.bytes());
        other.len() == self.0.len() && pairs.fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }
}

/// See [`Machine::open`](super::Machine::open).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineConfig {
    /// The set-up address for peers: an address of this host that they can reach, and a port (0: any free port).
    pub endpoint: SocketAddr,
    /// The connecting side must send this secret first. Optional on a loopback address; then every process on this
    /// host may read and write what is published. It is sent unencrypted, like offers: it protects against other
    /// hosts, but not against a peer that reads the network.
    pub secret: Secret,
    /// Completion queues, each with a polling thread.
    pub num_cqs: u16,
    /// Queue pairs (channels) with each peer.
    pub num_qps_per_peer: u16,
    /// Only this driver, if set; otherwise the first in the order of preference that both sides have.
    pub driver: Option<Driver>,
    /// The RDMA device, if it is to be used.
    pub verbs: Option<VerbsConfig>,
    /// Unfinished requests of a channel, at most; further ones wait in order.
    pub send_depth: usize,
    /// How long a polling thread spins before it sleeps.
    pub spin: Duration,
    /// Time limit of each step of the set-up.
    pub step: Duration,
    /// Time limit of a copy, from its submission.
    pub copy_within: Duration,
}

impl MachineConfig {
    /// The paper's arguments, and defaults.
    #[must_use]
    pub fn new(endpoint: SocketAddr, num_cqs: u16, num_qps_per_peer: u16) -> Self {
        Self {
            endpoint,
            secret: Secret::default(),
            num_cqs,
            num_qps_per_peer,
            driver: None,
            verbs: Some(VerbsConfig::default()),
            send_depth: 64,
            spin: Duration::from_micros(50),
            step: Duration::from_secs(5),
            copy_within: Duration::from_secs(30),
        }
    }

    pub(super) fn check(&self) -> Result<(), FabricError> {
        let wrong = |text: String| Err(FabricError::Misuse(text));
        if !(1..=NUM_CQS_MAX).contains(&self.num_cqs) {
            return wrong(format!("num_cqs = {}: use 1 to {NUM_CQS_MAX}", self.num_cqs));
        }
        if !(1..=NUM_QPS_PER_PEER_MAX).contains(&self.num_qps_per_peer) {
            let given = self.num_qps_per_peer;
            return wrong(format!("num_qps_per_peer = {given}: use 1 to {NUM_QPS_PER_PEER_MAX}"));
        }
        if self.endpoint.ip().is_unspecified() {
            return wrong(format!("endpoint {}: name the address that peers are to use", self.endpoint));
        }
        if self.secret.0.len() > SECRET_BYTES_MAX {
            return wrong(format!(
                "a secret of {} bytes: use at most {SECRET_BYTES_MAX}",
                self.secret.0.len()
            ));
        }
        if self.secret.0.is_empty() && !self.endpoint.ip().is_loopback() {
            let at = self.endpoint;
            return wrong(format!(
                "endpoint {at} can be reached from other hosts: set a secret, the same at all machines, or use a loopback address"
            ));
        }
        if self.step.max(self.copy_within) > WITHIN_MAX {
            return wrong(format!("step and copy_within: use at most {} s", WITHIN_MAX.as_secs()));
        }
        if self.send_depth == 0 || self.step.is_zero() || self.copy_within.is_zero() {
            return wrong("send_depth, step and copy_within cannot be 0".into());
        }
        Ok(())
    }

    pub(super) fn devices(&self) -> DevicesConfig {
        let has_settings = |driver| driver != Driver::Verbs || self.verbs.is_some();
        let may_be_used = |driver: &Driver| self.driver.is_none_or(|required| required == *driver);
        let wanted = Driver::ALL.into_iter().filter(|driver| may_be_used(driver) && has_settings(*driver));
        DevicesConfig {
            bind: self.endpoint.ip(),
            advertise: self.endpoint.ip().to_string(),
            unix_sockets: true,
            encrypt: false,
            wanted: wanted.collect(),
            verbs: self.verbs.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_from_both_sides() {
        let is_good = |edit: fn(&mut MachineConfig)| {
            let mut config = MachineConfig::new("127.0.0.1:0".parse().unwrap(), 1, 1);
            edit(&mut config);
            config.check().is_ok()
        };
        assert!(is_good(|_| ()));
        assert!(is_good(|c| c.num_cqs = 64) && !is_good(|c| c.num_cqs = 65) && !is_good(|c| c.num_cqs = 0));
        assert!(is_good(|c| c.num_qps_per_peer = 1024) && !is_good(|c| c.num_qps_per_peer = 1025));
        assert!(!is_good(|c| c.num_qps_per_peer = 0) && !is_good(|c| c.send_depth = 0));
        assert!(!is_good(|c| c.endpoint = "0.0.0.0:1".parse().unwrap()));
        assert!(!is_good(|c| c.endpoint = "10.0.0.1:1".parse().unwrap()));
        assert!(is_good(|c| {
            c.endpoint = "10.0.0.1:1".parse().unwrap();
            c.secret = "x".repeat(SECRET_BYTES_MAX).into();
        }));
        assert!(!is_good(|c| c.secret = "x".repeat(SECRET_BYTES_MAX + 1).into()));
        assert!(!is_good(|c| c.copy_within = Duration::ZERO) && !is_good(|c| c.step = Duration::ZERO));
    }

    #[test]
    fn a_secret_is_itself_only_and_stays_out_of_logs() {
        let secret = Secret::from("hush".to_owned());
        assert!(secret.is("hush") && Secret::default().is(""));
        for other in ["", "hus", "husH", "hushh"] {
            assert!(!secret.is(other), "{other:?}");
        }
        assert!(!format!("{secret:?}").contains("hush"));
    }
}
