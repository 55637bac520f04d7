//! The unix socket that an offer may name beside its TCP port: opening it, reaching it, and who may be at its
//! other end. Between processes of one host and user the kernel moves about a quarter more bytes in the same
//! processor time over it. It knows nothing of preambles or frames.

use super::BACKLOG;
use super::invite::Name;
use super::sys;
use crate::shm::is_of_our_user;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

/// An abstract address: nothing in the file system, gone with the socket.
fn address(name: &Name) -> io::Result<SockAddr> {
    let mut path = String::from("\0gradwire-");
    for byte in name.0 {
        // Writing to a string cannot fail.
        let _ = write!(path, "{byte:02x}");
    }
    SockAddr::unix(path)
}

fn open_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens under a fresh name. `None`: it is not possible here, and TCP does as well.
pub(super) fn listen() -> Option<(Name, Socket)> {
    let open = |name: &Name| {
        let socket = open_socket()?;
        socket.bind(&address(name)?)?;
        socket.listen(BACKLOG)?;
        io::Result::Ok(socket)
    };
    let opened = Name::random().map_err(io::Error::other).and_then(|name| Ok((name, open(&name)?)));
    opened.inspect_err(|error| tracing::debug!(%error, "cannot open a unix socket; offering tcp only")).ok()
}

/// Connects to a name, at once or not at all: nobody has it on another host or in another network namespace,
/// and with a full backlog TCP is there. Whoever listens is of our user: other users may take names, too.
pub(super) fn dial(name: &Name) -> io::Result<Socket> {
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
