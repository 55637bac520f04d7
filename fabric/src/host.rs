//! This host: its identity as far as shared memory reaches, and the memory that a process has there. It must not decide what
//! either is good for.

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";
/// Version 1 has no word for "unlimited": it shows the largest multiple of a page, which depends on the page. Nobody has half
/// of that.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Boot id and network namespace: abstract unix sockets, over which regions are handed out, do not cross namespaces.
pub fn host_identity() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/net")?;
    Ok(format!("{}/{}", boot.trim(), namespace.display()))
}

/// Bytes of memory that this process can have: the machine's, or its control group's where that has a limit.
#[must_use]
pub fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let bytes = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit).max(1));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = group_limit_bytes(&groups, |path| fs::read_to_string(path).ok());
    limit.map_or(bytes, |limit| limit.min(bytes))
}

/// The least limit of memory of the groups that `groups`, the text of `/proc/self/cgroup`, names, and of those above them: a
/// group has no more than what holds it. `read` gives the text of a file, where it can be read.
fn group_limit_bytes(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let files = groups.lines().filter_map(|line| {
        // `0::/path` is version 2, `4:memory:/path` version 1.
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (mount, file) = match (number, controllers) {
            ("0", "") => (GROUPS.to_owned(), "memory.max"),
            (_, v1) if v1.split(',').any(|one| one == "memory") => {
                (format!("{GROUPS}/memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        Some(upwards(path).map(move |group| format!("{mount}{group}/{file}")))
    });
    let texts = files.flatten().filter_map(|file| read(&file));
    // "max" is no number.
    let limits = texts.filter_map(|text| text.trim().parse().ok());
    limits.filter(|bytes| *bytes < UNLIMITED_BYTES).min()
}

/// A group's path and those above it up to the root, which is empty. In a container that sees its host's paths none of them is
/// there but the root, which is the container's own. One outside of what is mounted here (`/..`) is as good as the root.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    let is_outside = path.split('/').any(|part| part == "..");
    let path = if is_outside { "" } else { path.trim_end_matches('/') };
    std::iter::successors(Some(path), |path| path.rfind('/').map(|end| &path[..end]))
}

/// Connects to an abstract unix socket of this host, within a time: the queue of a listener that accepts nothing may be full.
pub fn connect_local(name: &str, within: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(within.max(Duration::from_millis(1))))?;
    connect(&stream, &address)?;
    Ok(stream.into())
}

/// Is the process at the other end of our user?
#[must_use]
pub fn is_of_our_user(link: BorrowedFd<'_>) -> bool {
    socket_peercred(link).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit where these files are there.
    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        group_limit_bytes(groups, |path| {
            let file = files.iter().find(|(name, _)| path.strip_prefix("/sys/fs/cgroup/") == Some(*name));
            file.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn there_is_memory() {
        assert!(memory_bytes() > 64 << 20, "{}", memory_bytes());
    }

    #[test]
    fn the_least_limit_of_the_own_group_and_those_above_counts() {
        let (own, above) = ("a.slice/b.service/memory.max", "a.slice/memory.max");
        let group = "0::/a.slice/b.service\n";
        assert_eq!(limit(group, &[(own, "100\n"), (above, "200\n")]), Some(100));
        assert_eq!(limit(group, &[(own, "300\n"), (above, "200\n")]), Some(200));
        assert_eq!(limit(group, &[(own, "max\n"), (above, "200\n"), ("memory.max", "150")]), Some(150));
        assert_eq!(limit(group, &[(own, "max\n"), ("c.slice/memory.max", "7\n")]), None, "another's");
        assert_eq!(limit("0::/\n", &[("memory.max", "5\n")]), Some(5), "a container's root");
        assert_eq!(limit("0::/../b\n", &[("memory.max", "5\n")]), Some(5), "outside of what is mounted");
    }

    #[test]
    fn limits_of_version_1_count_but_for_its_unlimited() {
        let groups = "12:cpu,cpuacct:/j\n4:memory:/j/k\n1:name=systemd:/j\n0::/\n";
        let (own, above) = ("memory/j/k/memory.limit_in_bytes", "memory/memory.limit_in_bytes");
        assert_eq!(limit(groups, &[(own, "400\n"), (above, "9223372036854771712\n")]), Some(400));
        assert_eq!(limit(groups, &[(above, "500\n")]), Some(500), "a container that sees its host's path");
        assert_eq!(limit(groups, &[(own, "9223372036854771712\n")]), None);
        assert_eq!(limit(groups, &[(own, "9223372036854710272\n")]), None, "with pages of 64 KiB");
        assert_eq!(limit("4:memory:/a:b", &[("memory/a:b/memory.limit_in_bytes", "9")]), Some(9));
        assert_eq!(limit("", &[]), None);
        assert_eq!(limit("nonsense\n1:memory\n", &[("memory.max", "1")]), None);
    }

    #[test]
    fn this_host_is_itself() {
        let identity = host_identity().unwrap();
        assert_eq!(identity, host_identity().unwrap());
        assert!(identity.contains("net:["), "{identity}");
    }
}
