//! RDMA devices, ports and addresses: what there is, what would be used, and what stands against it. The kernel and the
//! devices are looked at in one function; judging is apart from it, so that every case can be tested without a device.

use super::check::{Check, Level};
use super::transport;
use fabric::{DeviceInfo, FabricError, Gid, PortInfo, VerbsDevice, verbs_library};
use proto_common::config::Settings;
use proto_common::transport::Driver;
use std::path::PathBuf;

const WHAT: &str = "verbs";
const LIBRARY: &str = "libibverbs";
/// Addresses of a port that are shown at most; devices have up to 256.
const GIDS_SHOWN_MAX: usize = 8;
/// Packets smaller than this cost throughput, and the usual network gives larger ones.
const MTU_BYTES_LEAST: u32 = 1024;

/// What can be seen of RDMA here.
#[derive(Debug)]
pub(super) struct Seen {
    /// The file of the verbs library.
    library: Result<PathBuf, FabricError>,
    /// Devices that the kernel knows; none where it knows nothing of RDMA.
    kernel: Option<Vec<String>>,
    /// Devices that the verbs library finds.
    devices: Result<Vec<DeviceInfo>, FabricError>,
}

pub(super) fn look() -> Seen {
    let names = |entries: std::fs::ReadDir| {
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let kernel = std::fs::read_dir("/sys/class/infiniband").ok().map(names);
    Seen { library: verbs_library(), kernel, devices: VerbsDevice::describe() }
}

/// The checks, and whether a device can be used as far as can be seen without using it.
pub(super) fn judge(seen: &Seen, settings: &Settings) -> (Vec<Check>, bool) {
    if let Some(why) = transport::unused(Driver::Verbs, &settings.transport) {
        return (vec![Check::good(WHAT, why)], false);
    }
    let level = transport::without_verbs(&settings.transport);
    let bad = |text: String, fix: &str| (vec![Check::new(level, WHAT, text, fix)], false);
    let has_device = seen.kernel.as_ref().is_some_and(|names| !names.is_empty());
    if let (Err(error), true) = (&seen.library, has_device) {
        let names = seen.kernel.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ");
        let (text, fix) = without_library(error);
        return bad(format!("the kernel has RDMA device {names}, and {text}"), &fix);
    }
    let devices = match &seen.devices {
        Ok(devices) => devices,
        Err(error) => return bad(error.to_string(), "see whether `rdma link` and `ibv_devinfo` work here"),
    };
    let (mut checks, is_usable) = if devices.is_empty() {
        let (text, fix) = without_device(seen.kernel.as_deref());
        bad(text, fix)
    } else {
        of_devices(devices, settings, level)
    };
    checks.push(of_library(&seen.library));
    (checks, is_usable)
}

/// The verbs library where no device waits for it.
fn of_library(library: &Result<PathBuf, FabricError>) -> Check {
    let text = match library {
        Ok(path) => format!("found at {}", path.display()),
        Err(error) => {
            let (text, fix) = without_library(error);
            format!("{text}; only a host with an RDMA device needs it: {fix}")
        }
    };
    Check::good(LIBRARY, text)
}

/// Why there is no library, and what to do.
fn without_library(error: &FabricError) -> (String, String) {
    match error {
        FabricError::Library { why, fix } => {
            (format!("libibverbs cannot be loaded: {why}"), (*fix).to_owned())
        }
        other => (other.to_string(), "see whether `ibv_devinfo` works here".into()),
    }
}

fn without_device(kernel: Option<&[String]>) -> (String, &'static str) {
    match kernel {
        Some(names) if !names.is_empty() => (
            format!("the kernel has {}, and the verbs library finds no device", names.join(", ")),
            "install the providers (ibverbs-providers) and load ib_uverbs (modprobe ib_uverbs)",
        ),
        Some(_) => (
            "the kernel knows RDMA and has no device".into(),
            "load the card's driver (such as modprobe mlx5_ib), or make a software device: rdma link add rxe0 type rxe netdev INTERFACE",
        ),
        None => (
            "the kernel knows nothing of RDMA".into(),
            "load the card's driver (such as modprobe mlx5_ib), or for a software device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE",
        ),
    }
}

/// The device that would be used is judged, the others are only told.
fn of_devices(devices: &[DeviceInfo], settings: &Settings, level: Level) -> (Vec<Check>, bool) {
    let wanted = settings.verbs.device.as_deref();
    let chosen = devices.iter().position(|device| wanted.is_none_or(|name| device.name == name));
    let mut checks = Vec::new();
    let mut is_usable = false;
    match chosen {
        Some(at) => (checks, is_usable) = of_device(&devices[at], settings, level),
        None => {
            let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
            let seen = format!("no device {:?} here; there are {}", wanted.unwrap_or(""), names.join(", "));
            checks.push(Check::new(level, WHAT, seen, "set verbs.device to one of them"));
        }
    }
    for (at, device) in devices.iter().enumerate().filter(|(at, _)| Some(*at) != chosen) {
        let why = if wanted.is_none() && at > 0 { "not the first" } else { "not verbs.device" };
        checks.push(Check::good(WHAT, format!("device {} is not used: {why}", device.name)));
    }
    (checks, is_usable)
}

fn of_device(device: &DeviceInfo, settings: &Settings, level: Level) -> (Vec<Check>, bool) {
    let (name, number) = (&device.name, settings.verbs.port);
    let bad = |text: String, fix: String| (vec![Check::new(level, WHAT, text, fix)], false);
    let ports = match &device.ports {
        Ok(ports) => ports,
        Err(error) => {
            let fix =
                "let this user open the files in /dev/infiniband (a udev rule, or a group that owns them)";
            return bad(error.to_string(), fix.into());
        }
    };
    let Some(port) = ports.iter().find(|port| port.number == number) else {
        let text = format!("device {name} has {} ports and no port {number}", ports.len());
        return bad(text, "set verbs.port".into());
    };
    if !port.is_up {
        let fix = format!(
            "bring its network interface up (`rdma link show {name}/{number}` names it; ip link set INTERFACE up), and look at the cable"
        );
        return bad(format!("device {name}, port {number} is down"), fix);
    }
    let addresses = addresses(port, settings.verbs.gid_index);
    let Some(gid) = port.choose(settings.verbs.gid_index) else {
        let fix = match settings.verbs.gid_index {
            Some(_) => "leave verbs.gid_index unset, or set it to an address that is there",
            None => "give its network interface an IP address (ip address add ADDRESS/LENGTH dev INTERFACE)",
        };
        return bad(
            format!("device {name}, port {number} has no RoCEv2 address to use{addresses}"),
            fix.into(),
        );
    };
    let seen = format!(
        "device {name}, port {number} is up, packets of {} bytes, address {gid} (index {}){addresses}",
        port.mtu_bytes, gid.index
    );
    let mut checks = vec![Check::good(WHAT, seen)];
    if port.mtu_bytes < MTU_BYTES_LEAST {
        let seen = format!("packets of {} bytes are small", port.mtu_bytes);
        let fix = "raise the network interface's MTU to 1500 at least (4200 for 4096)";
        checks.push(Check::warn(WHAT, seen, fix));
    }
    if gid.is_link_local() {
        let seen = format!("address {gid} is of one link only: hosts beyond a router cannot be reached");
        let fix = "give its network interface an IP address (ip address add ADDRESS/LENGTH dev INTERFACE)";
        checks.push(Check::warn(WHAT, seen, fix));
    }
    (checks, true)
}

/// Why the port's other addresses are not used.
fn addresses(port: &PortInfo, gid_index: Option<u8>) -> String {
    let chosen = port.choose(gid_index);
    let why = |gid: &Gid| match (gid.obstacle(), chosen, gid_index) {
        (_, _, Some(_)) => "not verbs.gid_index",
        (Some(obstacle), _, None) => obstacle,
        (None, Some(chosen), None) if gid.is_link_local() && !chosen.is_link_local() => "of one link only",
        (None, Some(chosen), None) if !gid.is_v4() && chosen.is_v4() => "IPv4 is preferred",
        (None, _, None) => "a later one of its kind",
    };
    let others = port.gids.iter().filter(|gid| chosen != Some(*gid));
    let told: Vec<_> = others.map(|gid| format!("{gid} (index {}): {}", gid.index, why(gid))).collect();
    match told.len() {
        0 => String::new(),
        count if count > GIDS_SHOWN_MAX => {
            let more = count - GIDS_SHOWN_MAX;
            format!("; not used: {}, and {more} more", told[..GIDS_SHOWN_MAX].join(", "))
        }
        _ => format!("; not used: {}", told.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::transport::Policy;

    const V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 9, 0, 1];
    const LINK: [u8; 16] = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

    fn gid(index: u8, gid: [u8; 16], is_roce_v2: bool) -> Gid {
        Gid { gid, index, port: 1, is_roce_v2, has_netdev: true }
    }

    fn device(is_up: bool, mtu_bytes: u32, gids: Vec<Gid>) -> DeviceInfo {
        DeviceInfo { name: "rxe0".into(), ports: Ok(vec![PortInfo { number: 1, is_up, mtu_bytes, gids }]) }
    }

    fn found() -> Result<PathBuf, FabricError> {
        Ok("/usr/lib/libibverbs.so.1".into())
    }

    fn seen(devices: Vec<DeviceInfo>) -> Seen {
        Seen { library: found(), kernel: Some(vec!["rxe0".into()]), devices: Ok(devices) }
    }

    fn judged(seen: &Seen, edit: impl FnOnce(&mut Settings)) -> (String, bool) {
        let mut settings = Settings::default();
        edit(&mut settings);
        let (checks, is_usable) = judge(seen, &settings);
        (checks.iter().map(|check| format!("{check}\n")).collect(), is_usable)
    }

    #[test]
    fn the_address_is_told_and_why_not_the_others() {
        let gids = vec![gid(0, LINK, false), gid(1, LINK, true), gid(2, V4, true)];
        let (text, is_usable) = judged(&seen(vec![device(true, 1024, gids)]), |_| ());
        assert!(is_usable && text.starts_with("ok"), "{text}");
        for words in ["10.9.0.1 (index 2)", "(index 0): not of RoCE version 2", "(index 1): of one link only"]
        {
            assert!(text.contains(words), "{words:?} is missing in {text}");
        }
        let many = (0..100).map(|index| gid(index, LINK, false)).collect();
        let (text, _) = judged(&seen(vec![device(true, 1024, many)]), |_| ());
        assert!(text.contains("and 92 more") && text.len() < 1000, "{text}");
    }

    #[test]
    fn each_obstacle_has_its_fix() {
        let none = |kernel| Seen { library: found(), kernel, devices: Ok(Vec::new()) };
        let down = seen(vec![device(false, 1024, vec![gid(0, V4, true)])]);
        let homeless = seen(vec![device(true, 1024, vec![gid(0, LINK, false)])]);
        let denied = FabricError::Misuse("opening RDMA device rxe0: Permission denied".into());
        let denied = seen(vec![DeviceInfo { name: "rxe0".into(), ports: Err(denied) }]);
        for (seen, cause, fix) in [
            (none(None), "knows nothing of RDMA", "modprobe rdma_rxe"),
            (none(Some(Vec::new())), "has no device", "rdma link add"),
            (none(Some(vec!["mlx5_0".into()])), "mlx5_0", "ibverbs-providers"),
            (down, "port 1 is down", "ip link set INTERFACE up"),
            (homeless, "no RoCEv2 address", "ip address add"),
            (denied, "Permission denied", "/dev/infiniband"),
        ] {
            let (text, is_usable) = judged(&seen, |_| ());
            assert!(!is_usable && text.starts_with("warn"), "{text}");
            assert!(text.contains(cause) && text.contains(fix), "{text}");
            let (text, _) = judged(&seen, |settings| settings.transport.verbs = Policy::Require);
            assert!(text.starts_with("FAIL"), "{text}");
            let (text, _) = judged(&seen, |settings| {
                (settings.transport.shm, settings.transport.tcp) = (Policy::Off, Policy::Off);
            });
            assert!(text.starts_with("FAIL"), "nothing else is left: {text}");
            let (text, _) = judged(&seen, |settings| settings.transport.tcp = Policy::Require);
            assert!(text.starts_with("ok") && text.contains("transport.tcp is required"), "{text}");
        }
    }

    #[test]
    fn the_library_is_named_and_matters_only_where_there_is_a_device() {
        let missing = || FabricError::Library {
            why: "libibverbs.so.1: cannot open shared object file".into(),
            fix: "install libibverbs",
        };
        let with = |names: Vec<String>| Seen {
            library: Err(missing()),
            devices: if names.is_empty() { Ok(Vec::new()) } else { Err(missing()) },
            kernel: Some(names),
        };
        let (text, is_usable) = judged(&with(vec!["mlx5_0".into()]), |_| ());
        assert!(!is_usable && text.starts_with("warn"), "{text}");
        for words in ["mlx5_0", "cannot be loaded: libibverbs.so.1: cannot open", "install libibverbs"] {
            assert!(text.contains(words), "{words:?} is missing in {text}");
        }
        let require = |settings: &mut Settings| settings.transport.verbs = Policy::Require;
        assert!(judged(&with(vec!["mlx5_0".into()]), require).0.starts_with("FAIL"));
        let (text, _) = judged(&with(Vec::new()), |_| ());
        let library = text.lines().find(|line| line.contains("cannot be loaded")).unwrap();
        assert!(library.starts_with("ok") && library.contains("install libibverbs"), "{library}");
        let (text, _) = judged(&seen(vec![device(true, 1024, vec![gid(0, V4, true)])]), |_| ());
        assert!(text.contains("found at /usr/lib/libibverbs.so.1"), "{text}");
        let (text, _) = judged(&with(Vec::new()), |settings| settings.transport.verbs = Policy::Off);
        assert!(text.starts_with("ok") && text.contains("off"), "{text}");
    }

    #[test]
    fn an_address_of_one_link_is_used_with_a_warning() {
        let (text, is_usable) = judged(&seen(vec![device(true, 1024, vec![gid(0, LINK, true)])]), |_| ());
        assert!(is_usable && text.contains("warn") && text.contains("of one link only"), "{text}");
    }

    #[test]
    fn settings_that_do_not_fit_the_device_are_named() {
        let here = seen(vec![device(true, 256, vec![gid(0, V4, true)])]);
        for (edit, words) in [
            ((|s| s.verbs.device = Some("mlx5_1".into())) as fn(&mut Settings), "set verbs.device"),
            (|s| s.verbs.port = 2, "set verbs.port"),
            (|s| s.verbs.gid_index = Some(3), "verbs.gid_index"),
            (|_| (), "packets of 256 bytes are small"),
        ] {
            let (text, _) = judged(&here, edit);
            assert!(text.contains("warn") && text.contains(words), "{words}: {text}");
        }
    }
}
