//! A lane over real drivers, and workers that are stopped in the middle of a copy: what they were granted goes to nobody else
//! before that copy is over, and the copy changes nothing that somebody else was granted.

use super::calls::{CallEvent, Lent};
use super::lane::DataLane;
use super::link::WorkerInbox;
use super::rig::lane_over;
use crate::app::Body;
use crate::engine::ChunkSpec;
use fabric::{
    Access, ChannelId, CompletionQueue, Device, Fence, LaneQueue, PeerWritable, Region, RemoteKey,
    RemoteSpan, ShmDevice, Span, TcpDevice, View, Write,
};
use proto_common::batch::{
    BatchHeader, BatchKind, BatchReader, BatchWriter, Block, BlockData, Count, Landing, Notice, OpKind,
    SlotGrant, Status, prefix_bytes,
};
use proto_common::call::{FrameShape, call_id};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Operation, Rank};
use proto_common::limits::{HEADER_BYTES, RESULT_SLOT_BYTES, TABLE_BYTES_MAX};
use proto_common::message::InboxGrant;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More than the sockets below hold.
const CHUNK_BYTES: u64 = 1 << 20;
const SOCKET_BYTES: usize = 64 << 10;
const SOON: Duration = Duration::from_secs(30);
/// What the stopped worker writes, and the one that is granted the same memory after it.
const LATE: u8 = 0xAB;
const OTHER: u8 = 0x11;
/// A handler.
const APP: u32 = 5;

#[derive(Clone, Copy, Debug)]
enum Driver {
    Shm,
    Tcp,
}

impl Driver {
    fn device(self) -> Box<dyn Device> {
        match self {
            Self::Shm => Box::new(ShmDevice::new()),
            Self::Tcp => {
                let device = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "127.0.0.1".into());
                Box::new(device.with_socket_buffer_bytes(SOCKET_BYTES))
            }
        }
    }
}

/// What a worker is granted.
#[derive(Clone, Copy, Debug)]
enum Grant {
    Slot,
    /// A spill block, for one contribution.
    Spill,
    /// One for all contributions to a chunk.
    KeyBuffer,
}

/// A worker's side of its channel.
struct Raw {
    queue: LaneQueue,
    channel: ChannelId,
    rank: Rank,
    life: Incarnation,
    grant: InboxGrant,
    inbox: PeerWritable,
    /// Batches that it has sent.
    sent: u8,
}

