//! The IPv4 address of a network interface, asked of the kernel over a route netlink socket (`/proc` does
//! not tell which address is whose). Reads only; what comes back is parsed with every length checked.

use super::SettingsError;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::io;
use std::net::Ipv4Addr;
use std::ops::ControlFlow;

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST, and NLM_F_DUMP: all entries of the table.
const DUMP_FLAGS: u16 = 0x01 | 0x300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const AF_INET: u8 = 2;
/// Bytes of `struct nlmsghdr`, of `struct ifaddrmsg` and of `struct rtattr`.
const HEADER_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const ATTRIBUTE_BYTES: usize = 4;
/// More answers than any machine has addresses.
const ANSWERS_MAX: usize = 4096;

/// The first IPv4 address of the interface.
pub(super) fn ipv4_of(name: &str) -> Result<Ipv4Addr, SettingsError> {
    let fail = |reason: String| SettingsError::Interface { name: name.to_owned(), reason };
    let ask = || -> io::Result<Option<Ipv4Addr>> {
        // Protocol 0 of this family is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        sendto(&socket, &request(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = vec![0u8; 64 << 10];
        for _ in 0..ANSWERS_MAX {
            let (received, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            if let ControlFlow::Break(found) = scan(&buffer[..received], index) {
                return Ok(found);
            }
        }
        Ok(None)
    };
    match ask() {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(fail("it has no IPv4 address".into())),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            Err(fail("there is no such interface".into()))
        }
        Err(error) => Err(fail(error.to_string())),
    }
}

fn request() -> [u8; HEADER_BYTES + ADDRESS_BYTES] {
    let mut bytes = [0u8; HEADER_BYTES + ADDRESS_BYTES];
    let length = bytes.len() as u32;
    bytes[0..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    bytes[6..8].copy_from_slice(&DUMP_FLAGS.to_ne_bytes());
    bytes[HEADER_BYTES] = AF_INET;
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Looks through one datagram of answers, for the address or the end of all answers.
fn scan(mut bytes: &[u8], index: u32) -> ControlFlow<Option<Ipv4Addr>> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        if matches!(kind, NLMSG_DONE | NLMSG_ERROR) || length < HEADER_BYTES || length > bytes.len() {
            return ControlFlow::Break(None);
        }
        let body = &bytes[HEADER_BYTES..length];
        let ours = kind == RTM_NEWADDR && body.first() == Some(&AF_INET) && u32_at(body, 4) == Some(index);
        if let Some(address) = body.get(ADDRESS_BYTES..).filter(|_| ours).and_then(address_in) {
            return ControlFlow::Break(Some(address));
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    ControlFlow::Continue(())
}

/// The local address among attributes; on links without a peer only `IFA_ADDRESS` may be there.
fn address_in(mut attributes: &[u8]) -> Option<Ipv4Addr> {
    let mut found = None;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        if length < ATTRIBUTE_BYTES || length > attributes.len() {
            break;
        }
        let value: Option<[u8; 4]> = attributes[ATTRIBUTE_BYTES..length].try_into().ok();
        match (kind, value) {
            (IFA_LOCAL, Some(octets)) => return Some(octets.into()),
            (IFA_ADDRESS, Some(octets)) => found = Some(octets.into()),
            _ => {}
        }
        attributes = &attributes[length.next_multiple_of(4).min(attributes.len())..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_and_nonsense_is_named() {
        assert_eq!(ipv4_of("lo").unwrap(), Ipv4Addr::LOCALHOST);
        let error = ipv4_of("nosuch0").unwrap_err().to_string();
        assert!(error.contains("no such interface") && error.contains("DMLC_NODE_HOST"), "{error}");
    }

    #[test]
    fn answers_that_lie_about_lengths_end_the_scan() {
        let mut bytes = vec![0u8; 24];
        bytes[0..4].copy_from_slice(&1000u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&RTM_NEWADDR.to_ne_bytes());
        assert_eq!(scan(&bytes, 1), ControlFlow::Break(None));
        assert_eq!(scan(&[], 1), ControlFlow::Continue(()));
        assert_eq!(address_in(&[200, 0, 1, 0, 127]), None);
    }
}
