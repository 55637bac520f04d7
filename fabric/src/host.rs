//! The identity of this host as far as shared memory reaches.

use std::fs;
use std::io;

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
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max");
    // Not there, or "max": no limit.
    let limit = group.ok().and_then(|text| text.trim().parse().ok());
    limit.map_or(bytes, |limit: u64| limit.min(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_memory() {
        assert!(memory_bytes() > 64 << 20, "{}", memory_bytes());
    }

    #[test]
    fn this_host_is_itself() {
        let identity = host_identity().unwrap();
        assert_eq!(identity, host_identity().unwrap());
        assert!(identity.contains("net:["), "{identity}");
    }
}