impl Raw {
    /// Connects a life of a worker.
    fn attach(lane: &mut DataLane<LaneQueue>, driver: Driver, rank: u32, life: u64) -> Self {
        let mut queue = LaneQueue::new(64).unwrap();
        let (device, deadline) = (driver.device(), Instant::now() + SOON);
        let (offer, pending) = device.offer(&[lane.queue.handle()]).unwrap();
        let handle = queue.handle();
        let (ours, theirs) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, deadline).unwrap());
            (pending.accept(deadline).unwrap().pop().unwrap(), connecting.join().unwrap())
        });
        let channel = queue.attach(theirs).unwrap();
        let inbox = PeerWritable::allocate(RESULT_SLOT_BYTES as usize, "worker").unwrap();
        let region = queue.expose(channel, &inbox).unwrap().0;
        queue.lend(channel, &inbox.all(), Access::ReadWrite, 0).unwrap();
        let (rank, life) = (Rank(rank), Incarnation(life));
        let grants = vec![SlotGrant { slot: 0, generation: 1 }];
        let results = WorkerInbox { region, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants };
        let ours = lane.queue_mut().attach(ours).unwrap();
        let grant = lane.adopt(rank, life, ours, results).unwrap();
        Self { queue, channel, rank, life, grant, inbox, sent: 0 }
    }

    fn grants(&self) -> Vec<SlotGrant> {
        self.grant.grants.iter().filter_map(|grant| SlotGrant::from_wire(*grant)).collect()
    }

    /// Its first slot.
    fn slot(&self) -> Option<RemoteSpan> {
        let offset = u64::from(self.grants().first()?.slot) * self.grant.slot_bytes;
        Some(RemoteSpan { key: RemoteKey(self.grant.region), offset })
    }

    /// What it is granted of the lane's memory; none where all is in quarantine, or granted to others.
    fn granted(&mut self, grant: Grant, lane: &mut DataLane<LaneQueue>) -> Option<RemoteSpan> {
        match grant {
            Grant::Slot => self.slot(),
            Grant::Spill => self.ask(false, lane),
            Grant::KeyBuffer => self.ask(true, lane),
        }
    }

    /// Announces a contribution to chunk 0, and hears what it is granted for it.
    fn ask(&mut self, keep: bool, lane: &mut DataLane<LaneQueue>) -> Option<RemoteSpan> {
        self.send(&[(0, OpKind::Push, BlockData::Announced { keep })], lane)
    }

    /// Sends a batch of one operation a chunk in its next slot. What the one that is announced is granted.
    fn send(
        &mut self,
        blocks: &[(u32, OpKind, BlockData)],
        lane: &mut DataLane<LaneQueue>,
    ) -> Option<RemoteSpan> {
        let (slot, place) = (*self.grants().first()?, self.slot()?);
        self.sent += 1;
        let prefix = Region::of_bytes(self.batch(blocks));
        let notice = Some(Notice::Batch(slot).to_wire());
        self.write(&prefix.all(), place, notice);
        let deadline = Instant::now() + SOON;
        loop {
            let mut seen = Vec::new();
            while seen.is_empty() {
                assert!(Instant::now() < deadline, "it is not answered");
                lane.step(1).unwrap();
                self.queue.flush();
                self.queue.poll(&mut seen);
            }
            let mut bytes = vec![0; RESULT_SLOT_BYTES as usize];
            self.inbox.read(0, &mut bytes).unwrap();
            let (mut reader, length) =
                (BatchReader::default(), prefix_bytes(&bytes[..HEADER_BYTES]).unwrap());
            reader.read(&bytes[..length], RESULT_SLOT_BYTES).unwrap();
            self.grant.grants = reader.grants.iter().map(|grant| grant.to_wire()).collect();
            if let Some(granted) = reader.blocks.iter().find(|block| block.status == Status::Granted) {
                let landing = granted.landing?;
                return Some(RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset });
            }
        }
    }

    fn batch(&self, blocks: &[(u32, OpKind, BlockData)]) -> Vec<u8> {
        self.batch_of(blocks.iter().map(|(chunk, op, data)| Block {
            count: Count::Round(u64::from(*op == OpKind::Push)),
            bytes: CHUNK_BYTES,
            data: *data,
            timeout_ms: 600_000,
            token: 1,
            ..Block::bare(ChunkId::new(1, *chunk), *op, Dtype::F32, Operation(1))
        }))
    }

    fn batch_of(&self, blocks: impl Iterator<Item = Block>) -> Vec<u8> {
        let header = BatchHeader {
            kind: BatchKind::Request,
            lane: Lane(0),
            wanted: 1,
            sender: self.rank,
            job: JobId(7),
            epoch: Epoch::default(),
            sender_incarnation: self.life,
            receiver_incarnation: Incarnation(1),
            sequence: self.sent.into(),
            payload_offset: 0,
            payload_bytes: 0,
            payload_checksum: None,
        };
        let mut prefix = vec![0; TABLE_BYTES_MAX];
        let mut writer = BatchWriter::new(&mut prefix, self.grant.slot_bytes).unwrap();
        for block in blocks {
            assert!(writer.push(block));
        }
        // It had one slot for results, and has read what came there.
        assert!(self.sent == 1 || writer.grant(SlotGrant { slot: 0, generation: self.sent }));
        let bytes = writer.finish(header);
        prefix.truncate(bytes);
        prefix
    }

    /// Calls a handler of the lane, with a body in this memory, and returns the body as the handler gets it.
    fn call(&mut self, body: &PeerWritable, lane: &mut DataLane<LaneQueue>) -> (u64, Body) {
        lane.calls.trust(APP);
        let (bytes, region) = (body.all().len(), self.queue.expose(self.channel, body).unwrap().0);
        let shape = FrameShape { head_bytes: 0, pieces: 1, inline_bytes: 0 };
        let mut frame = vec![0; shape.bytes()];
        shape.write(&mut frame, b"", [(Some(0), bytes)].into_iter()).unwrap();
        let (slot, place) = (self.grants()[0], self.slot().unwrap());
        self.sent += 1;
        let mut batch = self.batch_of(std::iter::once(Block {
            count: Count::Body(bytes),
            bytes: frame.len() as u64,
            landing: Some(Landing { region, offset: 0, bytes: 0 }),
            timeout_ms: 100,
            ..Block::bare(call_id(APP, Rank(0)), OpKind::Call, Dtype::F32, Operation(1))
        }));
        batch.extend(frame);
        self.write(&Region::of_bytes(batch).all(), place, Some(Notice::Batch(slot).to_wire()));
        let deadline = Instant::now() + SOON;
        loop {
            assert!(Instant::now() < deadline, "it does not arrive");
            lane.step(1).unwrap();
            if let Some(CallEvent::Deliver { call, body, .. }) = lane.next_call_event() {
                return (call, body);
            }
        }
    }

    fn view(&mut self, place: RemoteSpan) -> View {
        self.queue.view(self.channel, place, CHUNK_BYTES).unwrap()
    }

    fn write(&mut self, span: &Span, remote: RemoteSpan, immediate: Option<u32>) {
        let write = Write { id: 0, gather: std::slice::from_ref(span), remote, immediate, signaled: false };
        self.queue.post_write(self.channel, &write).unwrap();
        self.queue.flush();
    }

    /// Writes all of what it was granted.
    fn fill(&mut self, (grant, place): (Grant, RemoteSpan), with: u8, lane: &mut DataLane<LaneQueue>) {
        self.write(&Region::of_bytes(vec![with; CHUNK_BYTES as usize]).all(), place, None);
        let deadline = Instant::now() + SOON;
        while !is_filled(lane, grant, place, with) {
            assert!(Instant::now() < deadline, "it does not arrive");
            self.queue.poll(&mut Vec::new());
            lane.step(3).unwrap();
        }
    }
}

