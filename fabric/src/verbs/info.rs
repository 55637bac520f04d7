//! What RDMA devices there are and which address of a port is used: plain data, known to every build. It must not
//! ask the system anything.

use crate::error::FabricError;
use std::fmt;
use std::net::Ipv6Addr;

/// A RDMA device, as it looks now.
#[derive(Debug)]
pub struct DeviceInfo {
    /// Its name, as `rdma link` shows it.
    pub name: String,
    /// Its ports, or why they cannot be asked for (mostly: this user may not open the device).
    pub ports: Result<Vec<PortInfo>, FabricError>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// From 1.
    pub number: u8,
    /// Does it carry packets now?
    pub is_up: bool,
    /// The largest packet it carries now.
    pub mtu_bytes: u32,
    /// Its addresses, in the order of their index.
    pub gids: Vec<Gid>,
}

impl PortInfo {
    /// The address that is used: this one by its index, else the one that works best between hosts.
    #[must_use]
    pub fn choose(&self, gid_index: Option<u8>) -> Option<&Gid> {
        choose(&self.gids, gid_index)
    }
}

/// An address of a RoCE port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// As it stands in packets.
    pub gid: [u8; 16],
    /// Its place in the device's table.
    pub index: u8,
    /// Its port.
    pub port: u8,
    /// Is it of RoCE version 2, which is routed as UDP?
    pub is_roce_v2: bool,
    /// Does a network interface stand behind it?
    pub has_netdev: bool,
}

impl Gid {
    /// Of IPv4, as IPv6 maps it.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        Ipv6Addr::from(self.gid).to_ipv4_mapped().is_some()
    }

    /// Good for one link only.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        self.gid[..2] == [0xFE, 0x80]
    }

    /// Why it is never chosen unless its index is set; none where it may be.
    #[must_use]
    pub fn obstacle(&self) -> Option<&'static str> {
        match (self.is_roce_v2, self.has_netdev) {
            (false, _) => Some("not of RoCE version 2"),
            (true, false) => Some("no network interface behind it"),
            (true, true) => None,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.gid);
        match address.to_ipv4_mapped() {
            Some(v4) => v4.fmt(f),
            None => address.fmt(f),
        }
    }
}

/// A routable address before a link's own, and version 4 before 6: the order in which they work between hosts.
pub(super) fn choose(gids: &[Gid], gid_index: Option<u8>) -> Option<&Gid> {
    if let Some(index) = gid_index {
        return gids.iter().find(|gid| gid.index == index);
    }
    let usable = gids.iter().filter(|gid| gid.obstacle().is_none());
    usable.min_by_key(|gid| (gid.is_link_local(), !gid.is_v4(), gid.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, start: &[u8], is_roce_v2: bool, has_netdev: bool) -> Gid {
        let mut gid = [1; 16];
        gid[..start.len()].copy_from_slice(start);
        Gid { gid, index, port: 1, is_roce_v2, has_netdev }
    }

    #[test]
    fn a_routable_v2_address_of_a_network_device_is_chosen() {
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
        let mut gids = vec![
            gid(0, &[0xFE, 0x80], false, true),
            gid(1, &[0xFE, 0x80], true, true),
            gid(2, &[0x20, 0x01], true, true),
            gid(3, &v4, false, true),
            gid(4, &v4, true, false),
            gid(5, &v4, true, true),
        ];
        let chosen = |gids: &[Gid]| choose(gids, None).map(|gid| gid.index);
        assert_eq!(chosen(&gids), Some(5));
        gids.truncate(5);
        assert_eq!(chosen(&gids), Some(2));
        gids.truncate(2);
        assert_eq!(chosen(&gids), Some(1));
        gids.truncate(1);
        assert_eq!(chosen(&gids), None);
        assert_eq!(choose(&gids, Some(0)).map(|gid| gid.index), Some(0));
        assert_eq!(choose(&gids, Some(1)), None);
    }

    #[test]
    fn an_address_reads_as_people_write_it() {
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 9, 0, 1];
        assert_eq!(gid(0, &v4, true, true).to_string(), "10.9.0.1");
        assert_eq!(gid(0, &[0xFE, 0x80], true, true).to_string(), "fe80:101:101:101:101:101:101:101");
    }
}
