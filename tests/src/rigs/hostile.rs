//! A worker that is a member of the cluster and does as it likes on the data plane: every byte of its batches,
//! every notice and every address is the test's choice. Built on the fabric and the wire formats directly.

use super::cluster::Cluster;
use super::control::ControlPeer;
use fabric::{
    Access, ChannelId, Completion, CompletionKind, CompletionQueue, Device, LaneQueue, PeerWritable, Read,
    RemoteKey, RemoteSpan, ShmDevice, TcpDevice, Write, tcp_frame::Frame,
};
use proto_common::batch::{
    BatchHeader, BatchKind, BatchReader, BatchWriter, Block, BlockData, Count, Notice, OpKind, Reading,
    SlotGrant, Status, prefix_bytes,
};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Lane, Operation, Rank, Role};
use proto_common::limits::{HEADER_BYTES, PROTOCOL_VERSION, RESULT_SLOT_BYTES, TABLE_BYTES_MAX};
use proto_common::message::{
    FromScheduler, FromServer, Hello, InboxGrant, Member, Register, ServerOffer, ToScheduler, ToServer,
    Welcome,
};
use proto_common::transport::{Driver, Offer, Policies};
use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// How long the cluster may take for anything it is asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// Slots of the rogue's inbox, for results.
const RESULT_SLOTS: u32 = 4;
/// Bytes of registered memory that batches are sent from, and that weights land in.
const SCRATCH_BYTES: usize = 4 << 20;

/// A registered worker.
#[derive(Debug)]
pub struct Rogue {
    /// Its connection to the scheduler.
    pub control: ControlPeer,
    /// Its life.
    pub incarnation: Incarnation,
    /// What the scheduler said.
    pub welcome: Welcome,
    epoch: Epoch,
    servers: Vec<Member>,
}

/// A registration as an honest worker would send it.
#[must_use]
pub fn registration(role: Role, rank: Option<u32>) -> Register {
    Register {
        protocol: PROTOCOL_VERSION,
        build: "rogue".into(),
        job: Default::default(),
        role,
        incarnation: daemon::host::new_incarnation().expect("random bytes"),
        wanted_rank: rank.map(Rank),
        data_address: Some("127.0.0.1:1".into()),
        http_address: None,
        host: None,
        pid: std::process::id(),
        offer: offer(Driver::Tcp),
        rules: Vec::new(),
        resume: None,
    }
}

fn offer(driver: Driver) -> Offer {
    daemon::host::offer(Policies::only(driver), Vec::new()).expect("the host's identity")
}

impl Rogue {
    /// Registers with this rank.
    #[must_use]
    pub fn register(cluster: &Cluster, rank: u32) -> Self {
        let mut control = ControlPeer::connect(&cluster.control);
        let register = registration(Role::Worker, Some(rank));
        let incarnation = register.incarnation;
        control.send(&ToScheduler::Register(register));
        let welcome = match control.receive() {
            Some(FromScheduler::Welcome(welcome)) => welcome,
            other => panic!("not welcome: {other:?}"),
        };
        Self { control, incarnation, welcome, epoch: Epoch::default(), servers: Vec::new() }
    }

    /// Waits until the cluster is complete.
    pub fn await_roster(&mut self) {
        loop {
            match self.control.receive() {
                Some(FromScheduler::Roster { epoch, members, .. }) => {
                    self.epoch = epoch;
                    self.servers = members.into_iter().filter(|m| m.id.role == Role::Server).collect();
                    return;
                }
                Some(FromScheduler::HeartbeatAck) => {}
                other => panic!("no roster: {other:?}"),
            }
        }
    }

    /// The server's entry of the roster.
    #[must_use]
    pub fn server(&self) -> &Member {
        &self.servers[0]
    }

    /// The first message to the server.
    #[must_use]
    pub fn hello(&self, driver: Driver) -> Hello {
        Hello {
            protocol: PROTOCOL_VERSION,
            job: self.welcome.job,
            rank: self.welcome.rank,
            incarnation: self.incarnation,
            server_incarnation: self.server().incarnation,
            epoch: self.epoch,
            offer: offer(driver),
        }
    }

