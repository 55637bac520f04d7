//! Metrics of one process: a registry of its own (never the global one) and the series every daemon has.

use crate::flight::Flight;
use crate::process_metrics::ProcessMetrics;
use crate::security::Security;
use fabric::Devices;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use proto_common::config::{SecuritySettings, Settings};
use proto_common::ids::Role;
use proto_common::limits::PROTOCOL_VERSION;

/// Content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A registry with `process_*` and `gradwire_build_info`, to which a role adds its own series.
pub fn registry(role: Role) -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessMetrics::new()?))?;
    let info = Opts::new("gradwire_build_info", "Version of this build; the value is always 1.")
        .const_label("version", env!("CARGO_PKG_VERSION"))
        .const_label("protocol", PROTOCOL_VERSION.to_string())
        .const_label("role", role.to_string());
    let gauge = IntGauge::with_opts(info)?;
    gauge.set(1);
    registry.register(Box::new(gauge))?;
    Ok(registry)
}

/// A setting that alerts compare other series with: its name, and its value in its own unit.
type OfSettings = (&'static str, fn(&Settings) -> u64);

/// Each is told by the role whose value counts.
fn told_by(role: Role) -> &'static [OfSettings] {
    match role {
        Role::Scheduler => &[
            ("checkpoint.every_rounds", |s| s.checkpoint.every_rounds),
            ("cluster.replicas", |s| u64::from(s.cluster.replicas)),
            ("deadlines.silence_ms", |s| s.deadlines.silence_ms),
        ],
        Role::Server => &[
            ("checkpoint.memory_bytes", |s| s.checkpoint.memory_bytes),
            ("memory.registered_bytes", |s| s.memory.registered_bytes),
        ],
        Role::Worker => &[
            ("deadlines.operation_ms", |s| s.deadlines.operation_ms),
            ("memory.pool_bytes", |s| s.memory.pool_bytes),
            ("memory.registered_bytes", |s| s.memory.registered_bytes),
            ("memory.registration_cache_bytes", |s| s.memory.registration_cache_bytes),
        ],
    }
}

/// Adds the settings that others of the process's series are to be compared with.
pub fn add_settings(registry: &Registry, role: Role, settings: &Settings) -> Result<(), prometheus::Error> {
    let about = Opts::new("gradwire_setting_value", "Value of a setting, in the setting's own unit.");
    let values = IntGaugeVec::new(about, &["name"])?;
    for (name, read) in told_by(role) {
        values.with_label_values(&[name]).set(i64::try_from(read(settings)).unwrap_or(i64::MAX));
    }
    registry.register(Box::new(values))
}

type Read<S> = fn(&S) -> u64;

/// Name, help, and where the value is.
pub type Series<S> = (&'static str, &'static str, Read<S>);

/// Series that get their values when they are scraped. Until then the counts are kept by whoever counts.
pub struct Scraped<S> {
    look: Box<dyn Fn() -> S + Send + Sync>,
    counters: Vec<(IntCounter, Read<S>)>,
    gauges: Vec<(IntGauge, Read<S>)>,
    waits: Vec<(Gauge, Read<S>)>,
}

impl<S> Scraped<S> {
    /// Each scrape looks once. Waits are read in milliseconds and told in seconds, Prometheus' unit.
    pub fn new(
        look: impl Fn() -> S + Send + Sync + 'static,
        counters: &[Series<S>],
        gauges: &[Series<S>],
        waits: &[Series<S>],
    ) -> Result<Self, prometheus::Error> {
        let counter = |(name, help, read): &Series<S>| Ok((IntCounter::new(*name, *help)?, *read));
        let gauge = |(name, help, read): &Series<S>| Ok((IntGauge::new(*name, *help)?, *read));
        let wait = |(name, help, read): &Series<S>| Ok((Gauge::new(*name, *help)?, *read));
        Ok(Self {
            look: Box::new(look),
            counters: counters.iter().map(counter).collect::<Result<_, prometheus::Error>>()?,
            gauges: gauges.iter().map(gauge).collect::<Result<_, prometheus::Error>>()?,
            waits: waits.iter().map(wait).collect::<Result<_, prometheus::Error>>()?,
        })
    }
}

impl<S> Collector for Scraped<S> {
    fn desc(&self) -> Vec<&Desc> {
        let counters = self.counters.iter().flat_map(|(counter, _)| counter.desc());
        let gauges = self.gauges.iter().flat_map(|(gauge, _)| gauge.desc());
        counters.chain(gauges).chain(self.waits.iter().flat_map(|(wait, _)| wait.desc())).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let seen = (self.look)();
        let mut families = Vec::new();
        for (counter, read) in &self.counters {
            // What has told nothing yet must not make a counter go back.
            counter.inc_by(read(&seen).saturating_sub(counter.get()));
            families.extend(counter.collect());
        }
        for (gauge, read) in &self.gauges {
            gauge.set(i64::try_from(read(&seen)).unwrap_or(i64::MAX));
            families.extend(gauge.collect());
        }
        for (wait, read) in &self.waits {
            wait.set(read(&seen) as f64 / 1e3);
            families.extend(wait.collect());
        }
        families
    }
}