fn is_filled(lane: &DataLane<LaneQueue>, grant: Grant, place: RemoteSpan, with: u8) -> bool {
    let memory = match grant {
        Grant::Slot => lane.inbox.memory(),
        Grant::Spill | Grant::KeyBuffer => lane.storage.spill_cells().memory(),
    };
    let mut bytes = vec![0; CHUNK_BYTES as usize];
    memory.read(place.offset, &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == with)
}

/// A worker that is stopped in the middle of a copy.
enum Stopped {
    /// It copies itself.
    Shm { resume: Sender<()>, thread: JoinHandle<()> },
    /// Our side receives, and the rest does not come.
    Tcp(Box<Raw>),
}

impl Stopped {
    fn begin(
        driver: Driver,
        mut raw: Raw,
        (grant, place): (Grant, RemoteSpan),
        lane: &mut DataLane<LaneQueue>,
    ) -> Self {
        match driver {
            Driver::Shm => {
                let ((entered, has_entered), (resume, resumed)) = (channel(), channel::<()>());
                let thread = std::thread::spawn(move || {
                    let view = raw.view(place);
                    let mut copy = || {
                        entered.send(()).unwrap();
                        resumed.recv().unwrap();
                        view.write(0, &vec![LATE; CHUNK_BYTES as usize]).unwrap();
                    };
                    raw.queue.while_open(raw.channel, &mut copy).unwrap();
                });
                has_entered.recv().unwrap();
                Self::Shm { resume, thread }
            }
            Driver::Tcp => {
                raw.write(&Region::of_bytes(vec![LATE; CHUNK_BYTES as usize]).all(), place, None);
                lane.step(1).unwrap();
                assert!(!is_filled(lane, grant, place, LATE), "all of it is there: nothing is tested");
                Self::Tcp(Box::new(raw))
            }
        }
    }

