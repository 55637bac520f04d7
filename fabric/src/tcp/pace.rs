//! The congestion control of TCP connections within one host: there is no link to be fair on, and pacing (BBR, the
//! default of some systems) costs half the throughput there. It owns that choice, and when it is made: before a
//! connection is there. Linux never takes pacing back from a connection that began under a control that paces, whatever
//! it is given afterwards (`sk_pacing_status` is only ever raised), and then each burst waits for a timer. It decides
//! nothing else about sockets, and changes no choice that does not pace; where the system refuses, its own works.

use socket2::{SockAddr, Socket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Does not pace, and every system has it.
const UNPACED: &[u8] = b"reno";

/// Does this control pace? All versions of BBR do, and of Linux's no other.
fn paces(name: &[u8]) -> bool {
    name.starts_with(b"bbr")
}

/// The control that the system gives to a socket by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemChoice(Vec<u8>);

/// A socket about to be connected.
pub(super) fn connecting(socket: &Socket, to: SocketAddr) {
    if congestion(socket).is_ok_and(|name| paces(&name)) && is_own_address(to) {
        let _ = socket.set_tcp_congestion(UNPACED);
    }
}

/// A listener, before it listens: where the system would pace its connections, they begin without it, and those that
/// come from elsewhere are to be given the system's choice back by [`accepted`]. `None`: nothing was changed.
pub(super) fn listening(listener: &Socket) -> Option<SystemChoice> {
    let choice = congestion(listener).ok().filter(|name| paces(name))?;
    listener.set_tcp_congestion(UNPACED).ok()?;
    Some(SystemChoice(choice))
}

/// A connection of such a listener.
pub(super) fn accepted(socket: &Socket, choice: &SystemChoice) {
    if !is_within_this_host(socket) {
        let _ = socket.set_tcp_congestion(&choice.0);
    }
}

/// Its name, without the zeros behind it.
fn congestion(socket: &Socket) -> io::Result<Vec<u8>> {
    let mut name = socket.tcp_congestion()?;
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    Ok(name)
}

/// Is it an address of this host? The system says from where it would send there; nothing is sent.
fn is_own_address(to: SocketAddr) -> bool {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        socket.local_addr()
    };
    from().is_ok_and(|from: SocketAddr| from.ip() == to.ip())
}

/// A connection to an address of one's own comes from that very address.
fn is_within_this_host(socket: &Socket) -> bool {
    let ip = |address: io::Result<SockAddr>| Some(address.ok()?.as_socket()?.ip());
    matches!((ip(socket.local_addr()), ip(socket.peer_addr())), (Some(local), Some(peer)) if local == peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    fn socket() -> Socket {
        Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
    }

    fn at(ip: &str, port: u16) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), port)
    }

    /// The socket is not connected yet when it has it: later would be too late.
    #[test]
    fn a_socket_is_unpaced_before_it_connects_within_the_host_only() {
        let (near, far) = (socket(), socket());
        let choice = congestion(&far).unwrap();
        connecting(&near, at("127.0.0.1", 1));
        connecting(&far, at("192.0.2.1", 1));
        let wanted = if paces(&choice) { UNPACED } else { &choice[..] };
        assert_eq!(congestion(&near).unwrap(), wanted);
        assert_eq!(congestion(&far).unwrap(), choice, "no address of ours");
    }

    #[test]
    fn a_choice_that_does_not_pace_is_left_alone() {
        for (name, is_paced) in
            [("bbr", true), ("bbr3", true), ("cubic", false), ("reno", false), ("", false)]
        {
            assert_eq!(paces(name.as_bytes()), is_paced, "{name}");
        }
        let socket = socket();
        // Not every system lets everybody have cubic; reno every one does.
        let choice =
            ["cubic", "reno"].into_iter().find(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
        assert_eq!(listening(&socket), None);
        connecting(&socket, at("127.0.0.1", 1));
        assert_eq!(congestion(&socket).unwrap(), choice.unwrap().as_bytes());
    }

    /// Another of our addresses stands for another host: a connection from there does not come from where it goes to.
    #[test]
    fn an_accepted_connection_begins_unpaced_and_goes_back_where_it_comes_from_elsewhere() {
        let listener = socket();
        let Some(choice) = listening(&listener) else {
            assert!(!paces(&congestion(&listener).unwrap()));
            return;
        };
        assert_eq!(choice.0, congestion(&socket()).unwrap());
        listener.bind(&at("127.0.0.1", 0).into()).unwrap();
        listener.listen(2).unwrap();
        let address = listener.local_addr().unwrap();
        for (from, is_near) in [("127.0.0.1", true), ("127.0.0.2", false)] {
            let peer = socket();
            peer.bind(&at(from, 0).into()).unwrap();
            peer.connect(&address).unwrap();
            let (ours, _) = listener.accept().unwrap();
            assert_eq!(congestion(&ours).unwrap(), UNPACED, "from its beginning");
            accepted(&ours, &choice);
            let wanted = if is_near { UNPACED } else { &choice.0[..] };
            assert_eq!(congestion(&ours).unwrap(), wanted, "from {from}");
        }
    }
}
