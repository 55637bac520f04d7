//! A simulated completion queue: the driver's face towards a role. Owns nothing but its number.

use super::{NodeId, SimFaults, SimNet};
use crate::device::{Caps, ChannelSetup, CompletionQueue, Fence};
use crate::error::{FabricError, PostError};
use crate::memory::{Access, Region, Span, View};
use crate::work::{ChannelId, Completion, Read, RemoteKey, Write};

/// A queue of a simulated network. It orders the queues of one network by their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// A completion queue on a simulated node. Dropping it closes its channels, as a process's exit would.
#[derive(Debug)]
pub struct SimQueue {
    net: SimNet,
    id: QueueId,
    node: NodeId,
}

impl SimQueue {
    pub(super) fn new(net: SimNet, id: QueueId, node: NodeId) -> Self {
        Self { net, id, node }
    }

    /// Its number in the network, as [`SimNet::ready_queues`] gives it.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The node it is on.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }
}

impl CompletionQueue for SimQueue {
    /// Refused: [`SimNet::connect`] makes simulated channels.
    fn attach(&mut self, _setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        Err(FabricError::Misuse("a simulated queue takes no real channel: use SimNet::connect".into()))
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        let mut world = self.net.lock();
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.expose(end, region);
        Ok(RemoteKey(region.id()))
    }

    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        let mut world = self.net.lock();
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.grants(end).add(span, access, lease);
        Ok(())
    }

    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        let mut world = self.net.lock();
        if let Some(end) = world.open_end(self.id, channel) {
            world.grants(end).remove(span, lease);
        }
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        self.net.lock().post_write(self.id, channel, write, false)
    }

    fn post_landing(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        self.net.lock().post_write(self.id, channel, write, true)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        self.net.lock().post_read(self.id, channel, read)
    }

    fn move_landings(&mut self, channel: ChannelId, id: u64, span: &Span) -> usize {
        self.net.lock().move_landings(self.id, channel, id, span)
    }

    fn reads_in_place(&self, _channel: ChannelId) -> bool {
        self.net.lock().faults.reads_in_place
    }

    fn map(&mut self, channel: ChannelId, key: RemoteKey) -> Result<View, PostError> {
        let mut world = self.net.lock();
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.map(end, key).ok_or(PostError::RemoteAccess)
    }

    fn flush(&mut self) {
        self.net.lock().flush(self.id);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.net.lock().poll(self.id, completions);
    }

    fn begin_reads(&mut self, channel: ChannelId) -> Result<(), PostError> {
        let mut world = self.net.lock();
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.begin_reads(end)
    }

    fn end_reads(&mut self, channel: ChannelId) {
        self.net.lock().end_reads(self.id, channel);
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        let mut world = self.net.lock();
        world.close(self.id, channel);
        world.fence(channel)
    }

    fn fence(&mut self, channel: ChannelId) -> Fence {
        self.net.lock().fence(channel)
    }

    fn caps(&self) -> Caps {
        let world = self.net.lock();
        let SimFaults { gather_max, send_depth, order, .. } = world.faults;
        Caps { gather_max, send_depth, order }
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        self.net.lock().close_all(self.id);
    }
}
