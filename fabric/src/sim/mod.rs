//! A simulated fabric: many processes' completion queues in one thread, in virtual time, under seeded
//! faults. Role runtimes run over it unchanged, because [`SimQueue`] is a
//! [`CompletionQueue`]. Same seed and same calls: same run, on every machine.
//! It reads no clock, starts no thread, and orders nothing by address or hash.
//!
//! ```
//! use fabric::sim::{SimFaults, SimNet};
//! use fabric::{Access, Completion, CompletionKind, CompletionQueue, Region, RemoteSpan, Write};
//!
//! let net = SimNet::new(7, SimFaults::rough());
//! let (server, worker) = (net.node("server-0"), net.node("worker-0"));
//! let (mut inbox, mut lane) = (net.create_cq(server), net.create_cq(worker));
//! let (inbox_channel, lane_channel) = net.connect(&inbox, &lane);
//!
//! let (slots, gradient) = (Region::allocate(4096, "slots")?, Region::allocate(4096, "gradient")?);
//! let key = inbox.expose(inbox_channel, &slots)?;
//! inbox.lend(inbox_channel, &slots.all(), Access::ReadWrite, 0)?;
//! let gather = [gradient.span(0, 1000)?];
//! let remote = RemoteSpan { key, offset: 64 };
//! let write = Write { id: 1, gather: &gather, remote, immediate: Some(42), signaled: true };
//! while lane.post_write(lane_channel, &write).is_err() {}
//! lane.flush();
//!
//! // The loop of a test: step every role at `net.now_us()`, then let time move.
//! let mut completions = Vec::new();
//! while completions.is_empty() && net.advance() {
//!     inbox.poll(&mut completions);
//! }
//! let kind = CompletionKind::Received { immediate: 42 };
//! assert_eq!(completions, [Completion { channel: inbox_channel, kind }]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! - A channel keeps the order of its messages. Channels overtake each other by jitter and spikes; what
//!   falls on the same microsecond on different channels happens in a seeded order.
//! - With [`Order::Any`](crate::Order::Any) it keeps none: every message arrives by its own time, a loss delays nothing but
//!   itself, reads miss writes that were posted before them, and what of a channel arrives after its end has gaps. Notices
//!   still come in their order, each after all writes before it: the queue counts writes first. Completions come in the
//!   order of their posts, too. A repeated notice is known by its number, and dropped.
//! - All bytes of a write are in the peer's region before its immediate is delivered. They may land in
//!   pieces, in any order within the write, over some time. Where a channel keeps its order, bytes of a
//!   write land after the immediates of the writes before it.
//! - A write's source is read at a seeded time between the post and the arrival, piece by piece in some
//!   cases, so that reuse before [`WriteDone`](crate::CompletionKind::WriteDone) is seen as corruption.
//!   A read's bytes are taken over some time too, and placed just before its completion.
//! - Nothing posted starts before [`flush`](crate::CompletionQueue::flush): the strictest reading of the
//!   trait. Requests count against `send_depth` until they are acknowledged, signaled or not; notices
//!   against `notice_ring` until the peer polls them.
//! - Access is checked where it arrives. A bad one ends the channel: `PeerMisbehaved` for the victim, then
//!   `PeerClosed` for the offender.
//! - A lost message or acknowledgement is sent again after `retransmit_us`, doubling each time. After
//!   `retry_max` losses in a row the channel breaks: `Failed("retries exhausted")` for the sender, and for
//!   its peer after the detection delay. Lost writes may have landed in part; writes whose acknowledgement
//!   was lost have landed without a completion. A partition loses everything and is otherwise the same, so
//!   a short one only delays. An idle channel survives any partition.
//! - `close` and the drop of a queue: nothing of the peer's lands afterwards; what the closing side had
//!   under way arrives up to some point, then `PeerClosed`. A crash is the same, with the detection delay
//!   in between (that is the bound for late landings) and with nothing polled or posted on the dead side.
//!   News that a partition keeps back arrives as `Failed` once the retry budget is over, so every end of a
//!   channel hears of its end.
//! - `duplicate_notice_per_10k` repeats immediates, `duplicate_per_10k` repeats bytes too. The second is
//!   what no correct transport does: a receiver that has reused the memory cannot tell without checking
//!   the payload.
//!
//! # What it is not
//!
//! Simulated. Figures of time and bandwidth are made up and say nothing of a real network's performance.
//! A write moves in at most four pieces and is lost as a whole, not by packets. There is no congestion
//! between channels, no slow CPU (a role that is not stepped is the way to have one), no memory model (all
//! in one thread), no [`Device`](crate::Device), no bootstrap and no control connections. A crashed node
//! stays dead: its restart is a new node. Region ids, and so remote keys, differ between runs of one
//! process; they are in no trace. Each region takes a file descriptor: thousands of nodes share regions or
//! raise the limit.

