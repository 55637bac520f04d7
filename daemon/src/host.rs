//! Who and where this process is, as far as peers must know: the host that shared memory reaches, the user,
//! the process's life, and the addresses of network interfaces. Reads the kernel, decides nothing.

pub use fabric::host_identity;

use crate::exit::Failure;
use proto_common::error::ExitCode;
use proto_common::ids::Incarnation;
use proto_common::transport::{Driver, Offer, Policies};
use std::io;

/// What this process offers its peers; `missing` says which drivers cannot be opened here and why.
pub fn offer(policies: Policies, missing: Vec<(Driver, String)>) -> io::Result<Offer> {
    Ok(Offer { host: host_identity()?, uid: rustix::process::geteuid().as_raw(), policies, missing })
}

/// What this host calls itself: not where it is reached, but where people look for it. None where that is no text.
#[must_use]
pub fn name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    name.filter(|name| !name.is_empty())
}

/// A fresh random id of a process's life (or of a client's, where one process has several); never zero.
pub fn new_incarnation() -> Result<Incarnation, Failure> {
    let mut bytes = [0u8; 8];
    loop {
        let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Failure::new(ExitCode::Io, io::Error::from(errno)))?;
        let id = u64::from_le_bytes(bytes);
        if got == bytes.len() && id != 0 {
            return Ok(Incarnation(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_itself() {
        assert_eq!(offer(Policies::default(), Vec::new()).unwrap().host, host_identity().unwrap());
    }

    #[test]
    fn its_name_is_the_kernels() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(super::name().as_deref(), Some(name.trim()));
    }

    #[test]
    fn lives_differ() {
        assert_ne!(new_incarnation().unwrap(), new_incarnation().unwrap());
    }
}
