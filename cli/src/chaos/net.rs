//! Hosts for partitions: network namespaces with a virtual cable each to a hub, in which this program runs itself. Made
//! before anything is started, and deleted when the last process is gone. Needs root.

use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Begins the names of all namespaces of ours; the process id follows.
const PREFIX: &str = "gwchaos-";
/// Hosts at one hub: the third byte of their addresses.
const HOSTS_MAX: u32 = 250;

/// A hub with a cable to each host. The hub is host 0.
#[derive(Clone, Debug)]
pub(super) struct Net {
    name: String,
}

impl Net {
    /// The hub's address that all hosts reach.
    pub(super) const HUB: &'static str = "10.77.1.1";

    /// The one that was made for this process.
    pub(super) fn of(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// A host's address.
    pub(super) fn address(host: u32) -> String {
        format!("10.77.{host}.2")
    }

    /// What starts a program on a host.
    pub(super) fn prefix(&self, host: u32) -> Vec<String> {
        ["ip", "netns", "exec", &self.host(host)].map(str::to_owned).to_vec()
    }

    /// Pulls the cable of a host, or plugs it in again. From within the hub.
    pub(super) fn plug(host: u32, is_in: bool) -> Result<(), Failure> {
        ip(&["link", "set", &format!("to{host}"), if is_in { "up" } else { "down" }])
    }

    fn host(&self, host: u32) -> String {
        format!("{}-{host}", self.name)
    }

    fn make(hosts: u32) -> Result<Made, Failure> {
        if hosts > HOSTS_MAX {
            let text = format!("partitions are made of {HOSTS_MAX} processes at most, not of {hosts}");
            return Err(Failure::message(ExitCode::Usage, text));
        }
        sweep();
        let made = Made { net: Self::of(&format!("{PREFIX}{}", std::process::id())), hosts };
        let hub = made.net.host(0);
        for host in 0..=hosts {
            let name = made.net.host(host);
            ip(&["netns", "add", &name])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        // Hosts reach one another through the hub only if it passes packets on.
        ip(&["netns", "exec", &hub, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        for host in 1..=hosts {
            let (leaf, near) = (made.net.host(host), format!("to{host}"));
            ip(&[
                "link", "add", &near, "netns", &hub, "type", "veth", "peer", "name", "hub", "netns", &leaf,
            ])?;
            let gateway = format!("10.77.{host}.1");
            ip(&["-n", &hub, "address", "add", &format!("{gateway}/24"), "dev", &near])?;
            ip(&["-n", &leaf, "address", "add", &format!("{}/24", Self::address(host)), "dev", "hub"])?;
            ip(&["-n", &hub, "link", "set", &near, "up"])?;
            ip(&["-n", &leaf, "link", "set", "hub", "up"])?;
            ip(&["-n", &leaf, "route", "add", "default", "via", &gateway])?;
        }
        Ok(made)
    }
}

/// Namespaces that are deleted in the end.
#[derive(Debug)]
struct Made {
    net: Net,
    hosts: u32,
}

impl Drop for Made {
    fn drop(&mut self) {
        (0..=self.hosts).for_each(|host| delete(&self.net.host(host)));
    }
}

/// Runs this very command again, in the hub of so many hosts.
pub(super) fn run_inside(hosts: u32) -> Result<ExitStatus, Failure> {
    let made = Net::make(hosts)?;
    let own = std::env::current_exe().code(ExitCode::Io)?;
    // The user's own words end where those for the trainers begin.
    let mut words: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.splice(end..end, ["--inside".into(), made.net.name.clone().into()]);
    Command::new("ip")
        .args(["netns", "exec", &made.net.host(0)])
        .arg(own)
        .args(words)
        .status()
        .code(ExitCode::Io)
}

fn ip(words: &[&str]) -> Result<(), Failure> {
    let failed = |reason: String| {
        let text = format!("ip {}: {reason}; partitions need root and iproute2", words.join(" "));
        Failure::message(ExitCode::Io, text)
    };
    let output = Command::new("ip").args(words).output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn delete(name: &str) {
    // One that cannot be deleted now is swept by a later run.
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
