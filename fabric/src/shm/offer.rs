//! Connecting channels: the offer's bytes, the socket it names, who may come in, and the exchange of the two
//! ends' memory. It must not know of completion queues beyond their handles.

use super::bell::ShmHandle;
use super::channel::ShmSetup;
use super::link::{self, Greeted, Greeting, NoMessage};
use super::ring::{Consumer, Producer};
use super::shared::{BellPage, MappedRing};
use crate::device::{ChannelSetup, CqHandle, PendingOffer, SetupKind};
use crate::error::FabricError;
use crate::host::is_of_our_user;
use crate::memory::Region;
use crate::random::{Secret, random};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most channels of one offer.
const CHANNELS_MAX: usize = 1024;
/// Connections that have not said who they are, kept at once beyond the expected ones.
const STRANGERS_MAX: usize = 16;
/// How long a connection may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(1);
const OFFER_BYTES: usize = 38;
const MAGIC: [u8; 4] = *b"GWSO";

/// Where and with what secret to connect.
#[derive(Clone, Copy, Debug)]
struct Offer {
    channels: u16,
    name: [u8; 16],
    secret: Secret,
}

impl Offer {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OFFER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.channels.to_le_bytes());
        bytes.extend_from_slice(&self.name);
        bytes.extend_from_slice(&self.secret.0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, FabricError> {
        let refuse = |why: &str| FabricError::Peer(format!("its shared-memory offer {why}"));
        let bytes: &[u8; OFFER_BYTES] = bytes.try_into().map_err(|_| refuse("has the wrong length"))?;
        if bytes[..4] != MAGIC {
            return Err(refuse("is of another kind or version"));
        }
        let channels = u16::from_le_bytes([bytes[4], bytes[5]]);
        if channels == 0 || usize::from(channels) > CHANNELS_MAX {
            return Err(refuse("has no channels or too many"));
        }
        let (mut name, mut secret) = ([0; 16], [0; 16]);
        name.copy_from_slice(&bytes[6..22]);
        secret.copy_from_slice(&bytes[22..]);
        Ok(Self { channels, name, secret: Secret(secret) })
    }

    /// An abstract name: nothing in the file system, gone with the socket.
    fn address(&self) -> Result<SocketAddrUnix, FabricError> {
        let name = format!("gradwire-{:032x}", u128::from_be_bytes(self.name));
        SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|e| FabricError::os("naming a shared-memory socket", e))
    }
}

/// An offer, or a greeting, read and encoded again: for the fuzz target.
#[cfg(feature = "sim")]
#[must_use]
pub fn again(bytes: &[u8]) -> Option<Vec<u8>> {
    let greeting = || Greeting::decode(bytes).map(|greeting| greeting.encode().to_vec());
    Offer::decode(bytes).ok().map(|offer| offer.encode()).or_else(greeting)
}

fn open_socket(flags: SocketFlags) -> Result<OwnedFd, FabricError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
        .map_err(|e| FabricError::os("opening a shared-memory socket", e))
}

/// Channels a peer was invited to connect.
#[derive(Debug)]
pub(super) struct ShmOffer {
    listener: OwnedFd,
    secret: Secret,
    queues: Vec<ShmHandle>,
}

/// Opens the socket and says what the peer must know.
pub(super) fn open(queues: &[CqHandle]) -> Result<(Vec<u8>, ShmOffer), FabricError> {
    if queues.is_empty() || queues.len() > CHANNELS_MAX {
        let why = format!("invalid offer of {} channels: use 1 to {CHANNELS_MAX}", queues.len());
        return Err(FabricError::Misuse(why));
    }
    let offer = Offer { channels: queues.len() as u16, name: random()?, secret: Secret::random()? };
    let listener = open_socket(SocketFlags::NONBLOCK)?;
    bind(&listener, &offer.address()?).map_err(|e| FabricError::os("binding a shared-memory socket", e))?;
    listen(&listener, (queues.len() + STRANGERS_MAX) as i32)
        .map_err(|e| FabricError::os("listening on a shared-memory socket", e))?;
    let queues = queues.iter().map(|queue| handle_of(queue).cloned()).collect::<Result<_, _>>()?;
    Ok((offer.encode(), ShmOffer { listener, secret: offer.secret, queues }))
}

