//! How the workers of a host find each other and agree, once, when the job begins. A worker listens under a name that follows from the
//! job and its incarnation, which only members know, before it registers. So when the roster is complete, all workers of this host and
//! user can be reached, and each of them finds the same ones.
//!
//! ```text
//!  follower                                          head: the worker of the lowest rank
//!     ├── its rank ────────────────────────────────────▶ │
//!     │ ◀────────────────────────── an offer of a channel │
//!     ├── connects, the keys of its memory ────────────▶ │
//!     │ ◀──────────────────────── the keys of its memory │
//!     │ ◀───── agreed, once this is done with everybody  │
//! ```
//!
//! If anything fails, the connection closes, and both go on without each other. A member that has agreed while another has not is found
//! by the end of the channel.

use super::letter::LETTER_BYTES;
use crate::runtime::warn;
use fabric::{
    Access, ChannelId, CompletionQueue, CqHandle, Device, LaneQueue, PeerWritable, Region, RemoteKey,
    RemoteSpan, ShmDevice, View, connect_local, is_of_our_user,
};
use proto_common::ids::{Incarnation, JobId, Rank};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Letters that one side may have sent and the other not read: a follower sends at most three for each
/// operation that is offered (`Offer`, `Withdraw`, `Copied`), and its head two.
pub(super) const LETTERS: u64 = 512;
/// The longest message of a meeting.
const MESSAGE_BYTES_MAX: usize = 4096;
/// How long all of it may take.
const WITHIN: Duration = Duration::from_secs(5);
/// Unfinished requests of a channel.
const SEND_DEPTH: usize = LETTERS as usize;
const AGREED: &[u8] = b"agreed";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Under this name a worker is found.
fn name_of(job: JobId, incarnation: Incarnation) -> String {
    format!("gradwire-host-{:x}-{:016x}", job.0, incarnation.0)
}

/// A worker that can be found.
#[derive(Debug)]
pub(crate) struct Listening(UnixListener);

impl Listening {
    /// From now on.
    pub(crate) fn start(job: JobId, incarnation: Incarnation) -> io::Result<Self> {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name_of(job, incarnation))?).map(Self)
    }
}

/// This worker.
#[derive(Debug)]
pub(crate) struct Own<'a> {
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    /// What others read of its memory: gradients and weights.
    pub(crate) memory: &'a Region,
    /// Only the workers of the first ranks may meet: servers add in rank order.
    pub(crate) in_order: bool,
}

/// Another worker of this host.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: Rank,
    pub(super) channel: ChannelId,
    /// Its memory.
    pub(super) memory: View,
    /// Where its letters arrive.
    pub(super) inbox: PeerWritable,
    /// Where ours are written from, and to.
    pub(super) outbox: PeerWritable,
    pub(super) remote: RemoteSpan,
    pub(super) sent: u64,
}

/// The workers of a host that have agreed.
#[derive(Debug)]
pub(crate) struct Met {
    pub(super) queue: LaneQueue,
    /// The followers in rank order, or the head alone.
    pub(super) peers: Vec<Peer>,
    pub(super) is_head: bool,
}

impl Met {
    /// Meets the other workers of this host. `workers`: all of the job, in rank order. `None` if there are none, or if they do not
    /// agree. Workers that come later do not find this one any more.
    pub(crate) fn new(listening: Listening, own: &Own<'_>, workers: &[(Rank, Incarnation)]) -> Option<Self> {
        match meet(&listening, own, workers) {
            Ok(met) => met,
            Err(error) => {
                warn(&format!(
                    "the workers of this host could not agree to add their contributions: {error}; each sends its own"
                ));
                None
            }
        }
    }

    /// Ranks of the others.
    pub(crate) fn ranks(&self) -> Vec<Rank> {
        self.peers.iter().map(|peer| peer.rank).collect()
    }

    /// Does this worker send for the others?
    pub(crate) fn is_head(&self) -> bool {
        self.is_head
    }
}

