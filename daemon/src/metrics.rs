//! Metrics of one process: a registry of its own (never the global one) and the series every daemon has.

use fabric::Devices;
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, IntGauge, Opts, Registry, TextEncoder};
use proto_common::ids::Role;
use proto_common::limits::PROTOCOL_VERSION;

/// Content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A registry with `process_*` and `gradwire_build_info`, to which a role adds its own series.
pub fn registry(role: Role) -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let info = Opts::new("gradwire_build_info", "Version of this build; the value is always 1.")
        .const_label("version", env!("CARGO_PKG_VERSION"))
        .const_label("protocol", PROTOCOL_VERSION.to_string())
        .const_label("role", role.to_string());
    let gauge = IntGauge::with_opts(info)?;
    gauge.set(1);
    registry.register(Box::new(gauge))?;
    Ok(registry)
}

/// What is told of a process's RDMA device: name, help, value.
type OfDevices = (&'static str, &'static str, fn(&Devices) -> u64);

const OF_DEVICES: [OfDevices; 2] = [
    ("gradwire_registered_bytes", "Bytes registered with the RDMA device.", Devices::registered_bytes),
    (
        "gradwire_device_objects_kept",
        "Objects that the RDMA device did not give back.",
        Devices::kept_objects,
    ),
];

/// Adds what a process with devices knows of its RDMA device; looked at when it is scraped.
pub fn add_devices(registry: &Registry, devices: &Devices) -> Result<(), prometheus::Error> {
    for (name, help, read) in OF_DEVICES {
        let gauge = IntGauge::new(name, help)?;
        registry.register(Box::new(OfDevice { devices: devices.clone(), gauge, read }))?;
    }
    Ok(())
}

struct OfDevice {
    devices: Devices,
    gauge: IntGauge,
    read: fn(&Devices) -> u64,
}

impl Collector for OfDevice {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(i64::try_from((self.read)(&self.devices)).unwrap_or(i64::MAX));
        self.gauge.collect()
    }
}

/// All series in the text format.
pub fn render(registry: &Registry) -> Result<Vec<u8>, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_daemon_says_what_it_is() {
        let text = String::from_utf8(render(&registry(Role::Server).unwrap()).unwrap()).unwrap();
        let wanted = format!("gradwire_build_info{{protocol=\"{PROTOCOL_VERSION}\",role=\"server\"");
        assert!(text.contains(&wanted), "{text}");
        assert!(text.contains("process_resident_memory_bytes"), "{text}");
    }

    #[test]
    fn registered_memory_is_told_and_none_without_a_device() {
        let registry = registry(Role::Worker).unwrap();
        let (devices, _) = crate::devices::open(&proto_common::config::Settings {
            transport: proto_common::transport::Policies::only(proto_common::transport::Driver::Shm),
            ..Default::default()
        })
        .unwrap();
        add_devices(&registry, &devices).unwrap();
        let text = String::from_utf8(render(&registry).unwrap()).unwrap();
        for (name, ..) in OF_DEVICES {
            assert!(text.contains(&format!("\n{name} 0\n")), "{text}");
        }
    }
}