    /// A connection to the server's bootstrap.
    #[must_use]
    pub fn bootstrap(&self) -> ControlPeer {
        ControlPeer::connect(self.server().data_address.as_deref().expect("servers have one"))
    }

    /// Says hello and gets the server's offer.
    #[must_use]
    pub fn ask(&self, driver: Driver) -> (ControlPeer, ServerOffer) {
        let mut link = self.bootstrap();
        link.send(&ToServer::Hello(self.hello(driver)));
        match link.receive() {
            Some(FromServer::Offer(offer)) => (link, offer),
            other => panic!("no offer: {other:?}"),
        }
    }

    /// A data channel to the server, set up as an honest worker does.
    #[must_use]
    pub fn open(&self, driver: Driver) -> Channel {
        let (link, offer) = self.ask(driver);
        self.accept(driver, link, &offer)
    }

    /// Takes a server's offer.
    #[must_use]
    pub fn accept(&self, driver: Driver, mut link: ControlPeer, offer: &ServerOffer) -> Channel {
        let mut queue = LaneQueue::new(1024).expect("a queue");
        let (shm, deadline) = (ShmDevice::new(), Instant::now() + PATIENCE);
        let tcp = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "127.0.0.1".into());
        let device: &dyn Device = if driver == Driver::Shm { &shm } else { &tcp };
        let setup = device.connect(&offer.endpoint.blob, 0, &queue.handle(), deadline).expect("a channel");
        let channel = queue.attach(setup).expect("attaching");
        let slots = RESULT_SLOT_BYTES * u64::from(RESULT_SLOTS);
        let inbox = PeerWritable::allocate(slots as usize, "rogue-inbox").expect("memory");
        let scratch = PeerWritable::allocate(SCRATCH_BYTES, "rogue-scratch").expect("memory");
        let region = queue.expose(channel, &inbox).expect("exposing").0;
        let landing = queue.expose(channel, &scratch).expect("exposing").0;
        for lent in [&inbox, &scratch] {
            queue.lend(channel, &lent.all(), Access::ReadWrite, 0).expect("lending");
        }
        let grants = (0..RESULT_SLOTS).map(|slot| SlotGrant { slot, generation: 1 }.to_wire()).collect();
        let ours = InboxGrant { region, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants };
        queue.flush();
        link.send(&ToServer::Inboxes(vec![ours]));
        let server_inbox = match link.receive() {
            Some(FromServer::Inboxes(mut inboxes)) => inboxes.remove(0),
            other => panic!("no inbox: {other:?}"),
        };
        let credits = credits_of(&server_inbox);
        Channel {
            queue,
            channel,
            server_inbox,
            landing,
            credits,
            header: self.header(),
            inbox,
            scratch,
            seen: VecDeque::new(),
            closed: None,
        }
    }

    /// A TCP channel that is set up honestly and then deaf.
    #[must_use]
    pub fn open_deaf(&self) -> DeafChannel {
        let (mut link, offer) = self.ask(Driver::Tcp);
        // The offer's bytes are frozen in the driver's own tests.
        let blob = &offer.endpoint.blob;
        let port = u16::from_le_bytes([blob[4], blob[5]]);
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the data port");
        let preamble = fabric::tcp_preamble(blob, 0).expect("an offer");
        stream.write_all(&preamble).expect("a preamble");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
        let grants = vec![SlotGrant { slot: 0, generation: 1 }.to_wire()];
        let ours = InboxGrant { region: 1, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants };
        link.send(&ToServer::Inboxes(vec![ours]));
        let inbox = match link.receive() {
            Some(FromServer::Inboxes(mut inboxes)) => inboxes.remove(0),
            other => panic!("no inbox: {other:?}"),
        };
        DeafChannel { stream, credits: credits_of(&inbox), inbox, header: self.header() }
    }

    fn header(&self) -> BatchHeader {
        BatchHeader {
            kind: BatchKind::Request,
            lane: Lane(0),
            wanted: 4,
            sender: self.welcome.rank,
            job: self.welcome.job,
            epoch: self.epoch,
            sender_incarnation: self.incarnation,
            receiver_incarnation: self.server().incarnation,
            sequence: 0,
            payload_offset: 0,
            payload_bytes: 0,
            payload_checksum: None,
        }
    }
}