/// Our side of a channel before the peer's is known.
struct Half {
    handle: ShmHandle,
    receive: Consumer<MappedRing>,
    file: Region,
}

fn handle_of(queue: &CqHandle) -> Result<&ShmHandle, FabricError> {
    let missing = || FabricError::Misuse("a queue without shared memory was given to the shm driver".into());
    queue.shm.as_ref().ok_or_else(missing)
}

impl Half {
    fn new(handle: &ShmHandle) -> Result<Self, FabricError> {
        let (ring, file) = MappedRing::create(handle.ring_capacity)?;
        Ok(Self { handle: handle.clone(), receive: Consumer::new(ring), file })
    }

    fn greet(&self, link: BorrowedFd<'_>, index: u16, secret: Secret) -> Result<(), FabricError> {
        let greeting = Greeting { index, capacity: self.handle.ring_capacity, secret };
        let (Some(bell), Some(ring)) = (self.handle.bell.memfd(), self.file.memfd()) else {
            return Err(FabricError::Internal("our own memory has no file".into()));
        };
        link::send_greeting(link, &greeting, bell, ring)
    }

    fn join(self, link: OwnedFd, (peer_bell, send): OtherHalf) -> ChannelSetup {
        let setup = ShmSetup { bell: self.handle.bell, link, peer_bell, receive: self.receive, send };
        ChannelSetup { kind: SetupKind::Shm(Box::new(setup)) }
    }
}

/// The peer's side.
type OtherHalf = (BellPage, Producer<MappedRing>);

fn map(peer: &Greeted) -> Result<OtherHalf, FabricError> {
    let ring = MappedRing::of_peer(peer.ring.as_fd(), peer.greeting.capacity)?;
    Ok((BellPage::of_peer(peer.bell.as_fd())?, Producer::new(ring)))
}

impl ShmOffer {
    /// Reads a candidate's greeting. `None`: it said nothing yet.
    fn greeted(&self, link: BorrowedFd<'_>) -> Result<Option<Greeted>, &'static str> {
        let peer = match link::receive_greeting(link) {
            Ok(peer) => peer,
            Err(NoMessage::Nothing) => return Ok(None),
            Err(NoMessage::Closed) => return Err("it hung up"),
            Err(NoMessage::Garbage(what)) => return Err(what),
            Err(NoMessage::Failed(_)) => return Err("reading its greeting failed"),
        };
        if peer.greeting.secret != self.secret {
            return Err("its secret is wrong");
        }
        Ok(Some(peer))
    }

    /// Takes the candidate in as the channel it asks for, which is one there is.
    fn admit(&self, link: OwnedFd, peer: &Greeted) -> Result<ChannelSetup, FabricError> {
        let index = peer.greeting.index;
        let half = Half::new(&self.queues[usize::from(index)])?;
        let other = map(peer)?;
        half.greet(link.as_fd(), index, self.secret)?;
        Ok(half.join(link, other))
    }

    /// Accepts one connection, if there is one.
    fn let_in(&self, candidates: &mut Vec<Candidate>) -> Result<(), FabricError> {
        let link = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(link) => link,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(e) => return Err(FabricError::os("accepting a shared-memory connection", e)),
        };
        if !is_of_our_user(link.as_fd()) {
            tracing::debug!("rejected a process of another user at a shared-memory offer");
            return Ok(());
        }
        if candidates.len() == self.queues.len() + STRANGERS_MAX {
            // The one that has been silent for longest.
            candidates.remove(0);
        }
        candidates.push(Candidate { link, until: Instant::now() + SILENCE_MAX });
        Ok(())
    }
}

/// A connection that has not said who it is.
struct Candidate {
    link: OwnedFd,
    until: Instant,
}

