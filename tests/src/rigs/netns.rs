//! Network namespaces joined by virtual cables: hosts of one machine. Named after this process, so that tests
//! can run side by side; taken down when dropped, and what a killed test left behind with the next one.

use super::cluster::Place;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Begins the names of all namespaces of ours; the process id follows.
const PREFIX: &str = "gwt-";
/// Numbers the nets of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A hub with a cable to each of its hosts. The hub is host 0.
#[derive(Debug)]
pub struct Net {
    names: Vec<String>,
}

impl Net {
    /// A hub and this many further hosts (at most 9), all reaching one another through the hub.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("{PREFIX}{}-{number}-{host}", std::process::id());
        let mut net = Self { names: Vec::new() };
        for host in 0..=hosts {
            ip(&["netns", "add", &name(host)]);
            net.names.push(name(host));
            net.ip(host, &["link", "set", "lo", "up"]);
        }
        // Hosts reach one another through the hub only if it passes packets on.
        let forward = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
        ip(&[&["netns", "exec", &net.names[0]], &forward[..]].concat());
        for host in 1..=hosts {
            let (hub, leaf) = (&net.names[0], &net.names[host]);
            let (near, far) = (format!("to{host}"), "hub");
            ip(&["link", "add", &near, "netns", hub, "type", "veth", "peer", "name", far, "netns", leaf]);
            net.ip(0, &["address", "add", &format!("10.77.{host}.1/24"), "dev", &near]);
            net.ip(host, &["address", "add", &format!("10.77.{host}.2/24"), "dev", far]);
            net.ip(0, &["link", "set", &near, "up"]);
            net.ip(host, &["link", "set", far, "up"]);
            net.ip(host, &["route", "add", "default", "via", &format!("10.77.{host}.1")]);
        }
        net
    }

    /// The hub's address that all hosts reach.
    pub const HUB: &str = "10.77.1.1";

    /// A host's address.
    #[must_use]
    pub fn address(host: usize) -> String {
        format!("10.77.{host}.2")
    }

    /// A host as a place to run processes in.
    #[must_use]
    pub fn place(&self, host: usize) -> Place {
        let prefix = ["ip", "netns", "exec", &self.names[host]].map(str::to_owned).to_vec();
        Place { programs: None, prefix }
    }

    /// Lines for `/etc/hosts` that name the hub `n0` and the hosts `n1`, `n2` and so on.
    #[must_use]
    pub fn hosts(&self) -> String {
        let line = |host| match host {
            0 => format!("127.0.0.1 localhost\n{} n0\n", Self::HUB),
            _ => format!("{} n{host}\n", Self::address(host)),
        };
        (0..self.names.len()).map(line).collect()
    }

    /// A host on which processes see its name (`n1` is host 1) and this file as `/etc/hosts`, and all other files as here.
    #[must_use]
    pub fn named_place(&self, host: usize, hosts: &Path) -> Place {
        let net = format!("--net=/run/netns/{}", self.names[host]);
        let enter = r#"hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@""#;
        let (name, hosts) = (format!("n{host}"), hosts.display().to_string());
        let words = ["nsenter", &net, "unshare", "--mount", "--uts", "sh", "-c", enter, &name, &hosts];
        Place { programs: None, prefix: words.map(str::to_owned).to_vec() }
    }

    /// Pulls the cable between the hub and a host.
    pub fn cut(&self, host: usize) {
        self.ip(0, &["link", "set", &format!("to{host}"), "down"]);
    }

    /// A host drops whatever it would send to this address, without a word: a firewall that drops.
    pub fn swallow(&self, host: usize, address: &str) {
        self.ip(host, &["route", "add", "blackhole", address]);
    }

    /// Bytes that a host (not the hub) has sent and received over its cable.
    #[must_use]
    pub fn moved_bytes(&self, host: usize) -> [u64; 2] {
        ["tx_bytes", "rx_bytes"].map(|name| {
            let words = ["netns", "exec", &self.names[host], "cat"];
            let file = format!("/sys/class/net/hub/statistics/{name}");
            let output = Command::new("ip").args(words).arg(file).output().expect("ip can be started");
            String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number of bytes")
        })
    }

    fn ip(&self, host: usize, words: &[&str]) {
        ip(&[&["-n", self.names[host].as_str()], words].concat());
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| delete(name));
    }
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().expect("ip (iproute2) can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {}: {}; network namespaces need root",
        words.join(" "),
        error.trim()
    );
}

fn delete(name: &str) {
    // A namespace that cannot be deleted now is swept by a later test.
    let _ = Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
}

/// Deletes the namespaces of processes that are gone.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            delete(&name);
        }
    }
}
