//! The trait family that every driver implements. Shaped for verbs: channels are reliable, notices and completions come in the
//! order of their posts, work is posted by the thread that polls, registration is explicit, completions carry immediate data.

use crate::error::{FabricError, PostError};
use crate::memory::{Access, Borrowed, Fenced, Region, Span, View};
use crate::shm::{ShmHandle, ShmSetup};
use crate::tcp::Pipe;
use crate::work::{ChannelId, Completion, Read, RemoteKey, RemoteSpan, Write};
use drivers::Driver;
use socket2::Socket;
use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// Channels that a queue of a [`Transport`] may have in its life: a lane uses the bits above for whose channel it is.
pub(crate) const TRANSPORT_CHANNEL_IDS: u32 = 1 << 27;

/// The capabilities of a driver's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The number of spans that one write may gather.
    pub gather_max: usize,
    /// The number of unfinished requests that one channel may have.
    pub send_depth: usize,
    /// The order in which the transport carries out what is posted on one channel.
    pub order: Order,
}

/// The order in which a transport carries out the writes and reads of one channel. Between channels there is none.
/// Whatever it is, a driver hands over notices and completions in the order of their posts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// The order of the posts: shared memory, sockets, reliable connections of RDMA devices. A read sees the writes that were
    /// posted before it.
    #[default]
    Posted,
    /// Any order, as on EFA's SRD. The driver numbers its writes, and its receiving side counts them before it delivers a
    /// notice. A read may miss the writes that were posted before it, until they have completed.
    Any,
}

/// Whether the peer of a channel that has ended may still reach our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// It does not: the driver has proof. What was granted over the channel is its owner's alone again.
    Done,
    /// It may read it where it lies, and writes it no more.
    Reads,
    /// It may be in the middle of a copy, however long ago that began: its process can have been stopped there. What
    /// was granted over the channel stays in quarantine. Otherwise the peer, once it continues, would overwrite what
    /// somebody else was granted.
    Pending,
}

impl Fence {
    /// The proof, where it is done.
    pub fn proof(self) -> Option<Fenced> {
        (self == Self::Done).then(Fenced::proved)
    }
}

/// What a peer's channel needs from a completion queue while it is being connected.
#[derive(Clone, Debug)]
pub struct CqHandle {
    /// `None` for a queue of another driver.
    pub(crate) shm: Option<ShmHandle>,
    /// Of the [`Transport`]s that the lane has.
    pub(crate) transports: Vec<Arc<dyn Any + Send + Sync>>,
}

impl CqHandle {
    /// What a transport's own queue has said of itself; none where the lane has no such queue.
    pub(crate) fn of<T: Any>(&self) -> Option<&T> {
        self.transports.iter().find_map(|handle| handle.downcast_ref())
    }
}

/// A connected channel on its way to the completion queue that will own it.
#[derive(Debug)]
pub struct ChannelSetup {
    pub(crate) kind: SetupKind,
}

impl ChannelSetup {
    /// The carrier of its bytes, for display: "shared memory", "unix socket" or "tcp socket". The last two belong to
    /// one driver; which one is used is known only when the channel is connected.
    #[must_use]
    pub fn carrier(&self) -> &'static str {
        match &self.kind {
            SetupKind::Shm(_) => "shared memory",
            SetupKind::Tcp(socket, pipe) => crate::tcp::carrier(socket, pipe),
            SetupKind::Transport { carrier, .. } => carrier,
        }
    }

    /// The carriers of one peer's channels: usually one word for all of them.
    #[must_use]
    pub fn carriers(setups: &[Self]) -> String {
        let mut carriers: Vec<_> = setups.iter().map(Self::carrier).collect();
        carriers.sort_unstable();
        carriers.dedup();
        carriers.join(" and ")
    }
}

