//! Two hosts tried against each other with real writes: one doctor listens, another visits, and every driver that both
//! have carries a pattern each way. `words` is what they say, `listen` and `visit` are the two sides, `channel` opens
//! an end of a channel, `exchange` uses it.

mod channel;
mod exchange;
mod listen;
mod visit;
mod words;

#[cfg(test)]
mod tests;

pub(super) use listen::listen;
pub(super) use visit::{Outcome, Row, Visit, visit};
pub(super) use words::tame;

use daemon::security::Security;
use fabric::Devices;
use proto_common::config::Settings;
use proto_common::transport::Offer;
use std::sync::Arc;
use std::time::Duration;

/// This process, as far as trials need it.
#[derive(Clone, Debug)]
pub(super) struct Host {
    devices: Devices,
    security: Security,
    offer: Arc<Offer>,
    unix_sockets: bool,
    /// Every single wait.
    step: Duration,
    spin: Duration,
}

impl Host {
    pub(super) fn new(settings: &Settings, (devices, security): (Devices, Security), offer: Offer) -> Self {
        Self {
            devices,
            security,
            offer: Arc::new(offer),
            unix_sockets: settings.node.unix_sockets,
            step: step(settings),
            spin: Duration::from_micros(settings.memory.spin_us),
        }
    }
}

/// How long any single step may take.
pub(super) fn step(settings: &Settings) -> Duration {
    Duration::from_millis(settings.deadlines.handshake_ms)
}
