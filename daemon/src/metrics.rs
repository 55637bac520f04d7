//! Metrics of one process: a registry of its own (never the global one) and the series every daemon has.

use prometheus::process_collector::ProcessCollector;
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
}