impl ChannelSetup {
    /// A channel of a [`Transport`].
    pub(crate) fn of(driver: Driver, carrier: &'static str, setup: impl Any + Send) -> Self {
        Self { kind: SetupKind::Transport { driver, carrier, setup: Box::new(setup) } }
    }

    /// What a transport has made of a channel, for that transport's queue.
    pub(crate) fn take<T: Any>(self) -> Result<T, FabricError> {
        let taken = match self.kind {
            SetupKind::Transport { setup, .. } => setup.downcast().ok(),
            SetupKind::Shm(_) | SetupKind::Tcp(..) => None,
        };
        let strange = || FabricError::Misuse("a channel was given to a queue of another driver".into());
        taken.map(|setup| *setup).ok_or_else(strange)
    }
}

#[derive(Debug)]
pub(crate) enum SetupKind {
    Shm(Box<ShmSetup>),
    Tcp(Socket, Pipe),
    Transport { driver: Driver, carrier: &'static str, setup: Box<dyn Any + Send> },
}

/// Channels to which a peer has been invited.
pub trait PendingOffer: Send {
    /// Waits until the peer has connected all of them, in order of their index. Connections of other peers are
    /// dropped.
    fn accept(self: Box<Self>, deadline: Instant) -> Result<Vec<ChannelSetup>, FabricError>;
}

/// A local device: creates completion queues and channels.
pub trait Device: Send + Sync {
    /// Invites one peer to connect one channel per queue. Send the returned bytes to that peer over an authenticated
    /// connection: they contain a secret for exactly these channels.
    fn offer(&self, queues: &[CqHandle]) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError>;

    /// Connects channel `index` of a peer's offer.
    fn connect(
        &self,
        offer: &[u8],
        index: u16,
        queue: &CqHandle,
        deadline: Instant,
    ) -> Result<ChannelSetup, FabricError>;
}

/// A device whose queues lanes have beside those of shared memory and TCP, which every lane has. A new transport implements this
/// and [`TransportQueue`], and has a line in the table of `devices`.
pub trait Transport: Device + Any + fmt::Debug {
    /// The transport.
    fn driver(&self) -> Driver;

    /// A queue for a lane. `send_depth`: unfinished requests that one channel may have.
    fn open_queue(&self, send_depth: usize) -> Result<Box<dyn TransportQueue>, FabricError>;

    /// Registers a part of a region now rather than when it is first used, so that an obstacle is reported at once.
    fn prepare(&self, _span: &Span) -> Result<(), FabricError> {
        Ok(())
    }

    /// Gives back registrations of regions that nobody else owns any more.
    fn release_unused(&self) {}

    /// Objects that the device did not give back since the process began.
    fn kept_objects(&self) -> u64 {
        0
    }

    /// Bytes registered with it.
    fn registered_bytes(&self) -> u64 {
        0
    }
}

/// A transport's queue, as a part of a lane's. Ids of its channels are below 2^27.
pub trait TransportQueue: CompletionQueue + Any + fmt::Debug {
    /// What [`Device::connect`] and [`Device::offer`] of the same transport have to know of this queue.
    fn shared(&self) -> Arc<dyn Any + Send + Sync>;

    /// Readable, once the queue is armed, when there may be something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Has it a channel, or completions that nobody has taken? A lane does not poll a queue without them.
    fn has_channels(&self) -> bool;

    /// Before a sleep: makes the next event end it. False: there is something to do already.
    fn arm(&mut self) -> bool;

    /// After a sleep: takes what has been reported through the descriptor.
    fn settle(&mut self);
}

/// A completion queue with its channels. One thread owns it, polls it and posts on its channels. No call blocks.
pub trait CompletionQueue: Send {
    /// Takes over a connected channel. The connecting side must attach first, and then notify the inviting side. If
    /// the inviting side exposed memory or posted before that, it could be lost.
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError>;

    /// Gives a region a name for the channel's peer (verbs: sends its rkey; shm: passes the memory). A repeated call is
    /// cheap. Call it before [`CompletionQueue::lend`], and before any message with that name. The region must exist at
    /// least as long as the channel.
    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError>;