/// Metrics of a process's RDMA device.
const OF_DEVICES: [Series<Devices>; 2] = [
    ("gradwire_registered_bytes", "Bytes registered with the RDMA device.", Devices::registered_bytes),
    (
        "gradwire_device_objects_kept",
        "Objects that the RDMA device failed to release.",
        Devices::kept_objects,
    ),
];

/// One series with labels, or with values of its own kind, that is brought up to date when it is scraped.
struct Updated<C, F> {
    series: C,
    update: F,
}

impl<C: Collector, F: Fn(&C) + Send + Sync> Collector for Updated<C, F> {
    fn desc(&self) -> Vec<&Desc> {
        self.series.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.update)(&self.series);
        self.series.collect()
    }
}

/// Adds what a process with devices knows of its RDMA device.
pub fn add_devices(registry: &Registry, devices: &Devices) -> Result<(), prometheus::Error> {
    let looked = devices.clone();
    registry.register(Box::new(Scraped::new(move || looked.clone(), &[], &OF_DEVICES, &[])?))?;
    let Some(verbs) = devices.verbs().cloned() else { return Ok(()) };
    let help = "Counters of the RDMA device's port, over all its users, since this process opened it.";
    let about = Opts::new("gradwire_rdma_port_total", help);
    let update = move |counters: &IntCounterVec| {
        let (device, port) = verbs.port();
        let port = port.to_string();
        for (name, count) in verbs.counted().iter() {
            let counter = counters.with_label_values(&[device, &port, name]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    };
    let series = IntCounterVec::new(about, &["device", "port", "counter"])?;
    registry.register(Box::new(Updated { series, update }))
}

/// Adds how many operations, or rounds, were slow.
pub fn add_slow(registry: &Registry, flight: &Flight) -> Result<(), prometheus::Error> {
    let help = "Operations, or rounds of a chunk, that took longer than log.slow_ms.";
    let slow = flight.slow().clone();
    let counter: Series<u64> = ("gradwire_slow_operations_total", help, |seen| *seen);
    registry.register(Box::new(Scraped::new(move || slow.seen(), &[counter], &[], &[])?))
}

/// Adds whether control connections are mutual TLS, and when this process's certificate expires, where it has one.
pub fn add_security(
    registry: &Registry,
    settings: &SecuritySettings,
    security: &Security,
) -> Result<(), prometheus::Error> {
    let help = "1 if control connections use mutual TLS; `mode` is the setting security.mode.";
    let tls = IntGauge::with_opts(
        Opts::new("gradwire_control_plane_tls", help).const_label("mode", settings.mode.to_string()),
    )?;
    tls.set(security.is_on().into());
    registry.register(Box::new(tls))?;
    if security.is_on() {
        let help = "Time at which this process's certificate expires, in seconds since 1970.";
        let security = security.clone();
        let update = move |gauge: &IntGauge| gauge.set(security.expires_s().unwrap_or_default());
        let series = IntGauge::new("gradwire_certificate_expiry_timestamp_seconds", help)?;
        registry.register(Box::new(Updated { series, update }))?;
    }
    Ok(())
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
    fn the_end_of_a_certificate_is_told_where_there_is_one() {
        let shown = |security: &Security| {
            let registry = registry(Role::Worker).unwrap();
            add_security(&registry, &SecuritySettings::default(), security).unwrap();
            String::from_utf8(render(&registry).unwrap()).unwrap()
        };
        let security = crate::security::rig::Authority::new("x").of(Role::Worker);
        let line =
            format!("gradwire_certificate_expiry_timestamp_seconds {}\n", security.expires_s().unwrap());
        assert!(shown(&security).contains(&line));
        assert!(!shown(&Security::off()).contains("certificate_expiry"));
        assert!(shown(&security).contains("\ngradwire_control_plane_tls{mode=\"auto\"} 1\n"));
        assert!(shown(&Security::off()).contains("\ngradwire_control_plane_tls{mode=\"auto\"} 0\n"));
    }

    #[test]
    fn settings_are_told_by_those_whose_value_counts() {
        let mut settings = Settings::default();
        settings.cluster.replicas = 1;
        settings.memory.registered_bytes = u64::MAX;
        let told = |role| {
            let registry = Registry::new();
            add_settings(&registry, role, &settings).unwrap();
            String::from_utf8(render(&registry).unwrap()).unwrap()
        };
        assert!(told(Role::Scheduler).contains("gradwire_setting_value{name=\"cluster.replicas\"} 1\n"));
        // The greatest i64, as f64.
        let most = "{name=\"memory.registered_bytes\"} 9223372036854776000\n";
        for role in [Role::Server, Role::Worker] {
            assert!(told(role).contains(most), "{}", told(role));
        }
        assert!(!told(Role::Worker).contains("cluster.replicas"), "a member's own value says nothing");
    }

    #[test]
    fn slow_operations_are_counted() {
        let (registry, flight) = (Registry::new(), Flight::embedded(Role::Server, &Settings::default()));
        add_slow(&registry, &flight).unwrap();
        for seen in ["0", "1"] {
            let text = String::from_utf8(render(&registry).unwrap()).unwrap();
            assert!(text.contains(&format!("\ngradwire_slow_operations_total {seen}\n")), "{text}");
            flight.slow().count();
        }
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
