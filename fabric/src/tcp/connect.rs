//! The connecting half of a channel's set-up: the offer's unix socket where it can be reached, otherwise its
//! name, socket, preamble, all within one deadline.

use super::invite::{Offer, encode_preamble};
use super::sys::{self, IoRange};
use super::{local, pace};
use crate::error::FabricError;
use crate::oneshot;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Connects channel `index` of an offer, over its unix socket if it has one that can be reached from here.
pub(super) fn connect(
    offer: &Offer,
    index: u16,
    buffer_bytes: Option<usize>,
    deadline: Instant,
) -> Result<Socket, FabricError> {
    let what = || format!("connecting channel {index} to the peer's unix socket");
    if let Some(name) = &offer.unix {
        let dialled = local::dial(name).map_err(|e| FabricError::os(what(), e));
        let tuned = dialled.and_then(|socket| sys::tune(&socket, buffer_bytes).map(|()| socket));
        match tuned.and_then(|socket| introduce(socket, offer, index, what)) {
            Ok(socket) => return Ok(socket),
            Err(error) => tracing::debug!(index, %error, "no unix socket to the peer, using tcp"),
        }
    }
    let started = Instant::now();
    let what = || format!("connecting channel {index} to {}:{}", offer.host, offer.port);
    let late = || FabricError::late(what(), started);
    let addresses = resolve(&offer.host, offer.port, deadline).map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => late(),
        _ => FabricError::os(format!("{}: resolving the name", what()), e),
    })?;
    let mut failure = None;
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        // Each address gets its part, so that one that swallows packets does not take all the time.
        let share = left / (addresses.len() - tried) as u32;
        match open(*address, buffer_bytes, share.max(Duration::from_millis(1))) {
            Ok(socket) => {
                sys::tune(&socket, buffer_bytes)?;
                return introduce(socket, offer, index, what);
            }
            Err(e) => failure = Some(e),
        }
    }
    Err(match failure {
        Some(e) if e.kind() == io::ErrorKind::TimedOut => late(),
        Some(e) => FabricError::os(format!("{} (has the peer failed, or withdrawn its offer?)", what()), e),
        None => FabricError::os(what(), io::Error::from(io::ErrorKind::AddrNotAvailable)),
    })
}

fn introduce(
    socket: Socket,
    offer: &Offer,
    index: u16,
    what: impl Fn() -> String,
) -> Result<Socket, FabricError> {
    let preamble = encode_preamble(&offer.secret, index);
    // A fresh socket's buffer is empty: it takes these few bytes whole or is broken.
    match sys::send(socket.as_fd(), &[IoRange::of_slice(&preamble)]) {
        Ok(sent) if sent == preamble.len() => Ok(socket),
        Ok(_) => Err(FabricError::Internal("a fresh socket did not take a preamble".into())),
        Err(e) => Err(FabricError::os(what(), e)),
    }
}

fn open(address: SocketAddr, buffer_bytes: Option<usize>, timeout: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(bytes) = buffer_bytes {
        sys::fix_buffers(&socket, bytes).map_err(io::Error::other)?;
    }
    pace::connecting(&socket, address);
    socket.connect_timeout(&address.into(), timeout)?;
    // Where nobody listens on a local port, the system may pick that very port for our end and connect the
    // socket to itself.
    if socket.local_addr()?.as_socket() == socket.peer_addr()?.as_socket() {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(socket)
}

/// Addresses of a host. The system's resolver knows no deadline, so names are resolved on a thread that is
/// left behind when it is late; it ends by itself.
fn resolve(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (answer, answers) = oneshot::channel();
    let host = host.to_owned();
    std::thread::Builder::new().name("gradwire-resolve".into()).spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs();
        // Nobody waits any more when this fails.
        answer.send(found.map(|all| all.take(ADDRESSES_MAX).collect()));
    })?;
    match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the resolver thread panicked")),
    }
}
