//! The simulated world: time, nodes, queues, channel ends and the calendar of what happens next. Decides
//! nothing of a message's way (`post`, `arrive`, `answer`) or a channel's end (`fate`).

use super::faults::SimFaults;
use super::message::{Handle, Messages};
use super::script::{Action, NodeId};
use super::trace::{Trace, What};
use crate::device::Order;
use crate::gate::Gate;
use crate::grants::Grants;
use crate::memory::{Region, View};
use crate::rng::Rng;
use crate::work::{ChannelId, Completion, CompletionKind, RemoteKey};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// What a node has sent, got and registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Writes and reads posted.
    pub posted_messages: u64,
    /// Bytes of the writes posted.
    pub posted_bytes: u64,
    /// Peers' writes that have arrived whole, with a notice or without; duplicates are not counted.
    pub received_messages: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Own messages and their acknowledgements lost.
    pub losses: u64,
    /// Own messages that took longer than latency and jitter make it.
    pub delays: u64,
    /// Peers' writes that arrived after some that were posted later, on other channels.
    pub overtaken: u64,
    /// Peers' notices that arrived before writes that were posted earlier on the same channel, and waited for them.
    pub held_notices: u64,
    /// Notices that came a second time.
    pub duplicates: u64,
    /// Bytes of the regions that some peer can address now, each counted once.
    pub registered_bytes: u64,
    /// The most of them at any time.
    pub registered_bytes_peak: u64,
}

/// A queue of a simulated network. It orders the queues of one network by their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The source is read.
    Capture(Handle),
    /// The head of a channel's line reaches the peer, if it is not lost.
    Attempt(Handle),
    /// A piece of it lands.
    Piece(Handle, u8),
    /// All of it is there.
    Deliver(Handle),
    /// Its acknowledgement (a read's response) is back.
    Ack(Handle),
    /// It arrives a second time.
    Duplicate(Handle),
    /// It lands where the channel is closed.
    Late(Handle),
    /// The script.
    Act(Action),
}

#[derive(Debug)]
struct Scheduled {
    at_us: u64,
    /// Seeded order of what happens at the same time on different channels.
    tie: u32,
    sequence: u64,
    event: Event,
}

impl Scheduled {
    fn key(&self) -> (u64, u32, u64) {
        (self.at_us, self.tie, self.sequence)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) crashed: bool,
    pub(super) stats: NodeStats,
    /// The latest start of what has arrived.
    pub(super) newest: u64,
    /// Bytes and exposures of each region that peers may address.
    registered: BTreeMap<u64, (u64, u32)>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) node: NodeId,
    pub(super) ready: VecDeque<Completion>,
    /// Posted and not started yet.
    pub(super) unflushed: Vec<Handle>,
}

/// One end of a channel. The other end of number `c` is `c ^ 1`.
#[derive(Debug)]
pub(super) struct End {
    pub(super) queue: QueueId,
    pub(super) node: NodeId,
    pub(super) open: bool,
    pub(super) exposed: BTreeMap<u64, Region>,
    pub(super) grants: Grants,
    /// Outgoing messages that have not arrived, in order; only the first is moving, or all of them where the transport keeps no
    /// order.
    pub(super) line: VecDeque<Handle>,
    /// Posted requests without their acknowledgement, in order.
    pub(super) unfinished: VecDeque<Handle>,
    /// Writes started so far.
    pub(super) writes: u64,
    /// What has arrived here, where the transport keeps no order.
    pub(super) gate: Option<Gate>,
    /// When the last byte posted so far will have left.
    pub(super) busy_until_us: u64,
    /// Outgoing notices that the peer has not polled.
    pub(super) notices: usize,
    /// The peer's memory is read in place.
    pub(super) reads: bool,
    /// It is closed, and the peer's copy is not over before.
    pub(super) fenced_us: u64,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now_us: u64,
    pub(super) faults: SimFaults,
    pub(super) rng: Rng,
    pub(super) nodes: Vec<Node>,
    pub(super) queues: Vec<Queue>,
    pub(super) ends: Vec<End>,
    pub(super) messages: Messages,
    pub(super) scratch: Vec<u8>,
    pub(super) partitions: BTreeSet<(NodeId, NodeId)>,
    /// Queues with something to poll.
    pub(super) ready: BTreeSet<QueueId>,
    pub(super) trace: Trace,
    /// Messages started.
    pub(super) started: u64,
    calendar: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
}

