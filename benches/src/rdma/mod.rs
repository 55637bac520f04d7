//! Gradwire over an RDMA device beside perftest on the same device: measured in a guest (`make bench-rdma`), reported
//! by the host.
//!
//! The guest's device is software on an emulated CPU, and every figure says so. What is compared is interleaved, as in
//! the other suite.

mod channel;
mod document;
mod perftest;
mod registered;
mod suite;

pub(crate) use channel::{PeerArgs, peer};
pub(crate) use document::{ReportArgs, report};
pub(crate) use suite::{RdmaArgs, run};

use crate::workload::WorkSpec;
use anyhow::Context as _;
use std::path::Path;
use std::sync::OnceLock;

/// Where the kernel tells of its RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// What the figures are of, in words that all of them carry.
fn device() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        described(Path::new(DEVICES), &cpus).unwrap_or_else(|_| "no RDMA device".to_owned())
    })
}

/// The first device there, and whether it and the processor are hardware.
fn described(devices: &Path, cpus: &str) -> anyhow::Result<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(devices)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    let first = names.first().context("no RDMA device")?;
    let name = first.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let cpu = if cpus.contains("QEMU") { ", emulated CPU" } else { "" };
    // rdma_rxe alone names the network device that it is over; others of the kernel's own making hang on no bus.
    Ok(match (first.join("parent").exists(), first.join("device").exists()) {
        (true, _) => format!("software RDMA (rdma_rxe{cpu})"),
        (false, false) => format!("software RDMA ({name}{cpu})"),
        (false, true) => format!("RDMA device {name}{cpu}"),
    })
}

/// Bytes of one small write in a round trip, as `ib_write_lat` is given.
const PING_BYTES: u64 = 64;

/// About what software RDMA moves under emulation: how many writes fill a time.
const NOMINAL_BYTES_PER_S: f64 = 80e6;
/// About how long one round trip takes there.
const NOMINAL_ROUND_TRIP_S: f64 = 40e-6;

/// Writes of the spec's size for about its time, the same for perftest and for us.
fn writes_within(spec: &WorkSpec) -> u64 {
    // perftest wants five at least, and keeps peaks of 20,000 at most.
    ((spec.seconds * NOMINAL_BYTES_PER_S / spec.tensor_bytes() as f64) as u64).clamp(8, 20_000)
}

/// Round trips for about the spec's time, the same for perftest and for us.
fn round_trips_within(spec: &WorkSpec) -> u64 {
    ((spec.seconds / NOMINAL_ROUND_TRIP_S) as u64).clamp(500, 20_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Op;

    #[test]
    fn a_device_is_software_where_it_hangs_on_no_bus() {
        let folder = std::env::temp_dir().join(format!("gradwire-bench-devices-{}", std::process::id()));
        let device = folder.join("one0");
        std::fs::create_dir_all(&device).expect("a folder");
        let of = |cpus| described(&folder, cpus).expect("a device");
        assert_eq!(of("model name : QEMU TCG"), "software RDMA (one0, emulated CPU)");
        std::fs::create_dir(device.join("device")).expect("a folder");
        assert_eq!(of("model name : EPYC"), "RDMA device one0");
        std::fs::write(device.join("parent"), "eth0").expect("a file");
        assert_eq!(of("model name : QEMU TCG"), "software RDMA (rdma_rxe, emulated CPU)");
        std::fs::remove_dir_all(&folder).expect("it was there");
        assert!(described(&folder, "").is_err());
    }

    #[test]
    fn counts_follow_time_and_size_within_perftest_s_bounds() {
        let spec = |bytes, seconds| WorkSpec { seconds, ..WorkSpec::alike("test", Op::Push, bytes, 1) };
        assert_eq!(writes_within(&spec(1 << 20, 1.0)), 76);
        assert_eq!((writes_within(&spec(64 << 20, 0.1)), writes_within(&spec(4, 60.0))), (8, 20_000));
        assert_eq!(round_trips_within(&spec(64, 0.1)), 2500);
        assert_eq!((round_trips_within(&spec(64, 0.0)), round_trips_within(&spec(64, 60.0))), (500, 20_000));
    }
}