    /// Prepares a part of a region for posts from it or into it; otherwise the first post does this. An error is
    /// returned at once.
    fn prepare(&mut self, _span: &Span) -> Result<(), FabricError> {
        Ok(())
    }

    /// Grants the channel's peer a part of an exposed region, to read it, or to write it, too. A repeated call is cheap. On tcp
    /// each of the peer's writes and reads must lie in one such part, or the channel ends. On verbs a large region is registered
    /// piece by piece, and its keys are sent; all that is registered is reachable. Over shared memory all that is exposed is
    /// reachable. `lease` names the use, for [`CompletionQueue::take_back`].
    fn lend(
        &mut self,
        _channel: ChannelId,
        _span: &Span,
        _access: Access,
        _lease: u64,
    ) -> Result<(), PostError> {
        Ok(())
    }

    /// Makes a part of an exposed region reachable before parts of it are lent, where that takes a message to the peer (verbs
    /// sends the keys of its pieces). It grants nothing.
    fn open(&mut self, _channel: ChannelId, _span: &Span) -> Result<(), PostError> {
        Ok(())
    }

    /// Ends the grants with this name that begin in the part. The peer must have said that it no longer uses them.
    fn take_back(&mut self, _channel: ChannelId, _span: &Span, _lease: u64) {}

    /// The reason of the last call that returned [`PostError::Unregistered`]; returned once.
    fn unregistered(&mut self) -> Option<FabricError> {
        None
    }

    /// The reason of a failed call, for display.
    fn explain(&mut self, error: PostError) -> String {
        let reason = if error == PostError::Unregistered { self.unregistered() } else { None };
        reason.map_or_else(|| error.to_string(), |reason| reason.to_string())
    }

    /// Hint: whether writes without a notice, from now on, are larger in total than the caches hold until they are
    /// read. It decides how this process copies large writes.
    fn stream_writes(&mut self, _streams: bool) {}

    /// Posts a write. The peer receives its notice after the bytes of this write, of all writes that were posted before it on
    /// this channel, and after their notices. Bytes of a later write may land before that notice.
    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError>;

    /// Posts a write, without a notice, that the peer may carry out itself: over shared memory it copies the bytes out of our
    /// memory, when it polls. Until this completes, the source must not change, and the peer can read all of its region. What
    /// is posted afterwards arrives later; the completion may come after those of later posts.
    fn post_landing(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        self.post_write(channel, write)
    }

    /// Bytes of landings with this id that are not known to be complete are now in `span`, too. The peer copies them from there, so the
    /// old place may change. Returns the number of landings that were moved: 0 if their bytes are on their way already.
    fn move_landings(&mut self, _channel: ChannelId, _id: u64, _span: &Span) -> usize {
        0
    }

    /// Posts a read. Whether it sees the writes that were posted before it is a matter of [`Caps::order`].
    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError>;

    /// Whether memory that the channel's peer has exposed can be read in place, as on shared memory.
    fn reads_in_place(&self, _channel: ChannelId) -> bool {
        false
    }

    /// A whole region that the peer has exposed, for reads in place. A channel without this ability returns
    /// [`PostError::RemoteAccess`], as for an unknown key.
    fn map(&mut self, _channel: ChannelId, _key: RemoteKey) -> Result<View, PostError> {
        Err(PostError::RemoteAccess)
    }

    /// A part of such a region.
    fn view(&mut self, channel: ChannelId, remote: RemoteSpan, bytes: u64) -> Result<View, PostError> {
        self.map(channel, remote.key)?.slice(remote.offset, bytes).map_err(|_| PostError::RemoteAccess)
    }

