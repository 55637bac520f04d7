//! The trait family that every driver implements. Shaped for verbs: channels are reliable and ordered,
//! work is posted by the thread that polls, registration is explicit, completions carry immediate data.

use crate::error::{FabricError, PostError};
use crate::memory::{Region, Span, View};
use crate::shm::{ShmHandle, ShmSetup};
use crate::tcp::Pipe;
use crate::work::{ChannelId, Completion, Read, RemoteKey, RemoteSpan, Write};
use socket2::Socket;
use std::time::Instant;

/// What a driver's channels can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Spans one write may gather.
    pub gather_max: usize,
    /// Unfinished requests one channel may have.
    pub send_depth: usize,
}

/// What a peer's channel needs to know of a completion queue while it is being connected.
#[derive(Clone, Debug)]
pub struct CqHandle {
    /// `None` for a queue of one other driver.
    pub(crate) shm: Option<ShmHandle>,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "there is nothing in it then"))]
    pub(crate) verbs: Option<crate::verbs::VerbsHandle>,
}

/// A connected channel on its way to the completion queue that will own it.
#[derive(Debug)]
pub struct ChannelSetup {
    pub(crate) kind: SetupKind,
}

impl ChannelSetup {
    /// What carries its bytes, for people: "shared memory", "unix socket" or "tcp socket". The latter two are
    /// of one driver, and which of them it is shows only once the channel is connected.
    #[must_use]
    pub fn carrier(&self) -> &'static str {
        match &self.kind {
            SetupKind::Shm(_) => "shared memory",
            SetupKind::Tcp(socket, pipe) => crate::tcp::carrier(socket, pipe),
            SetupKind::Verbs(_) => "RDMA device",
        }
    }

    /// What carries the channels of one peer: mostly one word for all of them.
    #[must_use]
    pub fn carriers(setups: &[Self]) -> String {
        let mut carriers: Vec<_> = setups.iter().map(Self::carrier).collect();
        carriers.sort_unstable();
        carriers.dedup();
        carriers.join(" and ")
    }
}

#[derive(Debug)]
pub(crate) enum SetupKind {
    Shm(Box<ShmSetup>),
    Tcp(Socket, Pipe),
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "there is nothing in it then"))]
    Verbs(Box<crate::verbs::VerbsSetup>),
}

/// Channels that a peer has been invited to connect to.
pub trait PendingOffer: Send {
    /// Waits until the peer has connected all of them, in order of their index; strangers are dropped.
    fn accept(self: Box<Self>, deadline: Instant) -> Result<Vec<ChannelSetup>, FabricError>;
}

/// A local device: makes completion queues and channels.
pub trait Device: Send + Sync {
    /// Invites one peer to connect one channel per queue. The bytes go to that peer over an authenticated
    /// connection; they hold a secret that is good for these channels only.
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

/// A completion queue with the channels spread on it; owned by the one thread that polls it and posts on
/// its channels. Nothing here blocks.
pub trait CompletionQueue: Send {
    /// Takes over a connected channel. Who connected it attaches first, and lets who invited know: what that side exposes
    /// or posts before may be lost.
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError>;

    /// Lets the channel's peer address a region (on verbs: its rkey; on shm: hands the memory over; on tcp:
    /// an entry of the channel's table). Repeating it is cheap. Must come before a grant that names it, and before
    /// [`CompletionQueue::lend`]. The region lives at least as long as the channel.
    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError>;

    /// Makes a stretch ready for posts from it or into it, which else happens with the first of them: what stands against
    /// that is told here, at once.
    fn prepare(&mut self, _span: &Span) -> Result<(), FabricError> {
        Ok(())
    }

    /// Before a stretch of an exposed region is granted to the channel's peer, or read by it: makes sure that it can be
    /// reached (on verbs a large region is registered, and its keys told, piece by piece). Repeating it is cheap.
    fn lend(&mut self, _channel: ChannelId, _span: &Span) -> Result<(), PostError> {
        Ok(())
    }

    /// What stood against the last call that said [`PostError::Unregistered`]; told once.
    fn unregistered(&mut self) -> Option<FabricError> {
        None
    }

    /// Why a call failed, for people.
    fn explain(&mut self, error: PostError) -> String {
        let reason = if error == PostError::Unregistered { self.unregistered() } else { None };
        reason.map_or_else(|| error.to_string(), |reason| reason.to_string())
    }

    /// What is written from now on without a notice is, all in all, more than caches hold until it is read, or not: a hint,
    /// which decides how large writes are copied where it is this process that copies them.
    fn stream_writes(&mut self, _streams: bool) {}

    /// Posts a write. Writes of one channel arrive in the order they were posted.
    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError>;

    /// Posts a read.
    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError>;

    /// Can what the channel's peer exposed be read where it lies? So it is on shared memory.
    fn reads_in_place(&self, _channel: ChannelId) -> bool {
        false
    }

    /// All of a region that the peer exposed, to be read where it lies. A channel that has no such way answers
    /// [`PostError::RemoteAccess`], as it does for a key that it was not told.
    fn map(&mut self, _channel: ChannelId, _key: RemoteKey) -> Result<View, PostError> {
        Err(PostError::RemoteAccess)
    }

    /// A stretch of it.
    fn view(&mut self, channel: ChannelId, remote: RemoteSpan, bytes: u64) -> Result<View, PostError> {
        self.map(channel, remote.key)?.slice(remote.offset, bytes).map_err(|_| PostError::RemoteAccess)
    }

    /// Works on the peer's memory where it lies: `work` runs at once, as a post would, and a peer that closes its channel waits
    /// for it to end as it waits for writes: a while, then it warns. Where the channel has ended already it does not run. It is
    /// to be brief, and must not touch this queue.
    fn while_open(&mut self, _channel: ChannelId, _work: &mut dyn FnMut()) -> Result<(), PostError> {
        Err(PostError::RemoteAccess)
    }

    /// Starts whatever was posted and not started yet (chained posts, one system call for many frames).
    fn flush(&mut self);

    /// Moves work on and appends what happened. Bounded work per call, so that callers stay responsive.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Did the last poll bring part of something? Whoever waits for the rest is not idle.
    fn moved(&self) -> bool {
        false
    }

    /// Ends a channel: nothing of the peer's lands after this returns, and no read of the peer's begins that would
    /// complete. Its unfinished requests are dropped.
    fn close(&mut self, channel: ChannelId);

    /// What channels of this queue can do; the least of all drivers where several are behind it.
    fn caps(&self) -> Caps;
}