mod answer;
mod arrive;
mod fate;
mod faults;
mod message;
mod post;
mod script;
mod trace;
mod world;

pub use crate::rng::Rng;
pub use faults::SimFaults;
pub use script::{Action, FaultScript, NodeId, ScriptShape};
pub use world::{NodeStats, QueueId};

use crate::device::{Caps, ChannelSetup, CompletionQueue, Fence};
use crate::error::{FabricError, PostError};
use crate::lock::lock;
use crate::memory::{Access, Region, Span, View};
use crate::work::{ChannelId, Completion, Read, RemoteKey, Write};
use std::fmt;
use std::sync::{Arc, Mutex};
use world::World;

/// A simulated network. Clones are the same network.
#[derive(Clone)]
pub struct SimNet(Arc<Mutex<World>>);

impl fmt::Debug for SimNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNet").finish_non_exhaustive()
    }
}

impl SimNet {
    /// A network without nodes at time 0. The seed decides all that is left to chance.
    #[must_use]
    pub fn new(seed: u64, faults: SimFaults) -> Self {
        Self(Arc::new(Mutex::new(World::new(seed, faults))))
    }

    /// Starts a process.
    pub fn node(&self, name: &str) -> NodeId {
        lock(&self.0).add_node(name)
    }

    /// Opens a completion queue on a node.
    #[must_use]
    pub fn create_cq(&self, node: NodeId) -> SimQueue {
        let id = lock(&self.0).add_queue(node);
        SimQueue { net: self.clone(), id, node }
    }

    /// Connects two queues of this network. With a crashed node the living side's channel ends after the
    /// detection delay; through a partition the channel exists and its messages wait.
    pub fn connect(&self, one: &SimQueue, other: &SimQueue) -> (ChannelId, ChannelId) {
        lock(&self.0).connect(one.id(), other.id())
    }

    /// The time now.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        lock(&self.0).now_us
    }

    /// When the next thing happens, if anything is to.
    #[must_use]
    pub fn next_event_us(&self) -> Option<u64> {
        lock(&self.0).next_us()
    }

    /// Moves to the time of the next event and carries out all that happens then. False, and nothing
    /// moves, when nothing is to happen.
    #[must_use]
    pub fn advance(&self) -> bool {
        let mut world = lock(&self.0);
        let next_us = world.next_us();
        next_us.inspect(|&next_us| world.run_to(next_us)).is_some()
    }

    /// Carries out all that happens up to a time, which is now afterwards. A time that is over is no time.
    pub fn advance_to(&self, until_us: u64) {
        let mut world = lock(&self.0);
        let until_us = until_us.max(world.now_us);
        world.run_to(until_us);
    }

    /// Has this queue something to poll?
    #[must_use]
    pub fn has_ready(&self, queue: &SimQueue) -> bool {
        lock(&self.0).ready.contains(&queue.id())
    }

    /// Appends all queues that have something to poll, in their order; so that of a thousand roles only
    /// those with work need a step; and those with a deadline, and those whose post was refused with `Full`,
    /// as time moves.
    pub fn ready_queues(&self, into: &mut Vec<QueueId>) {
        into.extend(&lock(&self.0).ready);
    }

    /// Requests and news under way in the whole network.
    #[must_use]
    pub fn under_way(&self) -> usize {
        lock(&self.0).messages.len()
    }

    /// Has this to happen at a time (now, where that is over).
    pub fn at(&self, at_us: u64, action: Action) {
        lock(&self.0).act_at(at_us, action);
    }

    /// Has all actions of a script happen at their times.
    pub fn run_script(&self, script: &FaultScript) {
        script.actions.iter().for_each(|&(at_us, action)| self.at(at_us, action));
    }

    /// Cuts two nodes off from each other, now.
    pub fn partition(&self, one: NodeId, other: NodeId) {
        lock(&self.0).act(Action::Partition(one, other));
    }

    /// Ends a partition, now. What waits goes on with its next retransmission.
    pub fn heal(&self, one: NodeId, other: NodeId) {
        lock(&self.0).act(Action::Heal(one, other));
    }

    /// Kills a process, now.
    pub fn crash(&self, node: NodeId) {
        lock(&self.0).act(Action::Crash(node));
    }

    /// Breaks all channels between two nodes, now.
    pub fn break_between(&self, one: NodeId, other: NodeId) {
        lock(&self.0).act(Action::Break(one, other));
    }

    /// Has this node crashed? Harnesses stop stepping its roles.
    #[must_use]
    pub fn is_crashed(&self, node: NodeId) -> bool {
        lock(&self.0).nodes[node.0 as usize].crashed
    }

    /// What a node has sent, got and registered.
    #[must_use]
    pub fn stats(&self, node: NodeId) -> NodeStats {
        lock(&self.0).nodes[node.0 as usize].stats
    }

    /// Puts the harness's own word into the trace, and so into its hash.
    pub fn note(&self, text: &str) {
        let mut world = lock(&self.0);
        let now_us = world.now_us;
        world.trace.note(now_us, text);
    }

    /// The last events as text, oldest first, for failure reports.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        let world = lock(&self.0);
        let name = |node: u32| world.nodes.get(node as usize).map_or_else(|| "?".into(), |n| n.name.clone());
        world.trace.lines(|channel| world.label(channel), name)
    }

    /// A hash over all events since the start: two runs with the same one did the same.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        lock(&self.0).trace.hash()
    }

    /// Events since the start.
    #[must_use]
    pub fn trace_events(&self) -> u64 {
        lock(&self.0).trace.events()
    }
}