    /// It continues, to its end.
    fn resume(self) {
        match self {
            Self::Shm { resume, thread } => {
                resume.send(()).unwrap();
                thread.join().unwrap();
            }
            Self::Tcp(mut raw) => {
                let (mut seen, deadline) = (Vec::new(), Instant::now() + SOON);
                while seen.is_empty() {
                    assert!(Instant::now() < deadline, "it does not hear that it was closed");
                    raw.queue.wait(Duration::from_millis(5));
                    raw.queue.flush();
                    raw.queue.poll(&mut seen);
                }
            }
        }
    }
}

/// Two workers, two slots, and two spill blocks that may be granted.
fn lane() -> DataLane<LaneQueue> {
    let mut lane = lane_over(LaneQueue::new(64).unwrap(), 0, (2, 2), CHUNK_BYTES);
    let spec = |chunk| ChunkSpec { id: ChunkId::new(1, chunk), bytes: CHUNK_BYTES, ..ChunkSpec::sample(1) };
    lane.assign(Epoch { term: 1, counter: 1 }, &[spec(0), spec(1)]).unwrap();
    lane
}

fn what_a_stopped_worker_may_still_write_is_granted_to_nobody(driver: Driver, grant: Grant) {
    let mut lane = lane();
    let mut first = Raw::attach(&mut lane, driver, 0, 1);
    let place = first.granted(grant, &mut lane).expect("it is the first one");
    let stopped = Stopped::begin(driver, first, (grant, place), &mut lane);
    // It comes back, as it may after its channel broke, and another worker comes.
    let began = Instant::now();
    let mut other = Raw::attach(&mut lane, driver, 1, 1);
    let again = Raw::attach(&mut lane, driver, 0, 2);
    assert!(began.elapsed() < SOON / 2, "the lane does not wait for a worker that is stopped");
    let others = other.granted(grant, &mut lane).expect("there is more");
    let stopped = match driver {
        Driver::Shm => {
            assert_ne!(others, place);
            let of_grant = if matches!(grant, Grant::Slot) { lane.inbox.cell_bytes() } else { CHUNK_BYTES };
            assert!(lane.quarantined_bytes() >= of_grant, "{} bytes", lane.quarantined_bytes());
            assert_eq!(lane.engine().fencing().collect::<Vec<_>>(), [Rank(0)]);
            stopped.resume();
            let deadline = Instant::now() + SOON;
            while lane.quarantined_bytes() > 0 {
                assert!(Instant::now() < deadline, "the fence is never done");
                lane.queue_mut().wait(Duration::from_millis(5));
                lane.step(2).unwrap();
            }
            None
        }
        // All copies are this process's own, so the end of the channel is the fence.
        Driver::Tcp => Some(stopped),
    };
    assert_eq!(lane.quarantined_bytes(), 0);
    drop(again);
    let mut last = if others == place {
        other
    } else {
        let mut last = Raw::attach(&mut lane, driver, 0, 3);
        assert_eq!(last.granted(grant, &mut lane), Some(place), "it is free again");
        last
    };
    last.fill((grant, place), OTHER, &mut lane);
    if let Some(stopped) = stopped {
        stopped.resume();
        lane.step(4).unwrap();
    }
    assert!(is_filled(&lane, grant, place, OTHER), "it was written over");
}

macro_rules! tests {
    ($($name:ident: $driver:ident, $grant:ident;)*) => {
        $(#[test] fn $name() {
            what_a_stopped_worker_may_still_write_is_granted_to_nobody(Driver::$driver, Grant::$grant);
        })*
    };
}

tests! {
    a_slot_over_shm: Shm, Slot;
    a_spill_block_over_shm: Shm, Spill;
    a_key_buffer_over_shm: Shm, KeyBuffer;
    a_slot_over_tcp: Tcp, Slot;
    a_spill_block_over_tcp: Tcp, Spill;
    a_key_buffer_over_tcp: Tcp, KeyBuffer;
}