/// A contribution to a round, or with [`OpKind::Pull`] the wish for its result, of an f32 tensor's first chunk.
#[must_use]
pub fn operation(op: OpKind, key: u64, operation: u64, round: u64, bytes: u64) -> Block {
    Block {
        id: ChunkId::new(key, 0),
        op,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(operation),
        first_open: Operation(1),
        exact: false,
        count: Count::of(op, round),
        bytes: if op == OpKind::Pull { 0 } else { bytes },
        data: BlockData::Inline { offset: 0 },
        landing: None,
        timeout_ms: 20_000,
        view: false,
        reading: Reading::default(),
        token: key << 32 | operation,
    }
}

fn encode(header: BatchHeader, slot_bytes: u64, blocks: &[Block], value: f32) -> Vec<u8> {
    let mut batch = vec![0; TABLE_BYTES_MAX];
    let mut writer = BatchWriter::new(&mut batch, slot_bytes).expect("room");
    for block in blocks {
        assert!(writer.push(*block), "the blocks fit a batch");
    }
    let used = writer.finish(header);
    batch.truncate(used);
    let inline = blocks.iter().filter(|block| matches!(block.data, BlockData::Inline { .. }));
    let elements: u64 = inline.map(|block| block.bytes / 4).sum();
    batch.extend((0..elements).flat_map(|_| value.to_le_bytes()));
    batch
}

/// The slots of a grant.
fn credits_of(inbox: &InboxGrant) -> Vec<SlotGrant> {
    inbox.grants.iter().filter_map(|wire| SlotGrant::from_wire(*wire)).collect()
}

/// A data channel over TCP that writes and never reads a byte.
#[derive(Debug)]
pub struct DeafChannel {
    stream: TcpStream,
    inbox: InboxGrant,
    credits: Vec<SlotGrant>,
    header: BatchHeader,
}

impl DeafChannel {
    /// The key under which weights may be sent; nobody will ever take them.
    pub const LANDING: u64 = 2;

    /// Sends an honest batch, with one of its first credits.
    pub fn send(&mut self, blocks: &[Block]) {
        self.header.sequence += 1;
        let batch = encode(self.header, self.inbox.slot_bytes, blocks, 1.0);
        let slot = self.credits.remove(0);
        let frame = Frame::Write {
            key: self.inbox.region,
            offset: self.inbox.offset + u64::from(slot.slot) * self.inbox.slot_bytes,
            length: batch.len() as u64,
            immediate: Some(Notice::Batch(slot).to_wire()),
        };
        self.stream.write_all(&frame.encode()).expect("the server reads");
        self.stream.write_all(&batch).expect("the server reads");
    }
}

/// A data channel to a server.
#[derive(Debug)]
pub struct Channel {
    queue: LaneQueue,
    channel: ChannelId,
    /// The server's inbox as it granted it.
    pub server_inbox: InboxGrant,
    /// The key under which the server may write our memory.
    pub landing: u64,
    /// Slots we may write.
    pub credits: Vec<SlotGrant>,
    /// What our batches say of us.
    pub header: BatchHeader,
    inbox: PeerWritable,
    scratch: PeerWritable,
    seen: VecDeque<Block>,
    closed: Option<String>,
}

impl Channel {
    /// An honest batch of these operations; every payload element is `value`.
    #[must_use]
    pub fn batch(&mut self, blocks: &[Block], value: f32) -> Vec<u8> {
        self.header.sequence += 1;
        encode(self.header, self.server_inbox.slot_bytes, blocks, value)
    }

    /// A credit, waited for.
    #[must_use]
    pub fn credit(&mut self) -> SlotGrant {
        let deadline = Instant::now() + PATIENCE;
        while self.credits.is_empty() {
            assert!(self.turn(deadline), "no credit came; closed: {:?}", self.closed);
        }
        self.credits.remove(0)
    }