impl PendingOffer for ShmOffer {
    fn accept(self: Box<Self>, deadline: Instant) -> Result<Vec<ChannelSetup>, FabricError> {
        let started = Instant::now();
        let mut taken: Vec<Option<ChannelSetup>> = self.queues.iter().map(|_| None).collect();
        let mut candidates: Vec<Candidate> = Vec::new();
        while taken.iter().any(Option::is_none) {
            let now = Instant::now();
            if now >= deadline {
                let missing = taken.iter().filter(|setup| setup.is_none()).count();
                return Err(FabricError::late(
                    format!("{missing} of {} shared-memory channels", taken.len()),
                    started,
                ));
            }
            candidates.retain(|candidate| candidate.until > now);
            let until = candidates.iter().map(|c| c.until).fold(deadline, Instant::min);
            let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
            fds.extend(candidates.iter().map(|c| PollFd::new(&c.link, PollFlags::IN)));
            link::wait_readable(&mut fds, until)?;
            let mut waiting = Vec::with_capacity(candidates.len() + 1);
            for candidate in candidates {
                match self.greeted(candidate.link.as_fd()) {
                    Ok(None) => waiting.push(candidate),
                    Ok(Some(peer)) => match taken.get_mut(usize::from(peer.greeting.index)) {
                        Some(place) if place.is_none() => *place = Some(self.admit(candidate.link, &peer)?),
                        _ => return Err(FabricError::Peer("it asked for a channel that is not free".into())),
                    },
                    Err(why) => {
                        tracing::debug!(why, "rejected an unauthenticated peer at a shared-memory offer");
                    }
                }
            }
            candidates = waiting;
            self.let_in(&mut candidates)?;
        }
        Ok(taken.into_iter().flatten().collect())
    }
}

/// Connects channel `index` of a peer's offer.
pub(super) fn join(
    offer: &[u8],
    index: u16,
    queue: &CqHandle,
    deadline: Instant,
) -> Result<ChannelSetup, FabricError> {
    let started = Instant::now();
    let offer = Offer::decode(offer)?;
    if index >= offer.channels {
        return Err(FabricError::Misuse(format!("channel {index} of an offer of {}", offer.channels)));
    }
    let link = dial(&offer, started, deadline)?;
    let half = Half::new(handle_of(queue)?)?;
    half.greet(link.as_fd(), index, offer.secret)?;
    let peer = answer(link.as_fd(), &offer, index, started, deadline)?;
    Ok(half.join(link, map(&peer)?))
}

/// Connects the socket.
fn dial(offer: &Offer, started: Instant, deadline: Instant) -> Result<OwnedFd, FabricError> {
    let link = open_socket(SocketFlags::empty())?;
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(FabricError::late("a shared-memory offer", started));
    }
    // Bounds how long a full backlog can hold us.
    set_socket_timeout(&link, Timeout::Send, Some(left))
        .map_err(|e| FabricError::os("setting a shared-memory socket's deadline", e))?;
    match connect(&link, &offer.address()?) {
        Ok(()) => {}
        Err(Errno::AGAIN | Errno::TIMEDOUT) => {
            return Err(FabricError::late("a shared-memory offer", started));
        }
        Err(e) => {
            let what =
                "connecting to a shared-memory offer (is the peer on this host, in this network namespace?)";
            return Err(FabricError::os(what, e));
        }
    }
    if !is_of_our_user(link.as_fd()) {
        return Err(FabricError::Peer(
            "it runs as another user, and memory is shared only within one user".into(),
        ));
    }
    rustix::io::ioctl_fionbio(&link, true)
        .map_err(|e| FabricError::os("making a shared-memory socket non-blocking", e))?;
    Ok(link)
}

/// Waits for the peer's greeting.
fn answer(
    link: BorrowedFd<'_>,
    offer: &Offer,
    index: u16,
    started: Instant,
    deadline: Instant,
) -> Result<Greeted, FabricError> {
    loop {
        match link::receive_greeting(link) {
            Ok(peer) if peer.greeting.index == index && peer.greeting.secret == offer.secret => {
                return Ok(peer);
            }
            Ok(_) => return Err(FabricError::Peer("it answered for another channel".into())),
            Err(NoMessage::Nothing) => {}
            Err(NoMessage::Closed) => {
                return Err(FabricError::Peer("it refused a shared-memory channel or went away".into()));
            }
            Err(NoMessage::Garbage(what)) => return Err(FabricError::Peer(what.into())),
            Err(NoMessage::Failed(e)) => {
                return Err(FabricError::os("reading a shared-memory peer's greeting", e));
            }
        }
        if Instant::now() >= deadline {
            return Err(FabricError::late("a shared-memory peer's greeting", started));
        }
        link::wait_one(link, deadline)?;
    }
}
