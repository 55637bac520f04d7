//! What two queue pairs have to know of each other. The one that invites says it in its offer; the one that connects
//! says it over the channel's TCP connection. There, each says that it is ready once its lane has the channel, and sends
//! nothing before it has heard the other's word: what comes for a queue pair that a lane does not know would be lost.

use super::words::{ENDPOINT_BYTES as BYTES, Endpoint};
use crate::error::FabricError;
use socket2::Socket;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Says: my queue pair receives.
pub(super) const READY: u8 = 0x52;

fn said<T>(result: std::io::Result<T>, started: Instant) -> Result<T, FabricError> {
    result.map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            FabricError::late("the peer's verbs endpoint", started)
        }
        _ => FabricError::os("exchanging verbs endpoints", e),
    })
}

/// Blocks with the deadline from here on.
fn patient(socket: &Socket, deadline: Instant) -> Result<(), FabricError> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let set = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(left)))
        .and_then(|()| socket.set_write_timeout(Some(left)));
    set.map_err(|e| FabricError::os("setting up a channel's socket", e))
}

/// The side that connects, first thing.
pub(super) fn tell(socket: &Socket, ours: &Endpoint, deadline: Instant) -> Result<(), FabricError> {
    let started = Instant::now();
    patient(socket, deadline)?;
    let mut stream = socket;
    said(stream.write_all(&ours.encode()), started)?;
    impatient(socket)
}

/// The side that invited hears that.
pub(super) fn hear(socket: &Socket, deadline: Instant) -> Result<Endpoint, FabricError> {
    let started = Instant::now();
    let mut theirs = [0; BYTES];
    let mut read = 0;
    let mut stream = socket;
    while read < BYTES {
        // Anew each time: one that drips has no more time than others.
        patient(socket, deadline)?;
        match said(stream.read(&mut theirs[read..]), started)? {
            0 => return Err(FabricError::Peer("it hung up before its verbs endpoint was told".into())),
            bytes => read += bytes,
        }
    }
    impatient(socket)?;
    Endpoint::decode(&theirs)
}

/// Each side, once its lane has the channel. Does not wait: nothing else was written since the endpoint.
pub(super) fn say_ready(socket: &Socket) -> Result<(), FabricError> {
    let mut stream = socket;
    stream.write_all(&[READY]).map_err(|e| FabricError::os("telling the peer that a channel is ready", e))
}

fn impatient(socket: &Socket) -> Result<(), FabricError> {
    socket.set_nonblocking(true).map_err(|e| FabricError::os("setting up a channel's socket", e))
}