/// Connects to a worker if it is one of this host and user.
fn find(job: JobId, incarnation: Incarnation, deadline: Instant) -> Option<UnixStream> {
    let left = deadline.saturating_duration_since(Instant::now());
    let stream = connect_local(&name_of(job, incarnation), left).ok()?;
    is_of_our_user(stream.as_fd()).then_some(stream)
}

fn meet(
    listening: &Listening,
    own: &Own<'_>,
    workers: &[(Rank, Incarnation)],
) -> Result<Option<Met>, Failure> {
    let deadline = Instant::now() + WITHIN;
    let mut before = workers.iter().filter(|(rank, _)| *rank < own.rank);
    let head = before.find_map(|(rank, incarnation)| Some((*rank, find(own.job, *incarnation, deadline)?)));
    if let Some((rank, stream)) = head {
        return follow(own, rank, Link { stream, deadline });
    }
    let behind = workers.iter().filter(|(rank, _)| *rank > own.rank);
    let found = behind.filter(|(_, incarnation)| find(own.job, *incarnation, deadline).is_some());
    let followers: Vec<Rank> = found.map(|(rank, _)| *rank).collect();
    let are_first = own.rank == Rank(0) && followers.iter().zip(1..).all(|(rank, nth)| rank.0 == nth);
    // The others find this worker, too, and hear of it when the connection closes.
    if followers.is_empty() || (own.in_order && !are_first) {
        return Ok(None);
    }
    lead(&listening.0, own, &followers, deadline).map(Some)
}

/// A connection of a meeting.
struct Link {
    stream: UnixStream,
    deadline: Instant,
}

