//! The TCP driver: one-sided writes and reads as frames on one socket per channel, between any two
//! processes; a unix socket carries the same frames where both are of one host and user. Payload goes out of
//! registered memory by gathering system calls and comes in straight into the exposed region that a frame
//! names, after key and bounds are checked.
//!
//! A write's way: `queue` takes the post, `send` gathers many frames into one system call, on the other
//! side `receive` finds the header, `channel` judges it, `receive` reads the payload into place, `queue`
//! hands out the completion. `accept`, `connect`, `invite` and `local` make the sockets, `pace` chooses
//! their congestion control; `sys` holds the system calls and all `unsafe` of this driver; `frame` is the wire format.

mod accept;
mod channel;
mod connect;
pub mod frame;
mod invite;
mod local;
mod pace;
mod pipe;
mod queue;
mod receive;
mod seal;
mod send;
mod sys;

#[cfg(feature = "sim")]
pub use invite::{again, preamble_of};
pub use queue::TcpQueue;

use crate::device::{ChannelSetup, CqHandle, Device, PendingOffer, SetupKind};
use crate::error::FabricError;
use crate::random::Secret;
use accept::TcpPending;
use invite::{CHANNELS_MAX, HOST_BYTES_MAX, Offer};
use local::BACKLOG;
use pace::SystemChoice;
pub(crate) use pipe::{Pipe, carrier};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// TCP between any two processes.
#[derive(Clone, Debug)]
pub struct TcpDevice {
    bind: IpAddr,
    advertise: String,
    buffer_bytes: Option<usize>,
    unix: bool,
    sealed: bool,
}

impl TcpDevice {
    /// `bind`: where offers listen, each on a port of the system's choice. `advertise`: the host name or
    /// address under which peers reach it; checked when an offer is made.
    #[must_use]
    pub fn new(bind: IpAddr, advertise: String) -> Self {
        Self { bind, advertise, buffer_bytes: None, unix: true, sealed: false }
    }

    /// Fixes the sockets' buffers. Without it the system adapts them to each link, which on loopback is
    /// within a few percent of 4 MiB fixed and on a long link needs no knowledge of its delay.
    #[must_use]
    pub fn with_socket_buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Whether to use unix sockets with peers of the same host (network namespace) and user, which is so unless
    /// said otherwise. Both sides must want it; what cannot be reached this way is reached over TCP.
    #[must_use]
    pub fn with_unix(mut self, unix: bool) -> Self {
        self.unix = unix;
        self
    }

    /// Whether what goes over TCP is encrypted. The offering side says so; a side that wants it connects to no offer without.
    #[must_use]
    pub fn with_encryption(mut self, sealed: bool) -> Self {
        self.sealed = sealed;
        self
    }

    fn listen(&self) -> io::Result<(Socket, Option<SystemChoice>)> {
        let address = SocketAddr::new(self.bind, 0);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(bytes) = self.buffer_bytes {
            // Accepted sockets inherit it.
            sys::fix_buffers(&socket, bytes).map_err(io::Error::other)?;
        }
        let choice = pace::listening(&socket);
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok((socket, choice))
    }
}

impl Device for TcpDevice {
    fn offer(&self, queues: &[CqHandle]) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError> {
        // Of the queues TCP needs to know no more than their number.
        let channels = queues.len();
        if channels == 0 || channels > CHANNELS_MAX {
            return Err(FabricError::Misuse(format!(
                "an offer has 1 to {CHANNELS_MAX} channels, not {channels}"
            )));
        }
        if self.advertise.is_empty() || self.advertise.len() > HOST_BYTES_MAX {
            let advertise = &self.advertise;
            return Err(FabricError::Misuse(format!(
                "invalid host name {advertise:?}: peers cannot connect to it"
            )));
        }
        let (tcp, choice) = self.listen().map_err(|e| {
            FabricError::os(format!("listening on {} (is it an address of this host?)", self.bind), e)
        })?;
        let address = tcp.local_addr().map_err(|e| FabricError::os("reading the port of a listener", e))?;
        let address = address
            .as_socket()
            .ok_or_else(|| FabricError::Internal("a tcp port without an address".into()))?;
        let (unix, listener) = self.unix.then(local::listen).flatten().unzip();
        let offer = Offer {
            host: self.advertise.clone(),
            port: address.port(),
            // At most CHANNELS_MAX, checked above.
            channels: channels as u16,
            secret: Secret::random()?,
            sealed: self.sealed,
            unix,
        };
        let buffer_bytes = self.buffer_bytes;
        let bytes = offer.encode();
        Ok((bytes, Box::new(TcpPending { tcp, address, choice, unix: listener, buffer_bytes, offer })))
    }

    fn connect(
        &self,
        offer: &[u8],
        index: u16,
        _queue: &CqHandle,
        deadline: Instant,
    ) -> Result<ChannelSetup, FabricError> {
        let mut offer = Offer::decode(offer)?;
        if index >= offer.channels {
            let channels = offer.channels;
            return Err(FabricError::Misuse(format!("channel {index} of an offer of {channels} channels")));
        }
        offer.unix = offer.unix.filter(|_| self.unix);
        let socket = connect::connect(&offer, index, self.buffer_bytes, deadline)?;
        let pipe = Pipe::of(&socket, offer.sealed.then_some((&offer.secret, index, true)))?;
        if self.sealed && pipe.is_plain() && !sys::is_unix(&socket) {
            let why = "does not encrypt its channels, which this process requires; set security.encrypt_data there as well";
            return Err(FabricError::Peer(why.into()));
        }
        Ok(ChannelSetup { kind: SetupKind::Tcp(socket, pipe) })
    }
}
