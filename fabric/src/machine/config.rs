//! What a machine is opened with: the paper's three arguments, and what has a default.

use super::choice::Driver;
use crate::devices::DevicesConfig;
use crate::error::FabricError;
use crate::verbs::VerbsConfig;
use std::net::SocketAddr;
use std::time::Duration;

/// Completion queues of a machine.
const NUM_CQS_MAX: u16 = 64;
/// Queue pairs with each peer.
const NUM_QPS_PER_PEER_MAX: u16 = 1024;

/// See [`Machine::open`](super::Machine::open).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineConfig {
    /// Where peers reach it for set-up: an address of this host that they can use, and a port (0: any that is free).
    pub endpoint: SocketAddr,
    /// Completion queues, each with a polling thread.
    pub num_cqs: u16,
    /// Queue pairs (channels) with each peer.
    pub num_qps_per_peer: u16,
    /// This driver or none; the first of shm, verbs and tcp that both sides have unless said.
    pub driver: Option<Driver>,
    /// The RDMA device; none where it is not wanted.
    pub verbs: Option<VerbsConfig>,
    /// Unfinished requests of a channel; more wait in order.
    pub send_depth: usize,
    /// How long a polling thread spins before it sleeps.
    pub spin: Duration,
    /// Each step of setting up.
    pub step: Duration,
    /// A copy, from when it is handed over.
    pub copy_within: Duration,
}

impl MachineConfig {
    /// The paper's arguments, and defaults.
    #[must_use]
    pub fn new(endpoint: SocketAddr, num_cqs: u16, num_qps_per_peer: u16) -> Self {
        Self {
            endpoint,
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
        if self.send_depth == 0 || self.step.is_zero() || self.copy_within.is_zero() {
            return wrong("send_depth, step and copy_within cannot be 0".into());
        }
        Ok(())
    }

    pub(super) fn devices(&self) -> DevicesConfig {
        let may_be_used = self.driver.is_none_or(|driver| driver == Driver::Verbs);
        DevicesConfig {
            bind: self.endpoint.ip(),
            advertise: self.endpoint.ip().to_string(),
            unix_sockets: true,
            verbs: self.verbs.clone().filter(|_| may_be_used),
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
        assert!(!is_good(|c| c.copy_within = Duration::ZERO) && !is_good(|c| c.step = Duration::ZERO));
    }
}