impl Link {
    fn time(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it took longer than {WITHIN:?}")));
        }
        Ok(Some(left))
    }

    fn say(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(self.time()?)?;
        self.stream.write_all(&(message.len() as u32).to_le_bytes())?;
        self.stream.write_all(message)
    }

    /// `None`: the other side has closed, because it does not agree.
    fn hear(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.stream.set_read_timeout(self.time()?)?;
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
            {
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let text = format!("a worker of this host did not answer within {WITHIN:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(error) => return Err(error),
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it sent a message that is too long"));
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message)?;
        Ok(Some(message))
    }

    fn hear_or_fail(&mut self) -> io::Result<Vec<u8>> {
        self.hear()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

fn follow(own: &Own<'_>, head: Rank, mut link: Link) -> Result<Option<Met>, Failure> {
    let mut queue = LaneQueue::new(SEND_DEPTH)?;
    if let Err(error) = link.say(&own.rank.0.to_le_bytes()) {
        let has_closed = error.kind() == io::ErrorKind::BrokenPipe;
        return if has_closed { Ok(None) } else { Err(error.into()) };
    }
    let Some(offer) = link.hear()? else { return Ok(None) };
    let setup = ShmDevice::new().connect(&offer, 0, &queue.handle(), link.deadline)?;
    let channel = queue.attach(setup)?;
    let own_side = Side::open(&mut queue, channel, own.memory)?;
    link.say(&own_side.keys())?;
    let theirs = link.hear_or_fail()?;
    let peer = own_side.join(&mut queue, head, &theirs)?;
    match link.hear()? {
        Some(word) if word == AGREED => Ok(Some(Met { queue, peers: vec![peer], is_head: false })),
        _ => Ok(None),
    }
}

fn lead(
    listener: &UnixListener,
    own: &Own<'_>,
    followers: &[Rank],
    deadline: Instant,
) -> Result<Met, Failure> {
    let mut queue = LaneQueue::new(SEND_DEPTH)?;
    let handle = queue.handle();
    listener.set_nonblocking(true)?;
    let mut links: Vec<(Rank, Link)> = Vec::new();
    while links.len() < followers.len() {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                let mut link = Link { stream, deadline };
                // Others look whether this worker is there, and say nothing.
                if !is_of_our_user(link.stream.as_fd()) {
                    continue;
                }
                let Some(rank) = link.hear()? else { continue };
                let rank =
                    Rank(u32::from_le_bytes(rank.as_slice().try_into().map_err(|_| "it has no rank")?));
                let is_new = links.iter().all(|(other, _)| *other != rank);
                if !followers.contains(&rank) || !is_new {
                    return Err(format!("worker {rank} came, who was not expected").into());
                }
                links.push((rank, link));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(listener, deadline, followers, &links)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    links.sort_unstable_by_key(|(rank, _)| *rank);
    let mut peers = Vec::with_capacity(links.len());
    for (rank, link) in &mut links {
        peers.push(admit(&mut queue, &handle, own, (*rank, link))?);
    }
    for (_, link) in &mut links {
        link.say(AGREED)?;
    }
    Ok(Met { queue, peers, is_head: true })
}

/// Waits for somebody to come.
fn wait_for(
    listener: &UnixListener,
    deadline: Instant,
    followers: &[Rank],
    links: &[(Rank, Link)],
) -> Result<(), Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let missing = followers.iter().filter(|rank| links.iter().all(|(other, _)| other != *rank));
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        return Err(format!("workers {} did not come within {WITHIN:?}", missing.join(", ")).into());
    }
    Ok(fabric::wait_readable(listener.as_fd(), left)?)
}

fn admit(
    queue: &mut LaneQueue,
    handle: &CqHandle,
    own: &Own<'_>,
    (rank, link): (Rank, &mut Link),
) -> Result<Peer, Failure> {
    let (offer, pending) = ShmDevice::new().offer(std::slice::from_ref(handle))?;
    link.say(&offer)?;
    let setup = pending.accept(link.deadline)?.pop().ok_or("no channel was connected")?;
    let channel = queue.attach(setup)?;
    // The connecting side has attached when its keys are here.
    let theirs = link.hear_or_fail()?;
    let side = Side::open(queue, channel, own.memory)?;
    link.say(&side.keys())?;
    side.join(queue, rank, &theirs)
}

/// This side of a channel.
struct Side {
    channel: ChannelId,
    memory: RemoteKey,
    inbox: PeerWritable,
    letters: RemoteKey,
}

impl Side {
    fn open(queue: &mut LaneQueue, channel: ChannelId, memory: &Region) -> Result<Self, Failure> {
        let inbox = PeerWritable::allocate(LETTERS as usize * LETTER_BYTES, "gradwire-host-letters")?;
        let memory = queue.expose(channel, memory)?;
        let letters = queue.expose(channel, &inbox)?;
        queue.lend(channel, &inbox.all(), Access::ReadWrite, 0)?;
        Ok(Self { channel, memory, inbox, letters })
    }

    fn keys(&self) -> [u8; 16] {
        let mut keys = [0; 16];
        keys[..8].copy_from_slice(&self.memory.0.to_le_bytes());
        keys[8..].copy_from_slice(&self.letters.0.to_le_bytes());
        keys
    }

    fn join(self, queue: &mut LaneQueue, rank: Rank, theirs: &[u8]) -> Result<Peer, Failure> {
        let theirs: [u8; 16] = theirs.try_into().map_err(|_| "it sent no keys")?;
        let key = |at: usize| {
            let mut key = [0; 8];
            key.copy_from_slice(&theirs[at..at + 8]);
            RemoteKey(u64::from_le_bytes(key))
        };
        let memory = queue.map(self.channel, key(0))?;
        let outbox = PeerWritable::allocate(LETTERS as usize * LETTER_BYTES, "gradwire-host-letters")?;
        // The inbox is all of its region, on both sides.
        let remote = RemoteSpan { key: key(8), offset: 0 };
        Ok(Peer { rank, channel: self.channel, memory, inbox: self.inbox, outbox, remote, sent: 0 })
    }
}