    /// Begins to read memory of the peer's in place ([`CompletionQueue::map`]): until [`CompletionQueue::end_reads`], or the end
    /// of the channel on this side, the fence of a peer that closes it is pending, so that what the peer had granted stays
    /// as it is. [`PostError::Closed`]: the peer has closed, and may use its memory for something else already. Once begun, a
    /// further call changes nothing.
    fn begin_reads(&mut self, _channel: ChannelId) -> Result<(), PostError> {
        Err(PostError::RemoteAccess)
    }

    /// Nothing of the peer's is read in place any more.
    fn end_reads(&mut self, _channel: ChannelId) {}

    /// Memory of the peers of channels that are attached from now on may be [borrowed](CompletionQueue::borrow).
    fn allow_borrows(&mut self) {}

    /// A part of such a region that a program is given, between [`CompletionQueue::begin_reads`] and [`CompletionQueue::end_reads`]:
    /// before that end, it is dropped or [kept](Borrowed::keep). `None` where this cannot be, and the bytes are to be copied: the
    /// channel has no such memory, the part does not begin with a page, or some of it is borrowed already.
    fn borrow(
        &mut self,
        _channel: ChannelId,
        _remote: RemoteSpan,
        _bytes: u64,
    ) -> Result<Option<Borrowed>, PostError> {
        Ok(None)
    }

    /// Works on the peer's memory in place. `work` runs at once, like a post, and the fence of a peer that closes its
    /// channel meanwhile is pending until `work` has returned. If the channel has already closed, `work` does not run.
    /// It must be short, and must not use this queue.
    fn while_open(&mut self, _channel: ChannelId, _work: &mut dyn FnMut()) -> Result<(), PostError> {
        Err(PostError::RemoteAccess)
    }

    /// Starts everything that was posted and not yet started (chained posts, one system call for many frames).
    fn flush(&mut self);

    /// Advances work and appends completions and notices. The work per call is bounded, so callers stay responsive.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Whether the last poll received a part of something. A caller that waits for the rest should not sleep.
    fn moved(&self) -> bool {
        false
    }

    /// Closes a channel: it delivers nothing any more, its unfinished requests are dropped, and the peer begins no new copy. If the
    /// peer is in the middle of a copy, that copy may continue; the returned fence is then pending.
    fn close(&mut self, channel: ChannelId) -> Fence;

    /// The fence of a channel that has ended, by [`CompletionQueue::close`] or with
    /// [`CompletionKind::Disconnected`](crate::CompletionKind::Disconnected). While it is pending, whoever polls should
    /// ask again now and then: [`crate::LaneQueue::wait`] sleeps briefly meanwhile. Where closing is the proof, as with
    /// sockets, it is never pending.
    fn fence(&mut self, _channel: ChannelId) -> Fence {
        Fence::Done
    }

    /// The capabilities of this queue's channels; with several drivers the smallest common ones.
    fn caps(&self) -> Caps;
}

/// The regions of one peer that are read in place, each mapped once, by key. The channel bounds how many regions its peer can pass.
/// They stay readable after the channel has ended.
#[derive(Debug, Default)]
pub struct MappedRegions(Vec<(u64, View)>);

impl MappedRegions {
    /// A part of the peer's memory. Its region is mapped when it is first named.
    pub fn view<Q: CompletionQueue>(
        &mut self,
        queue: &mut Q,
        channel: ChannelId,
        remote: RemoteSpan,
        bytes: u64,
    ) -> Result<View, PostError> {
        if self.0.iter().all(|(key, _)| *key != remote.key.0) {
            self.0.push((remote.key.0, queue.map(channel, remote.key)?));
        }
        self.find(remote, bytes).ok_or(PostError::RemoteAccess)
    }

    /// The same, for a region that is mapped already; `None` if it is not.
    #[must_use]
    pub fn find(&self, remote: RemoteSpan, bytes: u64) -> Option<View> {
        let (_, region) = self.0.iter().find(|(key, _)| *key == remote.key.0)?;
        region.slice(remote.offset, bytes).ok()
    }
}
