//! What two queue pairs have to know of each other. The one that invites says it in its offer; the one that connects
//! says it over the channel's TCP connection. There, each says that it is ready once its lane has the channel, and sends
//! nothing before it has heard the other's word: what comes for a queue pair that a lane does not know would be lost.

use super::flags;
use super::sys::Remote;
use crate::error::FabricError;
use socket2::Socket;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

const MAGIC: u32 = 0x5642_5747;
pub(super) const BYTES: usize = 48;
/// Says: my queue pair receives.
pub(super) const READY: u8 = 0x52;

/// Beside the largest packet: notices by flags are wanted.
const TAIL_FLAGS: u32 = 1 << 8;

/// One side's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) remote: Remote,
    /// The largest packet of its port, an `ibv_mtu`.
    pub(super) mtu: u32,
    /// Reads that it answers at once.
    pub(super) reads: u8,
    /// Where it would have notices by flags, and the key of that memory.
    pub(super) flags: Option<(u64, u32)>,
}

impl Endpoint {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.remote.queue_pair.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.remote.first_packet.to_le_bytes());
        let mtu = self.mtu | if self.flags.is_some() { TAIL_FLAGS } else { 0 };
        let (address, key) = self.flags.unwrap_or_default();
        bytes[12..16].copy_from_slice(&mtu.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.remote.gid);
        bytes[32..40].copy_from_slice(&address.to_le_bytes());
        bytes[40..44].copy_from_slice(&key.to_le_bytes());
        bytes[44] = self.reads;
        bytes
    }

    pub(super) fn decode(bytes: &[u8; BYTES]) -> Result<Self, FabricError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..32]);
        let (queue_pair, first_packet, mtu) = (word(4), word(8), word(12) & !TAIL_FLAGS);
        let fits = queue_pair < 1 << 24 && first_packet < 1 << 24 && (1..=5).contains(&mtu) && bytes[44] > 0;
        if word(0) != MAGIC || !fits {
            return Err(FabricError::Peer("what it said is no verbs endpoint".into()));
        }
        let address = u64::from(word(36)) << 32 | u64::from(word(32));
        let flags = (word(12) & TAIL_FLAGS != 0).then_some((address, word(40)));
        if flags.is_some_and(|(address, _)| address.checked_add(flags::BYTES).is_none()) {
            return Err(FabricError::Peer("its flags lie nowhere".into()));
        }
        Ok(Self { remote: Remote { gid, queue_pair, first_packet }, mtu, reads: bytes[44], flags })
    }
}

fn said<T>(result: std::io::Result<T>, started: Instant) -> Result<T, FabricError> {
    result.map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => FabricError::Deadline {
            what: "the peer's verbs endpoint".into(),
            waited_ms: started.elapsed().as_millis() as u64,
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_and_nonsense_does_not() {
        let remote = Remote { gid: [7; 16], queue_pair: 0x00AB_CDEF, first_packet: 0x0012_3456 };
        for flags in [None, Some((0x7F00_1234_5678_9AB0, 0xABCD_EF01))] {
            let endpoint = Endpoint { remote, mtu: 3, reads: 16, flags };
            assert_eq!(Endpoint::decode(&endpoint.encode()).ok(), Some(endpoint));
        }
        let bytes = Endpoint { remote, mtu: 3, reads: 16, flags: None }.encode();
        for (at, value) in [(0, 0), (7, 1), (11, 1), (12, 6), (12, 0), (13, 2), (44, 0)] {
            let mut bad = bytes;
            bad[at] = value;
            assert!(matches!(Endpoint::decode(&bad), Err(FabricError::Peer(_))), "byte {at}");
        }
    }
}