    /// Writes bytes into a slot of the server's inbox and tells it so.
    pub fn post(&mut self, slot: SlotGrant, bytes: &[u8]) {
        let inbox = &self.server_inbox;
        let remote = RemoteSpan {
            key: RemoteKey(inbox.region),
            offset: inbox.offset + u64::from(slot.slot) * inbox.slot_bytes,
        };
        self.write(remote, bytes, Some(Notice::Batch(slot).to_wire()));
    }

    /// Writes anywhere, with any notice. That our own driver refuses it is as good as the server's refusal.
    pub fn write(&mut self, remote: RemoteSpan, bytes: &[u8], immediate: Option<u32>) {
        self.scratch.write(0, bytes).expect("room");
        let span = self.scratch.span(0, bytes.len() as u64).expect("room");
        let gather = [span];
        let gather = if bytes.is_empty() { &[][..] } else { &gather };
        let write = Write { id: 0, gather, remote, immediate, signaled: false };
        if let Err(error) = self.queue.post_write(self.channel, &write) {
            self.closed.get_or_insert(error.to_string());
        }
        self.queue.flush();
    }

    /// Reads from anywhere.
    pub fn read(&mut self, remote: RemoteSpan, bytes: u64) {
        let local = self.scratch.span(0, bytes).expect("room");
        if let Err(error) = self.queue.post_read(self.channel, &Read { id: 0, local: &local, remote }) {
            self.closed.get_or_insert(error.to_string());
        }
        self.queue.flush();
    }

    /// Ends the channel from this side; the memory that it handed over stays.
    pub fn close(&mut self) {
        self.queue.close(self.channel);
        self.closed.get_or_insert("by ourselves".into());
    }

    /// What lies so far into the memory that it handed over becomes these numbers.
    pub fn lay(&mut self, offset: u64, numbers: &[f32]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.scratch.write(offset, &bytes).expect("room");
    }

    /// A notice without a batch.
    pub fn notify(&mut self, immediate: u32) {
        let remote =
            RemoteSpan { key: RemoteKey(self.server_inbox.region), offset: self.server_inbox.offset };
        self.write(remote, &[], Some(immediate));
    }

    /// The result of the operation with this token, waited for; `None` when the channel closed.
    pub fn result(&mut self, token: u64) -> Option<Block> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.iter().position(|block| block.token == token) {
                return self.seen.remove(at);
            }
            if !self.turn(deadline) {
                assert!(self.closed.is_some(), "operation {token:x} was not answered");
                return None;
            }
        }
    }

    /// Did the server (or our own driver, in its place) end the channel?
    #[must_use]
    pub fn is_closed_within(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.closed.is_none() && self.turn(deadline) {}
        self.closed.is_some()
    }

    /// Waits for something to happen; false when the time is over or the channel is closed.
    fn turn(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || self.closed.is_some() {
            return false;
        }
        self.queue.wait(left.min(Duration::from_millis(50)));
        let mut completions: Vec<Completion> = Vec::new();
        self.queue.poll(&mut completions);
        for completion in completions {
            match completion.kind {
                CompletionKind::Received { immediate } => self.received(immediate),
                CompletionKind::Disconnected(reason) => self.closed = Some(format!("{reason:?}")),
                CompletionKind::WriteDone { .. } | CompletionKind::ReadDone { .. } => {}
            }
        }
        self.queue.flush();
        true
    }

    fn received(&mut self, immediate: u32) {
        let Some(Notice::Batch(slot)) = Notice::from_wire(immediate) else { return };
        let start = u64::from(slot.slot) * RESULT_SLOT_BYTES;
        let mut prefix = vec![0; RESULT_SLOT_BYTES as usize];
        self.inbox.read(start, &mut prefix).expect("a slot of ours");
        let bytes = prefix_bytes(&prefix[..HEADER_BYTES]).expect("an honest server");
        let mut reader = BatchReader::default();
        reader.read(&prefix[..bytes], RESULT_SLOT_BYTES).expect("an honest server");
        self.seen.extend(reader.blocks.iter().copied());
        self.credits.extend(reader.grants.iter().copied());
        let again = SlotGrant { generation: slot.generation.wrapping_add(1), ..slot };
        self.notify(Notice::Returned(again).to_wire());
    }
}
