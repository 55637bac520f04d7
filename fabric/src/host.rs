//! The identity of this host as far as shared memory reaches.

use std::fs;
use std::io;

/// Boot id and network namespace: abstract unix sockets, over which regions are handed out, do not cross namespaces.
pub fn host_identity() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/net")?;
    Ok(format!("{}/{}", boot.trim(), namespace.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_itself() {
        let identity = host_identity().unwrap();
        assert_eq!(identity, host_identity().unwrap());
        assert!(identity.contains("net:["), "{identity}");
    }
}
