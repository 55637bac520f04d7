//! The unix socket that an offer may name beside its TCP port: opening it, reaching it, and who may be at its
//! other end. Between processes of one host and user the kernel moves about a quarter more bytes in the same
//! processor time over it. It knows nothing of preambles or frames.

use super::sys;
use crate::host::is_of_our_user;
use crate::random::random;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

/// Connections that may wait in a listener: more than strangers bring between two looks at it.
pub(super) const BACKLOG: i32 = 1024;

/// An abstract address: nothing in the file system, gone with the socket.
fn address(name: &[u8; 16]) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0gradwire-{:032x}", u128::from_be_bytes(*name)))
}

fn open_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens under a fresh name. `None`: it is not possible here, and TCP does as well.
pub(super) fn listen() -> Option<([u8; 16], Socket)> {
    let open = |name: &[u8; 16]| {
        let socket = open_socket()?;
        socket.bind(&address(name)?)?;
        socket.listen(BACKLOG)?;
        io::Result::Ok(socket)
    };
    let opened = random().map_err(io::Error::other).and_then(|name| Ok((name, open(&name)?)));
    opened.inspect_err(|error| tracing::debug!(%error, "cannot open a unix socket; offering tcp only")).ok()
}

/// Connects to a name, at once or not at all: nobody has it on another host or in another network namespace,
/// and with a full backlog TCP is there. Whoever listens is of our user: other users may take names, too.
pub(super) fn dial(name: &[u8; 16]) -> io::Result<Socket> {
    let socket = open_socket()?;
    socket.connect(&address(name)?)?;
    if !is_of_our_user(socket.as_fd()) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "another user listens at the unix socket"));
    }
    Ok(socket)
}

/// May whoever is at the other end of an accepted connection go on?
pub(super) fn may_enter(socket: &Socket) -> bool {
    !sys::is_unix(socket) || is_of_our_user(socket.as_fd())
}