impl World {
    pub(super) fn new(seed: u64, faults: SimFaults) -> Self {
        Self {
            now_us: 0,
            trace: Trace::new(faults.trace_events),
            faults,
            rng: Rng::new(seed),
            nodes: Vec::new(),
            queues: Vec::new(),
            ends: Vec::new(),
            messages: Messages::default(),
            scratch: Vec::new(),
            partitions: BTreeSet::new(),
            ready: BTreeSet::new(),
            started: 0,
            calendar: BinaryHeap::new(),
            sequence: 0,
        }
    }

    pub(super) fn add_node(&mut self, name: &str) -> NodeId {
        let node = Node {
            name: name.into(),
            crashed: false,
            stats: NodeStats::default(),
            newest: 0,
            registered: BTreeMap::new(),
        };
        self.nodes.push(node);
        NodeId((self.nodes.len() - 1) as u32)
    }

    pub(super) fn add_queue(&mut self, node: NodeId) -> QueueId {
        self.queues.push(Queue { node, ready: VecDeque::new(), unflushed: Vec::new() });
        QueueId((self.queues.len() - 1) as u32)
    }

    pub(super) fn connect(&mut self, one: QueueId, other: QueueId) -> (ChannelId, ChannelId) {
        let first = self.ends.len() as u32;
        let is_gated = self.is_unordered() && !self.faults.is_ungated;
        for queue in [one, other] {
            self.ends.push(End {
                queue,
                node: self.queues[queue.0 as usize].node,
                open: true,
                exposed: BTreeMap::new(),
                grants: Grants::default(),
                line: VecDeque::new(),
                unfinished: VecDeque::new(),
                writes: 0,
                gate: is_gated.then(|| Gate::new(self.faults.send_depth)),
                busy_until_us: self.now_us,
                notices: 0,
                reads: false,
                fenced_us: 0,
            });
        }
        self.note(
            What::Connect,
            first,
            u64::from(first + 1),
            u64::from(self.ends[first as usize + 1].node.0),
        );
        // A process that is gone takes no connection: its side ends at once and the other side hears of it.
        for end in [first, first + 1] {
            if self.crashed(end) {
                self.die(end);
            }
        }
        (ChannelId(first), ChannelId(first + 1))
    }

    pub(super) fn is_unordered(&self) -> bool {
        self.faults.order == Order::Any
    }

    /// The end of a channel, if it is this queue's and open.
    pub(super) fn open_end(&self, queue: QueueId, channel: ChannelId) -> Option<u32> {
        let end = self.ends.get(channel.0 as usize)?;
        (end.open && end.queue == queue).then_some(channel.0)
    }

    pub(super) fn end(&mut self, channel: u32) -> &mut End {
        &mut self.ends[channel as usize]
    }

    pub(super) fn is_open(&self, channel: u32) -> bool {
        self.ends[channel as usize].open
    }

    pub(super) fn crashed(&self, channel: u32) -> bool {
        self.nodes[self.ends[channel as usize].node.0 as usize].crashed
    }

    pub(super) fn stats(&mut self, channel: u32) -> &mut NodeStats {
        &mut self.nodes[self.ends[channel as usize].node.0 as usize].stats
    }

    pub(super) fn partitioned(&self, channel: u32) -> bool {
        let (a, b) = (self.ends[channel as usize].node, self.ends[channel as usize ^ 1].node);
        !self.partitions.is_empty() && self.partitions.contains(&(a.min(b), a.max(b)))
    }

    pub(super) fn note(&mut self, what: What, subject: u32, a: u64, b: u64) {
        self.trace.event(self.now_us, what, subject, a, b);
    }

