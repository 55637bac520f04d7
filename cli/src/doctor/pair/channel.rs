//! One end of a trial's channel: its queue, and connecting or being connected to. Blocks its thread, no longer than a
//! step; says of what fails why, and what to do.

use super::Host;
use super::exchange::{End, Patience, Side};
use super::words::Trial;
use fabric::{ChannelSetup, Devices, FabricError, LaneQueue, PendingOffer};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// Unfinished requests a channel may have.
const DEPTH: usize = 64;
/// What measuring takes beside the waits.
const MEASURING: Duration = Duration::from_secs(2);

/// A queue with an offer on it that waits to be taken up.
pub(super) struct Invitation {
    queue: LaneQueue,
    pending: Box<dyn PendingOffer>,
}

impl Host {
    /// How long using a channel may take.
    pub(super) fn while_used(&self) -> Patience {
        Patience { deadline: Instant::now() + self.step + MEASURING, spin: self.spin }
    }

    fn queue(&self, trial: Trial) -> Result<LaneQueue, String> {
        self.devices.lane_over(trial.driver, DEPTH).map_err(|error| explain(&error, trial))
    }

    /// The device that a trial is about; of sockets with this kind of them.
    fn devices(&self, trial: Trial) -> Devices {
        let mut devices = self.devices.clone();
        devices.tcp = devices.tcp.with_unix(trial.is_unix && self.unix_sockets);
        devices
    }

    /// The listener's side: what the visitor connects to.
    pub(super) fn invite(&self, trial: Trial) -> Result<(Vec<u8>, Invitation), String> {
        let queue = self.queue(trial)?;
        let devices = self.devices(trial);
        let offered = daemon::devices::of(&devices, trial.driver)?.offer(&[queue.handle()]);
        let (offer, pending) = offered.map_err(|error| explain(&error, trial))?;
        Ok((offer, Invitation { queue, pending }))
    }

    /// The listener's side, once the visitor knows the offer.
    pub(super) fn welcome(&self, trial: Trial, invitation: Invitation) -> Result<End, String> {
        let Invitation { queue, pending } = invitation;
        let accepted = pending.accept(Instant::now() + self.step);
        let setup = accepted.map_err(|error| explain(&error, trial))?.pop().ok_or("no channel came of it")?;
        End::new(queue, setup, Side::Listener, self.while_used())
    }

    /// The visitor's side.
    pub(super) fn join(&self, trial: Trial, offer: &[u8]) -> Result<End, String> {
        let queue = self.queue(trial)?;
        let (devices, deadline) = (self.devices(trial), Instant::now() + self.step);
        let device = daemon::devices::of(&devices, trial.driver)?;
        let connected = device.connect(offer, 0, &queue.handle(), deadline);
        let setup = connected.map_err(|error| explain(&error, trial))?;
        is_meant(trial, &setup)?;
        End::new(queue, setup, Side::Visitor, self.while_used())
    }
}

/// The tcp driver uses TCP where a unix socket cannot be reached; that is another trial.
fn is_meant(trial: Trial, setup: &ChannelSetup) -> Result<(), String> {
    match trial.is_unix && setup.carrier() != "unix socket" {
        true => {
            Err("the peer's unix socket cannot be reached (is node.unix_sockets off there?); TCP is used"
                .into())
        }
        false => Ok(()),
    }
}

/// The error with what to do, where it does not say so itself.
fn explain(error: &FabricError, trial: Trial) -> String {
    let over_network = trial.is_over_network();
    let fix = match error {
        FabricError::Deadline { .. } if over_network => {
            "; a firewall drops packets: data connections use TCP ports of the system's choice \
             (sysctl net.ipv4.ip_local_port_range), open those between the hosts"
        }
        FabricError::Os { source, .. } if over_network && source.kind() == ErrorKind::ConnectionRefused => {
            "; a firewall rejects it, or node.advertise of the listener names another host: data connections use \
             TCP ports of the system's choice (sysctl net.ipv4.ip_local_port_range), open those between the hosts"
        }
        _ => "",
    };
    format!("{error}{fix}")
}

/// What a channel that is connected and carries nothing lacks.
pub(super) fn hint(trial: Trial) -> &'static str {
    match trial.is_over_network() {
        true if trial.driver.is_device() => {
            "; RoCEv2 packets are UDP to port 4791: open it between the hosts, and see whether both devices' addresses \
             reach each other (ping)"
        }
        true => {
            "; small packets pass and large ones do not where the MTU differs on the way (ping -M do -s 1472 PEER)"
        }
        false => "",
    }
}