/// A completion queue on a simulated node. Dropping it closes its channels, as a process's exit would.
#[derive(Debug)]
pub struct SimQueue {
    net: SimNet,
    id: QueueId,
    node: NodeId,
}

impl SimQueue {
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
        let mut world = lock(&self.net.0);
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.expose(end, region);
        Ok(RemoteKey(region.id()))
    }

    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        let mut world = lock(&self.net.0);
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.grants(end).add(span, access, lease);
        Ok(())
    }

    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        let mut world = lock(&self.net.0);
        if let Some(end) = world.open_end(self.id, channel) {
            world.grants(end).remove(span, lease);
        }
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        lock(&self.net.0).post_write(self.id, channel, write, false)
    }

    fn post_landing(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        lock(&self.net.0).post_write(self.id, channel, write, true)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        lock(&self.net.0).post_read(self.id, channel, read)
    }

    fn move_landings(&mut self, channel: ChannelId, id: u64, span: &Span) -> usize {
        lock(&self.net.0).move_landings(self.id, channel, id, span)
    }

    fn reads_in_place(&self, _channel: ChannelId) -> bool {
        lock(&self.net.0).faults.reads_in_place
    }

    fn map(&mut self, channel: ChannelId, key: RemoteKey) -> Result<View, PostError> {
        let mut world = lock(&self.net.0);
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.map(end, key).ok_or(PostError::RemoteAccess)
    }

    fn flush(&mut self) {
        lock(&self.net.0).flush(self.id);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        lock(&self.net.0).poll(self.id, completions);
    }

    fn begin_reads(&mut self, channel: ChannelId) -> Result<(), PostError> {
        let mut world = lock(&self.net.0);
        let end = world.open_end(self.id, channel).ok_or(PostError::Closed)?;
        world.begin_reads(end)
    }

    fn end_reads(&mut self, channel: ChannelId) {
        lock(&self.net.0).end_reads(self.id, channel);
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        let mut world = lock(&self.net.0);
        world.close(self.id, channel);
        world.fence(channel)
    }

    fn fence(&mut self, channel: ChannelId) -> Fence {
        lock(&self.net.0).fence(channel)
    }

    fn caps(&self) -> Caps {
        let world = lock(&self.net.0);
        let SimFaults { gather_max, send_depth, order, .. } = world.faults;
        Caps { gather_max, send_depth, order }
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        lock(&self.net.0).close_all(self.id);
    }
}