    /// Something for the queue of a channel's end to poll.
    pub(super) fn complete(&mut self, channel: u32, kind: CompletionKind) {
        let queue = self.ends[channel as usize].queue;
        self.queues[queue.0 as usize].ready.push_back(Completion { channel: ChannelId(channel), kind });
        self.ready.insert(queue);
    }

    /// What the other side of a channel exposed under this key.
    pub(super) fn map(&mut self, channel: u32, key: RemoteKey) -> Option<View> {
        let reads_in_place = self.faults.reads_in_place;
        let region = self.end(channel ^ 1).exposed.get(&key.0).filter(|_| reads_in_place)?;
        Some(View::of_region(region))
    }

    /// What the peer of an end of a channel may reach.
    pub(super) fn grants(&mut self, channel: u32) -> &mut Grants {
        &mut self.end(channel).grants
    }

    pub(super) fn expose(&mut self, channel: u32, region: &Region) {
        let (id, bytes) = (region.id(), region.len() as u64);
        if self.end(channel).exposed.insert(id, region.clone()).is_none() {
            let node = self.ends[channel as usize].node;
            let node = &mut self.nodes[node.0 as usize];
            let entry = node.registered.entry(id).or_insert((bytes, 0));
            entry.1 += 1;
            if entry.1 == 1 {
                node.stats.registered_bytes += bytes;
                node.stats.registered_bytes_peak =
                    node.stats.registered_bytes_peak.max(node.stats.registered_bytes);
            }
            self.note(What::Expose, channel, bytes, 0);
        }
    }

    /// Takes back all that a channel's peer could address.
    pub(super) fn conceal(&mut self, channel: u32) {
        let exposed = std::mem::take(&mut self.end(channel).exposed);
        self.end(channel).grants = Grants::default();
        let node = self.ends[channel as usize].node;
        let node = &mut self.nodes[node.0 as usize];
        for id in exposed.keys() {
            if let Some(entry) = node.registered.get_mut(id) {
                entry.1 -= 1;
                if entry.1 == 0 {
                    node.stats.registered_bytes -= entry.0;
                    node.registered.remove(id);
                }
            }
        }
    }

    pub(super) fn schedule(&mut self, at_us: u64, event: Event) {
        let tie = self.rng.next_u64() as u32;
        self.schedule_tied(at_us, tie, event);
    }

    /// For what must keep the order of its scheduling, ahead of everything else at that time.
    pub(super) fn schedule_first(&mut self, at_us: u64, event: Event) {
        self.schedule_tied(at_us, 0, event);
    }

    fn schedule_tied(&mut self, at_us: u64, tie: u32, event: Event) {
        self.sequence += 1;
        let at_us = at_us.max(self.now_us);
        self.calendar.push(Reverse(Scheduled { at_us, tie, sequence: self.sequence, event }));
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        self.calendar.peek().map(|next| next.0.at_us)
    }

    /// Carries out everything up to a time, which is now afterwards.
    pub(super) fn run_to(&mut self, until_us: u64) {
        while self.next_us().is_some_and(|next| next <= until_us) {
            let Some(Reverse(next)) = self.calendar.pop() else { break };
            self.now_us = next.at_us;
            match next.event {
                Event::Capture(handle) => self.capture(handle),
                Event::Attempt(handle) => self.attempt(handle),
                Event::Piece(handle, piece) => self.piece(handle, piece),
                Event::Deliver(handle) => self.deliver(handle),
                Event::Ack(handle) => self.acknowledged(handle),
                Event::Duplicate(handle) => self.duplicate(handle),
                Event::Late(handle) => self.late(handle),
                Event::Act(action) => self.act(action),
            }
        }
        self.now_us = self.now_us.max(until_us);
    }

    /// One end of a channel, for reports.
    pub(super) fn label(&self, channel: u32) -> String {
        let name = |c: u32| {
            let end = self.ends.get(c as usize);
            end.map_or("?", |end| self.nodes[end.node.0 as usize].name.as_str())
        };
        format!("{} (channel {channel} to {})", name(channel), name(channel ^ 1))
    }
}