/// Scenario: a batch brings the initial value that lies in a block, and announces a contribution to another chunk. The block is
/// free at once, and is granted again in the turn in which the first grant is taken back. A grant that was taken back after the
/// second one was given would leave the worker without any: its write would be refused, and it would be expelled.
#[test]
fn a_block_is_granted_again_in_the_turn_in_which_it_is_taken_over_tcp() {
    let mut lane = lane();
    let mut worker = Raw::attach(&mut lane, Driver::Tcp, 0, 1);
    let announced = BlockData::Announced { keep: false };
    let place = worker.send(&[(0, OpKind::Init, announced)], &mut lane).expect("it is the first one");
    worker.fill((Grant::Spill, place), OTHER, &mut lane);
    let batch = [(0, OpKind::Init, BlockData::Placed), (1, OpKind::Push, announced)];
    assert_eq!(worker.send(&batch, &mut lane), Some(place));
    worker.fill((Grant::Spill, place), LATE, &mut lane);
}

fn is_lent(body: &Body) -> bool {
    body.part(0, body.bytes()).unwrap().is_lent
}

/// A handler that is given the worker's own memory, all of one value.
fn reading() -> (DataLane<LaneQueue>, Raw, PeerWritable, (u64, Body)) {
    let mut lane = lane();
    let mut worker = Raw::attach(&mut lane, Driver::Shm, 0, 1);
    let ours = PeerWritable::allocate(CHUNK_BYTES as usize, "body").unwrap();
    ours.write(0, &vec![OTHER; CHUNK_BYTES as usize]).unwrap();
    let (call, body) = worker.call(&ours, &mut lane);
    assert!(is_lent(&body) || cfg!(not(target_arch = "x86_64")), "only emulators cannot do it");
    (lane, worker, ours, (call, body))
}

/// The worker writes the next gradient there.
fn write_again(ours: &PeerWritable) {
    ours.write(0, &vec![LATE; CHUNK_BYTES as usize]).unwrap();
}

fn assert_unchanged(body: &Body) {
    assert!(body.iter().all(|byte| *byte == OTHER) && body.len() as u64 == CHUNK_BYTES, "it is torn");
}

#[test]
fn what_a_handler_reads_stays_when_its_worker_closes_the_channel() {
    let (mut lane, mut worker, ours, (_, body)) = reading();
    if is_lent(&body) {
        assert_eq!(worker.queue.close(worker.channel), Fence::Reads);
    } else {
        worker.queue.close(worker.channel);
    }
    let deadline = Instant::now() + SOON;
    while worker.queue.fence(worker.channel) != Fence::Done {
        assert!(Instant::now() < deadline, "the fence is never done");
        lane.queue_mut().wait(Duration::from_millis(5));
        lane.step(2).unwrap();
    }
    write_again(&ours);
    assert_unchanged(&body);
}

#[test]
fn what_a_handler_reads_stays_when_the_deadline_passes_or_it_is_answered_by_somebody_else_or_the_lane_ends() {
    let ends: [fn(&mut DataLane<LaneQueue>, u64); 3] = [
        |lane, _| {
            lane.step(200).unwrap();
        },
        |lane, call| {
            lane.note_answer(call, None);
            lane.step(1).unwrap();
            assert!(lane.has_unreleased() || lane.lent().requests == 0, "it waits for the handler");
            lane.step(10).unwrap();
        },
        |lane, _| *lane = self::lane(),
    ];
    for end in ends {
        let (mut lane, _worker, ours, (call, body)) = reading();
        end(&mut lane, call);
        let counted = lane.lent();
        assert!(counted == Lent { requests: 1, kept: 1 } || counted == Lent::default(), "{counted:?}");
        write_again(&ours);
        assert_unchanged(&body);
    }
}

#[test]
fn what_a_handler_has_released_is_copied_by_nobody() {
    let (mut lane, _worker, _ours, (call, body)) = reading();
    if !is_lent(&body) {
        return;
    }
    body.release();
    assert!(body.part(0, 1).is_none());
    lane.note_answer(call, None);
    lane.execute();
    lane.step(2).unwrap();
    assert!(body.is_empty());
    assert_eq!(lane.lent(), Lent { requests: 1, kept: 0 });
}
