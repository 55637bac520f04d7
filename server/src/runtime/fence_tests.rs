//! A lane over shared memory, and workers that are stopped in the middle of a copy: what they were granted goes to nobody else
//! before that copy is over.

use super::lane::DataLane;
use super::link::WorkerInbox;
use super::rig::lane_over;
use fabric::{
    ChannelId, CompletionQueue, Device, LaneQueue, PeerWritable, Region, RemoteKey, RemoteSpan, ShmDevice,
    View, Write,
};
use proto_common::batch::SlotGrant;
use proto_common::ids::{Incarnation, Rank};
use proto_common::limits::RESULT_SLOT_BYTES;
use proto_common::message::InboxGrant;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const CHUNK_BYTES: u64 = 4096;
const SOON: Duration = Duration::from_secs(30);

/// A worker's side of its channel.
struct Raw {
    queue: LaneQueue,
    channel: ChannelId,
    grant: InboxGrant,
}

impl Raw {
    /// Connects a life of a worker.
    fn attach(lane: &mut DataLane<LaneQueue>, rank: u32, life: u64) -> Self {
        let mut queue = LaneQueue::new(64).unwrap();
        let (device, deadline) = (ShmDevice::new(), Instant::now() + SOON);
        let (offer, pending) = device.offer(&[lane.queue.handle()]).unwrap();
        let handle = queue.handle();
        let (ours, theirs) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, deadline).unwrap());
            (pending.accept(deadline).unwrap().pop().unwrap(), connecting.join().unwrap())
        });
        let channel = queue.attach(theirs).unwrap();
        let inbox = PeerWritable::allocate(RESULT_SLOT_BYTES as usize, "worker").unwrap();
        let region = queue.expose(channel, &inbox).unwrap().0;
        let grants = vec![SlotGrant { slot: 0, generation: 1 }];
        let inbox = WorkerInbox { region, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants };
        let grant = lane.attach(Rank(rank), Incarnation(life), ours, inbox).unwrap();
        Self { queue, channel, grant }
    }

    fn slots(&self) -> Vec<u32> {
        self.grant
            .grants
            .iter()
            .filter_map(|grant| SlotGrant::from_wire(*grant))
            .map(|grant| grant.slot)
            .collect()
    }

    fn slot_at(&self, slot: u32) -> RemoteSpan {
        RemoteSpan { key: RemoteKey(self.grant.region), offset: u64::from(slot) * self.grant.slot_bytes }
    }

    fn slot(&mut self, slot: u32) -> View {
        self.queue.view(self.channel, self.slot_at(slot), CHUNK_BYTES).unwrap()
    }
}

fn content(lane: &DataLane<LaneQueue>, slot: u32) -> Vec<u8> {
    let mut bytes = vec![0; CHUNK_BYTES as usize];
    lane.inbox.memory().read(lane.inbox.start(slot), &mut bytes).unwrap();
    bytes
}

#[test]
fn a_slot_that_a_stopped_worker_may_still_write_is_granted_to_nobody() {
    let mut lane = lane_over(LaneQueue::new(64).unwrap(), 0, (2, 2), CHUNK_BYTES);
    let mut stopped = Raw::attach(&mut lane, 0, 1);
    assert_eq!(stopped.slots(), [0]);
    let ((entered, has_entered), (resume, resumed)) = (channel(), channel::<()>());
    let late = std::thread::spawn(move || {
        let view = stopped.slot(0);
        let mut copy = || {
            entered.send(()).unwrap();
            resumed.recv().unwrap();
            view.write(0, &vec![0xAB; CHUNK_BYTES as usize]).unwrap();
        };
        stopped.queue.while_open(stopped.channel, &mut copy).unwrap();
    });
    has_entered.recv().unwrap();
    // It comes back, as it may after its channel broke, and another worker comes.
    let began = Instant::now();
    let (other, again) = (Raw::attach(&mut lane, 1, 1), Raw::attach(&mut lane, 0, 2));
    assert!(began.elapsed() < SOON / 2, "the lane does not wait for who is stopped");
    assert_eq!((other.slots(), again.slots()), (vec![1], vec![]), "one slot is in quarantine");
    assert_eq!(lane.quarantined_bytes(), lane.inbox.cell_bytes());
    lane.step(1).unwrap();
    assert_eq!(lane.engine().fencing().collect::<Vec<_>>(), [Rank(0)]);

    resume.send(()).unwrap();
    let deadline = Instant::now() + SOON;
    while lane.quarantined_bytes() > 0 {
        assert!(Instant::now() < deadline, "the fence is never done");
        lane.queue_mut().wait(Duration::from_millis(5));
        lane.step(2).unwrap();
    }
    let mut last = Raw::attach(&mut lane, 0, 3);
    assert_eq!(last.slots(), [0]);
    let payload = Region::of_bytes(vec![0x11; CHUNK_BYTES as usize]);
    let (gather, remote) = ([payload.all()], last.slot_at(0));
    let write = Write { id: 0, gather: &gather, remote, immediate: None, signaled: false };
    last.queue.post_write(last.channel, &write).unwrap();
    late.join().unwrap();
    assert!(content(&lane, 0).iter().all(|byte| *byte == 0x11), "it was written over");
}
