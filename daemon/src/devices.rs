//! From settings to devices: which drivers this process has, which it lacks and why, and the one that two peers chose.

use fabric::{Device, Devices, DevicesConfig, VerbsConfig};
use proto_common::config::Settings;
use proto_common::transport::{Driver, Offer, Policy};
use std::net::{IpAddr, Ipv4Addr};
use thiserror::Error;

/// What lanes ask for at least, per channel.
const PROBE_DEPTH: usize = 256;

/// A driver is required and cannot be had here.
#[derive(Debug, Error)]
#[error(
    "transport.{driver} = \"require\" but this transport is unavailable: {reason}; fix the cause, or set transport.{driver} = \"prefer\""
)]
pub struct Lacking {
    /// Which.
    pub driver: Driver,
    /// Why not.
    pub reason: String,
}

/// The name or address under which peers reach this process.
#[must_use]
pub fn advertised(settings: &Settings) -> String {
    settings.node.advertise.clone().unwrap_or_else(|| settings.node.bind.clone())
}

/// Opens what the settings allow. Also the drivers that cannot be had here, with the reason; one that is required is an
/// error.
pub fn open(settings: &Settings) -> Result<(Devices, Vec<(Driver, String)>), Lacking> {
    let (policy, encrypts) = (settings.transport.verbs, settings.security.encrypt_data);
    let config = DevicesConfig {
        bind: settings.node.bind.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        advertise: advertised(settings),
        unix_sockets: settings.node.unix_sockets,
        encrypt: settings.security.encrypt_data,
        verbs: (policy != Policy::Off && may_matter(settings) && !encrypts).then(|| verbs_config(settings)),
    };
    let (devices, lacking) = Devices::open(&config);
    // The hardware would carry it as it is.
    let open = "security.encrypt_data is on, and RDMA cannot encrypt";
    let ruled_out = (encrypts && policy != Policy::Off && may_matter(settings)).then(|| open.to_owned());
    let Some(reason) = lacking.map(|error| error.to_string()).or(ruled_out) else {
        return Ok((devices, Vec::new()));
    };
    if policy == Policy::Require {
        return Err(Lacking { driver: Driver::Verbs, reason });
    }
    tracing::info!(reason, "no RDMA device; using other transports");
    Ok((devices, vec![(Driver::Verbs, reason)]))
}

/// Once the number of lanes is known: is there enough of everything for their queues? Where not, other transports are
/// used and peers are told why; a device that is required and cannot serve is an error.
pub fn settle(
    settings: &Settings,
    devices: &mut Devices,
    offer: &mut Offer,
    lanes: u16,
) -> Result<(), Lacking> {
    if devices.verbs.is_none() {
        return Ok(());
    }
    let tried: Result<Vec<_>, _> = (0..lanes).map(|_| devices.lane(PROBE_DEPTH)).collect();
    let Err(error) = tried else { return Ok(()) };
    let reason = format!("the RDMA device cannot serve {lanes} lanes (cluster.lanes): {error}");
    if settings.transport.verbs == Policy::Require {
        return Err(Lacking { driver: Driver::Verbs, reason });
    }
    tracing::warn!(reason, "not using the RDMA device; using other transports");
    devices.verbs = None;
    offer.missing.push((Driver::Verbs, reason));
    Ok(())
}

/// Nobody uses a RDMA device where another driver is required.
fn may_matter(settings: &Settings) -> bool {
    let others = [Driver::Shm, Driver::Tcp];
    others.iter().all(|driver| settings.transport.of(*driver) != Policy::Require)
}

fn verbs_config(settings: &Settings) -> VerbsConfig {
    let verbs = &settings.verbs;
    VerbsConfig {
        device: verbs.device.clone(),
        port: verbs.port,
        gid_index: verbs.gid_index,
        timeout: verbs.timeout,
        retries: verbs.retries,
        traffic_class: verbs.traffic_class,
        mtu_bytes: verbs.mtu_bytes,
        tail_flags: verbs.tail_flags,
        registered_bytes_max: settings.memory.registered_bytes,
    }
}

/// The device of a driver that two peers agreed on.
pub fn of(devices: &Devices, driver: Driver) -> Result<&dyn Device, String> {
    match driver {
        Driver::Shm => Ok(&devices.shm),
        Driver::Tcp => Ok(&devices.tcp),
        Driver::Verbs => {
            devices.verbs().ok_or_else(|| "verbs was selected, but this process has no RDMA device".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(edit: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        edit(&mut settings);
        settings
    }

    #[test]
    fn what_is_required_and_cannot_be_had_is_an_error_and_else_a_reason() {
        // No device has this name.
        let named = |settings: &mut Settings| settings.verbs.device = Some("no-such-device".into());
        let (devices, missing) = open(&with(named)).unwrap();
        assert!(devices.verbs.is_none());
        assert_eq!(missing.iter().map(|(driver, _)| *driver).collect::<Vec<_>>(), [Driver::Verbs]);
        assert!(of(&devices, Driver::Verbs).is_err() && of(&devices, Driver::Tcp).is_ok());
        let required = with(|settings| {
            named(settings);
            settings.transport.verbs = Policy::Require;
        });
        let lacking = open(&required).unwrap_err();
        assert_eq!(lacking.reason, missing[0].1);
    }

    #[test]
    fn what_would_not_be_encrypted_is_not_used() {
        let (devices, missing) = open(&with(|settings| settings.security.encrypt_data = true)).unwrap();
        assert!(devices.verbs.is_none() && missing[0].1.contains("encrypt_data"), "{missing:?}");
        let required = with(|settings| {
            settings.security.encrypt_data = true;
            settings.transport.verbs = Policy::Require;
        });
        assert!(open(&required).unwrap_err().reason.contains("cannot encrypt"));
    }

    #[test]
    fn what_is_off_or_cannot_be_chosen_is_not_missed() {
        for edit in [
            |settings: &mut Settings| settings.transport.verbs = Policy::Off,
            |settings: &mut Settings| settings.transport.shm = Policy::Require,
        ] {
            assert_eq!(open(&with(edit)).unwrap().1, Vec::new());
        }
    }
}
