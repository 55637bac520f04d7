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
    let encrypt = settings.security.encrypt_data;
    // The hardware would carry it as it is.
    let (open, wanted): (Vec<_>, Vec<_>) = Driver::ALL
        .into_iter()
        .filter(|driver| may_matter(settings, *driver))
        .partition(|d| encrypt && d.is_device());
    let config = DevicesConfig {
        bind: settings.node.bind.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        advertise: advertised(settings),
        unix_sockets: settings.node.unix_sockets,
        encrypt,
        wanted,
        verbs: verbs_config(settings),
    };
    let (devices, failed) = Devices::open(&config);
    let failed = failed.into_iter().map(|(driver, error)| (driver, error.to_string()));
    let ruled_out = |driver| (driver, format!("security.encrypt_data is on, and {driver} cannot encrypt"));
    let missing: Vec<_> = failed.chain(open.into_iter().map(ruled_out)).collect();
    for (driver, reason) in &missing {
        lacking(settings, *driver, reason)?;
        tracing::info!(reason, "no {driver}; using other transports");
    }
    Ok((devices, missing))
}

/// Once the number of lanes is known: is there enough of everything for their queues? Where not, other transports are
/// used and peers are told why; a transport that is required and cannot serve is an error.
pub fn settle(
    settings: &Settings,
    devices: &mut Devices,
    offer: &mut Offer,
    lanes: u16,
) -> Result<(), Lacking> {
    for (driver, error) in devices.keep_those_for(lanes, PROBE_DEPTH) {
        let reason = format!("{driver} cannot serve {lanes} lanes (cluster.lanes): {error}");
        lacking(settings, driver, &reason)?;
        tracing::warn!(reason, "not using {driver}; using other transports");
        offer.missing.push((driver, reason));
    }
    Ok(())
}

/// An error if the settings require a transport that is missing.
fn lacking(settings: &Settings, driver: Driver, reason: &str) -> Result<(), Lacking> {
    match settings.transport.of(driver) {
        Policy::Require => Err(Lacking { driver, reason: reason.to_owned() }),
        Policy::Prefer | Policy::Off => Ok(()),
    }
}

/// Nobody uses a transport that is off, or where another one is required.
fn may_matter(settings: &Settings, driver: Driver) -> bool {
    let required = settings.transport.required();
    settings.transport.of(driver) != Policy::Off && required.is_none_or(|required| required == driver)
}

fn verbs_config(settings: &Settings) -> VerbsConfig {
    let verbs = &settings.verbs;
    VerbsConfig {
        device: verbs.device.clone(),
        port: verbs.port,
        gid_index: verbs.gid_index,
        timeout: verbs.timeout,
        traffic_class: verbs.traffic_class,
        tail_flags: verbs.tail_flags,
        registered_bytes_max: settings.memory.registered_bytes,
    }
}

/// The device of a driver that two peers agreed on.
pub fn of(devices: &Devices, driver: Driver) -> Result<&dyn Device, String> {
    devices.device(driver).ok_or_else(|| format!("{driver} was selected, but this process has not opened it"))
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
        assert!(devices.verbs().is_none());
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
        assert!(devices.verbs().is_none() && missing[0].1.contains("encrypt_data"), "{missing:?}");
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
